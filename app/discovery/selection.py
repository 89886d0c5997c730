"""Which tools make it into the answer, and in which order. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Literal

from app.catalog.offers import Offer
from app.search.hybrid import Evidence

_ROOM_FOR_NEW = 5

Source = Literal["core", "kept", "semantic", "lexical", "fallback"]


@dataclass(frozen=True)
class Selected:
    offer: Offer
    source: Source
    similarity: float | None = None
    score: float | None = None
    matched_tags: Sequence[str] = ()
    evidence: Evidence | None = None


def select_tools(
    kept: Sequence[Selected],
    core: Sequence[Selected],
    found: Sequence[Selected],
    *,
    most: int,
    max_tokens: int | None,
) -> list[Selected]:
    """Kept tools first, in their old order: a provider's prompt cache survives. Then core, then what was found.

    `most` bounds the answer, but what the model was given before stays, however much that is, with a little room for
    what this message adds.
    """
    before = list(_each_once(kept))
    unique = list(_each_once([*before, *core, *found]))
    return list(_within_budget(unique[: max(most, len(before) + _ROOM_FOR_NEW)], max_tokens))


def take_turns(rankings: Sequence[Sequence[Selected]], most: int) -> list[Selected]:
    """The best of each ranking, then the second of each, until there are enough; then by score. Each tool once, as the
    ranking shows it that likes it best."""
    turns = [tool for turn in zip_longest(*rankings) for tool in turn if tool is not None]
    best = {tool.offer.tool_id: tool for tool in sorted(turns, key=_score)}
    taken = [best[tool.offer.tool_id] for tool in islice(_each_once(turns), most)]
    return sorted(taken, key=_score, reverse=True)


def _score(tool: Selected) -> float:
    return tool.score or 0.0


def _each_once(tools: Iterable[Selected]) -> Iterator[Selected]:
    seen: set[str] = set()
    for tool in tools:
        if tool.offer.tool_id not in seen:
            seen.add(tool.offer.tool_id)
            yield tool


def _within_budget(tools: Iterable[Selected], max_tokens: int | None) -> Iterator[Selected]:
    """A tool that is too large for what is left is passed over; a smaller one behind it may still fit."""
    left = max_tokens
    for tool in tools:
        if left is None:
            yield tool
        elif tool.offer.tokens <= left:
            left -= tool.offer.tokens
            yield tool
