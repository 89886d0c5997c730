"""Builds everything, in order, and closes it in reverse. No other module makes an engine, a client or a cache."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from pydantic import SecretStr

from app.auth.authentication import Authenticator
from app.catalog.definitions import DefinitionCache
from app.catalog.policy import Policy
from app.catalog.visibility import apply_policy
from app.crypto import Sealer
from app.db.engine import Database
from app.db.migrate import migrate
from app.db.retention import run_retention
from app.discovery.discover import Discoverer
from app.discovery.inline.documents import Reader
from app.discovery.inline.search import ListSearcher
from app.embeddings.base import Embedder
from app.embeddings.calibration import Calibration
from app.embeddings.circuit_breaker import CircuitBreaker
from app.embeddings.local import LocalEmbedder
from app.embeddings.models import Models
from app.embeddings.query_embedder import QueryEmbedder
from app.embeddings.repository import EmbeddingModel, activate_first, active_model, store_calibration
from app.embeddings.tokens import token_counter
from app.errors import ConfigurationError, EmbeddingFailed
from app.execution import idempotency
from app.execution.execute import Executor
from app.indexing.queue_metrics import watch_queue
from app.indexing.reindex import Indexer
from app.indexing.worker import Worker, WorkerConfig
from app.limits.fair_queue import FairScheduler
from app.limits.rate_limit import RateLimiter
from app.local_postgres.database import owner_connection
from app.local_postgres.secret_key import make_sealer
from app.mcp_client.connection import Limits as ConnectionLimits
from app.mcp_client.pool import McpPool
from app.mcp_client.stdio_servers import StdioServerRegistry
from app.mcp_client.url_guard import Guard, Resolve
from app.observability.metrics import Metrics
from app.observability.tracing import Tracing, open_tracing
from app.search.bm25 import MAX_DIMENSION
from app.search.hnsw import ensure_hnsw
from app.search.postgres import HybridSearch
from app.settings import Settings
from app.usage import repository, selection_log
from app.usage.counters import UsageCounters
from app.usage.selection_log import SelectionLog

logger = logging.getLogger("toolscout")


@dataclass(frozen=True)
class Container:
    settings: Settings
    database: Database
    authenticator: Authenticator
    rate_limiter: RateLimiter
    sealer: Sealer
    models: Models
    count_tokens: Callable[[str], int]
    discoverer: Discoverer
    inline_searcher: ListSearcher
    executor: Executor
    mcp_pool: McpPool
    indexer: Indexer
    worker: Worker
    usage_counters: UsageCounters
    selections: SelectionLog
    metrics: Metrics
    tracing: Tracing
    draining: asyncio.Event
    """Set when the service is about to stop: whoever waits for something long answers with what there is."""
    shutdown: asyncio.Event
    """Set later, once nobody is let in any more: a call of a tool that has not ended by then is given up."""

    @property
    def model(self) -> EmbeddingModel:
        """Of requests that begin now."""
        return self.models.serving.model

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.models.warnings


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
    """`url` is the owner's, of a database that answers: from `owned_database` or `reachable_database`.

    `resolve` finds the addresses of users' servers; the system's way, unless a test has another. What is not `working`
    leaves queued runs to others, unless its worker is started. What is not `serving` goes by the policy that is there,
    whatever its own settings say. What is not `embedding` opens also where these settings lack what the active model
    needs.
    """
    async with AsyncExitStack() as closing:
        tracing = tracing or open_tracing(settings.otel_endpoint if serving else None)
        closing.push_async_callback(tracing.aclose)
        await asyncio.to_thread(migrate, url, production=settings.environment == "production")
        ground = _ground(settings, url, tracing, closing)
        if serving:
            await apply_policy(ground.database, Policy(settings.hold_changed_tools, settings.find_failing_servers))
        models = await _models(ground, url, closing, embedding=embedding)
        if serving:
            models.start()
        count_tokens = await asyncio.to_thread(token_counter)
        mcp_pool = _upstream(settings, resolve)
        mcp_pool.start()
        closing.push_async_callback(mcp_pool.aclose)
        indexer = _indexer(ground, models, count_tokens, mcp_pool)
        worker = Worker(indexer, _pace(settings))
        mcp_pool.on_tools_changed = worker.on_tools_changed
        _keep_house(ground, closing, watching=serving)
        if working and settings.runs_worker:
            worker.start()
        closing.push_async_callback(worker.stop)
        yield _container(ground, models, mcp_pool, indexer, worker)


@dataclass(frozen=True)
class _Ground:
    """What all the rest stands on."""

    settings: Settings
    sealer: Sealer
    metrics: Metrics
    tracing: Tracing
    database: Database
    usage_counters: UsageCounters
    selections: SelectionLog


def _ground(settings: Settings, url: str, tracing: Tracing, closing: AsyncExitStack) -> _Ground:
    sealer, metrics = make_sealer(settings), Metrics()
    database = Database(url, settings.database_pool_size, metrics)
    closing.push_async_callback(database.close)
    usage_counters, selection_log = UsageCounters(database), SelectionLog(database)
    for flusher in (usage_counters.flusher, selection_log.flusher):
        flusher.start()
        closing.push_async_callback(flusher.stop)
    return _Ground(settings, sealer, metrics, tracing, database, usage_counters, selection_log)


def _indexer(ground: _Ground, models: Models, count_tokens: Callable[[str], int], mcp_pool: McpPool) -> Indexer:
    settings = ground.settings
    return Indexer(
        database=ground.database,
        models=models.refresh,
        count_tokens=count_tokens,
        metrics=ground.metrics,
        max_tools=settings.max_tools_per_server,
        ann_above=settings.search_ann_above,
        mcp_pool=mcp_pool,
        sealer=ground.sealer,
        computing=asyncio.Semaphore(max(1, settings.index_concurrency)),
        tracing=ground.tracing,
    )


def _keep_house(ground: _Ground, closing: AsyncExitStack, *, watching: bool) -> None:
    """In the background: forgets what is old and, if `watching`, measures the queue."""
    kept = timedelta(days=ground.settings.selection_log_days)
    outdated = [idempotency.expired_rows(), *repository.expired_rows(), *selection_log.expired_rows(kept)]
    closing.push_async_callback(_cancelled, asyncio.create_task(run_retention(ground.database, outdated)))
    if watching:
        closing.push_async_callback(_cancelled, asyncio.create_task(watch_queue(ground.database, ground.metrics)))


def _container(ground: _Ground, models: Models, mcp_pool: McpPool, indexer: Indexer, worker: Worker) -> Container:
    settings, database, metrics = ground.settings, ground.database, ground.metrics
    discoverer, shutdown = _discoverer(ground, models), asyncio.Event()
    return Container(
        settings=settings,
        database=database,
        authenticator=Authenticator(database, _revealed(settings.admin_api_key)),
        rate_limiter=RateLimiter(settings.rate_per_user, metrics),
        sealer=ground.sealer,
        models=models,
        count_tokens=indexer.count_tokens,
        discoverer=discoverer,
        inline_searcher=ListSearcher(discoverer, Reader(), budget_s=settings.catalog_embed_budget_s),
        executor=_executor(ground, mcp_pool, shutdown),
        mcp_pool=mcp_pool,
        indexer=indexer,
        worker=worker,
        usage_counters=ground.usage_counters,
        selections=ground.selections,
        metrics=metrics,
        tracing=ground.tracing,
        draining=asyncio.Event(),
        shutdown=shutdown,
    )


def _discoverer(ground: _Ground, models: Models) -> Discoverer:
    return Discoverer(
        database=ground.database,
        models=models,
        search=HybridSearch(),
        definition_cache=DefinitionCache(),
        metrics=ground.metrics,
        sealer=ground.sealer,
        scheduler=FairScheduler(ground.metrics),
        usage_counters=ground.usage_counters,
        selections=ground.selections,
        max_tools=ground.settings.max_tools,
        tracing=ground.tracing,
    )


def _executor(ground: _Ground, mcp_pool: McpPool, shutdown: asyncio.Event) -> Executor:
    return Executor(
        database=ground.database,
        mcp_pool=mcp_pool,
        sealer=ground.sealer,
        metrics=ground.metrics,
        usage_counters=ground.usage_counters,
        timeout_s=ground.settings.call_timeout_s,
        max_result_bytes=ground.settings.max_result_bytes,
        shutdown=shutdown,
        tracing=ground.tracing,
    )


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _models(ground: _Ground, url: str, closing: AsyncExitStack, *, embedding: bool) -> Models:
    """The active one serves, whatever the settings name: vectors of two models never meet."""
    settings, metrics = ground.settings, ground.metrics
    known = await asyncio.to_thread(read_active_model, url) is not None
    wanted = await asyncio.to_thread(_wanted_if_had, settings, needed=embedding or not known)
    if wanted is not None:
        closing.push_async_callback(wanted.aclose)
        if not known:
            await _first_model(wanted, url)
    models = Models(
        ground.database,
        build=lambda model: wanted if wanted and model.id == wanted.model else make_embedder(settings, model.id),
        queries=lambda embedder: _queries(settings, embedder, metrics),
        wanted=None if wanted is None else wanted.model,
        on_serving=metrics.tell_model,
    )
    closing.push_async_callback(models.stop)
    await models.refresh()
    if embedding and (trouble := models.serving.trouble) is not None:
        raise ConfigurationError(trouble)
    return models


def _wanted_if_had(settings: Settings, *, needed: bool) -> Embedder | None:
    try:
        return make_configured_embedder(settings)
    except ConfigurationError:
        if needed:
            raise
        return None


def make_configured_embedder(settings: Settings) -> Embedder:
    if settings.embedding_provider == "local":
        return LocalEmbedder(settings.local_model)
    return _openai_embedder(settings, settings.embedding_model)


def make_embedder(settings: Settings, model_id: str) -> Embedder:
    """A local one is the pack that ships or the operator's own, whichever it is."""
    provider, _, name = model_id.partition(":")
    if provider != "local":
        return _openai_embedder(settings, name)
    for embedder in local_embedders(settings):
        if embedder.model == model_id:
            return embedder
    raise ConfigurationError(
        f"this database holds vectors of {model_id}, which these settings cannot provide: "
        "set TOOLSCOUT_LOCAL_MODEL to the pack that it was indexed with"
    )


def local_embedders(settings: Settings) -> Iterator[Embedder]:
    yield LocalEmbedder()
    if settings.local_model is not None:
        yield LocalEmbedder(settings.local_model)


def _openai_embedder(settings: Settings, name: str | None) -> Embedder:
    # here, since they take a second to import, which every command would pay
    from openai import AsyncOpenAI  # noqa: PLC0415

    from app.embeddings.openai import DEFAULT_MODEL, OpenAIEmbedder  # noqa: PLC0415

    name = name or DEFAULT_MODEL
    if settings.openai_api_key is None and settings.openai_base_url is None:
        raise ConfigurationError(
            f"the model {name!r} is asked for at an OpenAI-compatible endpoint, which needs OPENAI_API_KEY or "
            "OPENAI_BASE_URL; `toolscout model list` names the models that are here"
        )
    # an endpoint on one's own machine often asks for no key, but the client wants one
    key = "none" if settings.openai_api_key is None else settings.openai_api_key.get_secret_value()
    client = AsyncOpenAI(api_key=key, base_url=settings.openai_base_url)
    budget_s = settings.query_embed_budget_ms / 1000
    return OpenAIEmbedder(client, name, query_timeout_s=budget_s, index_timeout_s=settings.index_embed_timeout_s)


def read_active_model(url: str) -> EmbeddingModel | None:
    with owner_connection(url) as connection:
        return active_model(connection)


def store_model_calibration(url: str, model: str, calibration: Calibration | None) -> None:
    """None: back to what ships with us. Services notice it by themselves."""
    with owner_connection(url) as connection:
        store_calibration(connection, model, calibration)


async def _first_model(embedder: Embedder, url: str) -> None:
    """On an empty database."""
    try:
        dimension = await probe_dimension(embedder)
    except EmbeddingFailed as error:
        raise ConfigurationError(
            f"the first start needs the embedder, to learn its dimension: {error.message}"
        ) from error
    await asyncio.to_thread(_activate, url, embedder, dimension)


async def probe_dimension(embedder: Embedder) -> int:
    """What the model answers once tells it."""
    dimension: int = (await embedder.embed_queries(["how many dimensions?"])).shape[1]
    if dimension > MAX_DIMENSION:
        raise ConfigurationError(f"the model has {dimension} dimensions; at most {MAX_DIMENSION} fit a row")
    return dimension


def _activate(url: str, embedder: Embedder, dimension: int) -> None:
    with owner_connection(url) as connection:
        model = activate_first(connection, embedder, dimension)
        ensure_hnsw(connection, model.id, model.dimension)


def _upstream(settings: Settings, resolve: Resolve | None) -> McpPool:
    limits = ConnectionLimits(
        connect_s=settings.connect_timeout_s,
        list_s=settings.list_timeout_s,
        max_bytes=settings.upstream_max_bytes,
        max_tools=settings.max_tools_per_server,
    )
    return McpPool(
        Guard(settings.outbound_hosts, resolve),
        StdioServerRegistry.read(settings.stdio_servers),
        limits,
        idle_s=settings.upstream_idle_s,
        max_connections=settings.upstream_connections,
    )


def _pace(settings: Settings) -> WorkerConfig:
    return WorkerConfig(
        runs_at_once=settings.listing_concurrency if settings.index_concurrency else 0,
        pending_retry_s=settings.pending_retry_s,
        reindex_every_s=settings.reindex_every_s,
        lease_s=settings.run_lease_s,
    )


def _queries(settings: Settings, embedder: Embedder, metrics: Metrics) -> QueryEmbedder:
    breaker = CircuitBreaker(settings.breaker_failures, settings.breaker_retry_s)
    budget_s = settings.query_embed_budget_ms / 1000
    return QueryEmbedder(embedder, breaker, metrics, budget_s, settings.query_cache_size)


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
