"""Ranked hits inside what the caller may see. The only public name of this room is `HybridSearch`.

A search is one statement: it looks at each of the user's visible tools once, weighs both kinds of evidence as
`ranking.py` says, and answers with the best, so that the first k are the true first k. What BM25 has to know
beforehand, in how many of the visible tools each term stands, is remembered for as long as the catalogue's version
stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pgvector import HalfVector, SparseVector

from app.catalog.visibility import TAGS, VISIBLE, Scope
from app.db.engine import Session
from app.embeddings.base import Vector
from app.search import hnsw
from app.search.bm25 import matching_words, possible_names
from app.search.intents import agreement
from app.search.scoring import (
    ACTION_BOOST,
    CALLED_BOOST,
    TAG_BOOST,
    Candidate,
    Hit,
    ScoringParams,
    Weights,
    candidate_pool_size,
    is_named,
    make_weights,
    matched_tags,
    rank,
    should_abstain,
)
from app.search.term_stats import Counts, Lexicon
from app.usage.priors import MAX_PRIOR

_SCORED = """
    SELECT v.tool_id, v.server_name, v.tool_name, {tags} AS tags, v.action, v.prior, {evidence}
    FROM mcp_tool_embeddings v {joined}
    WHERE {visible}
"""
# most messages name no tool, and to bring every name to lower case takes longer than to weigh the tools
_NAMED = "cardinality(%(names)s::text[]) > 0 AND lower(v.tool_name) = ANY(%(names)s::text[]) AS named"

# what a name weighs: more than all else together
_FIRST = 1000

_BEST = """
SELECT u.catalog_version, {weighed}, best.*
FROM users u LEFT JOIN (
    SELECT tool_id, server_name, tool_name, tags, action, prior, {columns} FROM {rows}
    WHERE bm25_0 >= %(strong)s OR {similarity} >= %(least)s OR named
    ORDER BY {score} + {boost} + CASE WHEN named THEN {first}::float8 ELSE 0::float8 END DESC, server_name, tool_name
    LIMIT %(pool)s
) best ON true
WHERE u.id = %(user_id)s
"""

_EVIDENCE = """
WITH scored AS MATERIALIZED ({scored}),
ranked AS (
    SELECT *, row_number() OVER (ORDER BY similarity_0 DESC NULLS LAST, server_name, tool_name) AS cosine_rank,
           row_number() OVER (ORDER BY bm25_0 DESC, server_name, tool_name) AS bm25_rank
    FROM scored
)
SELECT r.tool_id, r.tool_name, r.tags, r.similarity_0, r.cosine_rank, r.bm25_0, r.bm25_rank, r.action, r.prior,
       v.lexical
FROM ranked r JOIN mcp_tool_embeddings v ON v.user_id = %(user_id)s AND v.model = %(model)s AND v.tool_id = r.tool_id
WHERE r.tool_id = ANY(%(tool_ids)s)
"""

# The same as ranking.boost. A plain .03 would be numeric, and converted for each row; comparing tags takes longer than
# all the rest, and few requests name any.
_BOOST = f"""
    CASE WHEN action = 0 OR %(wanted)s = 0 THEN 0::float8
         WHEN action & %(wanted)s > 0 THEN {ACTION_BOOST}::float8 ELSE -{ACTION_BOOST}::float8 END
    + least(prior, {MAX_PRIOR})
    + CASE WHEN tool_name = ANY(%(called)s::text[]) THEN {CALLED_BOOST}::float8 ELSE 0::float8 END
"""
_TAG_BOOST = (
    f" + {TAG_BOOST}::float8 * cardinality(ARRAY(SELECT unnest(tags) INTERSECT SELECT unnest(%(boosted)s::text[])))"
)

_Rows = Sequence[tuple[Any, ...]]
_Vectors = Sequence[Vector] | None
"""Of the query's texts, one each."""


@dataclass(frozen=True)
class SearchResult:
    """`searched` and `tokens` count all that was visible, not only the hits."""

    hits: list[Hit]
    searched: int
    tokens: int
    version: int
    """The catalogue's, at the moment of the search."""
    abstained: bool = False
    """There were tools above the threshold, but by the model's judgement none that fits."""


@dataclass(frozen=True)
class Evidence:
    """Why a visible tool stands where it stands. Ranks are among all that is visible, and missing without a score."""

    cosine: float | None
    cosine_rank: int | None
    bm25: float
    bm25_rank: int | None
    tag_boost: float
    action_boost: float
    prior: float
    matched_words: Sequence[str]
    named_in_message: bool


class HybridSearch:
    """One for all models: which of them is meant, the scope says."""

    def __init__(self) -> None:
        self._lexicon = Lexicon()

    async def find(
        self,
        session: Session,
        scope: Scope,
        question: ScoringParams,
        vectors: _Vectors,
        *,
        limit: int | None,
        ann: bool = False,
    ) -> SearchResult:
        """Without vectors it is a search by words. `ann` says that the user is large enough for HNSW. Without a limit
        it is the whole ranking of all that passes."""
        counts = await self._lexicon.counts(session, scope, question.places[0])
        rows = await self._rows(session, scope, question, counts, vectors, limit=limit, ann=ann)
        if rows and rows[0][0] != counts.version:
            # the catalogue has changed since the terms were counted
            counts = await self._lexicon.recount(session, scope, question.places[0])
            rows = await self._rows(session, scope, question, counts, vectors, limit=limit, ann=ann)
        candidates = [_candidate(row) for row in rows if row[2] is not None]
        scale = _scale(question, counts)
        if vectors is not None and should_abstain(candidates, question, vectors[0]):
            return SearchResult([], counts.searched, counts.tokens, counts.version, abstained=bool(candidates))
        hits = rank(candidates, question, scale, len(candidates) if limit is None else limit)
        return SearchResult(hits, counts.searched, counts.tokens, counts.version)

    async def evidence(
        self, session: Session, scope: Scope, question: ScoringParams, vectors: _Vectors, tool_ids: Sequence[str]
    ) -> dict[str, Evidence]:
        """Of those that are visible, by id. A look at every tool, always exact: nobody explains every message."""
        places = question.places[:1]
        counts = await self._lexicon.recount(session, scope, places[0])
        parameters = scope.parameters() | _asked(counts, places, vectors) | {"tool_ids": list(tool_ids)}
        rows = await session.rows(_explained(), parameters)
        return {tool_id: _evidence(question, *rest) for tool_id, *rest in rows}

    async def _rows(
        self,
        session: Session,
        scope: Scope,
        question: ScoringParams,
        counts: Counts,
        vectors: _Vectors,
        *,
        limit: int | None,
        ann: bool,
    ) -> _Rows:
        places = question.places
        parameters = scope.parameters() | _asked(counts, places, vectors) | _weighed(question, counts)
        parameters["pool"] = None if limit is None else candidate_pool_size(question, limit)
        if ann and vectors is not None and limit is not None:
            await session.rows(hnsw.HNSW_SETTINGS)
            statement = _through_hnsw(scope.model, len(vectors[0]), len(places), tagged=bool(question.tags))
            rows = await session.rows(statement, parameters)
            if rows and rows[0][1] >= min(limit, counts.searched):
                return rows
            # HNSW filters after it has looked: fewer rows than there are to find means that it lost some
        return await session.rows(_exact(len(places), tagged=bool(question.tags)), parameters)


def _asked(counts: Counts, places: Sequence[Sequence[int]], vectors: _Vectors) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for text, terms in enumerate(places):
        asked[f"terms_{text}"] = counts.weights(terms)
        asked[f"vector_{text}"] = None if vectors is None else HalfVector(vectors[text])
    return asked


def _scale(question: ScoringParams, counts: Counts) -> Weights:
    return make_weights(question, [counts.most(terms) for terms in question.places])


def _weighed(question: ScoringParams, counts: Counts) -> dict[str, Any]:
    scale = _scale(question, counts)
    weights = {f"words_{text}": weight for text, weight in enumerate(scale.words)}
    return weights | {
        "unrelated": scale.unrelated,
        "meaning": scale.meaning,
        "strong": scale.strong,
        "least": scale.least,
        "names": possible_names(question.query.said),
        "wanted": question.wanted,
        "called": list(question.query.called),
        "boosted": list(question.tags),
    }


def _scored(texts: int, *more: str, joined: str = "") -> str:
    similarities = [f"{hnsw.similarity(text)} AS similarity_{text}" for text in range(texts)]
    bm25s = [f"-(v.lexical <#> %(terms_{text})s::sparsevec) AS bm25_{text}" for text in range(texts)]
    evidence = ", ".join([*similarities, *bm25s, *more])
    return _SCORED.format(evidence=evidence, joined=joined, visible=VISIBLE, tags=TAGS)


def _best(texts: int, rows: str, weighed: str, *, tagged: bool) -> str:
    """The same as `Scale.fused`, and as `passes`."""
    above = "coalesce(similarity_{0} - %(unrelated)s, 0)"
    whole, *aims = (f"(%(meaning)s * {above.format(text)} + %(words_{text})s * bm25_{text})" for text in range(texts))
    return _BEST.format(
        weighed=weighed,
        rows=rows,
        columns=", ".join([f"similarity_{n}" for n in range(texts)] + [f"bm25_{n}" for n in range(texts)]),
        similarity=f"coalesce(greatest({', '.join(f'similarity_{n}' for n in range(texts))}), -1)",
        score=f"greatest({', '.join([whole, *(f'({whole} + {aim}) / 2' for aim in aims)])})" if aims else whole,
        boost=_BOOST + (_TAG_BOOST if tagged else ""),
        first=_FIRST,
    )


@lru_cache(maxsize=16)
def _exact(texts: int, *, tagged: bool) -> str:
    """Each row is weighed once, before any other clause looks at it: nothing is moved across an OFFSET."""
    return _best(texts, f"({_scored(texts, _NAMED)} OFFSET 0) scored", "NULL", tagged=tagged)


@lru_cache(maxsize=64)
def _through_hnsw(model: str, dimension: int, texts: int, *, tagged: bool) -> str:
    """The rows that were found are counted as well, and so have to be kept."""
    found = _scored(texts, _NAMED, joined=hnsw.candidate_ids(model, dimension, texts))
    best = _best(texts, "scored", "(SELECT count(*) FROM scored)", tagged=tagged)
    return f"WITH scored AS MATERIALIZED ({found}) {best}"


@lru_cache(maxsize=1)
def _explained() -> str:
    return _EVIDENCE.format(scored=_scored(1))


def _candidate(row: tuple[Any, ...]) -> Candidate:
    _, _, tool_id, server_name, tool_name, tags, action, prior, *evidence = row
    texts = len(evidence) // 2
    return Candidate(tool_id, server_name, tool_name, tags, evidence[:texts], evidence[texts:], action, prior)


def _evidence(
    question: ScoringParams,
    tool_name: str,
    tags: Sequence[str],
    similarity: float | None,
    cosine_rank: int,
    bm25: float,
    bm25_rank: int,
    action: int,
    prior: float,
    words: SparseVector,
) -> Evidence:
    return Evidence(
        cosine=similarity,
        cosine_rank=None if similarity is None else cosine_rank,
        bm25=bm25,
        bm25_rank=bm25_rank if bm25 > 0 else None,
        tag_boost=TAG_BOOST * len(matched_tags(tags, question)),
        action_boost=ACTION_BOOST * agreement(question.wanted, action),
        prior=prior,
        matched_words=matching_words(question.query.whole, words),
        named_in_message=is_named(question.query.said.lower(), tool_name),
    )
