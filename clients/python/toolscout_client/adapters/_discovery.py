"""What the adapters share that search with a framework's messages: turns to send, and failures to go on after."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolscout_client.errors import ConnectionFailed, ToolscoutError, TryLater
from toolscout_client.models import Json

OnError = Literal["raise", "continue"]
"""What to do if Toolscout cannot be reached: raise its error, or go on with the tools that are there already."""

MAX_TURNS = 20
MAX_TURN_CHARS = 4_000
"""Both are more than a search reads, and small enough for one request."""

_logger = logging.getLogger("toolscout_client")


def make_turn(role: Literal["user", "assistant", "tool"], text: str, calls: Sequence[tuple[str, Any]] = ()) -> Json:
    """Return a message in OpenAI's format. `calls` are the names and arguments of the assistant's tool calls."""
    half = MAX_TURN_CHARS // 2
    turn: Json = {"role": role, "content": text if len(text) <= MAX_TURN_CHARS else f"{text[:half]}\n{text[-half:]}"}
    if calls:
        turn["tool_calls"] = [_make_call(name, arguments) for name, arguments in calls]
    return turn


def _make_call(name: str, arguments: Any) -> Json:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    return {"type": "function", "function": {"name": name, "arguments": text[:MAX_TURN_CHARS]}}


def recent_turns(turns: Sequence[Json]) -> list[Json] | None:
    """Return the turns to search with, or None if the user has not written anything.

    They begin at least with the user's last message: an agent may have called many tools since.
    """
    asked = [position for position, turn in enumerate(turns) if turn["role"] == "user" and turn["content"].strip()]
    if not asked:
        return None
    start = min(len(turns) - MAX_TURNS, asked[-1])
    return list(turns[max(start, 0) :][:MAX_TURNS])


def continue_without(error: ToolscoutError, on_error: OnError) -> None:
    """Raise the error, unless it will pass by itself and the application wants to go on."""
    is_outage = isinstance(error, ConnectionFailed | TryLater) or (error.status or 0) >= 500
    if on_error == "raise" or not is_outage:
        raise error
    _logger.warning("tool discovery failed, no tools are added: %s", error)


def with_properties(schema: Mapping[str, Any]) -> Json:
    """Return the schema as frameworks and model APIs want it: of an object, with `properties`."""
    return {"type": "object", "properties": {}, **schema}
