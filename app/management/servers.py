"""The deed: a server comes, is asked for its tools, changes and goes; each with its trace in the audit."""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from app import audit
from app.catalog import servers
from app.catalog.servers import NewServer, Server, check_transport
from app.catalog.tools import update_tool_counts
from app.crypto import Sealer
from app.db.engine import Database, Session
from app.errors import InvalidInput
from app.indexing import queue
from app.indexing.parsing import Listing, parse_listing
from app.indexing.queue import Run
from app.mcp_client.pool import McpPool
from app.text.strict_json import Endpoint


async def register_server(
    session: Session, sealer: Sealer, user_id: str, wanted: NewServer, actor: str
) -> tuple[Server, Run | None]:
    """With the run that asks it for its tools, unless those are pushed or nobody may use them yet."""
    server = await servers.create_server(session, sealer, user_id, wanted)
    await audit.record(session, user_id, actor, "server.create", server.id)
    if not server.enabled or server.transport == "push":
        return server, None
    return server, await queue.enqueue(session, user_id, server.id, asked_by=actor)


async def try_server(mcp_pool: McpPool, user_id: str, wanted: NewServer, *, max_tools: int) -> Listing:
    """What it offers, before anything of it is stored. Raises `ServerUnreachable` or `UrlNotAllowed`."""
    if wanted.transport == "push":
        raise InvalidInput("a push server is not connected to: its tools are sent to us")
    await mcp_pool.check(wanted.transport, wanted.name, wanted.url)
    trial = f"trial-{uuid.uuid4()}"
    endpoint = Endpoint(user_id, trial, wanted.name, 1, wanted.transport, wanted.url, wanted.headers)
    try:
        offered = await mcp_pool.list_tools(endpoint)
    finally:
        mcp_pool.forget(user_id, trial)
    # a thousand definitions take a while to read: not on the event loop
    return await asyncio.to_thread(parse_listing, offered, max_tools=max_tools)


async def change_server(
    database: Database,
    mcp_pool: McpPool,
    sealer: Sealer,
    user_id: str,
    server_id: str,
    changes: Mapping[str, Any],
    actor: str,
) -> Server:
    """In transactions of its own: names are looked up in between, which must not hold a connection."""
    async with database.transaction(user_id) as session:
        before = await servers.get_server(session, user_id, server_id)
    await _check_changes(mcp_pool, before, changes)
    async with database.transaction(user_id) as session:
        after = await servers.update_server(session, sealer, user_id, server_id, changes)
        await audit.record(session, user_id, actor, "server.change", server_id)
        if _is_to_be_asked(before, after):
            await queue.enqueue(session, user_id, server_id, asked_by=actor)
        elif after.name != before.name and after.tool_count:
            # the name is part of what is searched
            await queue.enqueue(session, user_id, server_id, fetch_from_server=False, asked_by=actor)
    if after.config_version != before.config_version:
        mcp_pool.forget(user_id, server_id)
    return after


async def _check_changes(mcp_pool: McpPool, before: Server, changes: Mapping[str, Any]) -> None:
    transport, name = changes.get("transport", before.transport), changes.get("name", before.name)
    try:
        check_transport(transport, changes.get("url", before.url))
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    if before.transport == transport == "stdio" and name != before.name:
        raise InvalidInput("a stdio server has the name that the operator's file gives it")
    if {"transport", "name", "url"} & changes.keys():
        await mcp_pool.check(transport, name, changes.get("url"))


def _is_to_be_asked(before: Server, after: Server) -> bool:
    """At another address, or after a while, there may be other tools."""
    moved = after.config_version != before.config_version or after.enabled != before.enabled
    return moved and after.enabled and after.transport != "push"


async def remove_server(session: Session, user_id: str, server_id: str, ann_above: int, actor: str) -> None:
    await servers.delete_server(session, user_id, server_id)
    await update_tool_counts(session, user_id, ann_above)
    await audit.record(session, user_id, actor, "server.delete", server_id)
