"""Which tools make it into the answer, and in which order. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from app.catalog.definitions import ToolDefinitionView
from app.search.interleave import interleave, unique_by
from app.search.postgres import Evidence

_ROOM_FOR_NEW = 5

Source = Literal["core", "kept", "semantic", "lexical", "fallback"]


@dataclass(frozen=True)
class SelectedTool:
    offer: ToolDefinitionView
    source: Source
    similarity: float | None = None
    score: float | None = None
    matched_tags: Sequence[str] = ()
    evidence: Evidence | None = None


def select_tools(
    kept: Sequence[SelectedTool],
    core: Sequence[SelectedTool],
    found: Sequence[SelectedTool],
    *,
    most: int,
    max_tokens: int | None,
) -> list[SelectedTool]:
    """Kept tools first, in their old order: a provider's prompt cache survives. Then core, then what was found.

    `most` bounds the answer, but what the model was given before stays, however much that is, with a little room for
    what this message adds.
    """
    before = list(unique_by(kept, _key))
    unique = list(unique_by([*before, *core, *found], _key))
    return list(_within_budget(unique[: max(most, len(before) + _ROOM_FOR_NEW)], max_tokens))


def take_turns(rankings: Sequence[Sequence[SelectedTool]], most: int) -> list[SelectedTool]:
    return interleave(rankings, most, _key, _score)


def _score(tool: SelectedTool) -> float:
    return tool.score or 0.0


def _key(tool: SelectedTool) -> str:
    return tool.offer.tool_id


def _within_budget(tools: Iterable[SelectedTool], max_tokens: int | None) -> Iterator[SelectedTool]:
    """A tool that is too large for what is left is passed over; a smaller one behind it may still fit."""
    left = max_tokens
    for tool in tools:
        if left is None:
            yield tool
        elif tool.offer.tokens <= left:
            left -= tool.offer.tokens
            yield tool
