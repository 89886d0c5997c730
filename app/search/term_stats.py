"""Document frequencies: how many of the visible tools contain each term, which BM25 needs to weigh a query.

Postgres counts over exactly the tools that the caller may see. The counts are cached with the catalogue's version. A
search reads the version again in its own statement, so that an outdated count is noticed and never used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pgvector import SparseVector

from app.catalog.visibility import VISIBLE, CacheKey, Scope
from app.db.engine import Reader
from app.db.tables import TERM_SPACE
from app.limits.byte_cache import ByteCache
from app.search.bm25 import MAX_TERM_WEIGHT, inverse_document_frequency

_MAX_CACHE_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 1_000
_TERM_BYTES = 200
_CACHE_TTL_S = 600.0
_MAX_TERMS_PER_SCOPE = 2_000

_COUNT_TERMS = f"""
WITH visible AS MATERIALIZED (
    SELECT v.tokens, v.lexical FROM mcp_tool_embeddings v WHERE {VISIBLE}
)
SELECT (SELECT catalog_version FROM users WHERE id = %(user_id)s),
       (SELECT count(*) FROM visible),
       (SELECT coalesce(sum(tokens), 0) FROM visible),
       ARRAY(
           SELECT count(v.lexical)
           FROM unnest(%(terms)s::sparsevec[]) WITH ORDINALITY AS requested (term, position)
           LEFT JOIN visible v ON (v.lexical <#> requested.term) < 0
           GROUP BY position ORDER BY position
       )
"""


@dataclass(frozen=True)
class TermStats:
    """`searched` and `tokens` count all visible tools, `document_frequencies` the tools with each term, by term id."""

    version: int
    searched: int
    tokens: int
    document_frequencies: Mapping[int, int]

    @cached_property
    def idf(self) -> dict[int, float]:
        """The inverse document frequencies, by term id."""
        frequencies = self.document_frequencies.items()
        return {term_id: inverse_document_frequency(count, self.searched) for term_id, count in frequencies}

    def make_query_vector(self, term_ids: Sequence[int]) -> SparseVector:
        return SparseVector({term_id: self.idf[term_id] for term_id in term_ids}, TERM_SPACE)

    def max_bm25(self, term_ids: Sequence[int]) -> float:
        """Return the upper bound of a tool's BM25 for these terms."""
        return sum(self.idf[term_id] for term_id in term_ids) * MAX_TERM_WEIGHT


class TermStatsCache:
    def __init__(self) -> None:
        self._cache: ByteCache[tuple[CacheKey, str], TermStats] = ByteCache(
            _MAX_CACHE_BYTES,
            get_owner=lambda key: key[0][0],
            measure=lambda stats: _ENTRY_BYTES + _TERM_BYTES * len(stats.document_frequencies),
            ttl_s=_CACHE_TTL_S,
        )

    async def get(self, reader: Reader, scope: Scope, term_ids: Sequence[int], version: int = 0) -> TermStats:
        """Return cached counts of this version of the catalogue or a later one, or count."""
        cached = None if scope.is_filtered else self._cache.get((scope.cache_key, scope.model))
        is_current = cached is not None and cached.version >= version
        if cached is None or not is_current or not cached.document_frequencies.keys() >= set(term_ids):
            return await self.refresh(reader, scope, term_ids)
        frequencies = {term_id: cached.document_frequencies[term_id] for term_id in term_ids}
        return TermStats(cached.version, cached.searched, cached.tokens, frequencies)

    async def refresh(self, reader: Reader, scope: Scope, term_ids: Sequence[int]) -> TermStats:
        """Count in Postgres, and cache the counts unless a filter of this request narrows the scope."""
        terms = [SparseVector({term_id: 1.0}, TERM_SPACE) for term_id in term_ids]
        [(version, searched, tokens, counts)] = await reader.rows(_COUNT_TERMS, scope.parameters() | {"terms": terms})
        stats = TermStats(version, searched, int(tokens), dict(zip(term_ids, counts, strict=True)))
        if not scope.is_filtered:
            self._store(scope, stats)
        return stats

    def _store(self, scope: Scope, stats: TermStats) -> None:
        key = scope.cache_key, scope.model
        cached = self._cache.get(key)
        if (
            cached is not None
            and cached.version == stats.version
            and len(cached.document_frequencies) < _MAX_TERMS_PER_SCOPE
        ):
            merged = {**cached.document_frequencies, **stats.document_frequencies}
            stats = TermStats(stats.version, stats.searched, stats.tokens, merged)
        self._cache[key] = stats
