"""The deed: the few tools that a message needs.

The ladder, one rung below the other, each under the same visibility filter and each saying so in the answer:

    by meaning and words -> (embedder down, slow, or its breaker open) by words alone
                         -> (the search itself fails) all visible tools up to the limit, pinned and most used first
                         -> (database down) `DatabaseDown`, which says when to try again

It heals by itself: every request starts at the top.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from app.auth.users import User
from app.catalog.definitions import (
    DefinitionCache,
    DefinitionSet,
    ToolDefinitionView,
    list_visible_definitions,
    read_definitions,
)
from app.catalog.visibility import Scope
from app.crypto import Sealer
from app.db.engine import Database
from app.discovery.ids import new_discovery_id
from app.discovery.selection import SelectedTool, select_tools
from app.embeddings.base import Vector
from app.embeddings.models import Models
from app.embeddings.query_embedder import QueryEmbedder, QueryVectors
from app.embeddings.repository import EmbeddingModel
from app.errors import EmbeddingFailed, QueryFailed
from app.limits.fair_queue import FairScheduler
from app.observability.metrics import Metrics, fallback_level
from app.observability.tracing import Tracing, traced
from app.search.postgres import HybridSearch, SearchResult
from app.search.query import Query, shorten
from app.search.scoring import ScoringParams, Strategy
from app.usage.counters import DiscoverySample, UsageCounters
from app.usage.selection_log import Choice, Selection, SelectionLog

logger = logging.getLogger("toolscout.discovery")

DEFAULT_LIMIT = 8


@dataclass(frozen=True)
class Ask:
    """A request as the deed understands it: every default already resolved, save those that belong to the model."""

    query: Query
    scope: Scope
    strategy: Strategy | None
    """None where the project does not search at all."""
    limit: int
    threshold: float | None
    include_core_tools: bool
    max_tokens: int | None
    keep: Sequence[str]
    explain: bool = False
    trial: bool = False
    """Somebody only looks what would come: it is counted and kept nowhere, and teaches nothing."""


@dataclass(frozen=True)
class Discovery:
    id: str
    tools: Sequence[SelectedTool]
    searched: int
    duration_ms: float
    embedding_generated: bool
    strategy: Strategy | None
    degraded_reason: str | None
    no_match: bool
    tokens_selected: int
    tokens_all: int


@dataclass(frozen=True)
class Discoverer:
    """What the deed needs, built once."""

    database: Database
    models: Models
    search: HybridSearch
    definition_cache: DefinitionCache
    metrics: Metrics
    sealer: Sealer
    scheduler: FairScheduler
    usage_counters: UsageCounters
    selections: SelectionLog
    max_tools: int
    tracing: Tracing = field(default_factory=Tracing)

    @property
    def model(self) -> EmbeddingModel:
        """Of requests that begin now. One that has begun knows its own from its scope."""
        return self.models.serving.model

    @property
    def queries(self) -> QueryEmbedder:
        return self.models.serving.queries


@dataclass(frozen=True)
class QueryEmbedding:
    """How far down the ladder the answer stands."""

    strategy: Strategy
    embedded: QueryVectors | None
    reason: str | None

    @property
    def vectors(self) -> Sequence[Vector] | None:
        return None if self.embedded is None else self.embedded.vectors


@traced("discover", "strategy", "degraded_reason", "searched", "no_match")
async def discover(discoverer: Discoverer, user: User, ask: Ask) -> Discovery:
    asked = time.perf_counter()
    if ask.strategy is None:
        return replace(await _core_alone(discoverer, user, ask), id=new_discovery_id(discoverer.sealer, user.id))
    rung = await embed_query(discoverer, user, ask)
    started = time.perf_counter()
    if not user.discovery_enabled:
        discovery = await _everything(discoverer, user, ask, "disabled")
    else:
        try:
            async with discoverer.scheduler.slot(user.id):
                discovery = await _searched(discoverer, user, ask, rung)
        except QueryFailed:
            logger.exception("search failed, answering with all visible tools")
            discovery = await _everything(discoverer, user, ask, "search_failed")
    seconds = time.perf_counter() - started
    discoverer.metrics.search_seconds.observe(seconds)
    discovery = replace(
        discovery, id=new_discovery_id(discoverer.sealer, user.id), duration_ms=round(seconds * 1000, 2)
    )
    return discovery if ask.trial else _counted(discoverer, user, ask, discovery, time.perf_counter() - asked)


@traced("embed", "reason")
async def embed_query(discoverer: Discoverer, user: User, ask: Ask) -> QueryEmbedding:
    """Before any connection is taken: none is held while waiting for an embedder."""
    strategy = ask.strategy or "hybrid"
    if strategy == "bm25" or not user.discovery_enabled:
        return QueryEmbedding(strategy, None, None)
    try:
        kept = discoverer.models.named(ask.scope.model)
        async with discoverer.scheduler.slot(user.id) if kept.embedder.is_local else nullcontext():
            return QueryEmbedding(strategy, await kept.queries.embed(user.id, ask.query.texts), None)
    except EmbeddingFailed as error:
        logger.warning("searching by words alone", extra={"reason": error.reason})
        return QueryEmbedding("bm25", None, f"embedder_{error.reason}")


def make_scoring_params(discoverer: Discoverer, ask: Ask, rung: QueryEmbedding) -> ScoringParams:
    calibration = discoverer.models.named(ask.scope.model).model.calibration
    return ScoringParams(ask.query, rung.strategy, ask.threshold, ask.scope.tags or (), calibration)


async def _core_alone(discoverer: Discoverer, user: User, ask: Ask) -> Discovery:
    async with discoverer.database.snapshot(user.id) as session:
        offers = await read_definitions(session, ask.scope, (), core=ask.include_core_tools)
    discoverer.metrics.discoveries.labels("none", "core").inc()
    core = [SelectedTool(offer, "core") for offer in offers.core]
    chosen = select_tools((), core, (), most=_most(discoverer, ask), max_tokens=ask.max_tokens)
    return _discovery(chosen, core, 0, 0, None, generated=False, no_match=True)


@traced("search", "searched")
async def _searched(discoverer: Discoverer, user: User, ask: Ask, rung: QueryEmbedding) -> Discovery:
    question = make_scoring_params(discoverer, ask, rung)
    vectors = rung.vectors
    search, evidence = discoverer.search, {}
    async with discoverer.database.snapshot(user.id) as session:
        found = await search.find(session, ask.scope, question, vectors, limit=ask.limit, ann=user.ann)
        wanted = [*ask.keep, *(hit.tool_id for hit in found.hits)]
        take = discoverer.definition_cache.get_many
        offers = await take(session, ask.scope, found.version, wanted, core=ask.include_core_tools)
        if ask.explain:
            evidence = await search.evidence(session, ask.scope, question, vectors, wanted)
    core = [SelectedTool(offer, "core") for offer in offers.core]
    hits = _found(found, offers.tools)
    chosen = select_tools(_kept(ask, offers), core, hits, most=_most(discoverer, ask), max_tokens=ask.max_tokens)
    chosen = [replace(tool, evidence=evidence.get(tool.offer.tool_id)) for tool in chosen] if ask.explain else chosen
    generated = rung.embedded is not None and rung.embedded.generated
    return _discovery(chosen, core, found.searched, found.tokens, rung, generated=generated, no_match=not found.hits)


async def _everything(discoverer: Discoverer, user: User, ask: Ask, reason: str) -> Discovery:
    async with discoverer.database.snapshot(user.id) as session:
        everything = await list_visible_definitions(session, ask.scope, ask.limit)
        offers = await read_definitions(session, ask.scope, ask.keep, core=ask.include_core_tools)
    core = [SelectedTool(offer, "core") for offer in offers.core]
    fallback = [SelectedTool(offer, "fallback") for offer in everything.definitions]
    chosen = select_tools(_kept(ask, offers), core, fallback, most=_most(discoverer, ask), max_tokens=ask.max_tokens)
    rung = QueryEmbedding(ask.strategy or "hybrid", None, reason)
    return _discovery(chosen, core, everything.searched, everything.tokens, rung, generated=False, no_match=False)


def _most(discoverer: Discoverer, ask: Ask) -> int:
    return max(discoverer.max_tools, ask.limit)


def _kept(ask: Ask, offers: DefinitionSet) -> list[SelectedTool]:
    """Core tools that were given before keep their place too, and stay core tools."""
    core = {offer.tool_id: SelectedTool(offer, "core") for offer in offers.core}
    kept = {tool_id: SelectedTool(offer, "kept") for tool_id, offer in offers.tools.items()}
    known = core | kept
    return [known[key] for key in ask.keep if key in known]


def _found(found: SearchResult, visible: dict[str, ToolDefinitionView]) -> list[SelectedTool]:
    return [
        SelectedTool(visible[hit.tool_id], hit.source, hit.similarity, hit.score, hit.matched_tags)
        for hit in found.hits
        if hit.tool_id in visible
    ]


def _discovery(
    chosen: Sequence[SelectedTool],
    core: Sequence[SelectedTool],
    searched: int,
    tokens: int,
    rung: QueryEmbedding | None,
    *,
    generated: bool,
    no_match: bool,
) -> Discovery:
    return Discovery(
        id="",  # until all else is known
        tools=chosen,
        searched=searched,
        duration_ms=0.0,
        embedding_generated=generated,
        strategy=None if rung is None else rung.strategy,
        degraded_reason=None if rung is None else rung.reason,
        no_match=no_match,
        tokens_selected=sum(tool.offer.tokens for tool in chosen),
        tokens_all=tokens + sum(tool.offer.tokens for tool in core),
    )


def _counted(discoverer: Discoverer, user: User, ask: Ask, discovery: Discovery, seconds: float) -> Discovery:
    metrics = discoverer.metrics
    metrics.discoveries.labels(discovery.strategy or "none", fallback_level(discovery.degraded_reason)).inc()
    if discovery.degraded_reason is not None:
        metrics.fallbacks.labels(discovery.degraded_reason).inc()
    if discovery.no_match:
        metrics.no_match.inc()
    metrics.tokens_saved.inc(max(discovery.tokens_all - discovery.tokens_selected, 0))
    found = (tool.offer.tool_id for tool in discovery.tools if tool.source in ("semantic", "lexical"))
    discoverer.usage_counters.discovered(user.id, found, _figures(discovery, seconds))
    if user.settings.get("selection_log"):
        discoverer.selections.note(user.id, _selection(ask, discovery))
    return discovery


def _selection(ask: Ask, discovery: Discovery) -> Selection:
    return Selection(
        id=discovery.id,
        at=datetime.now(UTC),
        message=shorten(ask.query.said),
        tools=[_choice(tool) for tool in discovery.tools],
        strategy=discovery.strategy or "hybrid",
        degraded_reason=discovery.degraded_reason,
        no_match=discovery.no_match,
    )


def _choice(tool: SelectedTool) -> Choice:
    offer = tool.offer
    return Choice(offer.tool_id, offer.server_name, offer.name, tool.source, tool.similarity, tool.score)


def _figures(discovery: Discovery, seconds: float) -> DiscoverySample:
    degraded = discovery.degraded_reason is not None
    return DiscoverySample(
        seconds=seconds,
        degraded=degraded,
        no_match=discovery.no_match,
        cache_hit=not (degraded or discovery.embedding_generated or discovery.strategy == "bm25"),
        tokens_all=discovery.tokens_all,
        tokens_selected=discovery.tokens_selected,
    )
