"""Search a very large tenant without reading all of its rows.

Ordinary tenants are searched exactly (`postgres.py`). A tenant above `SEARCH_ANN_ABOVE` tools has indexes of its own
(`hnsw.py`), from which a search takes candidates: the tools nearest to each text of the query, the tools with its rare
words, tools that it names, tools with examples like it, and the servers whose tools were called. The candidates are
scored as every tool of an ordinary tenant is, by the same SQL.

Counts of tools and document frequencies are read from tables that the worker refreshes soon after a change of the
catalogue (`indexing/large_tenants.py`): they may be a little behind, which moves the weight of a word by next to
nothing. There are none until the indexes are complete; until then the tenant is searched exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from app.catalog.visibility import CacheKey, Scope
from app.db.engine import Reader
from app.limits.byte_cache import ByteCache
from app.search.hnsw import LargeTenant
from app.search.learned import NOTHING_LEARNED, Learned
from app.search.named_tags import TAG_BYTES, TagTerms, find_named_tags, make_tag_terms
from app.search.postgres import (
    SearchResult,
    StatementShape,
    TextVectors,
    best_statement,
    compute_weights,
    evidence_subquery,
    get_shape,
    make_candidates,
    make_search_parameters,
)
from app.search.ranking import candidate_pool_size, rank
from app.search.scoring import ScoringParams
from app.search.term_stats import TermStats

NEAREST = 200
"""How many tools are candidates by meaning, for each text of the query."""
EF_SEARCH = 400
"""How many tools the search in the HNSW graph keeps in view: the more, the fewer it misses."""
_MAX_BY_WORDS = 1_000
_MAX_NAMED = 400
_MAX_SIBLINGS = 2_000

_MAX_TAG_BYTES = 32 * 1024 * 1024
_TAG_CACHE_S = 600.0

# `relaxed_order`: a scan goes on until it has found as many visible tools as are wanted. It may return them slightly
# out of order, but the candidates are scored and sorted anyway.
_READ_STATS = f"""
SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '{EF_SEARCH}', true),
       s.version, s.searched, s.tokens, CASE WHEN s.version <> %(known_version)s THEN s.tags END,
       (SELECT u.searched FROM large_tenant_stats u
        WHERE u.user_id = %(user_id)s AND u.model = %(model)s AND u.project_id = ''),
       ARRAY(SELECT coalesce(t.tools, 0) FROM unnest(%(terms)s::integer[]) WITH ORDINALITY AS requested (term, position)
             LEFT JOIN large_tenant_terms t
             ON t.user_id = %(user_id)s AND t.model = %(model)s AND t.term_id = requested.term
             ORDER BY position)
FROM large_tenant_stats s
WHERE s.user_id = %(user_id)s AND s.model = %(model)s AND s.project_id = coalesce(%(project_id)s::text, '')
"""

# A subquery for each row, so that the scan of the index goes on until the limit is reached.
_NEAREST = f"""
    (SELECT l.tool_id FROM large_tenant_tools l
     WHERE {{predicate}} AND (
         SELECT n.enabled AND (%(project)s::bigint IS NULL OR %(project)s::bigint = ANY(n.projects))
         FROM mcp_tool_embeddings n
         WHERE n.user_id = l.user_id AND n.model = l.model AND n.tool_id = l.tool_id)
     ORDER BY l.{{distance}} LIMIT {NEAREST})
"""
_WITH_RARE_WORDS = f"""
    (SELECT w.tool_id FROM large_tenant_words w
     WHERE {{predicate}} AND w.terms && %(rare_terms)s::integer[] LIMIT {2 * _MAX_BY_WORDS})
"""
_NAMED = f"""
    (SELECT l.tool_id FROM large_tenant_tools l
     WHERE {{predicate}} AND l.name = ANY(%(candidate_names)s::text[]) LIMIT {_MAX_NAMED})
"""
_WITH_EXAMPLES = "(SELECT unnest(%(boosted)s::text[]))"
# the tools of the servers whose tools were called
_SIBLINGS = f"""
    (SELECT t.id FROM mcp_tools t
     WHERE t.user_id = %(user_id)s AND t.server_id = ANY(ARRAY(
         SELECT c.server_id FROM mcp_tools c WHERE c.user_id = %(user_id)s AND c.name = ANY(%(called)s::text[])))
     LIMIT {_MAX_SIBLINGS})
"""


@dataclass(frozen=True)
class TenantStats:
    """`words` are the document frequencies among all of the user's visible tools; the other counts are the scope's."""

    version: int
    searched: int
    tokens: int
    words: TermStats
    tag_terms: TagTerms


class LargeTenantSearch:
    def __init__(self) -> None:
        self._tags: ByteCache[tuple[CacheKey, str], tuple[int, TagTerms]] = ByteCache(
            _MAX_TAG_BYTES,
            get_owner=lambda key: key[0][0],
            measure=lambda entry: TAG_BYTES * len(entry[1]),
            ttl_s=_TAG_CACHE_S,
        )

    async def find(
        self,
        reader: Reader,
        scope: Scope,
        params: ScoringParams,
        vectors: TextVectors,
        *,
        limit: int,
        learned: Learned = NOTHING_LEARNED,
    ) -> SearchResult | None:
        """Return the best hits within the scope, or None if only an exact search can tell.

        That is the case for a search by words alone, for filters of the request, while the tenant's indexes are being
        built, and if fewer tools are found than are asked for.
        """
        if vectors is None or scope.is_filtered:
            return None
        stats = await self._read_stats(reader, scope, params.all_term_ids)
        if stats is None:
            return None
        if params.strategy != "semantic":
            params = replace(params, named_tags=find_named_tags(params.query.search_text, stats.tag_terms))
        weights = compute_weights(params, stats.words)
        boosts = learned.compute_boosts(vectors, params, weights)
        parameters = scope.parameters() | make_search_parameters(params, stats.words, vectors, boosts)
        parameters |= {
            "pool_size": candidate_pool_size(params, limit),
            "rare_terms": _to_stored_terms(choose_rare_terms(stats.words)),
            "candidate_names": [*parameters["names"], *(name.lower() for name in params.query.called)],
            "boosted": [tool_id for tool_id, boost in boosts.items() if boost > 0],
        }
        tenant = LargeTenant(scope.user_id, scope.model, len(vectors[0]))
        statement = search_statement(tenant, get_shape(params, vectors, boosts))
        rows = await reader.rows(statement, parameters)
        if not rows or rows[0][1] < min(limit, stats.searched):
            return None
        ranking = rank(make_candidates(rows, params, stats.words, vectors, boosts), params, weights, vectors, limit)
        return SearchResult(ranking, stats.searched, stats.tokens, rows[0][0])

    async def _read_stats(self, reader: Reader, scope: Scope, term_ids: Sequence[int]) -> TenantStats | None:
        key = scope.cache_key, scope.model
        known_version, tag_terms = self._tags.get(key) or (-1, {})
        parameters = {"known_version": known_version, "terms": _to_stored_terms(term_ids)}
        rows = await reader.rows(_READ_STATS, scope.parameters() | parameters)
        if not rows:
            return None
        [(_, _, version, searched, tokens, tags, all_searched, counts)] = rows
        if tags is not None:
            tag_terms = make_tag_terms(tags)
            self._tags[key] = version, tag_terms
        words = TermStats(version, all_searched, 0, dict(zip(term_ids, counts, strict=True)))
        return TenantStats(version, searched, tokens, words, tag_terms)


def choose_rare_terms(stats: TermStats) -> list[int]:
    """Return the rarest terms, as many as are contained in `_MAX_BY_WORDS` tools together.

    What is left out are words that many tools contain. They say little, and the search by meaning covers them.
    """
    chosen, tools = [], 0
    for term_id, count in sorted(stats.document_frequencies.items(), key=lambda entry: entry[1]):
        tools += count
        if tools > _MAX_BY_WORDS:
            break
        chosen.append(term_id)
    return chosen


def _to_stored_terms(term_ids: Sequence[int]) -> list[int]:
    """`large_tenant_tools` has the indices of the `sparsevec` as Postgres writes them, counted from 1."""
    return [term_id + 1 for term_id in term_ids]


@lru_cache(maxsize=256)
def search_statement(tenant: LargeTenant, shape: StatementShape) -> str:
    """Read the candidates' rows by their ids, from an array: the planner cannot know that there are few of them.

    They are materialized, since they are counted as well.
    """
    predicate = tenant.predicate.replace("%", "%%")
    nearest = [
        _NEAREST.format(predicate=predicate, distance=tenant.distance.format(vector=f"%(vector_{text})s"))
        for text in range(shape.texts)
    ]
    subqueries = [*nearest, _WITH_RARE_WORDS.format(predicate=predicate), _NAMED.format(predicate=predicate)]
    subqueries += [_WITH_EXAMPLES, *([_SIBLINGS] if shape.with_calls else [])]
    candidates = f"AND v.tool_id = ANY(ARRAY({' UNION '.join(subqueries)}))"
    best = best_statement(shape, "evidence", "(SELECT count(*) FROM evidence)")
    return f"WITH evidence AS MATERIALIZED ({evidence_subquery(shape, restriction=candidates)}) {best}"
