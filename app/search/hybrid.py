"""Ranked hits inside what the caller may see. The only public name of this room is `HybridSearch`.

A search is one statement: it looks at each of the user's visible tools once, computes the cosine of its vector and its
BM25, and answers with the best of either, so that fusing them needs no second look. What BM25 has to know beforehand,
in how many of the visible tools each term stands, is remembered for as long as the catalogue's version stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pgvector import HalfVector

from app.catalog.visibility import VISIBLE, Scope
from app.database.engine import Session
from app.embeddings.base import Vector
from app.embeddings.registry import ActiveModel
from app.search import vector
from app.search.lexical import possible_names, query_places
from app.search.lexicon import Counts, Lexicon
from app.search.ranking import Candidate, Hit, Question, rank

POOL = 32
"""How many of the best by meaning, and of the best by words, are ranked against each other."""

_STATEMENT = """
WITH scored AS MATERIALIZED (
    SELECT v.tool_id, v.server_name, v.tool_name, v.tags, {similarity} AS similarity,
           -(v.lexical <#> %(terms)s::sparsevec) AS bm25
    FROM mcp_tool_embeddings v {joined}
    WHERE {visible}
)
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

_Rows = Sequence[tuple[Any, ...]]
_SIMILARITY = 5


@dataclass(frozen=True)
class Found:
    """`searched` and `tokens` count all that was visible, not only the hits."""

    hits: list[Hit]
    searched: int
    tokens: int
    version: int
    """The catalogue's, at the moment of the search."""


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
    ) -> Found:
        """Without a vector it is a search by words. `ann` says that the user is large enough for HNSW."""
        places = [] if question.strategy == "semantic" else query_places(question.text)
        counts = await self._lexicon.counts(session, scope, places)
        names = possible_names(question.text)
        rows = await self._rows(session, scope, counts, names, query_vector, limit=limit, ann=ann)
        if rows and rows[0][0] != counts.version:
            # the catalogue has changed since the terms were counted
            counts = await self._lexicon.recount(session, scope, places)
            rows = await self._rows(session, scope, counts, names, query_vector, limit=limit, ann=ann)
        candidates = [_candidate(row, counts) for row in rows if row[1] is not None]
        return Found(rank(candidates, question, limit), counts.searched, counts.tokens, counts.version)

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


def _statement(similarity: str, joined: str = "") -> str:
    return _STATEMENT.format(similarity=similarity, joined=joined, visible=VISIBLE)


_EXACT = _statement(vector.EXACT)


@lru_cache(maxsize=8)
def _through_hnsw(model: str, dimension: int) -> str:
    return _statement(vector.NEAREST, vector.nearest(model, dimension))


def _is_short(rows: _Rows, expected: int) -> bool:
    """HNSW filters after it has looked: fewer rows than there are to find means that it lost some."""
    return sum(row[_SIMILARITY] is not None for row in rows) < expected


def _candidate(row: tuple[Any, ...], counts: Counts) -> Candidate:
    _, tool_id, server_name, tool_name, tags, similarity, bm25 = row
    return Candidate(tool_id, server_name, tool_name, tags, similarity, bm25, counts.share(bm25))
