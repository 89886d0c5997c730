"""Search tools that are held in memory: the counterpart of `postgres.py` in numpy. Pure.

The evidence is the same (cosines of half-precision vectors, BM25 with document frequencies over these very tools), and
scoring and ranking are the same code. The same tools therefore give the same answer, whether they are stored or sent
with the request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pgvector import SparseVector

from app.embeddings.base import Vector, Vectors
from app.search.bm25 import find_matching_words
from app.search.ranking import Hit, candidate_pool_size, is_named, rank
from app.search.scoring import (
    BEST_ALONE,
    Candidate,
    ScoringParams,
    Weights,
    compute_boost,
    make_weights,
    passes_threshold,
    score_alone,
    score_texts,
)
from app.search.term_stats import TermStats
from app.search.tokenizer import extract_possible_names

_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class IndexedTool:
    """`lexical` is the BM25 document vector, as a row stores it."""

    tool_id: str
    server_name: str
    tool_name: str
    lexical: SparseVector
    action: int


@dataclass(frozen=True)
class ScoredTool:
    """A hit with the evidence for it."""

    hit: Hit
    similarity: float | None
    """The highest cosine of the texts of the query."""
    words: Sequence[str]
    named: bool


@dataclass(frozen=True)
class TenantIndex:
    """The terms of all tools lie in flat arrays, each with the row of its tool, so that a query reads only its own."""

    tools: Sequence[IndexedTool]
    _rows: npt.NDArray[np.int64]
    _term_ids: npt.NDArray[np.int64]
    _frequencies: _Floats
    _vectors: Vectors | None = None

    @classmethod
    def build(cls, tools: Sequence[IndexedTool]) -> Self:
        """Index tools by their words; `with_vectors` adds their embeddings."""
        sizes = [len(tool.lexical.indices()) for tool in tools]
        return cls(
            tools,
            np.repeat(np.arange(len(tools)), np.array(sizes, np.int64)),
            np.fromiter(chain.from_iterable(tool.lexical.indices() for tool in tools), np.int64, sum(sizes)),
            np.fromiter(chain.from_iterable(tool.lexical.values() for tool in tools), np.float32, sum(sizes)),
        )

    def with_vectors(self, vectors: Sequence[Vector | None]) -> Self:
        """Return the index with embeddings, in the order of the tools; None for a tool without one."""
        known = [vector for vector in vectors if vector is not None]
        if not known:
            return replace(self, _vectors=None)
        missing = np.full(len(known[0]), np.nan, np.float32)
        stacked = np.stack([missing if vector is None else vector for vector in vectors])
        return replace(self, _vectors=_round_to_half(stacked))

    def find(self, params: ScoringParams, vectors: Sequence[Vector] | None, limit: int) -> list[ScoredTool]:
        """Return the best tools; without vectors it is a search by words."""
        candidates, weights = self.find_candidates(params, vectors)
        pool = _select_best(candidates, params, weights, candidate_pool_size(params, limit))
        by_id = {candidate.tool_id: candidate for candidate in pool}
        lexical = {tool.tool_id: tool.lexical for tool in self.tools if tool.tool_id in by_id}
        ranking = rank(pool, params, weights, vectors, limit)
        hits = ranking.hits[: ranking.size]
        return [_make_scored_tool(hit, params, by_id[hit.tool_id], lexical[hit.tool_id]) for hit in hits]

    def find_candidates(
        self, params: ScoringParams, vectors: Sequence[Vector] | None
    ) -> tuple[list[Candidate], Weights]:
        """Return, unordered, the tools that pass the threshold or may be named in the message."""
        bm25s, max_bm25s, max_message_bm25 = self._compute_bm25(params)
        weights = make_weights(params, max_bm25s, max_message_bm25)
        names = set(extract_possible_names(params.query.user_text))
        called_servers = {tool.server_name for tool in self.tools if tool.tool_name in params.query.called}
        similarities, center_cosines = self._compute_similarities(params, vectors), self._compute_center_cosines(params)
        evidence = zip(self.tools, similarities, bm25s.tolist(), center_cosines, strict=True)
        candidates = (
            Candidate(
                tool_id=tool.tool_id,
                server_name=tool.server_name,
                tool_name=tool.tool_name,
                tags=(),
                similarities=tool_similarities,
                bm25s=tool_bm25s,
                action=tool.action,
                center_cosine=center_cosine,
                is_sibling=tool.server_name in called_servers,
            )
            for tool, tool_similarities, tool_bm25s, center_cosine in evidence
        )
        return [
            candidate
            for candidate in candidates
            if passes_threshold(candidate, weights) or candidate.tool_name.lower() in names
        ], weights

    def score_by_words(self, queries: Sequence[ScoringParams]) -> list[float]:
        """Return the highest BM25 of each tool for any of the queries."""
        columns = [self._compute_bm25(params)[0][:, 0] for params in queries]
        scores: list[float] = np.max(columns, axis=0).tolist()
        return scores

    def compute_cosines(self, vectors: Vectors) -> Vectors | None:
        """Return a row for each tool and a column for each vector.

        A tool without an embedding has NaN. The result is None if no tool has an embedding.
        """
        if self._vectors is None:
            return None
        cosines: Vectors = self._vectors @ _round_to_half(vectors).T
        return cosines

    def _compute_bm25(self, params: ScoringParams) -> tuple[_Floats, list[float], float]:
        """Return BM25 with a column for each text, the upper bound for each text and for the message's own words."""
        columns = np.sort(np.array(params.all_term_ids, np.int64))
        in_query = np.isin(self._term_ids, columns)
        matrix = np.zeros((len(self.tools), len(columns)), np.float32)
        matrix[self._rows[in_query], np.searchsorted(columns, self._term_ids[in_query])] = self._frequencies[in_query]
        counts = dict(zip(columns.tolist(), np.count_nonzero(matrix, axis=0).tolist(), strict=True))
        stats = TermStats(0, len(self.tools), 0, counts)
        query = np.stack([_to_dense(stats.make_query_vector(ids), columns) for ids in params.term_ids], axis=1)
        max_bm25s = [stats.max_bm25(ids) for ids in params.term_ids]
        return matrix @ query, max_bm25s, stats.max_bm25(params.message_term_ids)

    def _compute_center_cosines(self, params: ScoringParams) -> list[float]:
        center = params.calibration.center_vector
        cosines = None if center is None else self.compute_cosines(center[None])
        return [0.0] * len(self.tools) if cosines is None else np.nan_to_num(cosines[:, 0]).tolist()

    def _compute_similarities(
        self, params: ScoringParams, vectors: Sequence[Vector] | None
    ) -> list[list[float | None]]:
        cosines = None if vectors is None else self.compute_cosines(np.stack(vectors))
        if cosines is None:
            return [[None] * len(params.query.texts)] * len(self.tools)
        return [[None if math.isnan(cosine) else cosine for cosine in row] for row in cosines.tolist()]


def _select_best(
    candidates: Sequence[Candidate], params: ScoringParams, weights: Weights, pool_size: int
) -> list[Candidate]:
    """Return the candidates that a search in Postgres would return for ranking."""
    names = set(extract_possible_names(params.query.user_text))
    best_alone = _find_best_alone(candidates, weights) if weights.has_context else frozenset()

    def sort_key(candidate: Candidate) -> tuple[bool, float, str, str]:
        is_first = candidate.tool_name.lower() in names or candidate.tool_id in best_alone
        score = score_texts(candidate, weights) + compute_boost(candidate, params)
        return not is_first, -score, candidate.server_name, candidate.tool_name

    return sorted(candidates, key=sort_key)[:pool_size]


def _find_best_alone(candidates: Sequence[Candidate], weights: Weights) -> frozenset[str]:
    """Return the ids of the best tools for the message without its context."""
    best = nsmallest(
        BEST_ALONE, candidates, key=lambda each: (-score_alone(each, weights), each.server_name, each.tool_name)
    )
    return frozenset(candidate.tool_id for candidate in best)


def _round_to_half(vectors: npt.NDArray[Any]) -> Vectors:
    """Round to the precision that rows store, and scale to unit length again."""
    rounded = vectors.astype(np.float16).astype(np.float32)
    unit: Vectors = rounded / np.linalg.norm(rounded, axis=1, keepdims=True)
    return unit


def _to_dense(vector: SparseVector, columns: npt.NDArray[np.int64]) -> _Floats:
    dense = np.zeros(len(columns), np.float32)
    dense[np.searchsorted(columns, vector.indices())] = vector.values()
    return dense


def _make_scored_tool(hit: Hit, params: ScoringParams, candidate: Candidate, lexical: SparseVector) -> ScoredTool:
    known = [similarity for similarity in candidate.similarities if similarity is not None]
    return ScoredTool(
        hit=hit,
        similarity=max(known, default=None),
        words=find_matching_words(params.query.lexical_texts[0], lexical),
        named=is_named(params.query.user_text.lower(), hit.tool_name),
    )
