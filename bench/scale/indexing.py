"""Measure how long an index run takes, from the push of a list to its end."""

import asyncio
import time
from collections.abc import Sequence

import orjson

from app.auth.users import ensure_user
from app.catalog.servers import NewServer, insert_server
from app.container import Container
from app.indexing import queue
from app.text.strict_json import Json

_POLL_S = 0.02
_STATE = "SELECT state FROM index_runs WHERE user_id = %(user_id)s AND finished_at IS NULL"
_FAILED = "SELECT count(*) FROM index_runs WHERE user_id = %(user_id)s AND state = 'failed'"


async def create_server(container: Container, user_id: str, name: str) -> str:
    async with container.database.system_transaction() as session:
        await ensure_user(session, user_id, "bench")
        server = await insert_server(session, container.sealer, user_id, NewServer(name, "push"))
    return server.id


async def time_push(container: Container, user_id: str, server_id: str, tools: Sequence[Json]) -> float:
    """Push a list and return how many seconds its run took."""
    started = time.perf_counter()
    async with container.database.system_transaction() as session:
        await queue.enqueue(session, user_id, server_id, orjson.dumps({"tools": tools}))
    container.worker.notify()
    while await _read(container, _STATE, user_id):  # noqa: ASYNC110 the worker may be another process
        await asyncio.sleep(_POLL_S)
    seconds = time.perf_counter() - started
    if await _read(container, _FAILED, user_id) != [(0,)]:
        raise RuntimeError("an index run has failed")
    return seconds


async def _read(container: Container, statement: str, user_id: str) -> list[tuple[object, ...]]:
    async with container.database.transaction(user_id) as session:
        return await session.rows(statement, {"user_id": user_id})
