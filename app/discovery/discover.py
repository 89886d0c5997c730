"""The use case `discover`: find the few tools that a message needs.

The fallback chain. Each level applies the same visibility filter, and the answer names the level:

    search by meaning and words, in memory or in Postgres, or through the cloud
    -> (embedder or cloud down, slow, or its circuit breaker open) search by words alone
    -> (the search fails) all visible tools up to the limit, pinned and most used tools first
    -> (database down) `DatabaseDown`, which says when to try again

Every request starts at the top, so that the service recovers by itself.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from app.auth.permissions import Caller
from app.auth.rollout import Rollout
from app.auth.users import User
from app.catalog.definitions import (
    DefinitionCache,
    DefinitionSet,
    ToolDefinitionView,
    count_visible,
    has_tools,
    list_visible_definitions,
    read_definitions,
)
from app.catalog.removed_tools import read_aliases
from app.catalog.tool_keys import is_tool_id, resolve_keys
from app.catalog.visibility import Scope
from app.connections.connector import Connector
from app.connections.tickets import Ticket, make_link
from app.crypto import Sealer
from app.db.engine import Database, Reader
from app.discovery.changes import compare_toolsets, render_toolset
from app.discovery.cloud_search import CloudAnswer, CloudSearch, judge_matches
from app.discovery.conversations import Conversations
from app.discovery.ids import new_discovery_id
from app.discovery.match_sentence import describe_match
from app.discovery.models import Discovery, NoMatchReason
from app.discovery.recording import DiscoveryRecorder
from app.discovery.request import ConversationTurn, DiscoveryRequest, make_options, make_scope
from app.discovery.selection import (
    SelectedTool,
    ToolSelection,
    count_tokens,
    select_tools,
)
from app.embeddings.calibration import shift_chance
from app.errors import CloudFailed, QueryFailed, QueryInterrupted, Unavailable
from app.observability.tracing import Tracing, trace_call
from app.search.confidence import Confidence, Judgement
from app.search.language import ENGLISH
from app.search.postgres import Evidence
from app.search.query import Query
from app.search.ranking import Hit, Ranking, is_named
from app.search.searcher import QueryEmbedding, Searcher, SearchOptions
from app.search.snapshot_cache import SnapshotCache
from app.search.snapshots import Snapshot
from app.search.term_stats import TermStats

logger = logging.getLogger("toolscout.discovery")

_MAX_TOOLS_ON_LOOP = 5_000
"""A search of more tools takes so long that it runs in a thread."""


@dataclass(frozen=True)
class Discoverer:
    """The services that discovery uses; built once."""

    searcher: Searcher
    definition_cache: DefinitionCache
    sealer: Sealer
    recorder: DiscoveryRecorder
    rollout: Rollout
    cloud: CloudSearch
    snapshots: SnapshotCache
    connector: Connector
    conversations: Conversations
    max_tools: int

    @property
    def database(self) -> Database:
        return self.searcher.database

    def limit_tools(self, options: SearchOptions) -> int:
        """Return the maximum number of kept and found tools in an answer: a limit that is asked for may exceed it."""
        return max(self.max_tools, options.requested_limit or 0)

    @property
    def tracing(self) -> Tracing:
        return self.searcher.tracing


async def discover(discoverer: Discoverer, caller: Caller, request: DiscoveryRequest) -> Discovery:
    """Return the few tools that the request's message needs.

    Raises `NotFound` if the project does not exist or the caller's key is bound to another one.
    """
    if request.conversation is None:
        discovery = await _discover_once(discoverer, caller, request)
    else:
        discovery = await _discover_in_conversation(discoverer, caller, request, request.conversation)
    return replace(discovery, connect_urls=_make_links(discoverer, caller, discovery)) if request.connect else discovery


async def _discover_once(discoverer: Discoverer, caller: Caller, request: DiscoveryRequest) -> Discovery:
    [discovery] = await discover_each(discoverer, caller, request, [request.query])
    return discovery


async def _discover_in_conversation(
    discoverer: Discoverer, caller: Caller, request: DiscoveryRequest, conversation: ConversationTurn
) -> Discovery:
    """Record one discovery, however often other requests of the conversation make it search again."""
    started = time.perf_counter()

    def search(request: DiscoveryRequest) -> Awaitable[Discovery]:
        return _discover_once(discoverer, caller, replace(request, dry_run=True))

    discovery = await discoverer.conversations.discover(caller, request, conversation, search)
    if not request.dry_run:
        discoverer.recorder.record(caller, request, discovery, time.perf_counter() - started)
    return discovery


def _make_links(discoverer: Discoverer, caller: Caller, discovery: Discovery) -> dict[str, str]:
    """Links of our own, which ask a server how to sign in only when somebody opens them."""
    base_url = discoverer.connector.config.base_url
    if base_url is None:
        return {}
    tools = (tool.definition for tool in discovery.tools)
    servers = {tool.server_id for tool in tools if tool.server_id and tool.server_status == "needs_authorization"}
    user_id, sealer = caller.require_user().id, discoverer.sealer
    return {
        server_id: make_link(sealer, base_url, Ticket(user_id, server_id, caller.actor)).authorization_url
        for server_id in servers
    }


async def discover_each(
    discoverer: Discoverer, caller: Caller, request: DiscoveryRequest, queries: Sequence[Query]
) -> list[Discovery]:
    """Answer the same request for several queries.

    The queries run one after another, so that one caller does not occupy several connections.
    """
    user, searcher = caller.require_user(), discoverer.searcher
    scope = await make_scope(searcher, caller, request)
    expanded = [searcher.questions.expand(user.id, query) for query in queries]
    # the filters of a request differ from one to the next, and explanations are rare
    is_plain = not scope.is_filtered and not request.explain
    snapshot = await discoverer.snapshots.get(user, scope) if is_plain else None
    prepared = _Prepared(snapshot)
    if snapshot is not None:
        project = snapshot.project
    else:
        project, stats = await searcher.prepare(scope, expanded, user)
        prepared = _Prepared(stats=stats)
    options = make_options(searcher, caller, request, scope, project)
    if options.cloud or not options.enabled:
        prepared = _Prepared()
    elif is_plain and snapshot is None:
        discoverer.snapshots.note_miss(user, scope)
    if not all(map(is_tool_id, request.kept_keys)):
        request = await _resolve_kept(discoverer, scope, request, prepared.snapshot)
    found = [await _discover(discoverer, caller, replace(request, query=each), options, prepared) for each in expanded]
    return found if request.keep is None else [await _add_changes(discoverer, request, each) for each in found]


async def _add_changes(discoverer: Discoverer, request: DiscoveryRequest, discovery: Discovery) -> Discovery:
    """Compare the tools with those that the model has. Tools that it has unchanged come first, in their old order."""
    rendered = render_toolset([tool.definition for tool in discovery.tools], request.api_format)
    changes = compare_toolsets(request.keep or (), rendered)
    unnamed = [tool.tool_key for tool in changes.removed if tool.alias is None]
    if unnamed and request.api_format == "anthropic":  # the other formats name no removed tool
        changes = changes.name_removed(await _read_aliases(discoverer, discovery.options, unnamed), rendered)
    added = {tool.tool_key for tool in changes.added}
    return replace(
        discovery,
        tools=sorted(discovery.tools, key=lambda tool: tool.definition.tool_id in added),
        rendered=sorted(rendered, key=lambda tool: tool.tool_key in added),
        changes=changes,
    )


async def _read_aliases(discoverer: Discoverer, options: SearchOptions, keys: Sequence[str]) -> dict[str, str]:
    """Return the aliases of tools that are not in the answer, as far as the caller may know them."""
    scope = options.scope
    try:
        async with discoverer.database.snapshot(scope.user_id) as session:
            return await read_aliases(session, scope, keys, confined=options.confined)
    except QueryFailed:
        logger.exception("failed to read the names of removed tools")
        return {}


@dataclass(frozen=True)
class _Prepared:
    """What is known before the search: the user's tools, or what a search in Postgres needs besides them."""

    snapshot: Snapshot | None = None
    stats: TermStats | None = None


async def _resolve_kept(
    discoverer: Discoverer, scope: Scope, request: DiscoveryRequest, snapshot: Snapshot | None
) -> DiscoveryRequest:
    """Return the request with the ids of the kept tools. A key that names no visible tool remains, to be reported as
    removed: if the look-up of names fails, no answer would be true."""
    keys, ids = request.kept_keys, dict[str, str]()
    if snapshot is not None:
        ids = snapshot.resolve_keys(keys)
    else:
        try:
            async with discoverer.database.snapshot(scope.user_id) as session:
                ids = await resolve_keys(session, scope, keys)
        except QueryInterrupted:
            raise
        except QueryFailed as error:
            logger.exception("failed to resolve the names of kept tools")
            raise Unavailable("the tools in `keep` could not be looked up; try again shortly") from error
    return replace(
        request, keep=[replace(kept, tool_key=ids.get(kept.tool_key, kept.tool_key)) for kept in request.keep or ()]
    )


@trace_call("discover", "strategy", "degraded_reason", "searched", "no_match")
async def _discover(
    discoverer: Discoverer,
    caller: Caller,
    request: DiscoveryRequest,
    options: SearchOptions,
    prepared: _Prepared,
) -> Discovery:
    user, started = caller.require_user(), time.perf_counter()
    if not options.enabled:
        discovery = await _return_core_tools(discoverer, request, options)
        if not request.dry_run:
            discoverer.recorder.record(caller, request, discovery, time.perf_counter() - started)
        return discovery
    search_started = started
    if discoverer.rollout.includes(user):
        query: CloudAnswer | QueryEmbedding
        if options.cloud:
            query = await _ask_cloud(discoverer, request.query, options)
        else:
            query = await discoverer.searcher.embed_query(request.query, options)
            search_started = time.perf_counter()
        discovery = await _search_or_fall_back(discoverer, user, request, options, query, prepared)
    else:
        discovery = await _return_all_tools(discoverer, request, options, "disabled")
    search_seconds = time.perf_counter() - search_started
    if not options.cloud:  # the time of the cloud has a histogram of its own
        discoverer.searcher.metrics.search_seconds.observe(search_seconds)
    if not request.dry_run:
        discoverer.recorder.record(caller, request, discovery, time.perf_counter() - started)
    return replace(discovery, duration_ms=round(search_seconds * 1000, 2))


@trace_call("cloud")
async def _ask_cloud(discoverer: Discoverer, query: Query, options: SearchOptions) -> CloudAnswer | QueryEmbedding:
    """Return what the cloud finds, or why the search is by words alone instead."""
    try:
        return await discoverer.cloud.find(query, options)
    except CloudFailed as error:
        return QueryEmbedding("bm25", reason=f"cloud_{error.reason}")
    except QueryFailed:
        logger.exception("failed to read the tools for the cloud, searching by words alone")
        return QueryEmbedding("bm25", reason="cloud_query_failed")


async def _search_or_fall_back(
    discoverer: Discoverer,
    user: User,
    request: DiscoveryRequest,
    options: SearchOptions,
    query: CloudAnswer | QueryEmbedding,
    prepared: _Prepared,
) -> Discovery:
    try:
        if isinstance(query, CloudAnswer):
            async with discoverer.searcher.scheduler.slot(user.id):
                return await _select_from_cloud(discoverer, request, options, query)
        return await _search(discoverer, user, request, options, query, prepared)
    except QueryFailed:
        logger.exception("search failed, returning all visible tools")
        return await _return_all_tools(discoverer, request, options, "search_failed")


@dataclass(frozen=True)
class _Found:
    """What a search has found, in memory or in Postgres."""

    ranking: Ranking
    searched: int
    tokens: int
    definitions: DefinitionSet
    no_match_reason: NoMatchReason | None
    words: Mapping[str, Sequence[str]] | None
    """The words of the message that each tool contains, by id; None unless the request asks for them."""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    is_of_one_version: bool = True
    """False: the catalogue changed between the search and the reading of the definitions."""


@trace_call("search", "searched")
async def _search(
    discoverer: Discoverer,
    user: User,
    request: DiscoveryRequest,
    options: SearchOptions,
    embedding: QueryEmbedding,
    prepared: _Prepared,
) -> Discovery:
    searcher, query, snapshot = discoverer.searcher, request.query, prepared.snapshot
    if snapshot is not None and snapshot.searched <= _MAX_TOOLS_ON_LOOP:
        found = _find_in_snapshot(searcher, request, options, embedding, snapshot)
    else:
        async with searcher.scheduler.slot(user.id):
            if snapshot is None:
                found = await _find_in_postgres(discoverer, user, request, options, embedding, prepared.stats)
            else:
                found = await asyncio.to_thread(_find_in_snapshot, searcher, request, options, embedding, snapshot)
    judgement, definitions = found.ranking.judgement, found.definitions
    tools = _add_definitions(found.ranking.needed, definitions.tools)
    if found.words is not None:
        tools = [replace(tool, explanation=_describe(tool, query, found.words)) for tool in tools]
    selection = _select(discoverer, request, options, definitions, tools)
    selected = selection.tools
    if found.evidence:
        selected = [replace(tool, evidence=found.evidence.get(tool.definition.tool_id)) for tool in selected]
    return Discovery(
        id=new_discovery_id(discoverer.sealer, user.id, _get_adaptable_chance(judgement, query, options)),
        tools=selected,
        options=options,
        embedding=embedding,
        searched=found.searched,
        tokens_all=found.tokens + count_tokens(definitions.core),
        confidence=judgement.confidence,
        query=query,
        vector=searcher.choose_example_vector(query, options, embedding),
        chance=judgement.chance,
        no_match_reason=found.no_match_reason,
        omitted_tools=selection.omitted,
    )


async def _find_in_postgres(
    discoverer: Discoverer,
    user: User,
    request: DiscoveryRequest,
    options: SearchOptions,
    embedding: QueryEmbedding,
    stats: TermStats | None,
) -> _Found:
    """Search and read the definitions, in a round trip each. Definitions of the current version are cached.

    If the catalogue changes in between, all is read again from one state: an answer never mixes old and new tools. A
    search through HNSW changes settings of its transaction, and an explanation reads the same state several times.
    """
    database, at_least = discoverer.database, options.scope.get_versions(user)

    async def read(reader: Reader) -> _Found:
        return await _read_found(discoverer, reader, user, request, options, embedding, stats)

    if not user.ann and not request.explain:
        found = await read(database.reader(user.id, at_least=at_least))
        if found.is_of_one_version:
            return found
    return await database.read_snapshot(user.id, read, at_least=at_least)


async def _read_found(
    discoverer: Discoverer,
    reader: Reader,
    user: User,
    request: DiscoveryRequest,
    options: SearchOptions,
    embedding: QueryEmbedding,
    stats: TermStats | None,
) -> _Found:
    searcher, query = discoverer.searcher, request.query
    evidence: dict[str, Evidence] = {}
    words: dict[str, Sequence[str]] | None = None
    result = await searcher.find(reader, query, options, embedding, limit=options.limit, ann=user.ann, stats=stats)
    tool_ids = [*request.kept_keys, *(hit.tool_id for hit in result.ranking.needed)]
    definitions = await discoverer.definition_cache.get_many(
        reader, options.scope, result.version, tool_ids, core=request.include_core_tools
    )
    if request.explain:
        evidence = await searcher.read_evidence(reader, query, options, embedding, tool_ids)
    if request.describe:
        words = await searcher.hybrid_search.read_matching_words(reader, options.scope, query, tool_ids)
    confidence = result.ranking.judgement.confidence
    reason = await _find_no_match_reason(reader, options, confidence, result.searched)
    is_of_one_version = definitions.version == result.version
    return _Found(
        result.ranking, result.searched, result.tokens, definitions, reason, words, evidence, is_of_one_version
    )


def _find_in_snapshot(
    searcher: Searcher,
    request: DiscoveryRequest,
    options: SearchOptions,
    embedding: QueryEmbedding,
    snapshot: Snapshot,
) -> _Found:
    query = request.query
    ranking = snapshot.find(searcher.make_params(query, options, embedding), embedding.vectors, options.limit)
    tool_ids = [*request.kept_keys, *(hit.tool_id for hit in ranking.needed)]
    definitions = snapshot.get_definitions(tool_ids, core=request.include_core_tools)
    words = snapshot.find_matching_words(query, tool_ids) if request.describe else None
    reason: NoMatchReason | None = None
    if ranking.judgement.confidence == "none":
        # without any visible tool, one that exists is hidden, and does not exist for a caller within the project
        hidden: NoMatchReason = "filtered_out" if snapshot.has_tools and not options.confined else "no_tools"
        reason = "no_match" if snapshot.searched else hidden
    return _Found(ranking, snapshot.searched, snapshot.tokens, definitions, reason, words)


async def _find_no_match_reason(
    reader: Reader, options: SearchOptions, confidence: Confidence, searched: int
) -> NoMatchReason | None:
    """Return why no tool was found. It costs a query only if no tool is visible."""
    if confidence != "none":
        return None
    if searched:
        return "no_match"
    return "filtered_out" if await has_tools(reader, options.scope, confined=options.confined) else "no_tools"


async def _select_from_cloud(
    discoverer: Discoverer, request: DiscoveryRequest, options: SearchOptions, answer: CloudAnswer
) -> Discovery:
    """Answer with those tools of the cloud's answer that are visible now, whatever was visible when it was asked."""
    scope = options.scope
    tool_ids = [*request.kept_keys, *(match.tool_key for match in answer.matches)]
    async with discoverer.database.snapshot(scope.user_id) as session:
        definitions = await read_definitions(session, scope, tool_ids, core=request.include_core_tools)
        searched, tokens = await count_visible(session, scope)
        visible = [match for match in answer.matches if match.tool_key in definitions.tools]
        confidence = judge_matches(visible)
        no_match_reason = await _find_no_match_reason(session, options, confidence, searched)
    found = [
        SelectedTool(
            definitions.tools[match.tool_key],
            "semantic",
            score=match.relevance,
            matched_tags=answer.match_tags(match.tool_key, scope.tags or ()),
            explanation=match.explanation if request.explain or request.describe else None,
        )
        for match in visible
    ]
    selection = _select(discoverer, request, options, definitions, found)
    return Discovery(
        id=new_discovery_id(discoverer.sealer, scope.user_id),
        tools=selection.tools,
        options=options,
        embedding=QueryEmbedding(options.strategy),
        searched=searched,
        tokens_all=tokens + count_tokens(definitions.core),
        confidence=confidence,
        query=request.query,
        no_match_reason=no_match_reason,
        omitted_tools=selection.omitted,
        cloud=answer,
    )


def _get_adaptable_chance(judgement: Judgement, query: Query, options: SearchOptions) -> float | None:
    """Return the chance without the user's shift, or None if the outcomes of the answer say nothing about it.

    The calibration knows English messages only, and a message that names a tool is not judged by its chance.
    """
    if judgement.chance is None or judgement.names_tool or query.language != ENGLISH:
        return None
    return shift_chance(judgement.chance, -options.shift)


async def _return_core_tools(discoverer: Discoverer, request: DiscoveryRequest, options: SearchOptions) -> Discovery:
    """Answer for a project that does not search."""
    user_id = options.scope.user_id
    async with discoverer.database.snapshot(user_id) as session:
        definitions = await read_definitions(session, options.scope, (), core=request.include_core_tools)
    return Discovery(
        id=new_discovery_id(discoverer.sealer, user_id),
        tools=[SelectedTool(definition, "core") for definition in definitions.core],
        options=options,
        embedding=None,
        searched=0,
        tokens_all=count_tokens(definitions.core),
        confidence="none",
        query=request.query,
        no_match_reason="discovery_off",
    )


async def _return_all_tools(
    discoverer: Discoverer, request: DiscoveryRequest, options: SearchOptions, reason: str
) -> Discovery:
    """Answer without a search: all visible tools up to the limit, pinned and most used tools first."""
    user_id = options.scope.user_id
    async with discoverer.database.snapshot(user_id) as session:
        visible = await list_visible_definitions(session, options.scope, options.limit)
        definitions = await read_definitions(session, options.scope, request.kept_keys, core=request.include_core_tools)
        confidence: Confidence = "low" if visible.searched else "none"
        no_match_reason = await _find_no_match_reason(session, options, confidence, visible.searched)
    found = [SelectedTool(definition, "fallback") for definition in visible.definitions]
    selection = _select(discoverer, request, options, definitions, found)
    return Discovery(
        id=new_discovery_id(discoverer.sealer, user_id),
        tools=selection.tools,
        options=options,
        embedding=QueryEmbedding(options.strategy, reason=reason),
        searched=visible.searched,
        tokens_all=visible.tokens + count_tokens(definitions.core),
        confidence=confidence,
        query=request.query,
        no_match_reason=no_match_reason,
        omitted_tools=selection.omitted,
    )


def _add_definitions(hits: Sequence[Hit], visible: dict[str, ToolDefinitionView]) -> list[SelectedTool]:
    return [
        SelectedTool(visible[hit.tool_id], hit.source, hit.similarity, hit.score, hit.matched_tags)
        for hit in hits
        if hit.tool_id in visible
    ]


def _describe(tool: SelectedTool, query: Query, words: Mapping[str, Sequence[str]]) -> str:
    definition = tool.definition
    named = is_named(query.user_text.lower(), definition.name)
    return describe_match(named=named, words=words.get(definition.tool_id, ()), similarity=tool.similarity)


def _select(
    discoverer: Discoverer,
    request: DiscoveryRequest,
    options: SearchOptions,
    definitions: DefinitionSet,
    found: Sequence[SelectedTool],
) -> ToolSelection:
    """Put kept tools, core tools and found tools together. A core tool that is kept remains a core tool."""
    core = {definition.tool_id: SelectedTool(definition, "core") for definition in definitions.core}
    known = core | {tool_id: SelectedTool(definition, "kept") for tool_id, definition in definitions.tools.items()}
    kept = [known[key] for key in request.kept_keys if key in known]
    select = partial(select_tools, max_tools=discoverer.limit_tools(options), max_tokens=request.max_tokens)
    selection = select(kept, list(core.values()), found)
    if request.retirement is not None:
        retired = request.retirement.find_retired(selection.tools, found)
        if retired:
            staying = [tool for tool in kept if tool.definition.tool_id not in retired]
            selection = select(staying, list(core.values()), found)
    return selection
