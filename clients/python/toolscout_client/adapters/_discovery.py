"""What the adapters share that search with the messages of a framework's own types."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolscout_client.errors import ConnectionFailed, ToolscoutError, TryLater
from toolscout_client.models import Json

OnError = Literal["raise", "continue"]
"""What to do if Toolscout cannot be reached: raise its error, or go on with the tools that are there already."""
MAX_KEPT = 20
"""A conversation with more tools keeps only those that were called."""

SEARCH_DESCRIPTION = "Find tools for a task. Call it when you have no suitable tool, with the task in one sentence."
"""Of the tool with which a model searches."""

_logger = logging.getLogger("toolscout_client")


def make_message(role: Literal["user", "assistant", "tool"], text: str, calls: Sequence[tuple[str, Any]] = ()) -> Json:
    """Return a message in OpenAI's format. `calls` are the names and arguments of the assistant's tool calls."""
    message: Json = {"role": role, "content": text}
    if calls:
        message["tool_calls"] = [_make_call(name, arguments) for name, arguments in calls]
    return message


def _make_call(name: str, arguments: Any) -> Json:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    return {"type": "function", "function": {"name": name, "arguments": text}}


def was_called(name: str, called: set[str]) -> bool:
    """Whether the model has called a tool, which may have been renamed by `rename_taken`."""
    return name in called or f"toolscout_{name}" in called


def continue_without(error: ToolscoutError, on_error: OnError) -> None:
    """Raise the error, unless it will pass by itself and the application wants to go on."""
    is_outage = isinstance(error, ConnectionFailed | TryLater) or (error.status or 0) >= 500
    if on_error == "raise" or not is_outage:
        raise error
    _logger.warning("tool discovery failed, no tools are added: %s", error)


def with_properties(schema: Mapping[str, Any]) -> Json:
    """Return the schema as frameworks and model APIs want it: of an object, with `properties`."""
    return {"type": "object", "properties": {}, **schema}


def describe_found(names: Sequence[str]) -> str:
    """Return the answer to a model's search that has found these tools, beside those that it had."""
    if not names:
        return "No further tool fits. Use one that you have, describe the task in other words, or do without."
    return f"Available tools: {', '.join(names)}"
