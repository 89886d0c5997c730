"""Ranked hits inside what the caller may see. The only public name of this room is `search`.

One statement looks at the user's visible tools once and computes both scores for each: the cosine of its vector and
its BM25. It answers with the best of either, so that fusing them needs no second look.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pgvector import HalfVector, SparseVector

from app.catalog.visibility import VISIBLE, Scope
from app.database.engine import Session
from app.embeddings.base import Vector
from app.embeddings.registry import ActiveModel
from app.models import TERM_SPACE
from app.search import vector
from app.search.lexical import K1, query_places
from app.search.ranking import Candidate, Hit, Question, rank

POOL = 32
"""How many of the best by meaning, and of the best by words, are ranked against each other."""

_Rows = Sequence[tuple[Any, ...]]
_SIMILARITY = 6

_STATEMENT = """
WITH visible AS MATERIALIZED (
    SELECT v.tool_id, v.server_name, v.tool_name, v.tags, v.tokens, v.lexical, {similarity} AS similarity
    FROM mcp_tool_embeddings v {joined}
    WHERE {visible}
), totals AS MATERIALIZED (
    SELECT count(*) AS searched, coalesce(sum(tokens), 0) AS tokens FROM visible
), terms AS MATERIALIZED (
    SELECT place + 1 AS place, ('{{' || place + 1 || ':1}}/{space}')::sparsevec AS term
    FROM unnest(%(places)s::int[]) AS place
), matching AS MATERIALIZED (
    SELECT v.lexical FROM visible v WHERE (v.lexical <#> %(all_terms)s::sparsevec) < 0
), weights AS MATERIALIZED (
    SELECT found.place, ln(1 + (totals.searched - found.tools + 0.5::float8) / (found.tools + 0.5::float8)) AS idf
    FROM totals CROSS JOIN (
        SELECT terms.place, count(m.lexical) AS tools
        FROM terms LEFT JOIN matching m ON (m.lexical <#> terms.term) < 0
        GROUP BY terms.place
    ) found
), question AS MATERIALIZED (
    SELECT sum(idf) AS weight,
           ('{{' || string_agg(place || ':' || idf, ',' ORDER BY place) || '}}/{space}')::sparsevec AS terms
    FROM weights
), scored AS MATERIALIZED (
    SELECT v.tool_id, v.server_name, v.tool_name, v.tags, v.similarity,
           coalesce(-(v.lexical <#> question.terms), 0) AS bm25, question.weight
    FROM visible v CROSS JOIN question
)
SELECT totals.searched, totals.tokens, best.*
FROM totals LEFT JOIN (
    (SELECT * FROM scored WHERE similarity IS NOT NULL ORDER BY similarity DESC, server_name, tool_name LIMIT %(pool)s)
    UNION
    (SELECT * FROM scored WHERE bm25 > 0 ORDER BY bm25 DESC, server_name, tool_name LIMIT %(pool)s)
) best ON true
"""


@dataclass(frozen=True)
class Found:
    """`searched` and `tokens` count all that was visible, not only the hits."""

    hits: list[Hit]
    searched: int
    tokens: int


async def search(
    session: Session,
    scope: Scope,
    question: Question,
    query_vector: Vector | None,
    model: ActiveModel,
    *,
    limit: int,
    ann: bool = False,
) -> Found:
    """Without a vector it is a search by words. `ann` says that the user is large enough for HNSW."""
    parameters = _parameters(scope, question, query_vector, limit)
    if ann and query_vector is not None:
        rows = await _nearest(session, parameters, model)
        if not _is_short(rows, limit):
            return _found(rows, question, limit)
    return _found(await session.rows(_EXACT, parameters), question, limit)


def _statement(similarity: str, joined: str = "") -> str:
    return _STATEMENT.format(similarity=similarity, joined=joined, visible=VISIBLE, space=TERM_SPACE)


_EXACT = _statement(vector.EXACT)


@lru_cache(maxsize=8)
def _through_hnsw(model: str, dimension: int) -> str:
    return _statement(vector.NEAREST, vector.nearest(model, dimension))


async def _nearest(session: Session, parameters: dict[str, Any], model: ActiveModel) -> _Rows:
    await session.rows(vector.HNSW_SETTINGS)
    return await session.rows(_through_hnsw(model.id, model.dimension), parameters)


def _is_short(rows: _Rows, limit: int) -> bool:
    """HNSW filters after it has looked: fewer rows than there are to find means that it lost some."""
    searched: int = rows[0][0]
    return sum(row[_SIMILARITY] is not None for row in rows) < min(limit, searched)


def _parameters(scope: Scope, question: Question, query_vector: Vector | None, limit: int) -> dict[str, Any]:
    places = [] if question.strategy == "semantic" else query_places(question.text)
    return scope.parameters() | {
        "vector": None if query_vector is None else HalfVector(query_vector),
        "places": places,
        "all_terms": SparseVector(dict.fromkeys(places, 1.0), TERM_SPACE),
        "pool": max(POOL, limit),
    }


def _found(rows: _Rows, question: Question, limit: int) -> Found:
    searched, tokens, *best = rows[0]
    candidates = [] if best[0] is None else [_candidate(*row) for row in rows]
    return Found(rank(candidates, question, limit), searched, int(tokens))


def _candidate(
    _searched: int,
    _tokens: int,
    tool_id: str,
    server_name: str,
    tool_name: str,
    tags: Sequence[str],
    similarity: float | None,
    bm25: float,
    weight: float | None,
) -> Candidate:
    share = bm25 / (weight * (K1 + 1)) if weight else 0.0
    return Candidate(tool_id, server_name, tool_name, tags, similarity, bm25, share)
