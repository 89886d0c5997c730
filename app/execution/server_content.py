"""List the resources and prompts of a user's visible servers, as the servers list them now.

Nothing is stored. A server that fails or hangs is left out, and not asked again for some seconds.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from app.catalog.visibility import Scope
from app.catalog.visible_servers import VisibleServer, list_visible_servers
from app.errors import DatabaseDown, QueryFailed, ToolscoutError
from app.execution.content_cache import ContentKey
from app.execution.execute import Executor
from app.indexing.icons import list_valid_icons
from app.indexing.sanitize import sanitize
from app.limits.byte_cache import measure_bytes
from app.mcp_client.content import ContentKind, ContentList
from app.mcp_meta import filter_meta
from app.mcp_types import Endpoint
from app.observability.metrics import observe_duration
from app.text.invisible import has_hidden
from app.text.strict_json import Json, dump_json

logger = logging.getLogger("toolscout.execution")

MAX_ITEMS = 1_000
"""Of one server and kind."""
MAX_ITEM_BYTES = 16 * 1024
_TTL_S = 60.0
_FAILURE_TTL_S = 30.0
_UNDECLARED_TTL_S = 600.0
"""For a server that says that it has none: it would have to be changed first."""
_MAX_PARALLEL = 32
_SERVER_TIMEOUT_S = 8.0
_TIMEOUT_S = 15.0
_IDENTIFIERS: dict[ContentKind, str] = {"resources": "uri", "resource_templates": "uriTemplate", "prompts": "name"}


@dataclass(frozen=True)
class ServerContent:
    server: VisibleServer
    items: Sequence[Json]
    """As the server lists them, without what nobody can see."""


async def list_content(executor: Executor, scope: Scope, kind: ContentKind) -> Sequence[ServerContent]:
    """Return what the visible servers list, by the servers' names."""
    async with executor.database.transaction(scope.user_id) as session:
        servers = await list_visible_servers(session, scope)
    return await list_content_of(executor, scope.user_id, servers, kind)


async def list_content_of(
    executor: Executor, user_id: str, servers: Sequence[VisibleServer], kind: ContentKind
) -> Sequence[ServerContent]:
    slots = asyncio.Semaphore(_MAX_PARALLEL)

    async def list_one(server: VisibleServer) -> Sequence[Json]:
        async with slots:
            return await _list_server(executor, user_id, server, kind)

    listing = {server: asyncio.create_task(list_one(server)) for server in servers}
    try:
        if listing:
            await asyncio.wait(listing.values(), timeout=_TIMEOUT_S)
        return [ServerContent(server, task.result()) for server, task in listing.items() if task.done()]
    finally:
        for task in listing.values():
            task.cancel()


async def _list_server(executor: Executor, user_id: str, server: VisibleServer, kind: ContentKind) -> Sequence[Json]:
    key = ContentKey(user_id, server.id, server.created_at, server.config_version, server.credential_version, kind)
    if (cached := executor.content_cache.get(key)) is not None:
        return cached
    try:
        async with asyncio.timeout(_SERVER_TIMEOUT_S):
            listed = await _ask_server(executor, user_id, server, kind)
    except (DatabaseDown, QueryFailed):
        raise
    except (ToolscoutError, TimeoutError) as error:
        cause = error.code if isinstance(error, ToolscoutError) else "timeout"
        logger.info("failed to list content", extra={"server_id": server.id, "kind": kind, "cause": cause})
        executor.content_cache.store(key, (), _FAILURE_TTL_S)
        return ()
    # in a thread, because the items may be deeply nested, and others wait for the event loop
    items, size = await asyncio.to_thread(_clean_and_measure, listed.items, kind)
    executor.content_cache.store(key, items, _TTL_S if listed.is_declared else _UNDECLARED_TTL_S, size)
    return items


def _clean_and_measure(items: Sequence[Json], kind: ContentKind) -> tuple[Sequence[Json], int]:
    cleaned = list(_clean_items(items, kind))
    return cleaned, measure_bytes(cleaned)


async def _ask_server(executor: Executor, user_id: str, server: VisibleServer, kind: ContentKind) -> ContentList:
    endpoint = await executor.connector.get_endpoint(user_id, server.id)

    async def ask(endpoint: Endpoint) -> ContentList:
        return await executor.mcp_pool.list_content(endpoint, kind, MAX_ITEMS)

    with observe_duration(executor.metrics.upstream_seconds, "list_content"):
        return await executor.connector.use(endpoint, ask, listing=True)


def _clean_items(items: Sequence[Json], kind: ContentKind) -> Iterator[Json]:
    """Yield the items without characters that nobody can see. Leave those out that are too large, or that could not be
    asked for by what is left of their names."""
    for item in items:
        if has_hidden(item[_IDENTIFIERS[kind]]) or not _is_small(item):
            continue
        try:
            cleaned, _ = sanitize(item)
        except ValueError:
            continue
        yield _filter_fields(cleaned)


def _is_small(item: Json) -> bool:
    without_icons = {name: value for name, value in item.items() if name != "icons"}
    try:
        return len(dump_json(without_icons)) <= MAX_ITEM_BYTES
    except orjson.JSONEncodeError:  # nested too deeply
        return False


def _filter_fields(item: Json) -> Json:
    kept = {name: value for name, value in item.items() if name not in ("icons", "_meta")}
    icons = list_valid_icons(item.get("icons") or [])
    meta = filter_meta(item.get("_meta"))
    return kept | ({"icons": icons} if icons else {}) | ({"_meta": meta} if meta else {})
