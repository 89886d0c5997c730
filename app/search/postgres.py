"""Search a user's visible tools in Postgres.

A search is one statement. It reads each visible tool once, scores it as `scoring.py` says, and returns the best, so
that the first k are the true first k. BM25 also needs document frequencies: `term_stats.py` counts them in a statement
of their own and caches them until the catalogue's version changes.

Postgres finds the candidates and returns their vectors: the evidence for them is computed exactly, as it is for
candidates in memory (`candidates.py`), so that both give the same answer.

The search is exact by construction: the distance is computed in the select list of a subquery that no other clause is
moved into, so that no plan can answer it from an index. Very large tenants have a search of their own
(`large_tenant.py`), which scores its candidates with the statements of this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from pgvector import HalfVector, SparseVector

from app.catalog.visibility import TAGS, VISIBLE, Scope
from app.db.engine import Reader
from app.embeddings.base import Vector
from app.search.bm25 import find_matching_words, query_term_ids
from app.search.candidates import compute_exact_cosines, round_to_half, scale_to_unit
from app.search.intents import compare_actions
from app.search.learned import NOTHING_LEARNED, Learned
from app.search.named_tags import TagCache, TagTerms, find_named_tags
from app.search.pgvector_binary import decode_halfvecs, decode_sparsevecs
from app.search.postings import Postings
from app.search.query import Query
from app.search.ranking import Hit, Ranking, candidate_pool_size, is_named, rank
from app.search.scoring import (
    ACTION_BOOST,
    BEST_ALONE,
    TAG_BOOST,
    Candidate,
    ScoringParams,
    Weights,
    boost_named_tag,
    boost_sql,
    make_sql_parameters,
    make_weights,
    match_tags,
    passes_threshold_sql,
    score_alone_sql,
    score_texts_sql,
)
from app.search.term_stats import TermStats, TermStatsCache

_READ_EVIDENCE = """
    SELECT v.tool_id, v.server_name, v.tool_name, {tags} AS tags, v.action, v.prior, {center} AS center_cosine,
           {siblings} AS is_sibling, {examples} AS example_boost, {columns}
    FROM mcp_tool_embeddings v
    WHERE {visible} {restriction}
"""
# Most messages name no tool, and lower() of every name takes longer than scoring the tools.
_NAMED = "cardinality(%(names)s::text[]) > 0 AND lower(v.tool_name) = ANY(%(names)s::text[]) AS named"

_CENTER_COSINE = "1 - (v.embedding <=> %(center)s::halfvec)"
# A scalar subquery, so that the text is parsed once and not for each row.
_EXAMPLE_BOOST = "coalesce(((SELECT %(example_boosts)s::jsonb) -> v.tool_id)::float8, 0)"
_IS_SIBLING = "bool_or(v.tool_name = ANY(%(called)s::text[])) OVER (PARTITION BY v.server_id)"

# Outweighs every score, so that tools which the message may name come first.
_NAME_BONUS = 1000

_SELECT_BEST = """
SELECT u.catalog_version, {row_count}, best.*, halfvec_send(e.embedding), sparsevec_send(e.lexical)
FROM users u LEFT JOIN (
    SELECT tool_id, server_name, tool_name, tags, action, prior, is_sibling
    FROM {rows}
    WHERE {passes} OR named
    ORDER BY {score} + {boost} + CASE WHEN {first} THEN {bonus}::float8 ELSE 0::float8 END DESC,
             server_name COLLATE "C", tool_name COLLATE "C"
    LIMIT %(pool_size)s
) best ON true
LEFT JOIN mcp_tool_embeddings e
    ON e.user_id = %(user_id)s AND e.model = %(model)s AND e.tool_id = best.tool_id
WHERE u.id = %(user_id)s
"""

_EXPLAIN = """
WITH evidence AS MATERIALIZED ({evidence}),
ranked AS (
    SELECT *, row_number() OVER (ORDER BY similarity_0 DESC NULLS LAST, server_name, tool_name) AS cosine_rank,
           row_number() OVER (ORDER BY bm25_0 DESC, server_name, tool_name) AS bm25_rank
    FROM evidence
)
SELECT r.tool_id, r.tool_name, r.tags, r.similarity_0, r.cosine_rank, r.bm25_0, r.bm25_rank, r.action, r.prior,
       r.example_boost, v.lexical
FROM ranked r JOIN mcp_tool_embeddings v ON v.user_id = %(user_id)s AND v.model = %(model)s AND v.tool_id = r.tool_id
WHERE r.tool_id = ANY(%(tool_ids)s)
"""

_LEXICAL = f"SELECT v.tool_id, v.lexical FROM mcp_tool_embeddings v WHERE {VISIBLE} AND v.tool_id = ANY(%(tool_ids)s)"

TextVectors = Sequence[Vector] | None
"""The embedding of each text of the query; None for a search by words alone."""


@dataclass(frozen=True)
class StatementShape:
    """What a search statement depends on; each shape is one prepared statement."""

    texts: int
    has_context: bool
    has_center: bool
    with_tags: bool
    with_named_tags: bool
    with_calls: bool
    with_examples: bool


@dataclass(frozen=True)
class SearchResult:
    """`searched` and `tokens` count all visible tools, not only the hits."""

    ranking: Ranking
    searched: int
    tokens: int
    version: int
    """The catalogue's version at the time of the search."""

    @property
    def hits(self) -> Sequence[Hit]:
        """The tools that the message needs."""
        return self.ranking.needed


@dataclass(frozen=True)
class Evidence:
    """Why a visible tool ranks where it does. Ranks count all visible tools; a tool without a score has no rank."""

    cosine: float | None
    cosine_rank: int | None
    bm25: float
    bm25_rank: int | None
    tag_boost: float
    action_boost: float
    prior: float
    example_boost: float
    """What examples of messages for which the tool was right, or irrelevant, add to its score."""
    matched_words: Sequence[str]
    named_in_message: bool


class HybridSearch:
    """Searches with any model; the scope names it."""

    def __init__(self) -> None:
        self._term_stats = TermStatsCache()
        self._tags = TagCache()

    async def find(
        self,
        reader: Reader,
        scope: Scope,
        params: ScoringParams,
        vectors: TextVectors,
        *,
        limit: int | None,
        learned: Learned = NOTHING_LEARNED,
        stats: TermStats | None = None,
    ) -> SearchResult:
        """Return the best hits within the scope, or the whole ranking if `limit` is None.

        `stats` count all terms of the query, if they are known.
        """
        stats = stats or await self._term_stats.get(reader, scope, params.all_term_ids)
        params = await self._add_named_tags(reader, scope, params, stats)
        boosts = learned.compute_boosts(vectors, params, compute_weights(params, stats))
        rows = await self._read_rows(reader, scope, params, stats, vectors, boosts, limit=limit)
        if rows and rows[0][0] != stats.version:
            # The catalogue has changed since the terms were counted.
            stats = await self._term_stats.refresh(reader, scope, params.all_term_ids)
            params = await self._add_named_tags(reader, scope, params, stats)
            rows = await self._read_rows(reader, scope, params, stats, vectors, boosts, limit=limit)
        candidates = make_candidates(rows, params, stats, vectors, boosts)
        ranking = rank(candidates, params, compute_weights(params, stats), vectors, limit)
        version = rows[0][0] if rows else stats.version
        return SearchResult(ranking, stats.searched, stats.tokens, version)

    async def count_terms(self, reader: Reader, scope: Scope, queries: Sequence[Query], version: int) -> TermStats:
        """Count the terms of all these queries, unless the counts are cached."""
        texts = dict.fromkeys(text for query in queries for text in (*query.lexical_texts, query.search_text))
        term_ids = list(dict.fromkeys(term_id for text in texts for term_id in query_term_ids(text)))
        return await self._term_stats.get(reader, scope, term_ids, version)

    async def read_tags(self, reader: Reader, scope: Scope, version: int) -> TagTerms:
        """Read the tags of the scope, unless they are cached."""
        return await self._tags.get(reader, scope, version)

    async def read_evidence(
        self,
        reader: Reader,
        scope: Scope,
        params: ScoringParams,
        vectors: TextVectors,
        tool_ids: Sequence[str],
        learned: Learned = NOTHING_LEARNED,
    ) -> dict[str, Evidence]:
        """Return the evidence for those of the tools that are visible, by id.

        It reads every visible tool and is always exact: few requests ask for an explanation.
        """
        stats = await self._term_stats.refresh(reader, scope, params.all_term_ids)
        params = await self._add_named_tags(reader, scope, params, stats)
        boosts = learned.compute_boosts(vectors, params, compute_weights(params, stats))
        parameters = scope.parameters() | make_search_parameters(params, stats, vectors, boosts)
        statement = _explain_statement(len(params.query.texts))
        rows = await reader.rows(statement, parameters | {"tool_ids": list(tool_ids)})
        return {tool_id: _make_evidence(params, *columns) for tool_id, *columns in rows}

    async def read_matching_words(
        self, reader: Reader, scope: Scope, query: Query, tool_ids: Sequence[str]
    ) -> dict[str, Sequence[str]]:
        """Return the query's words that each of the tools contains, by id, without those that are not visible."""
        rows = await reader.rows(_LEXICAL, scope.parameters() | {"tool_ids": list(tool_ids)})
        return {tool_id: find_matching_words(query.lexical_texts[0], lexical) for tool_id, lexical in rows}

    async def _add_named_tags(
        self, reader: Reader, scope: Scope, params: ScoringParams, stats: TermStats
    ) -> ScoringParams:
        if params.strategy == "semantic":
            return params
        tag_terms = await self._tags.get(reader, scope, stats.version)
        named_tags = find_named_tags(params.query.search_text, tag_terms)
        # a copy would compute the terms of the query again
        return params if named_tags == list(params.named_tags) else replace(params, named_tags=named_tags)

    async def _read_rows(
        self,
        reader: Reader,
        scope: Scope,
        params: ScoringParams,
        stats: TermStats,
        vectors: TextVectors,
        boosts: Mapping[str, float],
        *,
        limit: int | None,
    ) -> Sequence[tuple[Any, ...]]:
        shape = get_shape(params, vectors, boosts)
        parameters = scope.parameters() | make_search_parameters(params, stats, vectors, boosts)
        parameters["pool_size"] = None if limit is None else candidate_pool_size(params, limit)
        return await reader.rows(_exact_statement(shape), parameters)


def get_shape(params: ScoringParams, vectors: TextVectors, boosts: Mapping[str, float]) -> StatementShape:
    query = params.query
    return StatementShape(
        texts=len(query.texts),
        has_context=bool(query.context),
        has_center=vectors is not None and bool(params.calibration.center),
        with_tags=bool(params.tags),
        with_named_tags=bool(params.named_tags),
        with_calls=bool(query.called),
        with_examples=bool(boosts),
    )


def compute_weights(params: ScoringParams, stats: TermStats) -> Weights:
    max_bm25s = [stats.max_bm25(term_ids) for term_ids in params.term_ids]
    return make_weights(params, max_bm25s, stats.max_bm25(params.message_term_ids))


def make_search_parameters(
    params: ScoringParams, stats: TermStats, vectors: TextVectors, boosts: Mapping[str, float]
) -> dict[str, Any]:
    return (
        _make_vector_parameters(stats, params.term_ids, vectors)
        | make_sql_parameters(params, compute_weights(params, stats))
        | {
            "names": list(params.query.possible_names),
            "center": _get_center(params),
            "example_boosts": orjson.dumps(boosts).decode(),
        }
    )


def _get_center(params: ScoringParams) -> HalfVector | None:
    center = params.calibration.center_vector
    return None if center is None else HalfVector(center)


def _make_vector_parameters(
    stats: TermStats, term_ids: Sequence[Sequence[int]], vectors: TextVectors
) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for text, ids in enumerate(term_ids):
        parameters[f"terms_{text}"] = stats.make_query_vector(ids)
        parameters[f"vector_{text}"] = None if vectors is None else HalfVector(vectors[text])
    return parameters


@lru_cache(maxsize=128)
def _exact_statement(shape: StatementShape) -> str:
    """Compute the evidence of each row once, before any other clause uses it: OFFSET is an optimization fence."""
    rows = f"({evidence_subquery(shape)} OFFSET 0) evidence"
    return best_statement(shape, rows, "NULL")


@lru_cache(maxsize=16)
def _explain_statement(texts: int) -> str:
    shape = StatementShape(
        texts,
        has_context=False,
        has_center=False,
        with_tags=False,
        with_named_tags=False,
        with_calls=False,
        with_examples=True,
    )
    return _EXPLAIN.format(evidence=evidence_subquery(shape))


def evidence_subquery(shape: StatementShape, restriction: str = "") -> str:
    """Select the evidence of each visible tool; `restriction` begins with AND and restricts the tools `v` further."""
    texts = range(shape.texts)
    cosines = [f"1 - (v.embedding <=> %(vector_{text})s::halfvec) AS similarity_{text}" for text in texts]
    bm25s = [f"-(v.lexical <#> %(terms_{text})s::sparsevec) AS bm25_{text}" for text in texts]
    return _READ_EVIDENCE.format(
        columns=", ".join([*cosines, *bm25s, _NAMED]),
        center=_CENTER_COSINE if shape.has_center else "0::float8",
        siblings=_IS_SIBLING if shape.with_calls else "false",
        examples=_EXAMPLE_BOOST if shape.with_examples else "0::float8",
        restriction=restriction,
        visible=VISIBLE,
        tags=TAGS,
    )


def best_statement(shape: StatementShape, rows: str, row_count: str) -> str:
    return _SELECT_BEST.format(
        row_count=row_count,
        rows=_rank_alone(shape, rows) if shape.has_context else rows,
        passes=passes_threshold_sql(shape.texts),
        score=score_texts_sql(shape.texts, has_context=shape.has_context),
        boost=boost_sql(with_tags=shape.with_tags, with_named_tags=shape.with_named_tags, with_calls=shape.with_calls),
        first=f"named OR alone_rank <= {BEST_ALONE}" if shape.has_context else "named",
        bonus=_NAME_BONUS,
    )


def _rank_alone(shape: StatementShape, rows: str) -> str:
    """Number the rows by the message alone, so that its best tools are candidates whatever the context finds."""
    alone = score_alone_sql(shape.texts, has_context=True)
    names = 'server_name COLLATE "C", tool_name COLLATE "C"'
    number = f"row_number() OVER (ORDER BY {alone} DESC, {names}) AS alone_rank"
    return f"(SELECT *, {number} FROM {rows}) numbered"


def make_candidates(
    rows: Sequence[tuple[Any, ...]],
    params: ScoringParams,
    stats: TermStats,
    vectors: TextVectors,
    boosts: Mapping[str, float],
) -> list[Candidate]:
    """Compute the exact evidence for the rows of a search."""
    found = [row[2:] for row in rows if row[2] is not None]
    cosines, center_cosines = _compute_cosines([row[7] for row in found], params, vectors)
    postings = Postings.build(decode_sparsevecs(b"".join(row[8] for row in found)), len(found))
    spans = postings.find(params.all_term_ids)
    bm25s = np.stack([postings.compute_bm25(term_ids, stats, spans) for term_ids in params.term_ids], axis=1).tolist()
    return [
        Candidate(
            tool_id,
            server_name,
            tool_name,
            tags,
            cosines[number],
            bm25s[number],
            action,
            prior,
            center_cosines[number],
            is_sibling,
            boosts.get(tool_id, 0.0),
        )
        for number, (tool_id, server_name, tool_name, tags, action, prior, is_sibling, *_) in enumerate(found)
    ]


def _compute_cosines(
    sent: Sequence[bytes | None], params: ScoringParams, vectors: TextVectors
) -> tuple[list[list[float | None]], list[float]]:
    """Return the cosines of each tool with the texts, None where one has no embedding, and with the center."""
    cosines: list[list[float | None]] = [[None] * len(params.term_ids) for _ in sent]
    center_cosines = [0.0] * len(sent)
    known = [number for number, embedding in enumerate(sent) if embedding is not None]
    if vectors is None or not known:
        return cosines, center_cosines
    embeddings = b"".join(embedding for embedding in sent if embedding is not None)
    tools = scale_to_unit(decode_halfvecs(embeddings, len(vectors[0])))
    for number, row in zip(known, compute_exact_cosines(tools, round_to_half(np.stack(vectors))).tolist(), strict=True):
        cosines[number] = row
    center = params.calibration.center_vector
    if center is not None:
        exact = compute_exact_cosines(tools, round_to_half(center[None]))[:, 0].tolist()
        for number, cosine in zip(known, exact, strict=True):
            center_cosines[number] = cosine
    return cosines, center_cosines


def _make_evidence(
    params: ScoringParams,
    tool_name: str,
    tags: Sequence[str],
    similarity: float | None,
    cosine_rank: int,
    bm25: float,
    bm25_rank: int,
    action: int,
    prior: float,
    example_boost: float,
    lexical: SparseVector,
) -> Evidence:
    return Evidence(
        cosine=similarity,
        cosine_rank=None if similarity is None else cosine_rank,
        bm25=bm25,
        bm25_rank=bm25_rank if bm25 > 0 else None,
        tag_boost=TAG_BOOST * len(match_tags(tags, params)) + boost_named_tag(tags, params),
        action_boost=ACTION_BOOST * compare_actions(params.requested_actions, action),
        prior=prior,
        example_boost=example_boost,
        matched_words=find_matching_words(params.query.lexical_texts[0], lexical),
        named_in_message=is_named(params.query.user_text.lower(), tool_name),
    )
