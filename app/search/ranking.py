"""Rank candidates by score, and decide whether any of them fits. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Literal

from app.embeddings.base import Vector
from app.search.scoring import (
    Candidate,
    ScoringParams,
    Weights,
    compute_boost,
    make_hybrid_weights,
    match_tags,
    passes_threshold,
    score_text,
    score_texts,
)

_MIN_SPARE_CANDIDATES = 8
_CANDIDATES_PER_TEXT = 8


@dataclass(frozen=True)
class Hit:
    tool_id: str
    tool_name: str
    similarity: float | None
    score: float
    source: Literal["semantic", "lexical"]
    matched_tags: Sequence[str]


def candidate_pool_size(params: ScoringParams, limit: int) -> int:
    """Return how many candidates to rank: more than the limit, since tool names and subqueries change the order."""
    return max(limit + _MIN_SPARE_CANDIDATES, _CANDIDATES_PER_TEXT * len(params.query.texts))


def rank(candidates: Iterable[Candidate], params: ScoringParams, weights: Weights, limit: int) -> list[Hit]:
    """Return the best candidates: tools that the message names first, then by score.

    Ties are broken by the unclamped score, the server's name and the tool's name. The best tool for each subquery is
    among the hits if the limit allows it.
    """
    message = params.query.user_text.lower()
    ranking = []
    for candidate in candidates:
        named = is_named(message, candidate.tool_name)
        if named or passes_threshold(candidate, weights):
            score = score_texts(candidate, weights) + (0.0 if named else compute_boost(candidate, params))
            clamped = min(max(score, 0.0), 1.0)
            sort_key = (not named, -clamped, -score, candidate.server_name, candidate.tool_name)
            ranking.append((sort_key, candidate, 1.0 if named else clamped))
    ranking.sort(key=itemgetter(0))
    selected = _select_ids([candidate for _, candidate, _ in ranking], weights, limit)
    return [_make_hit(candidate, params, score) for _, candidate, score in ranking if candidate.tool_id in selected]


def _select_ids(ranking: Sequence[Candidate], weights: Weights, limit: int) -> set[str]:
    """Return the ids of the first `limit` candidates.

    With several subqueries, the best tool for each replaces the last tools that are not the best for any.
    """
    subqueries = range(1, len(weights.bm25))
    if not ranking or len(subqueries) < 2:
        subqueries = range(0)
    best = dict.fromkeys(max(ranking, key=lambda tool: score_text(tool, weights, text)).tool_id for text in subqueries)
    others = (candidate.tool_id for candidate in ranking if candidate.tool_id not in best)
    return set(islice((*islice(best, limit), *others), limit))


def _make_hit(candidate: Candidate, params: ScoringParams, score: float) -> Hit:
    is_semantic = candidate.similarity is not None and candidate.similarity >= params.min_similarity
    return Hit(
        tool_id=candidate.tool_id,
        tool_name=candidate.tool_name,
        similarity=candidate.similarity,
        score=score,
        source="semantic" if is_semantic else "lexical",
        matched_tags=match_tags(candidate.tags, params),
    )


def should_abstain(candidates: Sequence[Candidate], params: ScoringParams, vector: Vector) -> bool:
    """Whether no tool fits, by the model's calibration. `vector` is the search text's embedding.

    A request with its own threshold never abstains, nor does a message that names a tool, unless it only says goodbye.
    """
    if params.threshold is not None:
        return False
    if params.query.is_closing:
        return True
    weights = make_hybrid_weights(params.calibration, len(params.query.texts))
    best = max((score_texts(candidate, weights) for candidate in candidates), default=0.0)
    if params.calibration.is_match(best, vector):
        return False
    message = params.query.user_text.lower()
    return not any(is_named(message, candidate.tool_name) for candidate in candidates)


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
