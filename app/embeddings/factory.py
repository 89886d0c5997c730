"""Build embedders from the settings, and register the first model of an empty database."""

import asyncio
from collections.abc import Iterator

from app.embeddings import custom
from app.embeddings.base import Embedder
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local import LocalEmbedder
from app.embeddings.local_models import find_configured_model, find_local_models
from app.embeddings.query_embedder import VECTOR_BYTES, QueryEmbedder
from app.embeddings.repository import activate_first
from app.errors import ConfigurationError, EmbeddingFailed
from app.limits.circuit_breaker import CircuitBreaker
from app.local_postgres.database import owner_connection
from app.observability.metrics import Metrics
from app.settings import Settings

MAX_DIMENSION = 3_200
"""A row of `mcp_tool_embeddings` must fit a page of 8 KiB: 2 bytes per dimension, plus its terms, names and ids."""

LONGEST_STALL_S = 5.0
"""How much later than the budget of a query the HTTP client gives up. `QueryEmbedder` ends a query at its budget. The
client measures by the clock, which includes stalls of the event loop, so its timeout must only end calls that have no
budget: the probes."""


def make_configured_embedder(settings: Settings) -> Embedder:
    """Build the embedder that the settings name."""
    if settings.embedding_provider == "local":
        return LocalEmbedder(find_configured_model(settings.local_model), _make_graph_cache(settings))
    if settings.embedding_provider.startswith(f"{custom.PROVIDER}:"):
        return custom.make_custom_embedder(settings)
    return _make_openai_embedder(settings, settings.embedding_model)


def make_embedder(settings: Settings, model_id: str) -> Embedder:
    """Build the embedder of a registered model, or raise `ConfigurationError` if the settings lack what it needs."""
    provider, _, name = model_id.partition(":")
    if provider == custom.PROVIDER:
        return _make_registered_plugin(settings, model_id)
    if provider != "local":
        return _make_openai_embedder(settings, name)
    for embedder in make_local_embedders(settings):
        if embedder.model == model_id:
            return embedder
    raise ConfigurationError(
        f"this database holds vectors of {model_id}, which these settings cannot provide: "
        "set TOOLSCOUT_LOCAL_MODEL to the pack that it was indexed with"
    )


def _make_registered_plugin(settings: Settings, model_id: str) -> Embedder:
    """Build the operator's own embedder if it is the one of this model. Nothing that only the database names is run."""
    if not model_id.startswith(f"{settings.embedding_provider}:"):
        source = ":".join(model_id.split(":")[:3])
        raise ConfigurationError(
            f"this database holds vectors of {model_id}: set TOOLSCOUT_EMBEDDING_PROVIDER to {source}, or switch to "
            "another model with `toolscout model use`"
        )
    embedder = custom.make_custom_embedder(settings)
    if embedder.model != model_id:
        raise ConfigurationError(
            f"this database holds vectors of {model_id}, but the embedder is {embedder.model} now: run "
            f"`toolscout model use {embedder.model}` to switch"
        )
    return embedder


def make_local_embedders(settings: Settings) -> Iterator[Embedder]:
    """Yield an embedder for each local model that these settings can provide. None of them is loaded yet."""
    for model in find_local_models(settings.local_model):
        yield LocalEmbedder(model, _make_graph_cache(settings))


def is_earlier_default(settings: Settings, model_id: str) -> bool:
    """Whether these settings name no model, and this is one that an earlier version used in that case."""
    if settings.embedding_provider != "local" or settings.local_model is not None:
        return False
    return model_id in [embedder.model for embedder in make_local_embedders(settings)]


def make_query_embedder(settings: Settings, embedder: Embedder, metrics: Metrics) -> QueryEmbedder:
    breaker = CircuitBreaker(settings.breaker_failures, settings.breaker_retry_s)
    budget_s = settings.query_embed_budget_ms / 1000
    return QueryEmbedder(embedder, breaker, metrics, budget_s, settings.query_cache_size * VECTOR_BYTES)


async def activate_first_model(embedder: Embedder, url: str) -> None:
    """Register and activate the first model of an empty database."""
    try:
        dimension = await probe_dimension(embedder)
    except EmbeddingFailed as error:
        raise ConfigurationError(
            f"the first start needs the embedder to learn its dimension: {error.message}"
        ) from error

    def activate() -> None:
        with owner_connection(url) as connection:
            activate_first(connection, embedder, dimension)

    await asyncio.to_thread(activate)


async def probe_dimension(embedder: Embedder) -> int:
    """Embed a text to learn the dimension of the model."""
    dimension: int = (await embedder.embed_queries(["how many dimensions?"])).shape[1]
    if dimension > MAX_DIMENSION:
        raise ConfigurationError(f"the model has {dimension} dimensions; at most {MAX_DIMENSION} fit a row")
    return dimension


def _make_graph_cache(settings: Settings) -> GraphCache:
    return GraphCache(settings.data_dir.expanduser() / "models")


def _make_openai_embedder(settings: Settings, name: str | None) -> Embedder:
    # Imported here because the client takes a second to import, which every command would pay.
    from app.embeddings.openai import DEFAULT_MODEL, OpenAIEmbedder, make_client  # noqa: PLC0415

    name = name or DEFAULT_MODEL
    if settings.openai_api_key is None and settings.openai_base_url is None:
        raise ConfigurationError(
            f"the model {name!r} is served by an OpenAI-compatible endpoint, which needs OPENAI_API_KEY or "
            "OPENAI_BASE_URL; `toolscout model list` shows the models of this database"
        )
    # An endpoint on the operator's own machine often needs no key, but the client requires one.
    key = "none" if settings.openai_api_key is None else settings.openai_api_key.get_secret_value()
    client = make_client(key, settings.openai_base_url)
    timeout_s = settings.query_embed_budget_ms / 1000 + LONGEST_STALL_S
    return OpenAIEmbedder(client, name, query_timeout_s=timeout_s, index_timeout_s=settings.index_embed_timeout_s)
