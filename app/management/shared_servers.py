"""Register, change and delete shared servers. Copying them to their members is the work of `SharedServerSync`."""

from collections.abc import Mapping
from typing import Any

from app.audit.record import record_event
from app.auth.users import ensure_shared_owner
from app.catalog import servers, shared_servers
from app.catalog.servers import NewServer
from app.catalog.shared_servers import MemberCount, SharedServer, Sharing, count_members, get_shared_server
from app.crypto import Sealer
from app.db.engine import Database
from app.db.pagination import Page, PageRequest
from app.db.tables import SHARED_OWNER
from app.indexing import queue
from app.indexing.queue import Run
from app.indexing.worker import Worker
from app.management.quotas import Quotas
from app.management.servers import change_server
from app.mcp_client.pool import McpPool

SHARING_FIELDS = frozenset({"everyone", "groups", "user_ids", "credentials"})

CountedServer = tuple[SharedServer, MemberCount]


async def register_shared_server(
    database: Database,
    mcp_pool: McpPool,
    sealer: Sealer,
    worker: Worker,
    new_server: NewServer,
    sharing: Sharing,
    *,
    actor: str,
) -> tuple[SharedServer, Run | None]:
    """Store a shared server and queue the run that lists its tools. Members get their copies in the background."""
    await mcp_pool.check(SHARED_OWNER, new_server.transport, new_server.name, new_server.url)
    async with database.system_transaction() as session:
        await ensure_shared_owner(session)
    run = None
    async with database.exclusive_transaction(SHARED_OWNER) as session:
        server = await servers.insert_server(session, sealer, SHARED_OWNER, new_server)
        await shared_servers.insert_sharing(session, server.id, sharing)
        await record_event(session, SHARED_OWNER, actor, "shared_server.create", server.id)
        if server.enabled and server.transport != "push":
            run = await queue.enqueue(session, SHARED_OWNER, server.id, asked_by=actor)
            session.after_commit(worker.notify)
        shared = await get_shared_server(session, server.id)
    return shared, run


async def change_shared_server(
    database: Database,
    mcp_pool: McpPool,
    sealer: Sealer,
    worker: Worker,
    server_id: str,
    changes: Mapping[str, Any],
    quotas: Quotas,
    *,
    actor: str,
) -> SharedServer:
    """Change the server, who may use it, or both. The members' copies follow in the background."""
    async with database.transaction(SHARED_OWNER) as session:
        await get_shared_server(session, server_id)
    server_changes = {name: value for name, value in changes.items() if name not in SHARING_FIELDS}
    if server_changes:
        await change_server(
            database, mcp_pool, sealer, worker, SHARED_OWNER, server_id, server_changes, quotas, actor=actor
        )
    sharing = {name: value for name, value in changes.items() if name in SHARING_FIELDS}
    async with database.exclusive_transaction(SHARED_OWNER) as session:
        if sharing:
            await shared_servers.update_sharing(session, server_id, sharing)
            await record_event(session, SHARED_OWNER, actor, "shared_server.change", server_id)
        return await get_shared_server(session, server_id)


async def load_shared_server(database: Database, server_id: str) -> CountedServer:
    """Return a shared server, and how many of its members have their copy."""
    async with database.system_transaction() as session:
        shared = await get_shared_server(session, server_id)
        return shared, await count_members(session, shared)


async def list_shared_servers(database: Database, page: PageRequest) -> Page[CountedServer]:
    async with database.system_transaction() as session:
        found = await shared_servers.list_shared_servers(session, page)
        items = [(shared, await count_members(session, shared)) for shared in found.items]
    return Page(items, found.next_cursor)


async def find_shared_server(database: Database, name: str) -> SharedServer:
    """Raise `NotFound` if no shared server has this name."""
    async with database.transaction(SHARED_OWNER) as session:
        server = await servers.find_server_by_name(session, SHARED_OWNER, name)
        return await get_shared_server(session, server.id)
