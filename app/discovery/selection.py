"""Select the tools of an answer and put them in order. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from app.catalog.definitions import ToolDefinitionView
from app.search.interleave import interleave, unique_by
from app.search.postgres import Evidence

_MIN_NEW_TOOLS = 5

Source = Literal["core", "kept", "semantic", "lexical", "fallback"]


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


def select_tools(
    kept: Sequence[SelectedTool],
    core: Sequence[SelectedTool],
    found: Sequence[SelectedTool],
    *,
    max_tools: int,
    max_tokens: int | None,
) -> list[SelectedTool]:
    """Return kept tools in their old order, then core tools, then found tools, each tool once.

    Kept tools come first so that the provider's prompt cache stays valid. They are never dropped for `max_tools`, and
    they leave room for a few new tools.
    """
    kept = list(unique_by(kept, _get_key))
    unique = list(unique_by([*kept, *core, *found], _get_key))
    return list(_limit_tokens(unique[: max(max_tools, len(kept) + _MIN_NEW_TOOLS)], max_tokens))


def interleave_selections(rankings: Sequence[Sequence[SelectedTool]], limit: int) -> list[SelectedTool]:
    """Merge the tools of several answers into one; see `interleave`."""
    return interleave(rankings, limit, _get_key, lambda tool: tool.score or 0.0)


def count_tokens(definitions: Iterable[ToolDefinitionView]) -> int:
    return sum(definition.tokens for definition in definitions)


def _get_key(tool: SelectedTool) -> str:
    return tool.definition.tool_id


def _limit_tokens(tools: Iterable[SelectedTool], max_tokens: int | None) -> Iterator[SelectedTool]:
    """Skip a tool that exceeds the remaining budget; a smaller tool after it may still fit."""
    remaining = max_tokens
    for tool in tools:
        if remaining is None:
            yield tool
        elif tool.definition.tokens <= remaining:
            remaining -= tool.definition.tokens
            yield tool
