"""Read the settings again while the service runs, and apply those that can change: all of them, or none.

`.env`, the files that settings name and files of secrets are read again. The environment of a running process does not
change, so a variable that is set there keeps its value and, as always, takes precedence over `.env`.

A request in progress keeps the container that it started with; new requests get a new container, which shares its
database, caches and connections with the old one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.audit.record import record_event
from app.catalog.listing_cache import ListingCache
from app.container import Container, make_connection_limits, make_connector_config, make_rollout
from app.errors import ConfigurationError, Conflict
from app.limits.rate_limit import RateLimiter
from app.mcp_client.stdio_servers import StdioServerRegistry, read_stdio_servers
from app.observability.logging import set_log_level
from app.search.glossary import Glossary
from app.settings import Settings, find_typos, variable_name

logger = logging.getLogger("toolscout")

RELOADABLE = frozenset(
    {
        "body_timeout_s",
        "call_timeout_s",
        "catalog_embed_budget_s",
        "confirm_destructive",
        "connect_timeout_s",
        "discovery",
        "glossary_file",
        "learn_from_use",
        "list_timeout_s",
        "log_level",
        "max_call_timeout_s",
        "max_in_flight",
        "max_keys",
        "max_projects",
        "max_result_bytes",
        "max_resource_bytes",
        "max_servers",
        "max_tags",
        "max_tools",
        "max_tools_per_server",
        "mcp_list_cache_s",
        "mcp_result_tokens",
        "oauth_clients",
        "outbound_allow",
        "public_url",
        "rate_per_user",
        "redirect_origins",
        "registry_allow",
        "rollout_percent",
        "served_hosts",
        "stdio_servers",
        "upstream_connections",
        "upstream_idle_s",
        "upstream_max_bytes",
    }
)
"""The fields of the settings that can change while the service runs."""


@dataclass(frozen=True)
class ReloadResult:
    """The names of variables. The content of a file counts as part of the variable that names it."""

    changed: Sequence[str]
    needs_restart: Sequence[str]
    """Variables with another value than the one in force, which only a restart applies."""
    warnings: Sequence[str] = ()
    """Messages about variables whose names are probably misspelt."""


@dataclass(frozen=True)
class _Files:
    """What the files say that settings name, and `.env` itself."""

    stdio_servers: StdioServerRegistry
    glossary: Glossary
    typos: Sequence[str]


class Reloader:
    """Holds the current container, and replaces it after a reload."""

    def __init__(
        self, container: Container, read_settings: Callable[[], Settings], on_change: Callable[[Container], None]
    ) -> None:
        self._container = container
        self._read_settings = read_settings
        self._on_change = on_change
        self._reloading = asyncio.Lock()

    async def reload(self, actor: str) -> ReloadResult:
        """Apply the settings. Raise `Conflict` if one is invalid, or `DatabaseDown`; then nothing has changed."""
        async with self._reloading:
            before = self._container
            try:
                requested, settings, files = await asyncio.to_thread(self._read, before.settings)
            except ConfigurationError as error:
                logger.error("settings not reloaded: %s", error.message)
                raise Conflict(f"nothing was changed: {error.message}") from error
            result = _compare(before, requested, settings, files)
            async with before.database.system_transaction() as session:
                await record_event(session, None, actor, "settings.reload", None)
            # From here on nothing is awaited and nothing fails.
            self._container = _apply(before, settings, files)
            self._on_change(self._container)
        _log_result(result)
        return result

    def _read(self, in_force: Settings) -> tuple[Settings, Settings, _Files]:
        """Return the settings as they are written now, the part of them that can be applied, and the files."""
        requested = self._read_settings()
        settings = in_force.model_copy(update={name: getattr(requested, name) for name in RELOADABLE})
        files = _Files(read_stdio_servers(settings), Glossary(settings.glossary_file), find_typos())
        return requested, settings, files


def _compare(before: Container, requested: Settings, settings: Settings, files: _Files) -> ReloadResult:
    changed = {name for name in RELOADABLE if getattr(settings, name) != getattr(before.settings, name)}
    if files.stdio_servers.programs != before.mcp_pool.stdio_servers.programs:
        changed.add("stdio_servers")
    if files.glossary.own_entries != before.searcher.glossary.own_entries:
        changed.add("glossary_file")
    fixed = Settings.model_fields.keys() - RELOADABLE
    needs_restart = [name for name in fixed if getattr(requested, name) != getattr(before.settings, name)]
    return ReloadResult(sorted(map(variable_name, changed)), sorted(map(variable_name, needs_restart)), files.typos)


def _apply(before: Container, settings: Settings, files: _Files) -> Container:
    set_log_level(settings.log_level)
    before.mcp_pool.reconfigure(
        settings.outbound_hosts,
        files.stdio_servers,
        make_connection_limits(settings),
        idle_s=settings.upstream_idle_s,
        max_connections=settings.upstream_connections,
    )
    before.connector.config = make_connector_config(settings)
    indexer = before.worker.indexer = replace(before.indexer, max_tools=settings.max_tools_per_server)
    searcher = replace(before.searcher, glossary=files.glossary, learned=settings.learn_from_use)
    before.learner.enabled = settings.learn_from_use
    if before.registry is not None:
        before.registry.allow(settings.registry_patterns)
    is_same_rate = settings.rate_per_user == before.settings.rate_per_user
    is_same_ttl = settings.mcp_list_cache_s == before.settings.mcp_list_cache_s
    return replace(
        before,
        settings=settings,
        rate_limiter=before.rate_limiter if is_same_rate else RateLimiter(settings.rate_per_user, before.metrics),
        searcher=searcher,
        discoverer=replace(
            before.discoverer,
            searcher=searcher,
            cloud=replace(before.discoverer.cloud, searcher=searcher),
            rollout=make_rollout(settings),
            max_tools=settings.max_tools,
        ),
        inline_searcher=replace(before.inline_searcher, searcher=searcher, budget_s=settings.catalog_embed_budget_s),
        executor=replace(
            before.executor,
            timeout_s=settings.call_timeout_s,
            max_timeout_s=settings.max_call_timeout_s,
            max_result_bytes=settings.max_result_bytes,
            max_resource_bytes=settings.max_resource_bytes,
            confirm_destructive=settings.confirm_destructive,
        ),
        listing_cache=before.listing_cache if is_same_ttl else ListingCache(settings.mcp_list_cache_s),
        indexer=indexer,
    )


def _log_result(result: ReloadResult) -> None:
    logger.info("settings reloaded", extra={"changed": list(result.changed)})
    for name in result.needs_restart:
        logger.warning("%s changed: needs a restart", name)
    for message in result.warnings:
        logger.warning(message)
