"""What the examples share: a client of Toolscout, and tool calls whose errors the model can read."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from toolscout_client import Conflict, Discovery, InvalidInput, NotFound, ToolFailed, Toolscout

CHECK = "Check that Toolscout runs at TOOLSCOUT_URL and that TOOLSCOUT_KEY is one of its keys."


def get_toolscout_address() -> tuple[str, str]:
    """Return the URL and the key of Toolscout."""
    if "TOOLSCOUT_KEY" not in os.environ:
        sys.exit("set TOOLSCOUT_KEY to a user's key: `.venv/bin/toolscout key create --user demo` creates one")
    return os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8000"), os.environ["TOOLSCOUT_KEY"]


def open_toolscout() -> Toolscout:
    return Toolscout(*get_toolscout_address())


def print_found(found: Discovery) -> None:
    """Print the tools that a conversation gains and loses."""
    added = ", ".join(tool.alias for tool in found.tools if tool.tool_key in (found.added or [])) or "nothing new"
    lost = f", {len(found.removed)} lost" if found.removed else ""
    print(f"found      {added} (now {len(found.tools)} tools, {found.tokens.selected} tokens{lost})")


def run_tool(toolscout: Toolscout, call: Mapping[str, Any], **options: Any) -> tuple[str, bool]:
    """Run the model's tool call, which Toolscout accepts as it is. Return the text, and whether it is an error."""
    try:
        done = toolscout.execute(tool_call=call, **options)
        text, failed = done.text, done.is_error  # a real backend would pass on images too
    except (NotFound, Conflict, InvalidInput, ToolFailed) as error:
        text, failed = str(error), True
    print(f"result     {text}{' (an error)' if failed else ''}")
    return text, failed
