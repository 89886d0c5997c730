"""The use case `search_inline`: find the tools that queries need among the tools that are sent with the request.

Nothing is stored about the caller. Ranking and fallbacks are those of `discover`: if the embedder fails, the search is
by words alone. Tools that the embedder had no time for are found by their words, until a later request has embedded
them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from app.auth.permissions import Caller
from app.discovery.inline.documents import InlineTool, InlineToolParser, ParsedTool
from app.discovery.inline.vectors import VectorSource
from app.discovery.match_sentence import describe_match
from app.discovery.request import DiscoveryRequest, resolve_options
from app.embeddings.base import Vector
from app.embeddings.loaded_models import LoadedModel
from app.indexing.cache_scope import EVERYONE, CacheScope, get_user_scope
from app.indexing.parsing import Refusal
from app.indexing.tool_vectors import ToolTexts
from app.limits.fair_thread import FairExecutor
from app.search.in_memory import IndexedTool, ScoredTool, TenantIndex
from app.search.interleave import interleave
from app.search.query import Query
from app.search.scoring import ScoringParams
from app.search.searcher import QueryEmbedding, Searcher


@dataclass(frozen=True)
class InlineSearcher:
    """The services that inline search uses; built once."""

    searcher: Searcher
    parser: InlineToolParser
    executor: FairExecutor
    """Runs what takes long, in turns of the users."""
    budget_s: float
    """How long a request may wait for the embeddings of its tools."""

    def make_vector_source(self, model: LoadedModel, user_id: str) -> VectorSource:
        return VectorSource(self.searcher.database, model, self.searcher.metrics, user_id)


@dataclass(frozen=True)
class FoundTool:
    tool_key: str
    tool: ParsedTool
    relevance: float
    explanation: str


@dataclass(frozen=True)
class InlineSearchResult:
    results: Sequence[FoundTool]
    refused: Mapping[str, str]
    """The reason, by tool key."""
    searched: int
    degraded_reason: str | None
    pending: int
    """The number of tools without an embedding, which are found by their words alone."""


@dataclass(frozen=True)
class ToolSet:
    """The tools of a request by key, indexed with the embeddings that are available."""

    parsed: Mapping[str, ParsedTool]
    refused: Mapping[str, str]
    index: TenantIndex
    pending: int = 0
    reason: str | None = None


async def search_inline(
    inline: InlineSearcher, caller: Caller, queries: Sequence[Query], tools: Sequence[InlineTool], limit: int | None
) -> InlineSearchResult:
    """Return the best of the tools for the queries together.

    A project that does not search and a user whose discovery is disabled are about the stored catalogue: inline tools
    are searched in any case.
    """
    searcher = inline.searcher
    queries = [searcher.questions.expand(caller.require_user().id, query) for query in queries]
    options = await resolve_options(searcher, caller, DiscoveryRequest(queries[0], limit=limit))
    embeddings = [await searcher.embed_query(query, options) for query in queries]
    params = [searcher.make_params(query, options, each) for query, each in zip(queries, embeddings, strict=True)]
    model = searcher.models.get(options.scope.model)
    user = caller.require_user()
    tool_set = await _parse_tools(inline, user.id, model, tools, get_user_scope(user))
    if any(embedding.vectors is not None for embedding in embeddings):
        source = inline.make_vector_source(model, user.id)
        tool_set = await _add_vectors(inline, source, tool_set, params, inline.budget_s)
    if tool_set.pending == len(tool_set.parsed):
        params = [replace(each, strategy="bm25") for each in params]
        embeddings = [replace(each, vectors=None) for each in embeddings]
    found = await inline.executor.run(user.id, partial(_find_tools, tool_set, params, embeddings, options.limit))
    reason = next((each.reason for each in embeddings if each.reason), tool_set.reason)
    if reason is not None:
        searcher.metrics.fallbacks.labels(reason).inc()
    return InlineSearchResult(found, tool_set.refused, len(tool_set.parsed), reason, tool_set.pending)


async def load_tool_set(inline: InlineSearcher, tools: Sequence[InlineTool]) -> ToolSet:
    """Return the tools with all embeddings, without a time limit."""
    model = inline.searcher.models.current
    tool_set = await _parse_tools(inline, "", model, tools, EVERYONE)
    return await _add_vectors(inline, inline.make_vector_source(model, user_id=""), tool_set, (), None)


async def _parse_tools(
    inline: InlineSearcher, user_id: str, model: LoadedModel, tools: Sequence[InlineTool], scope: CacheScope
) -> ToolSet:
    outcomes = await inline.parser.parse(user_id, tools, model.model.dimension, scope)
    by_key = [(tool.tool_key, outcome) for tool, outcome in zip(tools, outcomes, strict=True)]
    parsed = {key: tool for key, tool in by_key if isinstance(tool, ParsedTool)}
    refused = {key: refusal.reason for key, refusal in by_key if isinstance(refusal, Refusal)}
    rows = [IndexedTool(key, tool.server_name, tool.name, tool.lexical, tool.action) for key, tool in parsed.items()]
    return ToolSet(parsed, refused, await inline.executor.run(user_id, partial(TenantIndex.build, rows)))


async def _add_vectors(
    inline: InlineSearcher,
    source: VectorSource,
    tool_set: ToolSet,
    queries: Sequence[ScoringParams],
    budget_s: float | None,
) -> ToolSet:
    """Add cached embeddings, then new ones within the budget, first for tools that share words with a query."""
    texts = [tool.texts for tool in tool_set.parsed.values()]
    vectors = await source.read_cached([each.vector_hash for each in texts])
    reason = None
    if any(each.vector_hash not in vectors for each in texts):
        ordered = await inline.executor.run(source.user_id, partial(_order_by_words, tool_set, queries))
        missing = [each for each in ordered if each.vector_hash not in vectors]
        embedded = await source.embed(missing, budget_s)
        vectors, reason = {**vectors, **embedded.vectors}, embedded.reason
    by_row: list[Vector | None] = [vectors.get(each.vector_hash) for each in texts]
    index = await inline.executor.run(source.user_id, partial(tool_set.index.with_vectors, by_row))
    return replace(tool_set, index=index, pending=sum(vector is None for vector in by_row), reason=reason)


def _order_by_words(tool_set: ToolSet, queries: Sequence[ScoringParams]) -> list[ToolTexts]:
    """Return the texts of the tools, the best match by words first."""
    texts = [tool.texts for tool in tool_set.parsed.values()]
    if not queries:
        return texts
    scored = zip(tool_set.index.score_by_words(queries), texts, strict=True)
    return [each for _, each in sorted(scored, key=lambda pair: -pair[0])]


def _find_tools(
    tool_set: ToolSet, params: Sequence[ScoringParams], embeddings: Sequence[QueryEmbedding], limit: int
) -> list[FoundTool]:
    queries = zip(params, embeddings, strict=True)
    rankings = [tool_set.index.find(query, embedding.vectors, limit) for query, embedding in queries]
    taken = interleave(rankings, limit, lambda tool: tool.hit.tool_id, lambda tool: tool.hit.score)
    return [
        FoundTool(tool.hit.tool_id, tool_set.parsed[tool.hit.tool_id], tool.hit.score, _describe(tool))
        for tool in taken
    ]


def _describe(tool: ScoredTool) -> str:
    return describe_match(named=tool.named, words=tool.words, similarity=tool.similarity)
