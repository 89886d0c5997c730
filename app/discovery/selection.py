"""Select the tools of an answer and put them in order. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.catalog.definitions import ToolDefinitionView
from app.search.interleave import interleave, unique_by
from app.search.postgres import Evidence

_MIN_NEW_TOOLS = 5

Source = Literal["core", "kept", "semantic", "lexical", "fallback"]
OmissionReason = Literal["max_tools", "max_tokens"]


@dataclass(frozen=True)
class SelectedTool:
    definition: ToolDefinitionView
    source: Source
    similarity: float | None = None
    score: float | None = None
    matched_tags: Sequence[str] = ()
    evidence: Evidence | None = None
    explanation: str | None = None
    """Why it was found, in a sentence; None unless the request asks for it."""


@dataclass(frozen=True)
class Omission:
    """How many tools were left out for want of room, and what to raise to get more of them."""

    count: int
    reason: OmissionReason


@dataclass(frozen=True)
class ToolSelection:
    tools: Sequence[SelectedTool]
    omitted: Mapping[str, OmissionReason] = field(default_factory=dict)
    """Why there was no room for a kept or found tool, by its id."""


@dataclass(frozen=True)
class Retirement:
    """Which kept tools leave a conversation that has too many."""

    max_tools: int
    idle: Collection[str]
    """The ids of those that were not used for a while."""

    def find_retired(self, selected: Sequence[SelectedTool], found: Sequence[SelectedTool]) -> set[str]:
        """Return the ids of the tools to leave out: none, unless an answer with these tools has too many.

        Core tools neither count nor leave, and a tool that is found again stays.
        """
        others = {_get_key(tool) for tool in selected if tool.source != "core"}
        if len(others) <= self.max_tools:
            return set()
        return others.intersection(self.idle).difference(map(_get_key, found))


def select_tools(
    kept: Sequence[SelectedTool],
    core: Sequence[SelectedTool],
    found: Sequence[SelectedTool],
    *,
    max_tools: int,
    max_tokens: int | None,
) -> ToolSelection:
    """Return kept tools in their old order, then core tools, then found tools, each tool once.

    Kept tools come first so that an answer only appends to what the model has. Core tools are always included: they do
    not count for `max_tools`, and kept and found tools share what they leave of `max_tokens`. Kept tools are never
    dropped for `max_tools`, and they leave room for a few new tools.
    """
    core_ids = {_get_key(tool) for tool in core}
    kept_count = len({_get_key(tool) for tool in kept} - core_ids)
    unique = list(unique_by([*kept, *core, *found], _get_key))
    others = [tool for tool in unique if _get_key(tool) not in core_ids]
    room = max(max_tools, kept_count + _MIN_NEW_TOOLS) if kept_count else max_tools
    remaining = None if max_tokens is None else max_tokens - count_tokens(tool.definition for tool in core)
    omitted: dict[str, OmissionReason] = {_get_key(tool): "max_tools" for tool in others[room:]}
    for tool in others[:room]:
        if remaining is None:
            break
        if tool.definition.tokens <= remaining:
            remaining -= tool.definition.tokens
        else:  # a smaller tool after it may still fit
            omitted[_get_key(tool)] = "max_tokens"
    return ToolSelection([tool for tool in unique if _get_key(tool) not in omitted], omitted)


def summarize_omitted(omitted: Mapping[str, OmissionReason]) -> Omission | None:
    """Return None if there was room for all tools. `max_tokens` comes first: it leaves out better tools."""
    if not omitted:
        return None
    return Omission(len(omitted), "max_tokens" if "max_tokens" in omitted.values() else "max_tools")


def interleave_selections(rankings: Sequence[Sequence[SelectedTool]], limit: int) -> list[SelectedTool]:
    """Merge the tools of several answers into one; see `interleave`."""
    return interleave(rankings, limit, _get_key, lambda tool: tool.score or 0.0)


def count_tokens(definitions: Iterable[ToolDefinitionView]) -> int:
    return sum(definition.tokens for definition in definitions)


def _get_key(tool: SelectedTool) -> str:
    return tool.definition.tool_id
