"""Ranked hits inside what the caller may see. The only public name of this room is `HybridSearch`.

A search is one statement: it looks at each of the user's visible tools once, computes the cosine of its vector and its
BM25, and answers with the best of either, so that fusing them needs no second look. What BM25 has to know beforehand,
in how many of the visible tools each term stands, is remembered for as long as the catalogue's version stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pgvector import HalfVector, SparseVector

from app.catalog.visibility import TAGS, VISIBLE, Scope
from app.database.engine import Session
from app.embeddings.base import Vector
from app.embeddings.registry import ActiveModel
from app.search import vector
from app.search.lexical import matching_terms, possible_names, query_places
from app.search.lexicon import Counts, Lexicon
from app.search.ranking import TAG_BOOST, Candidate, Hit, Question, is_named, matched_tags, rank

POOL = 32
"""How many of the best by meaning, and of the best by words, are ranked against each other."""

_SCORED = """
    SELECT v.tool_id, v.server_name, v.tool_name, {tags} AS tags, {similarity} AS similarity,
           -(v.lexical <#> %(terms)s::sparsevec) AS bm25, v.prior
    FROM mcp_tool_embeddings v {joined}
    WHERE {visible}
"""

_STATEMENT = """
WITH scored AS MATERIALIZED ({scored})
SELECT u.catalog_version, best.*
FROM users u LEFT JOIN (
    (SELECT * FROM scored WHERE similarity IS NOT NULL ORDER BY similarity DESC, server_name, tool_name LIMIT %(pool)s)
    UNION
    (SELECT * FROM scored WHERE bm25 > 0 ORDER BY bm25 DESC, server_name, tool_name LIMIT %(pool)s)
    UNION
    (SELECT * FROM scored WHERE cardinality(%(names)s::text[]) > 0 AND lower(tool_name) = ANY(%(names)s::text[])
     ORDER BY server_name, tool_name LIMIT %(pool)s)
) best ON true
WHERE u.id = %(user_id)s
"""

_EVIDENCE = """
WITH scored AS MATERIALIZED ({scored}),
ranked AS (
    SELECT *, row_number() OVER (ORDER BY similarity DESC NULLS LAST, server_name, tool_name) AS cosine_rank,
           row_number() OVER (ORDER BY bm25 DESC, server_name, tool_name) AS bm25_rank
    FROM scored
)
SELECT r.tool_id, r.tool_name, r.tags, r.similarity, r.cosine_rank, r.bm25, r.bm25_rank, r.prior, v.lexical
FROM ranked r JOIN mcp_tool_embeddings v ON v.user_id = %(user_id)s AND v.model = %(model)s AND v.tool_id = r.tool_id
WHERE r.tool_id = ANY(%(tool_ids)s)
"""

_Rows = Sequence[tuple[Any, ...]]
_SIMILARITY = 5


@dataclass(frozen=True)
class Found:
    """`searched` and `tokens` count all that was visible, not only the hits."""

    hits: list[Hit]
    """The best `limit` of them; all that passed, where all were asked for."""
    searched: int
    tokens: int
    version: int
    """The catalogue's, at the moment of the search."""


@dataclass(frozen=True)
class Evidence:
    """Why a visible tool stands where it stands. Ranks are among all that is visible, and missing without a score."""

    cosine: float | None
    cosine_rank: int | None
    bm25: float
    bm25_rank: int | None
    tag_boost: float
    prior: float
    matched_words: Sequence[str]
    named_in_message: bool


class HybridSearch:
    def __init__(self, model: ActiveModel) -> None:
        self._model = model
        self._lexicon = Lexicon()

    async def find(
        self,
        session: Session,
        scope: Scope,
        question: Question,
        query_vector: Vector | None,
        *,
        limit: int,
        ann: bool = False,
        whole: bool = False,
    ) -> Found:
        """Without a vector it is a search by words. `ann` says that the user is large enough for HNSW. `whole` gives
        the ranking beyond the limit too."""
        places = _places(question)
        counts = await self._lexicon.counts(session, scope, places)
        names = possible_names(question.text)
        rows = await self._rows(session, scope, counts, names, query_vector, limit=limit, ann=ann)
        if rows and rows[0][0] != counts.version:
            # the catalogue has changed since the terms were counted
            counts = await self._lexicon.recount(session, scope, places)
            rows = await self._rows(session, scope, counts, names, query_vector, limit=limit, ann=ann)
        candidates = [_candidate(row, counts) for row in rows if row[1] is not None]
        hits = rank(candidates, question, len(candidates) if whole else limit)
        return Found(hits, counts.searched, counts.tokens, counts.version)

    async def evidence(
        self,
        session: Session,
        scope: Scope,
        question: Question,
        query_vector: Vector | None,
        tool_ids: Sequence[str],
    ) -> dict[str, Evidence]:
        """Of those that are visible, by id. A look at every tool, always exact: nobody explains every message."""
        counts = await self._lexicon.recount(session, scope, _places(question))
        parameters = scope.parameters() | {
            "vector": None if query_vector is None else HalfVector(query_vector),
            "terms": counts.weights(),
            "tool_ids": list(tool_ids),
        }
        rows = await session.rows(_EXPLAINED, parameters)
        return {tool_id: _evidence(question, *rest) for tool_id, *rest in rows}

    async def _rows(
        self,
        session: Session,
        scope: Scope,
        counts: Counts,
        names: Sequence[str],
        query_vector: Vector | None,
        *,
        limit: int,
        ann: bool,
    ) -> _Rows:
        parameters = scope.parameters() | {
            "vector": None if query_vector is None else HalfVector(query_vector),
            "terms": counts.weights(),
            "names": names,
            "pool": max(POOL, limit),
        }
        if ann and query_vector is not None:
            await session.rows(vector.HNSW_SETTINGS)
            rows = await session.rows(_through_hnsw(self._model.id, self._model.dimension), parameters)
            if not _is_short(rows, min(limit, counts.searched)):
                return rows
        return await session.rows(_EXACT, parameters)


def _places(question: Question) -> list[int]:
    return [] if question.strategy == "semantic" else query_places(question.text)


def _statement(similarity: str, joined: str = "", shape: str = _STATEMENT) -> str:
    return shape.format(scored=_SCORED.format(similarity=similarity, joined=joined, visible=VISIBLE, tags=TAGS))


_EXACT = _statement(vector.EXACT)
_EXPLAINED = _statement(vector.EXACT, shape=_EVIDENCE)


@lru_cache(maxsize=8)
def _through_hnsw(model: str, dimension: int) -> str:
    return _statement(vector.NEAREST, vector.nearest(model, dimension))


def _is_short(rows: _Rows, expected: int) -> bool:
    """HNSW filters after it has looked: fewer rows than there are to find means that it lost some."""
    return sum(row[_SIMILARITY] is not None for row in rows) < expected


def _candidate(row: tuple[Any, ...], counts: Counts) -> Candidate:
    _, tool_id, server_name, tool_name, tags, similarity, bm25, prior = row
    return Candidate(tool_id, server_name, tool_name, tags, similarity, bm25, counts.share(bm25), prior)


def _evidence(
    question: Question,
    tool_name: str,
    tags: Sequence[str],
    similarity: float | None,
    cosine_rank: int,
    bm25: float,
    bm25_rank: int,
    prior: float,
    words: SparseVector,
) -> Evidence:
    return Evidence(
        cosine=similarity,
        cosine_rank=None if similarity is None else cosine_rank,
        bm25=bm25,
        bm25_rank=bm25_rank if bm25 > 0 else None,
        tag_boost=TAG_BOOST * len(matched_tags(tags, question)),
        prior=prior,
        matched_words=matching_terms(question.text, words),
        named_in_message=is_named(question.text.lower(), tool_name),
    )
