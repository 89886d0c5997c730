"""Push a server's tools, and request index runs."""

from app.catalog import servers
from app.db.engine import Database
from app.indexing import queue
from app.indexing.queue import Run
from app.indexing.worker import Worker
from app.observability.logging import elapsed_ms

# The audit event of a run (`server.reindex`) is recorded when the run ends, in its last transaction.


async def push_tools(
    database: Database, worker: Worker, user_id: str, server_id: str, payload: bytes, *, force: bool, actor: str
) -> Run:
    """Queue a run that replaces the server's tools by a pushed list, which is stored with the run."""
    async with database.transaction(user_id) as session:
        await servers.require_own_server(session, user_id, server_id)
        run = await queue.enqueue(session, user_id, server_id, payload, force=force, asked_by=actor)
        session.after_commit(worker.notify)
    return run


async def request_reindex(
    database: Database, worker: Worker, user_id: str, server_id: str, *, force: bool, actor: str
) -> Run:
    """Queue a run that lists the server's tools, or return one that serves this request as well."""
    async with database.transaction(user_id) as session:
        await servers.get_server(session, user_id, server_id)
        run = await queue.request_reindex(session, user_id, server_id, actor, elapsed_ms() / 1000, force=force)
        session.after_commit(worker.notify)
    return run


async def request_reindex_of_all(
    database: Database, worker: Worker, user_id: str, *, force: bool, actor: str
) -> list[Run]:
    """Request a reindex of each of the user's servers, by name."""
    async with database.transaction(user_id) as session:
        seconds_ago = elapsed_ms() / 1000
        runs = [
            await queue.request_reindex(session, user_id, server_id, actor, seconds_ago, force=force)
            for server_id in await servers.list_server_ids(session, user_id)
        ]
        session.after_commit(worker.notify)
    return runs
