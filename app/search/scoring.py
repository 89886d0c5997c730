"""From two kinds of evidence to one order. Pure.

The evidence for a tool is a sum: how much nearer its vector is to the query's than an unrelated tool's would be, in the
model's own measure, and a little for each unit of BM25. Nothing is scaled to the best of the lot, so a score means the
same in every answer, and words weigh the more, the rarer they are among the user's own tools. Where a message has
several aims, the evidence for an aim lifts a tool half of the way up to it: `max(whole, (whole + aim) / 2)`. On top
come small boosts: for asked tags, for doing what the message wants done (`actions.py`), for good use and recent calls.

Chosen on public sets of labelled messages (`make bench-relevance`): against scores that are brought to 0..1 over a pool
of candidates the sum is level or ahead on all of them, and needs no pool.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Literal, NamedTuple

from app.embeddings.base import Vector
from app.embeddings.calibration import UNCALIBRATED, Calibration
from app.search.bm25 import query_term_ids
from app.search.intents import Action, actions_wanted, agreement
from app.search.query import Query
from app.usage.priors import MAX_PRIOR

Strategy = Literal["hybrid", "semantic", "bm25"]

WORD_WEIGHT = 0.011
"""Of one unit of BM25, beside a way of 1 from unrelated to the same."""
TAG_BOOST = 0.2
ACTION_BOOST = 0.03
"""For a tool that does what the message wants to be done; as much off for one that does something else."""
CALLED_BOOST = 0.03
"""For a tool that the conversation has called lately."""
STRONG_WORDS = 0.5
"""A tool found by words alone must match at least this share of the message's weight in words."""
_MORE_THAN_WANTED = 8
_OF_EACH_TEXT = 8
_ANY_WORD = 1e-9
_NEVER = 1e9
_WITH_ONE_AIM = 2


class Candidate(NamedTuple):
    """A tuple, since every search makes a hundred of them. Both kinds of evidence: first for the whole query, then for
    each of its aims."""

    tool_id: str
    server_name: str
    tool_name: str
    tags: Sequence[str]
    similarities: Sequence[float | None]
    bm25s: Sequence[float]
    action: int = Action.UNKNOWN
    prior: float = 0.0

    @property
    def similarity(self) -> float | None:
        return self.similarities[0]


@dataclass(frozen=True)
class Hit:
    tool_id: str
    tool_name: str
    similarity: float | None
    score: float
    source: Literal["semantic", "lexical"]
    matched_tags: Sequence[str]


@dataclass(frozen=True)
class ScoringParams:
    """What ranking needs to know of a request.

    `threshold` applies to the plain cosine; None is the model's own, with its judgement of whether anything fits.
    """

    query: Query
    strategy: Strategy
    threshold: float | None
    tags: Sequence[str] = ()
    calibration: Calibration = UNCALIBRATED

    @property
    def least_similarity(self) -> float:
        return self.calibration.threshold if self.threshold is None else self.threshold

    @cached_property
    def places(self) -> Sequence[Sequence[int]]:
        """Where the terms of the query stand, and those of each aim."""
        if self.strategy == "semantic":
            return [() for _ in self.query.texts]
        whole = query_term_ids(self.query.whole)
        known = set(whole)
        return [whole, *([place for place in query_term_ids(aim) if place in known] for aim in self.query.aims)]

    @cached_property
    def wanted(self) -> int:
        """The actions, as numbers; none where a search by one kind of evidence alone was asked for."""
        return int(actions_wanted(self.query.aims or (self.query.whole,))) if self.strategy == "hybrid" else 0


@dataclass(frozen=True)
class Weights:
    """How evidence is weighed: `meaning` for a cosine above `unrelated`, `words` for a unit of BM25, for the whole
    query and for each aim. A tool passes with a cosine of `least`, or a BM25 of `strong`."""

    unrelated: float
    meaning: float
    words: Sequence[float]
    least: float
    strong: float

    def evidence(self, candidate: Candidate, text: int) -> float:
        """For the whole query (0), or for an aim. What has no vector yet is as near as an unrelated tool would be."""
        similarity = candidate.similarities[text]
        above = 0.0 if similarity is None else similarity - self.unrelated
        return self.meaning * above + self.words[text] * candidate.bm25s[text]

    def fused(self, candidate: Candidate) -> float:
        best = whole = self.evidence(candidate, 0)
        for aim in range(1, len(self.words)):
            best = max(best, (whole + self.evidence(candidate, aim)) / 2)
        return best


def make_weights(question: ScoringParams, most_bm25: Sequence[float]) -> Weights:
    """`most_bm25`: the most that the query, and each of its aims, could score by words."""
    calibration, texts = question.calibration, len(most_bm25)
    # a threshold of zero lets everything pass, even what is the contrary, or has no vector yet
    least = question.least_similarity if question.least_similarity > 0 else -1.0
    if question.strategy == "semantic":
        return Weights(0.0, 1.0, [0.0] * texts, least, strong=_NEVER)
    if question.strategy == "bm25":
        return Weights(0.0, 0.0, [1 / most if most else 0.0 for most in most_bm25], least=_NEVER, strong=_ANY_WORD)
    return _both(calibration, texts, least, STRONG_WORDS * most_bm25[0] or _NEVER)


def _both(calibration: Calibration, texts: int, least: float = _NEVER, strong: float = _NEVER) -> Weights:
    return Weights(calibration.unrelated, 1 / calibration.span, [WORD_WEIGHT] * texts, least, strong)


def candidate_pool_size(question: ScoringParams, limit: int) -> int:
    """How many of the best are to be ranked: more than are wanted, since names and aims change their order."""
    return max(limit + _MORE_THAN_WANTED, _OF_EACH_TEXT * len(question.query.texts))


def passes(candidate: Candidate, scale: Weights) -> bool:
    if candidate.bm25s[0] >= scale.strong or scale.least <= -1:
        return True
    return any(similarity is not None and similarity >= scale.least for similarity in candidate.similarities)


def rank(candidates: Iterable[Candidate], question: ScoringParams, scale: Weights, limit: int) -> list[Hit]:
    """The best first: tools that the message names, then by score; ties by unclamped score, server and tool name. Of
    each aim the best tool is among them, where there is room."""
    message = question.query.said.lower()
    judged = []
    for candidate in candidates:
        named = is_named(message, candidate.tool_name)
        if named or passes(candidate, scale):
            raw = scale.fused(candidate) + (0.0 if named else boost(candidate, question))
            order = (not named, -min(max(raw, 0.0), 1.0), -raw, candidate.server_name, candidate.tool_name)
            judged.append((order, candidate))
    judged.sort(key=itemgetter(0))
    chosen = _chosen([candidate for _, candidate in judged], scale, limit)
    return [_hit(candidate, question, order) for order, candidate in judged if candidate.tool_id in chosen]


def boost(candidate: Candidate, question: ScoringParams) -> float:
    """What tags, the tool's action, good use (by `MAX_PRIOR` at most) and the conversation add."""
    tagged = TAG_BOOST * len(matched_tags(candidate.tags, question)) if question.tags else 0.0
    called = CALLED_BOOST if candidate.tool_name in question.query.called else 0.0
    return (
        tagged + ACTION_BOOST * agreement(question.wanted, candidate.action) + min(candidate.prior, MAX_PRIOR) + called
    )


def _chosen(ranked: Sequence[Candidate], scale: Weights, limit: int) -> set[str]:
    """The first `limit`; but of several aims each one's best tool takes the place of the last that is nobody's best."""
    aims = range(1, len(scale.words)) if ranked and len(scale.words) > _WITH_ONE_AIM else ()
    best = dict.fromkeys(max(ranked, key=lambda each: scale.evidence(each, aim)).tool_id for aim in aims)
    others = (each.tool_id for each in ranked if each.tool_id not in best)
    return set(islice((*islice(best, limit), *others), limit))


def should_abstain(candidates: Sequence[Candidate], question: ScoringParams, vector: Vector) -> bool:
    """By the model's own judgement, which a request's threshold takes the place of. A named tool always fits."""
    if question.threshold is not None:
        return False
    if question.query.closes:
        return True
    scale = _both(question.calibration, len(question.query.texts))
    if question.calibration.is_match(max(map(scale.fused, candidates), default=0.0), vector):
        return False
    message = question.query.said.lower()
    return not any(is_named(message, each.tool_name) for each in candidates)


def matched_tags(tags: Sequence[str], question: ScoringParams) -> list[str]:
    return sorted(set(tags).intersection(question.tags)) if question.tags else []


def is_named(message: str, tool_name: str) -> bool:
    """Whether the message, in lower case, spells this tool's name.

    An identifier such as `search_issues` is no ordinary word, so it counts wherever it stands. A name like `search` or
    `Weather forecast` also stands in messages that mean something else: it counts only alone or in quotes.
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


def _hit(candidate: Candidate, question: ScoringParams, order: tuple[bool, float, float, str, str]) -> Hit:
    by_meaning = candidate.similarity is not None and candidate.similarity >= question.least_similarity
    named = not order[0]
    return Hit(
        tool_id=candidate.tool_id,
        tool_name=candidate.tool_name,
        similarity=candidate.similarity,
        score=1.0 if named else -order[1],
        source="semantic" if by_meaning else "lexical",
        matched_tags=matched_tags(candidate.tags, question),
    )
