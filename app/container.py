"""Build everything in order and close it in reverse order. No other module creates an engine, a client or a cache."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from threadpoolctl import threadpool_limits

from app.audit import events
from app.auth.authentication import Authenticator
from app.auth.oidc.single_sign_on import SingleSignOn, make_single_sign_on
from app.auth.rollout import Rollout
from app.catalog.definitions import DefinitionCache
from app.catalog.listing_cache import ListingCache
from app.catalog.visibility import apply_policy
from app.catalog.visibility_policy import Policy
from app.cloud.client import CloudClient, make_cloud_client
from app.connections import repository as connections_repository
from app.connections.config import ConnectorConfig
from app.connections.connector import Connector
from app.connections.credential_source import make_credential_source
from app.conversations import repository as conversations_repository
from app.crypto import Sealer
from app.db import read_replica
from app.db.engine import Database
from app.db.migrate import migrate
from app.db.nodes import Nodes
from app.db.notifications import Channel, Notifications
from app.db.read_replica import ReadReplica
from app.db.retention import run_retention
from app.discovery.cloud_search import CloudSearch
from app.discovery.conversations import Conversations
from app.discovery.discover import Discoverer
from app.discovery.inline.documents import InlineToolParser
from app.discovery.inline.search import InlineSearcher
from app.discovery.recording import DiscoveryRecorder
from app.embeddings.base import Embedder
from app.embeddings.factory import activate_first_model, make_configured_embedder, make_embedder, make_query_embedder
from app.embeddings.loaded_models import Models
from app.embeddings.repository import EmbeddingModel, read_active_model
from app.embeddings.token_counter import load_token_counter
from app.errors import ConfigurationError, Unavailable
from app.execution import confirmations, idempotency
from app.execution.execute import Executor
from app.indexing import cache_retention, public_listings, queue
from app.indexing.categories.background import Categorizer
from app.indexing.known_tools.matching import KnownTools
from app.indexing.known_tools.pack import load_known_tools
from app.indexing.large_tenants import maintain_large_tenants
from app.indexing.queue_metrics import watch_queue
from app.indexing.reindex import Indexer
from app.indexing.run_slots import SlotLimits
from app.indexing.shared_server_sync import SharedServerSync
from app.indexing.worker import Worker, WorkerConfig
from app.limits.fair_queue import FairScheduler
from app.limits.fair_thread import FairExecutor
from app.limits.rate_limit import RateLimiter
from app.local_postgres.database import check_pooler, make_pool
from app.local_postgres.secret_key import make_sealer
from app.management.quotas import Quotas
from app.mcp_client.connection import Limits as ConnectionLimits
from app.mcp_client.pool import McpPool
from app.mcp_client.resolver import Resolve
from app.mcp_client.stdio_servers import read_stdio_servers
from app.mcp_client.url_guard import Guard
from app.observability.metrics import Metrics
from app.observability.tracing import Tracing, open_tracing
from app.registry.client import RegistryClient, make_registry_client
from app.search.glossary import Glossary
from app.search.large_tenant import LargeTenantSearch
from app.search.postgres import HybridSearch
from app.search.searcher import Searcher
from app.search.snapshot_cache import SnapshotCache
from app.settings import Settings
from app.usage import decision_log, discovery_vectors, examples, repository, selection_log
from app.usage.counters import UsageCounters
from app.usage.decision_log import DecisionLog
from app.usage.learning import Learner
from app.usage.periodic_flusher import PeriodicFlusher
from app.usage.selection_log import SelectionLog

logger = logging.getLogger("toolscout.db")

_SWITCH_INTERVAL_S = 0.0005
"""How long a thread that runs Python code may make others wait; 5 ms by default."""

_INLINE_NICENESS = 5
"""The priority of the thread that parses and ranks the tools of `/catalog/search`."""


@dataclass(frozen=True)
class Container:
    settings: Settings
    database: Database
    nodes: Nodes
    """The nodes of a distributed database."""
    read_replica: ReadReplica | None
    """None if TOOLSCOUT_READ_DATABASE_URL is not set."""
    authenticator: Authenticator
    sso: SingleSignOn | None
    """The identity provider; None if TOOLSCOUT_OIDC_ISSUER is not set."""
    rate_limiter: RateLimiter
    sealer: Sealer
    models: Models
    count_tokens: Callable[[str], int]
    searcher: Searcher
    discoverer: Discoverer
    inline_searcher: InlineSearcher
    cloud: CloudClient | None
    """The client of another catalogue service; None if TOOLSCOUT_CLOUD_URL is not set."""
    registry: RegistryClient | None
    """The client of an MCP registry; None if TOOLSCOUT_REGISTRY_URL is not set."""
    executor: Executor
    listing_cache: ListingCache
    mcp_pool: McpPool
    connector: Connector
    indexer: Indexer
    worker: Worker
    shared_server_sync: SharedServerSync
    categorizer: Categorizer
    usage_counters: UsageCounters
    selections: SelectionLog
    decisions: DecisionLog
    learner: Learner
    metrics: Metrics
    tracing: Tracing
    draining: asyncio.Event
    """Set when the service is about to stop: long-polling requests answer with what they have."""
    shutdown: asyncio.Event
    """Set later, once no new request is accepted: tool calls that are still running are given up."""

    @property
    def quotas(self) -> Quotas:
        return make_quotas(self.settings)

    @property
    def model(self) -> EmbeddingModel:
        """The model for new requests."""
        return self.models.current.model

    @property
    def warnings(self) -> tuple[str, ...]:
        others = (
            None if self.cloud is None else self.cloud.warning,
            None if self.sso is None else self.sso.provider.warning,
            None if self.read_replica is None else self.read_replica.warning,
            self.database.warning,
        )
        return (*self.models.warnings, *(warning for warning in others if warning is not None))


@asynccontextmanager
async def open_container(
    settings: Settings,
    url: str,
    resolve: Resolve | None = None,
    *,
    working: bool = True,
    serving: bool = True,
    embedding: bool = True,
    tracing: Tracing | None = None,
) -> AsyncIterator[Container]:
    """Build the container over a running database; `url` is the owner's, from `open_database` or `connect_database`.

    - `resolve` looks up the addresses of users' servers; the system's resolver unless a test passes its own.
    - `working=False`: do not start the worker.
    - `serving=False`: use the stored policy instead of the one in the settings.
    - `embedding=False`: open even if the settings lack what the active model needs.
    """
    async with AsyncExitStack() as stack:
        tracing = tracing or open_tracing(settings.otel_endpoint if serving else None)
        stack.push_async_callback(tracing.aclose)
        # On two cores, BLAS threads that wait for each other made small matrix products 40 times slower.
        threadpool_limits(limits=1, user_api="blas")
        # The event loop takes the interpreter back from a busy thread several times for each answer.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        production, setting = settings.environment == "production", settings.direct_database_setting
        if (advice := await check_pooler(settings, url)) is not None:
            logger.warning(advice)
        await asyncio.to_thread(migrate, url, production=production, setting=setting)
        infrastructure = _build_infrastructure(settings, url, tracing, stack)
        if serving:
            if infrastructure.read_replica is not None:
                infrastructure.read_replica.start()
            policy = Policy(
                hold_changed=settings.hold_changed_tools,
                find_failing=settings.find_failing_servers,
                hold_new=settings.hold_new_tools,
            )
            await apply_policy(infrastructure.database, policy)
        models = await _open_models(infrastructure, url, stack, embedding=embedding)
        if serving:
            models.start()
        notifications = _open_notifications(settings, url, stack, start=serving or working)
        notifications.subscribe(Channel.MODELS, models.notify)
        upstream = await _open_upstream(infrastructure, models, resolve, stack)
        notifications.subscribe(Channel.RUNS, upstream.worker.notify)
        notifications.subscribe(Channel.SHARED_SERVERS, upstream.shared_server_sync.loop.notify)
        _start_housekeeping(infrastructure, stack, watch=serving)
        _start_indexing(infrastructure, upstream, url, stack, working=working)
        services = _open_services(infrastructure, stack, start=serving)
        container = _build_container(infrastructure, models, upstream, services)
        stack.push_async_callback(container.discoverer.snapshots.aclose)
        yield container


@dataclass(frozen=True)
class _Infrastructure:
    """The parts that all others use."""

    settings: Settings
    sealer: Sealer
    metrics: Metrics
    tracing: Tracing
    database: Database
    nodes: Nodes
    read_replica: ReadReplica | None
    authenticator: Authenticator
    usage_counters: UsageCounters
    selections: SelectionLog
    decisions: DecisionLog
    learner: Learner
    known_tools: KnownTools
    inline_executor: FairExecutor


@dataclass(frozen=True)
class _Upstream:
    """The parts that connect to users' servers and index their tools."""

    mcp_pool: McpPool
    connector: Connector
    indexer: Indexer
    worker: Worker
    shared_server_sync: SharedServerSync
    categorizer: Categorizer


@dataclass(frozen=True)
class _Services:
    """The clients of services that the operator has configured."""

    cloud: CloudClient | None
    registry: RegistryClient | None
    sso: SingleSignOn | None


def _build_infrastructure(settings: Settings, url: str, tracing: Tracing, stack: AsyncExitStack) -> _Infrastructure:
    sealer, metrics = make_sealer(settings), Metrics()
    database = make_pool(settings, url, settings.database_pool_size, metrics)
    stack.push_async_callback(database.close)
    usage_counters, selections = UsageCounters(database), SelectionLog(database)
    decisions = DecisionLog(database, enabled=settings.decision_log_days > 0)
    learner = Learner(database, enabled=settings.learn_from_use)
    admin_key = None if settings.admin_api_key is None else settings.admin_api_key.get_secret_value()
    authenticator = Authenticator(database, admin_key)
    uses = authenticator.key_uses
    key_uses = PeriodicFlusher("key uses", uses.flush, uses.flush, lambda: {"keys": uses.pending})
    for flusher in (usage_counters.flusher, selections.flusher, decisions.flusher, learner.flusher, key_uses):
        flusher.start()
        stack.push_async_callback(flusher.stop)
    inline_executor = FairExecutor("inline-search", niceness=_INLINE_NICENESS)
    stack.callback(inline_executor.close, Unavailable("the service is stopping"))
    return _Infrastructure(
        settings=settings,
        sealer=sealer,
        metrics=metrics,
        tracing=tracing,
        database=database,
        nodes=Nodes(database),
        read_replica=_build_read_replica(settings, database, metrics, stack),
        authenticator=authenticator,
        usage_counters=usage_counters,
        selections=selections,
        decisions=decisions,
        learner=learner,
        known_tools=load_known_tools() if settings.known_examples else KnownTools(),
        inline_executor=inline_executor,
    )


def _build_read_replica(
    settings: Settings, primary: Database, metrics: Metrics, stack: AsyncExitStack
) -> ReadReplica | None:
    if settings.read_database_url is None or settings.role == "worker":  # workers do not search
        return None
    server = Database(
        settings.read_database_url.get_secret_value(),
        settings.database_pool_size,
        pool_wait_s=read_replica.POOL_WAIT_S,
        setting=read_replica.SETTING,
    )
    replica = ReadReplica(primary, server, metrics)
    stack.push_async_callback(replica.stop)
    primary.use_replica(replica)
    return replica


async def _open_models(infrastructure: _Infrastructure, url: str, stack: AsyncExitStack, *, embedding: bool) -> Models:
    """Load the registered models. The active one serves, whichever the settings name: models are never mixed."""
    settings, metrics = infrastructure.settings, infrastructure.metrics
    has_active = await asyncio.to_thread(read_active_model, url) is not None
    try:
        configured = await asyncio.to_thread(make_configured_embedder, settings)
    except ConfigurationError:
        if embedding or not has_active:
            raise
        configured = None
    if configured is not None:
        stack.push_async_callback(configured.aclose)
        if not has_active:
            await activate_first_model(configured, url)

    def get_embedder(model: EmbeddingModel) -> Embedder:
        return configured if configured and model.id == configured.model else make_embedder(settings, model.id)

    models = Models(
        infrastructure.database,
        make_embedder=get_embedder,
        make_query_embedder=lambda embedder: make_query_embedder(settings, embedder, metrics),
        configured=None if configured is None else configured.model,
        on_change=metrics.set_model,
    )
    stack.push_async_callback(models.stop)
    await models.refresh()
    if embedding and (error := models.current.error) is not None:
        raise ConfigurationError(error)
    return models


def _open_notifications(settings: Settings, url: str, stack: AsyncExitStack, *, start: bool) -> Notifications:
    listen_url = settings.listen_database_url
    notifications = Notifications(url if listen_url is None else listen_url.get_secret_value())
    if start:
        notifications.start()
        stack.push_async_callback(notifications.stop)
    return notifications


async def _open_upstream(
    infrastructure: _Infrastructure, models: Models, resolve: Resolve | None, stack: AsyncExitStack
) -> _Upstream:
    settings, database, sealer = infrastructure.settings, infrastructure.database, infrastructure.sealer
    mcp_pool = _build_mcp_pool(settings, resolve)
    mcp_pool.start()
    stack.push_async_callback(mcp_pool.aclose)
    connector = Connector(database, sealer, mcp_pool, make_connector_config(settings), make_credential_source(settings))
    stack.push_async_callback(connector.aclose)
    count_tokens = await asyncio.to_thread(load_token_counter)
    indexer = _build_indexer(infrastructure, models, count_tokens, mcp_pool, connector)
    worker = Worker(indexer, _worker_config(settings))
    connector.enqueue_listing = worker.enqueue_listing
    mcp_pool.on_tools_changed = worker.on_tools_changed
    categorizer = Categorizer(database, lambda: models.current.model.id, infrastructure.metrics)
    worker.on_indexed = categorizer.loop.notify
    return _Upstream(mcp_pool, connector, indexer, worker, SharedServerSync(indexer, sealer), categorizer)


def _start_indexing(
    infrastructure: _Infrastructure, upstream: _Upstream, url: str, stack: AsyncExitStack, *, working: bool
) -> None:
    """Start the background tasks that index and copy tools, where the settings give them to this process."""
    settings = infrastructure.settings
    if working and settings.runs_worker:
        upstream.worker.start()
        maintenance = asyncio.create_task(maintain_large_tenants(infrastructure.database, url))
        stack.push_async_callback(_cancel, maintenance)
        if settings.index_concurrency:
            upstream.shared_server_sync.loop.start()
            stack.push_async_callback(upstream.shared_server_sync.loop.stop)
            if settings.categories:
                upstream.categorizer.loop.start()
                stack.push_async_callback(upstream.categorizer.loop.stop)
    stack.push_async_callback(upstream.worker.stop)


def _open_services(infrastructure: _Infrastructure, stack: AsyncExitStack, *, start: bool) -> _Services:
    settings = infrastructure.settings
    cloud = make_cloud_client(settings, infrastructure.metrics)
    if cloud is not None:
        stack.push_async_callback(cloud.aclose)
        if start:
            cloud.start()
    registry = make_registry_client(settings, infrastructure.metrics)
    if registry is not None:
        stack.push_async_callback(registry.aclose)
    sso = make_single_sign_on(settings)
    if sso is not None:
        stack.push_async_callback(sso.provider.aclose)
        if start:
            sso.provider.start()
    return _Services(cloud, registry, sso)


def _build_mcp_pool(settings: Settings, resolve: Resolve | None) -> McpPool:
    return McpPool(
        Guard(settings.outbound_hosts, resolve),
        read_stdio_servers(settings),
        make_connection_limits(settings),
        idle_s=settings.upstream_idle_s,
        max_connections=settings.upstream_connections,
    )


def make_connection_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        connect_s=settings.connect_timeout_s,
        list_s=settings.list_timeout_s,
        max_bytes=settings.upstream_max_bytes,
        max_tools=settings.max_tools_per_server,
    )


def make_connector_config(settings: Settings) -> ConnectorConfig:
    return ConnectorConfig(settings.base_url, frozenset(settings.allowed_redirects), settings.operator_clients)


def _build_indexer(
    infrastructure: _Infrastructure,
    models: Models,
    count_tokens: Callable[[str], int],
    mcp_pool: McpPool,
    connector: Connector,
) -> Indexer:
    settings = infrastructure.settings
    return Indexer(
        database=infrastructure.database,
        nodes=infrastructure.nodes,
        models=models.refresh,
        count_tokens=count_tokens,
        metrics=infrastructure.metrics,
        max_tools=settings.max_tools_per_server,
        ann_above=settings.search_ann_above,
        mcp_pool=mcp_pool,
        connector=connector,
        computing=asyncio.Semaphore(max(1, settings.index_concurrency)),
        tracing=infrastructure.tracing,
        known_tools=infrastructure.known_tools,
    )


def _worker_config(settings: Settings) -> WorkerConfig:
    return WorkerConfig(
        slots=_make_slot_limits(settings) if settings.index_concurrency else None,
        pending_retry_s=settings.pending_retry_s,
        reindex_every_s=settings.reindex_every_s,
        lease_s=settings.run_lease_s,
    )


def _make_slot_limits(settings: Settings) -> SlotLimits:
    return SlotLimits(
        # twice as many as one user may have, so that the pushes of one do not keep those of others waiting
        pushes=2 * settings.index_concurrency,
        pushes_per_user=settings.index_concurrency,
        listings=settings.listing_concurrency,
        listings_per_user=settings.listings_per_user,
        listings_per_host=settings.listings_per_host,
    )


def _start_housekeeping(infrastructure: _Infrastructure, stack: AsyncExitStack, *, watch: bool) -> None:
    """Start the background tasks: delete expired rows and, with `watch`, measure the queue."""
    database, settings = infrastructure.database, infrastructure.settings
    expired = [
        idempotency.expired_rows(),
        confirmations.expired_rows(),
        conversations_repository.expired_rows(timedelta(hours=settings.conversation_ttl_hours)),
        connections_repository.expired_rows(),
        *repository.expired_rows(),
        *discovery_vectors.expired_rows(),
        *examples.expired_rows(),
        *selection_log.expired_rows(timedelta(days=settings.selection_log_days)),
        *decision_log.expired_rows(timedelta(days=settings.decision_log_days)),
        *events.expired_rows(settings.audit_days),
        *public_listings.expired_rows(),
        *queue.expired_rows(),
        *cache_retention.expired_rows(settings.embedding_cache_days, settings.embedding_cache_max_rows),
    ]
    stack.push_async_callback(_cancel, asyncio.create_task(run_retention(database, expired)))
    if watch:
        stack.push_async_callback(_cancel, asyncio.create_task(watch_queue(database, infrastructure.metrics)))


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _build_container(
    infrastructure: _Infrastructure, models: Models, upstream: _Upstream, services: _Services
) -> Container:
    settings, database, metrics = infrastructure.settings, infrastructure.database, infrastructure.metrics
    searcher, shutdown = _build_searcher(infrastructure, models), asyncio.Event()
    snapshots = SnapshotCache(database, searcher.learned_cache, metrics, settings.snapshot_mb * 2**20)
    return Container(
        settings=settings,
        database=database,
        nodes=infrastructure.nodes,
        read_replica=infrastructure.read_replica,
        authenticator=infrastructure.authenticator,
        sso=services.sso,
        rate_limiter=RateLimiter(settings.rate_per_user, metrics),
        sealer=infrastructure.sealer,
        models=models,
        count_tokens=upstream.indexer.count_tokens,
        searcher=searcher,
        discoverer=_build_discoverer(infrastructure, searcher, snapshots, services.cloud, upstream.connector),
        cloud=services.cloud,
        registry=services.registry,
        inline_searcher=InlineSearcher(
            searcher,
            InlineToolParser(infrastructure.known_tools, infrastructure.inline_executor),
            infrastructure.inline_executor,
            budget_s=settings.catalog_embed_budget_s,
        ),
        executor=_build_executor(infrastructure, upstream, shutdown),
        listing_cache=ListingCache(settings.mcp_list_cache_s),
        mcp_pool=upstream.mcp_pool,
        connector=upstream.connector,
        indexer=upstream.indexer,
        worker=upstream.worker,
        shared_server_sync=upstream.shared_server_sync,
        categorizer=upstream.categorizer,
        usage_counters=infrastructure.usage_counters,
        selections=infrastructure.selections,
        decisions=infrastructure.decisions,
        learner=infrastructure.learner,
        metrics=metrics,
        tracing=infrastructure.tracing,
        draining=asyncio.Event(),
        shutdown=shutdown,
    )


def _build_searcher(infrastructure: _Infrastructure, models: Models) -> Searcher:
    return Searcher(
        database=infrastructure.database,
        models=models,
        hybrid_search=HybridSearch(),
        large_tenant_search=LargeTenantSearch(),
        glossary=Glossary(infrastructure.settings.glossary_file),
        scheduler=FairScheduler(infrastructure.metrics),
        metrics=infrastructure.metrics,
        learned=infrastructure.learner.enabled,
        tracing=infrastructure.tracing,
    )


def _build_discoverer(
    infrastructure: _Infrastructure,
    searcher: Searcher,
    snapshots: SnapshotCache,
    cloud: CloudClient | None,
    connector: Connector,
) -> Discoverer:
    return Discoverer(
        searcher=searcher,
        definition_cache=DefinitionCache(),
        sealer=infrastructure.sealer,
        recorder=DiscoveryRecorder(
            infrastructure.metrics,
            infrastructure.usage_counters,
            infrastructure.selections,
            infrastructure.decisions,
            infrastructure.learner,
        ),
        rollout=make_rollout(infrastructure.settings),
        cloud=CloudSearch(searcher, cloud),
        snapshots=snapshots,
        connector=connector,
        conversations=Conversations(
            infrastructure.database,
            max_tools=infrastructure.settings.conversation_max_tools,
            idle_turns=infrastructure.settings.conversation_idle_turns,
            ttl=timedelta(hours=infrastructure.settings.conversation_ttl_hours),
        ),
        max_tools=infrastructure.settings.max_tools,
    )


def make_quotas(settings: Settings) -> Quotas:
    return Quotas(settings.max_servers, settings.max_projects, settings.max_keys, settings.max_tags)


def make_rollout(settings: Settings) -> Rollout:
    return Rollout(enabled=settings.discovery, percent=settings.rollout_percent)


def _build_executor(infrastructure: _Infrastructure, upstream: _Upstream, shutdown: asyncio.Event) -> Executor:
    return Executor(
        database=infrastructure.database,
        mcp_pool=upstream.mcp_pool,
        connector=upstream.connector,
        sealer=infrastructure.sealer,
        metrics=infrastructure.metrics,
        usage_counters=infrastructure.usage_counters,
        learner=infrastructure.learner,
        timeout_s=infrastructure.settings.call_timeout_s,
        max_timeout_s=infrastructure.settings.max_call_timeout_s,
        max_result_bytes=infrastructure.settings.max_result_bytes,
        max_resource_bytes=infrastructure.settings.max_resource_bytes,
        shutdown=shutdown,
        tracing=infrastructure.tracing,
        confirm_destructive=infrastructure.settings.confirm_destructive,
    )
