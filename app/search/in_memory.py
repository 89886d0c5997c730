"""The same search over tools that are held in memory: what `hybrid.py` asks of Postgres, done in numpy. Pure.

Evidence is the same (cosines of half-precision vectors, BM25 with frequencies counted over these very tools), and from
there on it is the same code: so the same tools give the same answer, whether they are stored or sent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pgvector import SparseVector

from app.embeddings.base import Vector, Vectors
from app.search.bm25 import matching_words, possible_names
from app.search.scoring import (
    Candidate,
    Hit,
    ScoringParams,
    Weights,
    boost,
    candidate_pool_size,
    is_named,
    make_weights,
    passes,
    rank,
    should_abstain,
)
from app.search.term_stats import Counts

_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class IndexedTool:
    """`lexical` is what a row has for its words."""

    tool_id: str
    server_name: str
    tool_name: str
    lexical: SparseVector
    action: int


@dataclass(frozen=True)
class ScoredTool:
    """A hit, and what speaks for it."""

    hit: Hit
    similarity: float | None
    """The best of the whole query's and its aims'."""
    words: Sequence[str]
    named: bool


@dataclass(frozen=True)
class TenantIndex:
    """Terms lie flat behind each other, each with the row of its tool: a query looks at its own alone."""

    tools: Sequence[IndexedTool]
    _rows: npt.NDArray[np.int64]
    _places: npt.NDArray[np.int64]
    _frequencies: _Floats
    _vectors: Vectors | None = None

    @classmethod
    def of(cls, tools: Sequence[IndexedTool]) -> Self:
        sizes = [len(tool.lexical.indices()) for tool in tools]
        return cls(
            tools,
            np.repeat(np.arange(len(tools)), np.array(sizes, np.int64)),
            np.fromiter(chain.from_iterable(tool.lexical.indices() for tool in tools), np.int64, sum(sizes)),
            np.fromiter(chain.from_iterable(tool.lexical.values() for tool in tools), np.float32, sum(sizes)),
        )

    def with_vectors(self, vectors: Sequence[Vector | None]) -> Self:
        """In the tools' order; None where there is none yet."""
        known = [vector for vector in vectors if vector is not None]
        if not known:
            return replace(self, _vectors=None)
        unknown = np.full(len(known[0]), np.nan, np.float32)
        stacked = np.stack([unknown if vector is None else vector for vector in vectors])
        return replace(self, _vectors=_halved(stacked))

    def find(self, question: ScoringParams, vectors: Sequence[Vector] | None, limit: int) -> list[ScoredTool]:
        """Without vectors it is a search by words."""
        candidates, scale = self.candidates(question, vectors)
        if vectors is not None and should_abstain(candidates, question, vectors[0]):
            return []
        best = self._best(candidates, question, scale, candidate_pool_size(question, limit))
        evidence = {candidate.tool_id: candidate for candidate in best}
        words = {tool.tool_id: tool.lexical for tool in self.tools if tool.tool_id in evidence}
        hits = rank(best, question, scale, limit)
        return [_match(hit, question, evidence[hit.tool_id], words[hit.tool_id]) for hit in hits]

    def candidates(self, question: ScoringParams, vectors: Sequence[Vector] | None) -> tuple[list[Candidate], Weights]:
        """All that pass, or may be named, in no order."""
        bm25s, most = self._bm25(question)
        scale = make_weights(question, most)
        names = set(possible_names(question.query.said))
        evidence = zip(self.tools, self._similarities(question, vectors), bm25s.tolist(), strict=True)
        judged = (
            Candidate(tool.tool_id, tool.server_name, tool.tool_name, (), similarities, its_bm25s, tool.action)
            for tool, similarities, its_bm25s in evidence
        )
        return [each for each in judged if passes(each, scale) or each.tool_name.lower() in names], scale

    def by_words(self, questions: Sequence[ScoringParams]) -> list[float]:
        """How much the words of any of these speak for each tool."""
        scores: list[float] = np.max([self._bm25(question)[0][:, 0] for question in questions], axis=0).tolist()
        return scores

    def _best(
        self, candidates: Sequence[Candidate], question: ScoringParams, scale: Weights, most: int
    ) -> list[Candidate]:
        """As many as a search in Postgres looks at again."""
        names = set(possible_names(question.query.said))

        def order(each: Candidate) -> tuple[bool, float, str, str]:
            score = scale.fused(each) + boost(each, question)
            return each.tool_name.lower() not in names, -score, each.server_name, each.tool_name

        return sorted(candidates, key=order)[:most]

    def _bm25(self, question: ScoringParams) -> tuple[_Floats, list[float]]:
        """One column for each of the query's texts, and the most that each could score."""
        texts = question.places
        columns = np.sort(np.array(texts[0], np.int64))
        asked = np.isin(self._places, columns)
        matrix = np.zeros((len(self.tools), len(columns)), np.float32)
        matrix[self._rows[asked], np.searchsorted(columns, self._places[asked])] = self._frequencies[asked]
        found = dict(zip(columns.tolist(), np.count_nonzero(matrix, axis=0).tolist(), strict=True))
        counts = Counts(0, len(self.tools), 0, found)
        weights = np.stack([_dense(counts.weights(terms), columns) for terms in texts], axis=1)
        return matrix @ weights, [counts.most(terms) for terms in texts]

    def cosines(self, vectors: Vectors) -> Vectors | None:
        """One row a tool, one column a vector; NaN where a tool has none yet, None where no tool has any."""
        if self._vectors is None:
            return None
        found: Vectors = self._vectors @ _halved(vectors).T
        return found

    def _similarities(self, question: ScoringParams, vectors: Sequence[Vector] | None) -> list[list[float | None]]:
        cosines = None if vectors is None else self.cosines(np.stack(vectors))
        if cosines is None:
            return [[None] * len(question.query.texts)] * len(self.tools)
        return [[None if math.isnan(cosine) else cosine for cosine in row] for row in cosines.tolist()]


def _halved(vectors: npt.NDArray[Any]) -> Vectors:
    """As a row stores them, at unit length again."""
    stored = vectors.astype(np.float16).astype(np.float32)
    unit: Vectors = stored / np.linalg.norm(stored, axis=1, keepdims=True)
    return unit


def _dense(weights: SparseVector, columns: npt.NDArray[np.int64]) -> _Floats:
    dense = np.zeros(len(columns), np.float32)
    dense[np.searchsorted(columns, weights.indices())] = weights.values()
    return dense


def _match(hit: Hit, question: ScoringParams, candidate: Candidate, lexical: SparseVector) -> ScoredTool:
    known = [similarity for similarity in candidate.similarities if similarity is not None]
    return ScoredTool(
        hit=hit,
        similarity=max(known, default=None),
        words=matching_words(question.query.whole, lexical),
        named=is_named(question.query.said.lower(), hit.tool_name),
    )
