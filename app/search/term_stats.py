"""In how many of the visible tools each term stands: what BM25 has to know before it can weigh a query.

Counted in Postgres over exactly the tools that the caller may see, and remembered with the catalogue's version. A
search reads the version again, in its own statement, so that an outdated count is noticed and never used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pgvector import SparseVector

from app.cache import TtlCache
from app.catalog.visibility import VISIBLE, CacheKey, Scope
from app.db.engine import Session
from app.db.tables import TERM_SPACE
from app.search.bm25 import MOST_PER_TERM, inverse_document_frequency

_USERS = 1_000
_REMEMBERED_S = 600.0
_TERMS_OF_A_USER = 2_000

_COUNT = f"""
WITH visible AS MATERIALIZED (
    SELECT v.tokens, v.lexical FROM mcp_tool_embeddings v WHERE {VISIBLE}
)
SELECT (SELECT catalog_version FROM users WHERE id = %(user_id)s),
       (SELECT count(*) FROM visible),
       (SELECT coalesce(sum(tokens), 0) FROM visible),
       ARRAY(
           SELECT count(v.lexical)
           FROM unnest(%(terms)s::sparsevec[]) WITH ORDINALITY AS asked (term, position)
           LEFT JOIN visible v ON (v.lexical <#> asked.term) < 0
           GROUP BY position ORDER BY position
       )
"""


@dataclass(frozen=True)
class Counts:
    """`frequencies`: for each of the query's terms, by its place, the number of tools that have it."""

    version: int
    searched: int
    tokens: int
    frequencies: Mapping[int, int]

    @cached_property
    def _idf(self) -> dict[int, float]:
        return {place: inverse_document_frequency(n, self.searched) for place, n in self.frequencies.items()}

    def weights(self, places: Sequence[int]) -> SparseVector:
        return SparseVector({place: self._idf[place] for place in places}, TERM_SPACE)

    def most(self, places: Sequence[int]) -> float:
        """That a tool could score by these terms."""
        return sum(self._idf[place] for place in places) * MOST_PER_TERM


class Lexicon:
    def __init__(self) -> None:
        self._known: TtlCache[tuple[CacheKey, str], Counts] = TtlCache(_USERS, _REMEMBERED_S)

    async def counts(self, session: Session, scope: Scope, places: Sequence[int]) -> Counts:
        known = None if scope.is_filtered else self._known.get((scope.cache_key, scope.model))
        if known is None or not known.frequencies.keys() >= set(places):
            return await self.recount(session, scope, places)
        return Counts(
            known.version, known.searched, known.tokens, {place: known.frequencies[place] for place in places}
        )

    async def recount(self, session: Session, scope: Scope, places: Sequence[int]) -> Counts:
        terms = [SparseVector({place: 1.0}, TERM_SPACE) for place in places]
        [(version, searched, tokens, found)] = await session.rows(_COUNT, scope.parameters() | {"terms": terms})
        counts = Counts(version, searched, int(tokens), dict(zip(places, found, strict=True)))
        if not scope.is_filtered:
            self._remember(scope, counts)
        return counts

    def _remember(self, scope: Scope, counts: Counts) -> None:
        key = scope.cache_key, scope.model
        known = self._known.get(key)
        if known is not None and known.version == counts.version and len(known.frequencies) < _TERMS_OF_A_USER:
            merged = {**known.frequencies, **counts.frequencies}
            counts = Counts(counts.version, counts.searched, counts.tokens, merged)
        self._known.put(key, counts)
