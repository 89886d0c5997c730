"""A conversation of ten messages, written by hand, and a script that plays the model's part."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from examples.fake_model import Turn, View

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    any_of: list[str]
    """Names of tools that would do, the best first."""
    arguments: Json
    result: str


@dataclass(frozen=True)
class Exchange:
    """A message of the user, and what the model does about it."""

    user: str
    thinking: str
    calls: list[Call]
    text: str


def read_conversation() -> list[Exchange]:
    exchanges = orjson.loads((Path(__file__).parent / "conversation.json").read_bytes())
    return [Exchange(**{**each, "calls": [Call(**call) for call in each["calls"]]}) for each in exchanges]


@dataclass
class Script:
    """Plays the model. It calls nothing that it was not given, or that was taken from it."""

    exchanges: list[Exchange] = field(default_factory=read_conversation)
    missing: list[str] = field(default_factory=list)
    """Calls that the model could not make, by the name of their best tool."""
    tool_counts: dict[int, int] = field(default_factory=dict)
    """How many tools the model could call, by the number of the message."""

    def decide(self, view: View) -> Turn:
        self.tool_counts[view.message_number] = len(view.tools)
        exchange = self.exchanges[view.message_number - 1]
        if len(view.results) == len(exchange.calls):
            return Turn(text=exchange.text, thinking=exchange.thinking)
        call = exchange.calls[len(view.results)]
        name = next((name for name in call.any_of if name in view.tools), None)
        if name is None:
            self.missing.append(call.any_of[0])
            return Turn(text="I have no tool for that.", thinking=exchange.thinking)
        return Turn(tool=name, arguments=call.arguments, thinking=exchange.thinking)

    def find_result(self, message_number: int, name: str) -> str:
        return next(call.result for call in self.exchanges[message_number - 1].calls if name in call.any_of)
