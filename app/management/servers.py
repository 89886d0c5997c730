"""Register, try, change and delete MCP servers, and reseal their credentials."""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from app.audit.actions import Action
from app.audit.record import record_event
from app.catalog import servers
from app.catalog.servers import NewServer, Server, check_transport
from app.catalog.shared_servers import update_sharing
from app.catalog.tools import update_tool_counts
from app.catalog.visibility import lock_server
from app.connections.repository import reseal_connections
from app.crypto import Sealer
from app.db.engine import Database
from app.db.notifications import Channel, notify
from app.db.tables import SHARED_OWNER
from app.errors import AuthorizationRequired, InvalidInput
from app.indexing import queue
from app.indexing.parsing import Listing, parse_listing
from app.indexing.queue import Run
from app.indexing.worker import Worker
from app.management.quotas import Quotas, check_servers, check_tags
from app.mcp_client.pool import McpPool
from app.mcp_types import Endpoint


async def register_server(
    database: Database,
    mcp_pool: McpPool,
    sealer: Sealer,
    worker: Worker,
    user_id: str,
    new_server: NewServer,
    quotas: Quotas,
    *,
    actor: str,
) -> tuple[Server, Run | None]:
    """Store a server and queue the run that lists its tools.

    There is no run for a server that is disabled, or whose tools are pushed.
    """
    # resolves the host name: before the transaction, so that no connection is held meanwhile
    await mcp_pool.check(user_id, new_server.transport, new_server.name, new_server.url)
    return await store_server(database, sealer, worker, user_id, new_server, quotas, actor=actor)


async def store_server(
    database: Database,
    sealer: Sealer,
    worker: Worker,
    user_id: str,
    new_server: NewServer,
    quotas: Quotas,
    *,
    actor: str,
) -> tuple[Server, Run | None]:
    """Store a server whose address has been checked."""
    run = None
    async with database.exclusive_transaction(user_id) as session:
        await check_servers(session, quotas, user_id)
        await check_tags(session, quotas, user_id, new_server.tags)
        server = await servers.insert_server(session, sealer, user_id, new_server)
        await record_event(session, user_id, actor, "server.create", server.id)
        if server.enabled and server.transport != "push":
            run = await queue.enqueue(session, user_id, server.id, asked_by=actor)
            session.after_commit(worker.notify)
    return server, run


async def try_server(mcp_pool: McpPool, user_id: str, new_server: NewServer, *, max_tools: int) -> Listing:
    """Connect to a server and list its tools without storing anything.

    Raise `ServerUnreachable` or `UrlNotAllowed`.
    """
    if new_server.transport == "push":
        raise InvalidInput("a push server is not connected to: its tools are sent to us")
    await mcp_pool.check(user_id, new_server.transport, new_server.name, new_server.url)
    trial_id = f"trial-{uuid.uuid4()}"
    endpoint = Endpoint(user_id, trial_id, new_server.name, 1, new_server.transport, new_server.url, new_server.headers)
    try:
        listed = await mcp_pool.list_tools(endpoint)
    except AuthorizationRequired as error:
        raise AuthorizationRequired("this server wants you to sign in: add it, then connect your account") from error
    finally:
        mcp_pool.forget(user_id, trial_id)
    # parsing a thousand definitions takes a while: off the event loop
    return await asyncio.to_thread(parse_listing, listed, max_tools=max_tools)


async def change_server(
    database: Database,
    mcp_pool: McpPool,
    sealer: Sealer,
    worker: Worker,
    user_id: str,
    server_id: str,
    changes: Mapping[str, Any],
    quotas: Quotas,
    *,
    actor: str,
    action: Action = "server.change",
) -> Server:
    """Update a server, and queue a run where its tools, or the texts that are searched, may have changed.

    `action` is the name of the audit event."""
    async with database.transaction(user_id) as session:
        before = await servers.get_server(session, user_id, server_id)
    servers.check_changes(before, changes.keys())
    # between two transactions: a new host name is resolved, and no connection is held meanwhile
    await _check_changes(mcp_pool, before, changes)
    async with database.exclusive_transaction(user_id) as session:
        await check_tags(session, quotas, user_id, changes.get("tags", ()))
        await lock_server(session, user_id, server_id)
        before = await servers.get_server(session, user_id, server_id)
        after = await servers.update_server(session, sealer, user_id, server_id, changes)
        await record_event(session, user_id, actor, action, server_id)
        needs_listing = _needs_listing(before, after)
        # the server's name and tags are part of the text that is searched
        is_renamed = after.name != before.name or set(after.tags) != set(before.tags)
        if needs_listing or (is_renamed and after.tool_count):
            await queue.enqueue(session, user_id, server_id, fetch_from_server=needs_listing, asked_by=actor)
            session.after_commit(worker.notify)
        if after.config_version != before.config_version:
            session.after_commit(mcp_pool.forget, user_id, server_id)
        if user_id == SHARED_OWNER:
            await update_sharing(session, server_id)
    return after


async def replace_credentials(
    database: Database,
    mcp_pool: McpPool,
    sealer: Sealer,
    worker: Worker,
    user_id: str,
    server_id: str,
    headers: Mapping[str, str],
    quotas: Quotas,
    *,
    actor: str,
) -> Server:
    """Replace the headers that are sent to a server: start a new connection with them, and list its tools again."""
    action: Action = "server.credentials.replace" if headers else "server.credentials.delete"
    changes = {"headers": headers}
    return await change_server(
        database, mcp_pool, sealer, worker, user_id, server_id, changes, quotas, actor=actor, action=action
    )


async def _check_changes(mcp_pool: McpPool, before: Server, changes: Mapping[str, Any]) -> None:
    transport, name = changes.get("transport", before.transport), changes.get("name", before.name)
    try:
        check_transport(transport, changes.get("url", before.url))
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    if before.transport == transport == "stdio" and name != before.name:
        raise InvalidInput("a stdio server has the name that the operator's file gives it")
    if {"transport", "name", "url"} & changes.keys():
        await mcp_pool.check(before.user_id, transport, name, changes.get("url"))


def _needs_listing(before: Server, after: Server) -> bool:
    """A server at another address, or one that was disabled for a while, may offer other tools."""
    has_moved = after.config_version != before.config_version or after.enabled != before.enabled
    return has_moved and after.enabled and after.transport != "push"


async def delete_server(
    database: Database, mcp_pool: McpPool, user_id: str, server_id: str, *, ann_above: int, actor: str
) -> None:
    """Delete a server with its tools and runs, and close its connection."""
    async with database.exclusive_transaction(user_id) as session:
        await servers.delete_server(session, user_id, server_id)
        await update_tool_counts(session, user_id, ann_above)
        await record_event(session, user_id, actor, "server.delete", server_id)
        session.after_commit(mcp_pool.forget, user_id, server_id)
        if user_id == SHARED_OWNER:
            await notify(session, Channel.SHARED_SERVERS)  # the members' copies go, too


async def reseal_credentials(database: Database, sealer: Sealer, *, actor: str) -> tuple[int, int]:
    """Seal all stored credentials with the current key. Return how many were resealed, and how many there are."""
    async with database.system_transaction() as session:
        resealed, total = await servers.reseal_headers(session, sealer)
        resealed_connections, total_connections = await reseal_connections(session, sealer)
        await record_event(session, None, actor, "secrets.rotate", None)
    return resealed + resealed_connections, total + total_connections
