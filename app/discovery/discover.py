"""The use case `discover`: find the few tools that a message needs.

The fallback chain. Each level applies the same visibility filter, and the answer names the level:

    search by meaning and words, or through the cloud
    -> (embedder or cloud down, slow, or its circuit breaker open) search by words alone
    -> (the search fails) all visible tools up to the limit, pinned and most used tools first
    -> (database down) `DatabaseDown`, which says when to try again

Every request starts at the top, so that the service recovers by itself.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

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
from app.catalog.tool_keys import is_tool_id, resolve_keys
from app.catalog.visibility import Scope
from app.crypto import Sealer
from app.db.engine import Database, Session
from app.discovery.cloud_search import CloudAnswer, CloudSearch, judge_matches
from app.discovery.ids import new_discovery_id
from app.discovery.match_sentence import describe_match
from app.discovery.request import DiscoveryRequest, resolve_options
from app.discovery.selection import (
    Omission,
    OmissionReason,
    SelectedTool,
    ToolSelection,
    count_tokens,
    select_tools,
    summarize_omitted,
)
from app.embeddings.calibration import shift_chance
from app.errors import CloudFailed, QueryFailed
from app.observability.logging import request_id
from app.observability.metrics import fallback_level, fallback_reason
from app.observability.tracing import Tracing, trace_call
from app.search.confidence import Confidence, Judgement
from app.search.language import ENGLISH
from app.search.postgres import Evidence
from app.search.query import Query, shorten
from app.search.ranking import Hit, is_named
from app.search.scoring import AnsweredStrategy
from app.search.searcher import QueryEmbedding, Searcher, SearchOptions
from app.usage.choices import Choice
from app.usage.counters import DiscoverySample, UsageCounters
from app.usage.decision_log import Decision, DecisionLog
from app.usage.selection_log import Selection, SelectionLog

logger = logging.getLogger("toolscout.discovery")

NoMatchReason = Literal["no_tools", "no_match", "discovery_off", "filtered_out"]

_NO_MATCH_TEXTS: Mapping[NoMatchReason, str] = {
    "no_tools": "there are no tools to search: add a server, or check the user's id (X-User-Id)",
    "no_match": "no tool fits this message",
    "discovery_off": "the project does not search, because its `optimization` is null",
    "filtered_out": "there are tools, but switches, rules, the project or the request's filters leave none to search",
}


@dataclass(frozen=True)
class Discovery:
    id: str
    tools: Sequence[SelectedTool]
    options: SearchOptions
    embedding: QueryEmbedding | None
    """None: the project does not search."""
    searched: int
    tokens_all: int
    confidence: Confidence
    """`none` if no tool was found."""
    query: Query
    """The query as it was searched for."""
    chance: float | None = None
    """The chance that any tool fits; None if it is not known."""
    duration_ms: float = 0.0
    no_match_reason: NoMatchReason | None = None
    """Why no tool was found; None if one was."""
    omitted_tools: Mapping[str, OmissionReason] = field(default_factory=dict)
    """Why there was no room for a tool, by its id."""
    cloud: CloudAnswer | None = None
    """What the cloud found; None if the cloud was not asked, or could not answer."""

    @property
    def omitted(self) -> Omission | None:
        return summarize_omitted(self.omitted_tools)

    @property
    def omitted_text(self) -> str | None:
        """What was left out, in words, for people; None if there was room for all."""
        if self.omitted is None:
            return None
        tools = "1 more tool" if self.omitted.count == 1 else f"{self.omitted.count} more tools"
        setting = "max_tokens" if self.omitted.reason == "max_tokens" else "TOOLSCOUT_MAX_TOOLS"
        return f"no room for {tools}: raise {setting}"

    @property
    def no_match(self) -> bool:
        return self.confidence == "none"

    @property
    def no_match_text(self) -> str | None:
        """Why no tool was found, in words, for people."""
        return None if self.no_match_reason is None else _NO_MATCH_TEXTS[self.no_match_reason]

    @property
    def confidence_text(self) -> str:
        """The confidence in words, for people."""
        if self.confidence != "low":
            return "high confidence" if self.confidence == "high" else "no tool fits"
        found = sum(tool.source in ("semantic", "lexical") for tool in self.tools)
        if not found or self.options.fill or self.options.threshold is not None:
            return "low confidence"
        return f"low confidence: the best {'one' if found == 1 else found}"

    @property
    def strategy(self) -> AnsweredStrategy | None:
        if self.cloud is not None:
            return "cloud"
        return None if self.embedding is None else self.embedding.strategy

    @property
    def degraded_reason(self) -> str | None:
        return None if self.embedding is None else self.embedding.reason

    @property
    def embedding_generated(self) -> bool:
        return self.embedding is not None and self.embedding.generated

    @property
    def tokens_selected(self) -> int:
        return count_tokens(tool.definition for tool in self.tools)

    @property
    def saved_percent(self) -> float:
        """How much smaller the selected definitions are than all of them."""
        return max(0.0, 100 * (1 - self.tokens_selected / self.tokens_all)) if self.tokens_all else 0.0


@dataclass(frozen=True)
class Discoverer:
    """The services that discovery uses; built once."""

    searcher: Searcher
    definition_cache: DefinitionCache
    sealer: Sealer
    usage_counters: UsageCounters
    selections: SelectionLog
    decisions: DecisionLog
    rollout: Rollout
    cloud: CloudSearch
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
    [discovery] = await discover_each(discoverer, caller, request, [request.query])
    return discovery


async def discover_each(
    discoverer: Discoverer, caller: Caller, request: DiscoveryRequest, queries: Sequence[Query]
) -> list[Discovery]:
    """Answer the same request for several queries.

    The queries run one after another, so that one caller does not occupy several connections.
    """
    options = await resolve_options(discoverer.searcher, caller, request)
    if not all(map(is_tool_id, request.keep)):
        request = replace(request, keep=await _resolve_kept(discoverer, options.scope, request.keep))
    expanded = [discoverer.searcher.glossary.expand(query) for query in queries]
    return [await _discover(discoverer, caller, replace(request, query=query), options) for query in expanded]


async def _resolve_kept(discoverer: Discoverer, scope: Scope, keys: Sequence[str]) -> list[str]:
    """Return the ids of the kept tools. If the look-up of names fails, only ids are kept."""
    try:
        async with discoverer.database.snapshot(scope.user_id) as session:
            return await resolve_keys(session, scope, keys)
    except QueryFailed:
        logger.exception("failed to resolve the names of kept tools")
        return [key for key in keys if is_tool_id(key)]


@trace_call("discover", "strategy", "degraded_reason", "searched", "no_match")
async def _discover(
    discoverer: Discoverer, caller: Caller, request: DiscoveryRequest, options: SearchOptions
) -> Discovery:
    user, started = caller.require_user(), time.perf_counter()
    if not options.enabled:
        discovery = await _return_core_tools(discoverer, request, options)
        if not request.dry_run:
            discoverer.searcher.metrics.discoveries.labels("none", "core").inc()
            _log_decision(discoverer, caller, request, discovery, time.perf_counter() - started)
        return discovery
    search_started = started
    if discoverer.rollout.includes(user):
        prepared: CloudAnswer | QueryEmbedding
        if options.cloud:
            prepared = await _ask_cloud(discoverer, request.query, options)
        else:
            prepared = await discoverer.searcher.embed_query(request.query, options)
        search_started = time.perf_counter()
        discovery = await _search_or_fall_back(discoverer, user, request, options, prepared)
    else:
        discovery = await _return_all_tools(discoverer, request, options, "disabled")
    search_seconds = time.perf_counter() - search_started
    discoverer.searcher.metrics.search_seconds.observe(search_seconds)
    if not request.dry_run:
        seconds = time.perf_counter() - started
        _record(discoverer, user, request, discovery, seconds)
        _log_decision(discoverer, caller, request, discovery, seconds)
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
    prepared: CloudAnswer | QueryEmbedding,
) -> Discovery:
    try:
        async with discoverer.searcher.scheduler.slot(user.id):
            if isinstance(prepared, CloudAnswer):
                return await _select_from_cloud(discoverer, request, options, prepared)
            return await _search(discoverer, user, request, options, prepared)
    except QueryFailed:
        logger.exception("search failed, returning all visible tools")
        return await _return_all_tools(discoverer, request, options, "search_failed")


@trace_call("search", "searched")
async def _search(
    discoverer: Discoverer, user: User, request: DiscoveryRequest, options: SearchOptions, embedding: QueryEmbedding
) -> Discovery:
    searcher, query = discoverer.searcher, request.query
    evidence: dict[str, Evidence] = {}
    words: dict[str, Sequence[str]] | None = None
    async with discoverer.database.snapshot(user.id) as session:
        result = await searcher.find(session, query, options, embedding, limit=options.limit, ann=user.ann)
        tool_ids = [*request.keep, *(hit.tool_id for hit in result.hits)]
        definitions = await discoverer.definition_cache.get_many(
            session, options.scope, result.version, tool_ids, core=request.include_core_tools
        )
        if request.explain:
            evidence = await searcher.read_evidence(session, query, options, embedding, tool_ids)
        if request.describe:
            words = await searcher.hybrid_search.read_matching_words(session, options.scope, query, tool_ids)
        judgement = result.ranking.judgement
        reason = await _find_no_match_reason(session, options, judgement.confidence, result.searched)
    found = _add_definitions(result.hits, definitions.tools)
    if words is not None:
        found = [replace(tool, explanation=_describe(tool, query, words)) for tool in found]
    selection = _select(discoverer, request, options, definitions, found)
    return Discovery(
        id=new_discovery_id(discoverer.sealer, user.id, _get_adaptable_chance(judgement, query, options)),
        tools=[replace(tool, evidence=evidence.get(tool.definition.tool_id)) for tool in selection.tools],
        options=options,
        embedding=embedding,
        searched=result.searched,
        tokens_all=result.tokens + count_tokens(definitions.core),
        confidence=judgement.confidence,
        query=query,
        chance=judgement.chance,
        no_match_reason=reason,
        omitted_tools=selection.omitted,
    )


async def _find_no_match_reason(
    session: Session, options: SearchOptions, confidence: Confidence, searched: int
) -> NoMatchReason | None:
    """Return why no tool was found. It costs a query only if no tool is visible."""
    if confidence != "none":
        return None
    if searched:
        return "no_match"
    return "filtered_out" if await has_tools(session, options.scope, confined=options.confined) else "no_tools"


async def _select_from_cloud(
    discoverer: Discoverer, request: DiscoveryRequest, options: SearchOptions, answer: CloudAnswer
) -> Discovery:
    """Answer with those tools of the cloud's answer that are visible now, whatever was visible when it was asked."""
    scope = options.scope
    tool_ids = [*request.keep, *(match.tool_key for match in answer.matches)]
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
        definitions = await read_definitions(session, options.scope, request.keep, core=request.include_core_tools)
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


def _describe(tool: SelectedTool, query: Query, words: dict[str, Sequence[str]]) -> str:
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
    kept = [known[key] for key in request.keep if key in known]
    max_tools = discoverer.limit_tools(options)
    return select_tools(kept, list(core.values()), found, max_tools=max_tools, max_tokens=request.max_tokens)


def _record(
    discoverer: Discoverer, user: User, request: DiscoveryRequest, discovery: Discovery, seconds: float
) -> None:
    """Count the discovery, and log it for a user who has switched the selection log on."""
    metrics, reason = discoverer.searcher.metrics, discovery.degraded_reason
    metrics.discoveries.labels(discovery.strategy or "none", fallback_level(reason)).inc()
    if reason is not None:
        metrics.fallbacks.labels(fallback_reason(reason)).inc()
    metrics.discovery_confidence.labels(discovery.confidence).inc()
    if discovery.no_match_reason is not None:
        metrics.no_match.labels(discovery.no_match_reason).inc()
    metrics.tokens_saved.inc(max(discovery.tokens_all - discovery.tokens_selected, 0))
    sample = DiscoverySample(
        seconds=seconds,
        degraded=reason is not None,
        no_match=discovery.no_match,
        cache_hit=reason is None and discovery.strategy in ("hybrid", "semantic") and not discovery.embedding_generated,
        tokens_all=discovery.tokens_all,
        tokens_selected=discovery.tokens_selected,
        not_english=discovery.query.language != ENGLISH,
    )
    found = (tool.definition.tool_id for tool in discovery.tools if tool.source in ("semantic", "lexical"))
    discoverer.usage_counters.record_discovery(user.id, found, sample)
    if user.settings.get("selection_log"):
        discoverer.selections.append(_make_selection(user.id, request, discovery))


def _make_selection(user_id: str, request: DiscoveryRequest, discovery: Discovery) -> Selection:
    return Selection(
        user_id=user_id,
        id=discovery.id,
        at=datetime.now(UTC),
        message=shorten(request.query.user_text),
        tools=_list_choices(discovery),
        strategy=discovery.strategy or discovery.options.strategy,
        degraded_reason=discovery.degraded_reason,
        no_match=discovery.no_match,
    )


def _log_decision(
    discoverer: Discoverer, caller: Caller, request: DiscoveryRequest, discovery: Discovery, seconds: float
) -> None:
    """Log what was chosen, without the message."""
    if not discoverer.decisions.enabled:
        return
    decision = Decision(
        user_id=caller.require_user().id,
        id=discovery.id,
        at=datetime.now(UTC),
        request_id=request_id.get(),
        actor=caller.actor,
        interface=request.interface,
        project_id=discovery.options.scope.project_id,
        strategy=discovery.strategy,
        degraded_reason=discovery.degraded_reason,
        confidence=discovery.confidence,
        no_match=discovery.no_match,
        no_match_reason=discovery.no_match_reason,
        searched=discovery.searched,
        omitted=None if discovery.omitted is None else asdict(discovery.omitted),
        tools=_list_choices(discovery),
        duration_ms=round(seconds * 1000, 2),
    )
    discoverer.decisions.append(decision)


def _list_choices(discovery: Discovery) -> list[Choice]:
    return [
        Choice(
            tool.definition.tool_id,
            tool.definition.server_name,
            tool.definition.name,
            tool.source,
            None if tool.similarity is None else round(tool.similarity, 4),
            None if tool.score is None else round(tool.score, 4),
        )
        for tool in discovery.tools
    ]
