"""What the fake model does when it is its turn.

It searches with the user's message if it has to, calls the tool whose name has most words in common with the message
(or the first one) and repeats the result. It fills the required arguments with what a pattern finds in the message: a
number, a calculation, a unit, a place, or else the whole message.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

SEARCH_NAMES = ("find_tools", "tool_search", "retrieve_tools")
"""How the tool that finds tools is called in the examples."""


@dataclass
class View:
    """What the model sees of a conversation."""

    message: str = ""
    message_number: int = 0
    tools: Mapping[str, Json] = field(default_factory=dict)
    """Input schemas by name, of the tools that it can call now. Those that it was given last come first,
    those that it was given together in their order."""
    search: tuple[str, Json] | None = None
    """Name and input schema of the tool that finds tools, unless it was called for this message already."""
    results: list[str] = field(default_factory=list)
    """What the calls for this message returned."""

    def begin_message(self, text: str) -> None:
        self.message, self.results = text, []
        self.message_number += 1


@dataclass(frozen=True)
class Turn:
    """The next turn of the model: a search, a tool call or a text."""

    text: str = ""
    thinking: str = "The user wants something. I look at my tools."
    search: Json | None = None
    tool: str | None = None
    arguments: Json | None = None


def decide_turn(view: View) -> Turn:
    if view.results:
        return Turn(text=f"The tool says: {view.results[-1]}")
    if view.search is not None:
        return Turn(search=arguments_for(view.search[1], view.message))
    if not view.tools:
        return Turn(text="I have no tool for that.")
    words = set(re.findall(r"\w{4,}", view.message.lower()))
    # max returns the first tool if no name matches better
    name = max(view.tools, key=lambda tool: len(words & set(tool.lower().split("_"))))
    return Turn(tool=name, arguments=arguments_for(view.tools[name], view.message))


def arguments_for(schema: Json, message: str) -> Json:
    properties = schema.get("properties", {})
    return {name: _make_value(name, properties.get(name, {}), message) for name in schema.get("required", [])}


_PLACE = r"\b(?:in|at|near|to|for) ([A-Z]\w+(?: [A-Z]\w+)*)"
_TEXTS = {
    "query": r"(.*)",
    "expression": r"([\d(][\d\s.+*/^()-]*[\d)])",
    "from": r"\d\s*([^\W\d]+)",  # the unit behind a number
    "to": r"\b(?:to|into|in|many) ([^\W\d]+)",
}
"""Patterns by a word in the parameter's name; for all others there is `_PLACE`."""


def _make_value(name: str, schema: Json, message: str) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "string":
        pattern = next((_TEXTS[word] for word in name.split("_") if word in _TEXTS), _PLACE)
        found = re.search(pattern, message, re.DOTALL)
        return found[1] if found else message
    if kind in ("number", "integer") and (number := re.search(r"\d+(?:\.\d+)?", message)):
        return float(number[0]) if kind == "number" else int(float(number[0]))
    array = [_make_value(name, schema.get("items", {}), message)] if schema.get("minItems") else []
    simple_values: Json = {"boolean": False, "array": array, "object": arguments_for(schema, message), "null": None}
    return simple_values.get(kind, schema.get("minimum", 1))
