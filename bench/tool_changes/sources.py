"""Five ways to give a model its tools, message by message."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.tool_changes.catalogue import list_definitions
from toolscout_client import Conversation, Discovery, Toolscout

Json = dict[str, Any]

RECENT_MESSAGES = 20


@dataclass(frozen=True)
class Offer:
    """What a request to the model needs beside the history."""

    tools: list[Any]
    change: Json | None = None
    """To append to the history."""
    betas: Sequence[str] = ()
    allowed: list[str] | None = None
    """The names that the model may call, where the API knows no other way to take a tool away."""


class ToolSource(Protocol):
    def offer(self, history: list[Json], /) -> Offer: ...


class AllTools:
    """Without Toolscout: all tools with each request, always the same."""

    def __init__(self, _: Toolscout, api_format: Any) -> None:
        self._tools = list_definitions(api_format)

    def offer(self, _: list[Json], /) -> Offer:
        return Offer(self._tools)


class _Discoveries:
    def __init__(self, toolscout: Toolscout, api_format: Any) -> None:
        self._toolscout, self._format = toolscout, api_format

    def _discover(self, history: list[Json], **options: Any) -> Discovery:
        recent = history[-RECENT_MESSAGES:]
        # without core tools: the tool that the backend has itself is in `tools` already
        return self._toolscout.discover(messages=recent, include_core_tools=False, format=self._format, **options)


class FullArrays(_Discoveries):
    """Each message's tools as `tools`."""

    def offer(self, history: list[Json], /) -> Offer:
        return Offer(self._discover(history).definitions)


class KeptArrays(_Discoveries):
    """The same with `keep`: new tools are appended to those that the model has."""

    _found: Discovery | None = None

    def offer(self, history: list[Json], /) -> Offer:
        self._found = self._discover(history, keep=self._found or [])
        return Offer(self._found.definitions)


class ListedChanges(_Discoveries):
    """`tools` stays as it is; what changes is appended to the history. The backend keeps the last answer."""

    _found: Discovery | None = None
    _has_removed = False

    def offer(self, history: list[Json], /) -> Offer:
        self._found = self._discover(history, **self._make_keep())
        self._has_removed |= bool(self._found.removed)
        names = [tool.alias for tool in self._found.tools]
        changes = self._found.changes
        return Offer(
            [],
            None if changes is None else changes.message,
            () if changes is None else changes.betas,
            names if self._has_removed else None,
        )

    def _make_keep(self) -> Json:
        return {"keep": self._found or []}


class RememberedChanges(ListedChanges):
    """The same, but Toolscout remembers which tools the conversation has."""

    def __init__(self, toolscout: Toolscout, api_format: Any) -> None:
        super().__init__(toolscout, api_format)
        self._conversation = Conversation(uuid.uuid4().hex)
        self._turn = 0

    def _make_keep(self) -> Json:
        self._turn += 1
        return {"keep": self._conversation, "turn": self._turn}


WAYS: dict[str, Callable[[Toolscout, Any], ToolSource]] = {
    "all tools, without Toolscout": AllTools,
    "new `tools` for each message": FullArrays,
    "`keep`, tools appended to `tools`": KeptArrays,
    "changes, the backend keeps the last answer": ListedChanges,
    "changes, Toolscout remembers the conversation": RememberedChanges,
}
