"""From two kinds of evidence to one order. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, NamedTuple

from app.usage.prior import PRIOR_MOST

Strategy = Literal["hybrid", "semantic", "bm25"]

COSINE_WEIGHT = 0.75
TAG_BOOST = 0.2
STRONG_WORDS = 0.5
"""A tool found by words alone must match at least this share of the message's weight in words."""


class Candidate(NamedTuple):
    """A tuple, since every search makes a hundred of them."""

    tool_id: str
    server_name: str
    tool_name: str
    tags: Sequence[str]
    similarity: float | None
    bm25: float
    word_share: float
    prior: float = 0.0


@dataclass(frozen=True)
class Hit:
    tool_id: str
    tool_name: str
    similarity: float | None
    score: float
    source: Literal["semantic", "lexical"]
    matched_tags: Sequence[str]


@dataclass(frozen=True)
class Question:
    """What ranking needs to know of a request. `threshold` applies to the plain cosine."""

    text: str
    strategy: Strategy
    threshold: float
    tags: Sequence[str] = ()


def rank(candidates: Sequence[Candidate], question: Question, limit: int) -> list[Hit]:
    """The best first: tools that the message names, then by score; ties by unclamped score, server and tool name."""
    scale = _Scale.of(candidates)
    message = question.text.lower()
    judged = []
    for candidate in candidates:
        named = is_named(message, candidate.tool_name)
        if named or _passes(candidate, question):
            matched = matched_tags(candidate.tags, question)
            # by so much at most a tool that was used well passes another; a name in the message needs no help
            prior = 0.0 if named else min(candidate.prior, PRIOR_MOST)
            raw = scale.fused(candidate, question.strategy) + prior + TAG_BOOST * len(matched)
            order = (not named, -min(raw, 1.0), -raw, candidate.server_name, candidate.tool_name)
            judged.append((order, candidate, matched))
    judged.sort(key=itemgetter(0))
    return [_hit(candidate, question, order, matched) for order, candidate, matched in judged[:limit]]


def matched_tags(tags: Sequence[str], question: Question) -> list[str]:
    return sorted(set(tags).intersection(question.tags)) if question.tags else []


def is_named(message: str, tool_name: str) -> bool:
    """Whether the message, in lower case, spells this tool's name.

    An identifier such as `search_issues` is no ordinary word, so it counts wherever it stands. A name like `search`
    also stands in messages that mean something else: it counts only alone or in quotes.
    """
    name = tool_name.lower()
    if name not in message:
        return False
    if message.strip() == name:
        return True
    escaped = re.escape(name)
    if tool_name.isalpha() and (tool_name.islower() or tool_name.istitle()):
        return re.search(rf"[`\"']{escaped}[`\"']", message) is not None
    return re.search(rf"(?<![\w-]){escaped}(?![\w-])", message) is not None


@dataclass(frozen=True)
class _Scale:
    """Brings both scores to 0..1 over the candidates at hand: cosines lie in a band of their own for each model."""

    lowest: float
    span: float
    most: float

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> "_Scale":
        cosines = [candidate.similarity for candidate in candidates if candidate.similarity is not None]
        lowest, highest = (min(cosines), max(cosines)) if cosines else (0.0, 0.0)
        return cls(lowest, highest - lowest, max((candidate.bm25 for candidate in candidates), default=0.0))

    def fused(self, candidate: Candidate, strategy: Strategy) -> float:
        words = candidate.bm25 / self.most if self.most > 0 else 0.0
        if strategy == "bm25":
            return words
        if strategy == "semantic":
            return max(candidate.similarity or 0.0, 0.0)
        return COSINE_WEIGHT * self._meaning(candidate) + (1 - COSINE_WEIGHT) * words

    def _meaning(self, candidate: Candidate) -> float:
        if candidate.similarity is None:
            return 0.0
        return (candidate.similarity - self.lowest) / self.span if self.span > 0 else 1.0


def _passes(candidate: Candidate, question: Question) -> bool:
    if question.strategy == "bm25":
        return candidate.bm25 > 0
    if question.threshold <= 0 or (candidate.similarity is not None and candidate.similarity >= question.threshold):
        return True
    return question.strategy == "hybrid" and candidate.word_share >= STRONG_WORDS


def _hit(
    candidate: Candidate, question: Question, order: tuple[bool, float, float, str, str], matched: list[str]
) -> Hit:
    by_meaning = candidate.similarity is not None and candidate.similarity >= question.threshold
    named = not order[0]
    return Hit(
        tool_id=candidate.tool_id,
        tool_name=candidate.tool_name,
        similarity=candidate.similarity,
        score=1.0 if named else -order[1],
        source="semantic" if by_meaning else "lexical",
        matched_tags=matched,
    )
