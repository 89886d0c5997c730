"""Judge how likely it is that any tool fits a message, and how many tools its answer needs. Pure.

The model's calibration turns the evidence for the best tool, and the message's look, into the chance that any tool
fits. That chance gives the confidence of the answer:

- `high`: the answer has each tool whose own chance of being the right one is not negligible.
- `low`: the answer has the best few of these.
- `none`: the answer is empty, because the message almost certainly needs no tool.

A tool's own chance is its share of the chance that any tool fits. Shares follow from the distances between the scores,
so that a tool far ahead of the others is returned alone, and tools that are level are returned together. The answer is
always the beginning of the whole ranking.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, NamedTuple

from app.embeddings.base import Vector
from app.embeddings.calibration import MIN_CHANCE
from app.search.examples import MIN_BOOST_TO_ANSWER, MIN_BOOST_TO_PASS
from app.search.language import ENGLISH
from app.search.scoring import (
    CONTEXT_WEIGHT,
    Candidate,
    ScoringParams,
    Weights,
    make_hybrid_weights,
    score_alone,
    score_text,
    score_texts,
)

Confidence = Literal["high", "low", "none"]

MAX_LOW = 3
"""The maximum size of an answer of low confidence."""
SHARED_AMONG = 32
"""How many of the best tools share the chance; a fixed number, so that an answer does not depend on its limit."""
_HIGH_BM25_SHARE = 0.5
_CONTEXT_UNCERTAINTY = 2.0
"""A message in a conversation has two readings, so that the scores tell less."""


class RankedTool(NamedTuple):
    """It is a tuple because every search makes dozens."""

    candidate: Candidate
    score: float
    """What tools are ranked by, before it is clamped to 0..1."""
    is_named: bool
    """Whether the message names the tool."""
    text_score: float
    """The score of the texts alone, without boosts."""


@dataclass(frozen=True)
class Judgement:
    confidence: Confidence
    chance: float | None = None
    """The chance that any tool fits; None if the model is not calibrated or the search is by words alone."""
    names_tool: bool = False
    """The message names a tool, which raises the chance."""


def judge(ranking: Sequence[RankedTool], params: ScoringParams, vectors: Sequence[Vector] | None) -> Judgement:
    """Return the confidence in the best tools of a ranking; `vectors` are those of the query's texts.

    A request with a threshold of its own gets every tool that passes it. A message that names a tool needs one.
    """
    if params.query.is_closing and params.threshold is None and vectors is not None:
        return Judgement("none", 0.0)
    if not ranking:
        return Judgement("none")
    if vectors is None:
        return _judge_by_words(ranking)
    if not params.calibration.is_fitted:
        return Judgement("high")
    chance = _estimate_match(ranking, params, vectors)
    if any(tool.is_named for tool in ranking):
        return Judgement("high", max(chance, params.calibration.min_high), names_tool=True)
    if chance >= params.calibration.min_high:
        return Judgement("high", chance)
    if _may_be_empty(ranking, params, chance):
        return Judgement("none", chance)
    return Judgement("low", max(chance, params.calibration.min_low))


def count_tools(ranking: Sequence[RankedTool], params: ScoringParams, judgement: Judgement) -> int:
    """Return how many tools of the ranking the answer needs."""
    if judgement.confidence == "none":
        return 0
    if params.fill or params.threshold is not None or judgement.chance is None:
        return len(ranking)
    likely = list(takewhile(lambda chance: chance >= MIN_CHANCE, share_chance(ranking, params, judgement.chance)))
    return max(1, min(len(likely), MAX_LOW if judgement.confidence == "low" else len(likely)))


def share_chance(ranking: Sequence[RankedTool], params: ScoringParams, chance: float) -> list[float]:
    """Return the chance of each tool of being the right one: the higher one of that with and without its examples.

    Examples put a tool first, but they do not make the tools after it less likely: what was used last time is not
    always what is meant now.
    """
    shares = _share_by_score([tool.score for tool in ranking], params, chance)
    if not any(tool.candidate.example_boost for tool in ranking):
        return shares
    without = _share_by_score([tool.score - tool.candidate.example_boost for tool in ranking], params, chance)
    return list(map(max, shares, without))


def _share_by_score(scores: Sequence[float], params: ScoringParams, chance: float) -> list[float]:
    highest = max(scores)
    temperature = params.calibration.temperature * (_CONTEXT_UNCERTAINTY if params.query.context else 1.0)
    weights = [math.exp((score - highest) / temperature) for score in scores]
    total = math.fsum(weights[:SHARED_AMONG])
    return [chance * weight / total for weight in weights]


def find_needed_subqueries(
    best: Mapping[int, RankedTool], params: ScoringParams, weights: Weights, vectors: Sequence[Vector]
) -> list[int]:
    """Return those subqueries that need a tool by themselves; `best` is the best tool for each.

    Many sentences only give the background of a request, and their best tool is of no use.
    """
    calibration = params.calibration
    if not calibration.is_fitted:
        return list(best)
    chances = {
        subquery: calibration.estimate_match(
            score_text(tool.candidate, weights, subquery), calibration.score_tool_need(vectors[subquery])
        )
        for subquery, tool in best.items()
    }
    return [subquery for subquery, chance in chances.items() if chance >= calibration.min_high]


def stands_alone(
    tools: Sequence[RankedTool], params: ScoringParams, weights: Weights, vectors: Sequence[Vector]
) -> bool:
    """Whether a message of a conversation finds a tool by itself, as after a change of the subject."""
    calibration = params.calibration
    if not (tools and params.query.context and calibration.is_fitted):
        return False
    evidence = max(score_alone(tool.candidate, weights) for tool in tools)
    return calibration.estimate_match(evidence, calibration.score_tool_need(vectors[0])) >= calibration.min_high


def measure_evidence(tools: Sequence[RankedTool], params: ScoringParams) -> float:
    """Return the evidence for the best of the tools: of its texts and of its examples, without other boosts.

    Examples count as far as they add more than they often do for messages that need no tool.
    """
    if not tools:
        return 0.0
    weights = make_hybrid_weights(params)
    is_hybrid = params.strategy == "hybrid"  # the texts have been weighed like this already
    return max(
        (tool.text_score if is_hybrid else score_texts(tool.candidate, weights))
        + max(tool.candidate.example_boost - MIN_BOOST_TO_PASS, 0.0)
        for tool in tools
    )


def measure_need(params: ScoringParams, vectors: Sequence[Vector]) -> float:
    """Return how much a message, read alone and in its context, looks like one that needs a tool.

    "Yes please" after an offer needs what was offered, however little it says by itself.
    """
    alone = params.calibration.score_tool_need(vectors[0])
    if not params.query.context:
        return alone
    in_context = params.calibration.score_tool_need(vectors[-1])
    if params.query.follows_offer:
        return max(alone, in_context)
    return max(alone, (1 - CONTEXT_WEIGHT) * alone + CONTEXT_WEIGHT * in_context)


def _estimate_match(ranking: Sequence[RankedTool], params: ScoringParams, vectors: Sequence[Vector]) -> float:
    evidence = measure_evidence(ranking[:SHARED_AMONG], params)
    return params.calibration.estimate_match(evidence, measure_need(params, vectors))


def _may_be_empty(ranking: Sequence[RankedTool], params: ScoringParams, chance: float) -> bool:
    """Whether the message is so unlikely to need a tool that it gets none.

    The calibration knows English messages only. After a tool call, the next message may well need that tool again, and
    so may a message like those for which a tool was used.
    """
    if params.threshold is not None or params.query.language != ENGLISH or chance >= params.calibration.min_low:
        return False
    return not any(
        tool.candidate.tool_name in params.query.called or tool.candidate.example_boost >= MIN_BOOST_TO_ANSWER
        for tool in ranking
    )


def _judge_by_words(ranking: Sequence[RankedTool]) -> Judgement:
    """Return high confidence if the best tool contains most of the message's words, weighed by their rarity."""
    best = ranking[0]
    return Judgement("high" if best.is_named or best.score >= _HIGH_BM25_SHARE else "low")
