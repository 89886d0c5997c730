"""What the examples share: a client of Toolscout, and tool calls whose errors the model can read."""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Unpack

from toolscout_client import Conflict, Discovery, InvalidInput, NotFound, ToolFailed, Toolscout
from toolscout_client.models import DiscoveryOptions

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


def find_tools(toolscout: Toolscout, arguments: Any, **options: Unpack[DiscoveryOptions]) -> Discovery | str:
    """Return what the model's search finds, or for the model what is wrong with the arguments of its search."""
    query = arguments.get("query") if isinstance(arguments, Mapping) else None
    try:
        # without core tools: a backend has its own tools in `tools` from the start, and runs them itself
        wanted: DiscoveryOptions = {"limit": 5, "include_core_tools": False, **options}
        found = toolscout.discover(query, **wanted)
    except InvalidInput as error:
        if error.status != 422:  # not about the arguments
            raise
        print(f"searched   {json.dumps(arguments)}: {error.code}")
        return f"Nothing was searched. `query` must be the task in one sentence. {error}"
    names = ", ".join(tool.alias for tool in found.tools) or "nothing"
    print(f"searched   {json.dumps(query)}: {names} ({found.tokens.selected} tokens instead of {found.tokens.all})")
    return found


def run_tool(toolscout: Toolscout, call: Mapping[str, Any], **options: Any) -> tuple[str, bool]:
    """Run the model's tool call, which Toolscout accepts as it is. Return the text, and whether it is an error."""
    try:
        done = toolscout.execute(tool_call=call, **options)
        text, failed = done.text, done.is_error  # a real backend would pass on images too
    except (NotFound, Conflict, InvalidInput, ToolFailed) as error:
        text, failed = str(error), True
    print(f"result     {text}{' (an error)' if failed else ''}")
    return text, failed
