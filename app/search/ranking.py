"""Rank candidates by score. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, islice
from operator import itemgetter
from typing import Literal

from app.embeddings.base import Vector
from app.search.confidence import (
    SHARED_AMONG,
    Judgement,
    RankedTool,
    count_tools,
    find_needed_subqueries,
    judge,
    stands_alone,
)
from app.search.scoring import (
    BEST_ALONE,
    Candidate,
    ScoringParams,
    Weights,
    compute_boost,
    match_tags,
    passes_threshold,
    score_alone,
    score_text,
    score_texts,
)

_MIN_SPARE_CANDIDATES = 8
_CANDIDATES_PER_TEXT = 8
_ALONE_PENALTY = 0.05


@dataclass(frozen=True)
class Hit:
    tool_id: str
    tool_name: str
    similarity: float | None
    score: float
    source: Literal["semantic", "lexical"]
    matched_tags: Sequence[str]


@dataclass(frozen=True)
class Ranking:
    """The best tools up to the limit, the confidence in them, and how many of them the answer needs."""

    hits: Sequence[Hit]
    judgement: Judgement
    size: int

    @property
    def needed(self) -> Sequence[Hit]:
        """The tools that the message needs."""
        return self.hits[: self.size]


def candidate_pool_size(params: ScoringParams, limit: int) -> int:
    """Return how many candidates to rank: more than the limit, since tool names and subqueries change the order."""
    return max(limit + _MIN_SPARE_CANDIDATES, _CANDIDATES_PER_TEXT * len(params.query.texts), SHARED_AMONG)


def rank(
    candidates: Iterable[Candidate],
    params: ScoringParams,
    weights: Weights,
    vectors: Sequence[Vector] | None,
    limit: int | None,
) -> Ranking:
    """Rank the candidates that pass the threshold, and judge how many of them the message needs.

    The best tool for each subquery is among the hits if the limit allows it. The answer does not end before it if that
    subquery by itself needs a tool.
    """
    ranked = sort_candidates(candidates, params, weights, vectors)
    judgement = judge(ranked, params, vectors)
    size = count_tools(ranked, params, judgement)
    best = _find_best_for_subqueries(ranked, weights)
    selected = _select(ranked, [tool.candidate.tool_id for tool in best.values()], limit)
    if judgement.confidence == "high" and vectors is not None:
        needed = {
            best[subquery].candidate.tool_id for subquery in find_needed_subqueries(best, params, weights, vectors)
        }
        positions = (position for position, tool in enumerate(selected, start=1) if tool.candidate.tool_id in needed)
        size = max(size, *positions, 0)
    return Ranking([_make_hit(tool, params) for tool in selected], judgement, min(size, len(selected)))


def sort_candidates(
    candidates: Iterable[Candidate], params: ScoringParams, weights: Weights, vectors: Sequence[Vector] | None
) -> list[RankedTool]:
    """Return the candidates that pass the threshold: tools that the message names first, then by score.

    Ties are broken by the unclamped score, the server's name and the tool's name. The order of the candidates does not
    matter.
    """
    message = params.query.user_text.lower()
    tools = []
    for candidate in sorted(candidates, key=itemgetter(1, 2)):  # by the names, which makes the best tool unique
        named = is_named(message, candidate.tool_name)
        if named or passes_threshold(candidate, weights):
            text_score = score_texts(candidate, weights)
            score = text_score + (0.0 if named else compute_boost(candidate, params))
            tools.append(RankedTool(candidate, score, named, text_score))
    lifted = _lift_best_for_subqueries(tools, params, weights)
    if vectors is not None and stands_alone(lifted, params, weights, vectors):
        lifted = _lift_best_alone(lifted, weights)
    return sorted(_lift_named(lifted), key=_sort_key)


def _sort_key(tool: RankedTool) -> tuple[bool, float, float, str, str]:
    candidate, score = tool.candidate, tool.score
    return not tool.is_named, -_clamp(score), -score, candidate.server_name, candidate.tool_name


def _lift_best_for_subqueries(
    tools: Sequence[RankedTool], params: ScoringParams, weights: Weights
) -> Sequence[RankedTool]:
    """Count the evidence for a subquery in full for the best tool for it, so that each subquery finds its tool."""
    lifted: dict[str, float] = {}
    for subquery, best in _find_best_for_subqueries(tools, weights).items():
        score = score_text(best.candidate, weights, subquery) + compute_boost(best.candidate, params)
        lifted[best.candidate.tool_id] = max(score, lifted.get(best.candidate.tool_id, score))
    if not lifted:
        return tools
    return [tool._replace(score=max(tool.score, lifted.get(tool.candidate.tool_id, tool.score))) for tool in tools]


def _lift_best_alone(tools: Sequence[RankedTool], weights: Weights) -> Sequence[RankedTool]:
    """Score the best tools for the message alone close to the best tool in context: both readings are plausible."""
    alone = {tool.candidate.tool_id: score_alone(tool.candidate, weights) for tool in tools}
    best = set(nlargest(BEST_ALONE, alone, key=lambda tool_id: alone[tool_id]))
    lift = max(tool.score for tool in tools) - max(alone.values()) - _ALONE_PENALTY
    return [
        tool._replace(score=max(tool.score, alone[tool.candidate.tool_id] + lift))
        if tool.candidate.tool_id in best
        else tool
        for tool in tools
    ]


def _find_best_for_subqueries(tools: Sequence[RankedTool], weights: Weights) -> dict[int, RankedTool]:
    """Return the best tool for each subquery, by the position of its text; nothing for less than two subqueries."""
    if not tools or len(weights.subqueries) < 2:
        return {}
    return {subquery: _find_best(tools, weights, subquery) for subquery in weights.subqueries}


def _find_best(tools: Sequence[RankedTool], weights: Weights, text: int) -> RankedTool:
    return max(tools, key=lambda tool: score_text(tool.candidate, weights, text))


def _select(ranked: Sequence[RankedTool], best: Sequence[str], limit: int | None) -> list[RankedTool]:
    """Return the first `limit` tools; the best for the subqueries replace the last that are not the best for any."""
    if limit is None or not best:
        return list(ranked[:limit])
    others = (tool.candidate.tool_id for tool in ranked if tool.candidate.tool_id not in best)
    selected = set(islice(chain(islice(dict.fromkeys(best), limit), others), limit))
    return [tool for tool in ranked if tool.candidate.tool_id in selected]


def _lift_named(tools: Sequence[RankedTool]) -> Sequence[RankedTool]:
    """Score tools that the message names as high as the best of the others: they are at least as likely to be right."""
    if not any(tool.is_named for tool in tools):
        return tools
    highest = max(tool.score for tool in tools)
    return [tool._replace(score=highest) if tool.is_named else tool for tool in tools]


def _make_hit(tool: RankedTool, params: ScoringParams) -> Hit:
    candidate = tool.candidate
    is_semantic = candidate.similarity is not None and candidate.similarity >= params.min_similarity
    return Hit(
        tool_id=candidate.tool_id,
        tool_name=candidate.tool_name,
        similarity=candidate.similarity,
        score=1.0 if tool.is_named else _clamp(tool.score),
        source="semantic" if is_semantic else "lexical",
        matched_tags=match_tags(candidate.tags, params),
    )


def _clamp(score: float) -> float:
    if score < 0.0:
        return 0.0
    return min(score, 1.0)


def is_named(message: str, tool_name: str) -> bool:
    """Whether a message in lower case contains the tool's name.

    An identifier such as `search_issues` is not an ordinary word, so it counts anywhere. A name such as `search` or
    `Weather forecast` also occurs in messages that mean something else: it counts only alone or in quotes.
    """
    name = tool_name.lower()
    if name not in message:
        return False
    if message.strip() == name:
        return True
    escaped = re.escape(name)
    if " " in name or (tool_name.isalpha() and (tool_name.islower() or tool_name.istitle())):
        return re.search(rf"[`\"']{escaped}[`\"']", message) is not None
    return re.search(rf"(?<![\w-]){escaped}(?![\w-])", message) is not None
