"""Search tools that are held in memory: the counterpart of `postgres.py` in numpy.

The evidence is the same (cosines of half-precision vectors, BM25 with document frequencies over these very tools), and
ranking is the same code. The same tools therefore give the same answer, whether they are read from Postgres, held in a
snapshot (`snapshots.py`) or sent with the request.

All tools are scored in single precision. The evidence for the candidates is then computed exactly, here as for
candidates from Postgres (`candidates.py`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pgvector import SparseVector

from app.embeddings.base import Vector, Vectors
from app.search.bm25 import term_id_of, term_ids_of
from app.search.candidates import COSINE_ERROR, compute_exact_cosines, round_to_half
from app.search.learned import NOTHING_LEARNED, Learned
from app.search.pgvector_binary import SparseElements
from app.search.postings import Postings, Spans
from app.search.query import Query
from app.search.ranking import Hit, Ranking, candidate_pool_size, is_named, rank
from app.search.scoring import (
    BEST_ALONE,
    Candidate,
    EvidenceColumns,
    Floats,
    Rows,
    ScoringParams,
    Weights,
    compute_boost,
    compute_boost_columns,
    make_weights,
    passes_threshold_columns,
    score_alone,
    score_alone_columns,
    score_texts,
    score_texts_columns,
)
from app.search.term_stats import TermStats
from app.search.tokenizer import tokenize_with_words

_SCORE_ERROR = 10 * COSINE_ERROR
"""More than a score in single precision differs from the exact one: a cosine is divided by the span of the model."""
_ROWS_AT_ONCE = 4_096
_STR_BYTES = 60
_ROW_BYTES = 250
"""Of Python's lists and dictionaries: what a tool takes in memory besides its texts and numbers."""


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
class ToolNames:
    """What tools are called, in lists with an element for each tool."""

    tool_ids: Sequence[str]
    servers: Sequence[str]
    """What tells the servers apart: their ids, or their names."""
    server_names: Sequence[str]
    tool_names: Sequence[str]
    tags: Sequence[Sequence[str]]

    def __len__(self) -> int:
        return len(self.tool_ids)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """The row of each tool, by id."""
        return {tool_id: row for row, tool_id in enumerate(self.tool_ids)}

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[int]]:
        """The rows of the tools of each name, by the name in lower case."""
        return _group_rows(map(str.lower, self.tool_names))

    @cached_property
    def by_tag(self) -> Mapping[str, Rows]:
        pairs = [(tag, row) for row, tags in enumerate(self.tags) for tag in set(tags)]
        grouped: defaultdict[str, list[int]] = defaultdict(list)
        for tag, row in pairs:
            grouped[tag].append(row)
        return {tag: np.array(rows, np.int32) for tag, rows in grouped.items()}

    @cached_property
    def server_numbers(self) -> npt.NDArray[np.int32]:
        numbers = {server: number for number, server in enumerate(dict.fromkeys(self.servers))}
        return np.array([numbers[server] for server in self.servers], np.int32)

    def prepare(self) -> None:
        """Compute what searches need beforehand: it takes a while for many tools."""
        _ = self.rows, self.by_name, self.by_tag, self.server_numbers

    @cached_property
    def memory_bytes(self) -> int:
        """About what the lists, and what is computed from them, take in memory."""
        texts = sum(map(len, self.tool_ids)) + 2 * sum(map(len, self.tool_names))
        return texts + len(self) * (3 * _STR_BYTES + _ROW_BYTES)


def _group_rows(names: Iterable[str]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        grouped.setdefault(name, []).append(row)
    return grouped


class _Terms(NamedTuple):
    """The terms of a query: in how many tools they are, and where these are in the postings."""

    stats: TermStats
    spans: Spans


@dataclass(frozen=True, eq=False)
class TenantIndex:
    names: ToolNames
    actions: npt.NDArray[np.int16]
    postings: Postings
    priors: npt.NDArray[np.float64]
    vectors: Vectors | None = None
    """Of unit length, and zero for a tool without an embedding. None if no tool has one."""
    has_vector: npt.NDArray[np.bool_] | None = None
    """None: every tool has an embedding, or none has."""
    _center_cosines: dict[bytes, npt.NDArray[np.float64]] = field(default_factory=dict, repr=False)

    @classmethod
    def build(cls, tools: Sequence[IndexedTool]) -> Self:
        """Index tools by their words; `with_vectors` adds their embeddings."""
        sizes = [len(tool.lexical.indices()) for tool in tools]
        elements = SparseElements(
            np.repeat(np.arange(len(tools), dtype=np.int32), np.array(sizes, np.int64)),
            np.fromiter(chain.from_iterable(tool.lexical.indices() for tool in tools), np.int32, sum(sizes)),
            np.fromiter(chain.from_iterable(tool.lexical.values() for tool in tools), np.float32, sum(sizes)),
        )
        servers = [tool.server_name for tool in tools]
        tool_ids, tool_names = [tool.tool_id for tool in tools], [tool.tool_name for tool in tools]
        return cls(
            ToolNames(tool_ids, servers, servers, tool_names, [()] * len(tools)),
            np.array([tool.action for tool in tools], np.int16),
            Postings.build(elements, len(tools)),
            np.zeros(len(tools)),
        )

    def with_vectors(self, vectors: Sequence[Vector | None]) -> Self:
        """Return the index with embeddings, in the order of the tools; None for a tool without one."""
        known = [vector for vector in vectors if vector is not None]
        if not known:
            return replace(self, vectors=None, has_vector=None, _center_cosines={})
        stacked = np.zeros((len(vectors), len(known[0])), np.float32)
        has_vector = np.array([vector is not None for vector in vectors])
        stacked[has_vector] = round_to_half(np.stack(known))
        missing = None if has_vector.all() else has_vector
        return replace(self, vectors=stacked, has_vector=missing, _center_cosines={})

    def with_priors(self, priors: npt.NDArray[np.float64]) -> Self:
        """Return the index with other priors. It shares everything else."""
        return replace(self, priors=priors)

    @property
    def memory_bytes(self) -> int:
        """What the index takes in memory."""
        vectors = 0 if self.vectors is None else self.vectors.nbytes
        return self.names.memory_bytes + self.postings.memory_bytes + vectors + len(self.names) * (2 + 8 + 1 + 8)

    def find(self, params: ScoringParams, vectors: Sequence[Vector] | None, limit: int) -> list[ScoredTool]:
        """Return the best tools; without vectors it is a search by words."""
        pool, ranking = self.rank_best(params, vectors, limit)
        similarities = {candidate.tool_id: candidate.similarities for candidate in pool}
        return [
            ScoredTool(
                hit=hit,
                similarity=max((each for each in similarities[hit.tool_id] if each is not None), default=None),
                words=self.find_matching_words(params.query, hit.tool_id),
                named=is_named(params.query.user_text.lower(), hit.tool_name),
            )
            for hit in ranking.hits[: ranking.size]
        ]

    def rank_best(
        self,
        params: ScoringParams,
        vectors: Sequence[Vector] | None,
        limit: int,
        learned: Learned = NOTHING_LEARNED,
    ) -> tuple[Sequence[Candidate], Ranking]:
        """Return the candidates and their ranking."""
        terms, weights = self._weigh_terms(params)
        boosts = learned.compute_boosts(vectors, params, weights)
        pool = self._find_pool(params, weights, terms, vectors, candidate_pool_size(params, limit), boosts)
        return pool, rank(pool, params, weights, vectors, limit)

    def find_candidates(
        self, params: ScoringParams, vectors: Sequence[Vector] | None
    ) -> tuple[Sequence[Candidate], Weights]:
        """Return, unordered, the tools that pass the threshold or may be named in the message."""
        terms, weights = self._weigh_terms(params)
        return self._find_pool(params, weights, terms, vectors, None, {}), weights

    def score_by_words(self, queries: Sequence[ScoringParams]) -> list[float]:
        """Return the highest BM25 of each tool for any of the queries."""
        columns = [self.postings.compute_bm25(each.term_ids[0], *self._find_terms(each)) for each in queries]
        scores: list[float] = np.max(columns, axis=0).tolist()
        return scores

    def _find_terms(self, params: ScoringParams) -> _Terms:
        spans = self.postings.find(params.all_term_ids)
        counts = {term_id: end - start for term_id, (start, end) in spans.items()}
        return _Terms(TermStats(0, len(self.names), 0, counts), spans)

    def _weigh_terms(self, params: ScoringParams) -> tuple[_Terms, Weights]:
        terms = self._find_terms(params)
        max_bm25s = [terms.stats.max_bm25(term_ids) for term_ids in params.term_ids]
        return terms, make_weights(params, max_bm25s, terms.stats.max_bm25(params.message_term_ids))

    def compute_cosines(self, vectors: Vectors) -> Vectors | None:
        """Return a row for each tool and a column for each vector.

        A tool without an embedding has NaN. The result is None if no tool has an embedding.
        """
        if self.vectors is None:
            return None
        cosines: Vectors = self.vectors @ round_to_half(vectors).T
        if self.has_vector is not None:
            cosines[~self.has_vector] = np.nan
        return cosines

    def find_matching_words(self, query: Query, tool_id: str) -> list[str]:
        """Return the query's distinct words whose terms the tool contains, in the query's order."""
        words = tokenize_with_words(query.lexical_texts[0])
        found = self.postings.find_terms(self.names.rows[tool_id], term_ids_of(term for _, term in words))
        return list(dict.fromkeys(word for word, term in words if term_id_of(term) in found))

    def find_tagged(self, tag: str) -> Rows:
        return self.names.by_tag.get(tag, np.empty(0, np.int32))

    def find_called(self, query: Query) -> tuple[Rows, npt.NDArray[np.bool_]]:
        named = chain.from_iterable(self.names.by_name.get(name.lower(), ()) for name in query.called)
        called = np.array([row for row in named if self.names.tool_names[row] in query.called], np.int32)
        numbers = self.names.server_numbers
        return called, np.isin(numbers, numbers[called])

    def _find_pool(
        self,
        params: ScoringParams,
        weights: Weights,
        terms: _Terms,
        vectors: Sequence[Vector] | None,
        pool_size: int | None,
        example_boosts: Mapping[str, float],
    ) -> list[Candidate]:
        """Return the candidates that a search in Postgres would return for ranking, all if `pool_size` is None."""
        units = None if vectors is None or self.vectors is None else round_to_half(np.stack(vectors))
        columns = self._make_columns(params, terms, units, example_boosts)
        names = set(params.query.possible_names)
        named = np.array(sorted(chain.from_iterable(self.names.by_name.get(name, ()) for name in names)), np.int32)
        alone = score_alone_columns(columns, weights)
        scores = score_texts_columns(columns, weights, alone)
        scores = scores + compute_boost_columns(self, params, columns.example_boosts)
        passes = passes_threshold_columns(columns, weights)
        passes[named] = True
        best_alone = _find_best(alone, None, BEST_ALONE) if weights.has_context else np.empty(0, np.int64)
        rows = _find_best(scores, passes, pool_size)
        rows = np.union1d(rows, np.concatenate([named, best_alone]))
        candidates = self._make_candidates(params, rows, columns, units)
        return _cut_pool(candidates, params, weights, passes[rows], names, pool_size)

    def _make_columns(
        self, params: ScoringParams, terms: _Terms, units: Vectors | None, example_boosts: Mapping[str, float]
    ) -> EvidenceColumns:
        boosts: Floats | float = 0.0
        if example_boosts:
            boosts = np.zeros(len(self.names))
            for tool_id, boost in example_boosts.items():
                if (row := self.names.rows.get(tool_id)) is not None:
                    boosts[row] = boost
        return EvidenceColumns(
            None if units is None or self.vectors is None else [self.vectors @ unit for unit in units],
            self.has_vector,
            [self.postings.compute_bm25(term_ids, *terms) for term_ids in params.term_ids],
            self._get_center_cosines(params),
            boosts,
        )

    def _get_center_cosines(self, params: ScoringParams) -> npt.NDArray[np.float64] | float:
        """Return the exact cosines with the center of messages. They depend on the model alone and are kept."""
        center = params.calibration.center_vector
        if center is None or self.vectors is None:
            return 0.0
        key = center.tobytes()
        if (known := self._center_cosines.get(key)) is None:
            unit = round_to_half(center[None])
            starts = range(0, len(self.names), _ROWS_AT_ONCE)
            parts = [compute_exact_cosines(self.vectors[start : start + _ROWS_AT_ONCE], unit) for start in starts]
            known = np.concatenate(parts)[:, 0] if parts else np.zeros(0)
            self._center_cosines.clear()
            self._center_cosines[key] = known
        return known

    def _make_candidates(
        self, params: ScoringParams, rows: Rows, columns: EvidenceColumns, units: Vectors | None
    ) -> list[Candidate]:
        names, texts = self.names, len(params.query.texts)
        similarities: list[list[float | None]] = [[None] * texts] * len(rows)
        if units is not None and self.vectors is not None:
            similarities = compute_exact_cosines(self.vectors[rows], units).tolist()
            if self.has_vector is not None:
                has_vector = self.has_vector[rows].tolist()
                pairs = zip(similarities, has_vector, strict=True)
                similarities = [known if has else [None] * texts for known, has in pairs]
        bm25s = np.stack([bm25[rows] for bm25 in columns.bm25s], axis=1).tolist()
        siblings = self.find_called(params.query)[1][rows].tolist() if params.query.called else [False] * len(rows)
        return [
            Candidate(
                names.tool_ids[row],
                names.server_names[row],
                names.tool_names[row],
                names.tags[row],
                similarities[position],
                bm25s[position],
                action,
                prior,
                center_cosine,
                siblings[position],
                example_boost,
            )
            for position, (row, action, prior, center_cosine, example_boost) in enumerate(
                zip(
                    rows.tolist(),
                    self.actions[rows].tolist(),
                    self.priors[rows].tolist(),
                    _take(columns.center_cosines, rows),
                    _take(columns.example_boosts, rows),
                    strict=True,
                )
            )
        ]


def _take(column: Floats | float, rows: Rows) -> list[float]:
    return [column] * len(rows) if isinstance(column, float) else column[rows].tolist()


def _find_best(scores: Floats, passes: npt.NDArray[np.bool_] | None, count: int | None) -> Rows:
    """Return the rows of the best tools, and of those that may be among them: single precision cannot tell."""
    rows = np.arange(len(scores)) if passes is None else np.flatnonzero(passes)
    if count is None or len(rows) <= count:
        return rows
    passing = scores if passes is None else scores[rows]
    lowest = -np.partition(-passing, count - 1)[count - 1]
    best: Rows = rows[passing >= lowest - _SCORE_ERROR]
    return best


def _cut_pool(
    candidates: Sequence[Candidate],
    params: ScoringParams,
    weights: Weights,
    passes: npt.NDArray[np.bool_],
    names: set[str],
    pool_size: int | None,
) -> list[Candidate]:
    """Return the best of the candidates that pass: tools that may be named and the best for the message alone first."""
    if pool_size is None or (len(candidates) <= pool_size and not weights.has_context):
        return [candidate for candidate, each in zip(candidates, passes.tolist(), strict=True) if each]
    first = {candidate.tool_id for candidate in candidates if candidate.tool_name.lower() in names}
    if weights.has_context:
        by_alone = sorted(candidates, key=lambda each: (-score_alone(each, weights), each.server_name, each.tool_name))
        first |= {candidate.tool_id for candidate in by_alone[:BEST_ALONE]}

    def sort_key(candidate: Candidate) -> tuple[bool, float, str, str]:
        score = score_texts(candidate, weights) + compute_boost(candidate, params)
        return candidate.tool_id not in first, -score, candidate.server_name, candidate.tool_name

    passing = [candidate for candidate, each in zip(candidates, passes.tolist(), strict=True) if each]
    return sorted(passing, key=sort_key)[:pool_size]
