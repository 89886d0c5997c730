"""Runs index runs step by step instead of the worker, and reads tables that no route shows."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import psycopg
import pytest
from starlette.types import ASGIApp

from app.auth.users import get_user
from app.container import Container
from app.indexing import queue
from app.indexing.cache_scope import CacheScope, get_user_scope
from app.indexing.reindex import Indexer, reindex_server
from app.indexing.run_slots import SlotLimits
from app.indexing.worker import Worker, WorkerConfig
from tests.support.clients import TestUser
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import tool
from tests.support.mcp_server import raw_result

T = TypeVar("T")

LEASE_S = 60.0


@dataclass(frozen=True)
class Hand:
    """Claims and runs queued index runs of a service whose worker is idle."""

    container: Container
    indexer: Indexer

    async def claim(self) -> queue.Claim | None:
        async with self.container.database.system_transaction() as session:
            return await queue.claim_run(session, LEASE_S)

    async def take(self) -> queue.Claim:
        claimed = await self.claim()
        assert claimed is not None
        return claimed

    async def perform(self) -> queue.Claim:
        """Claim the oldest run and run it to its end."""
        claimed = await self.take()
        await reindex_server(self.indexer, claimed)
        return claimed

    async def expire_leases(self) -> None:
        await rows(self.container, "UPDATE index_runs SET lease_until = now() - interval '1 second'")

    async def run_row(self, run_id: str, *columns: str) -> tuple[Any, ...]:
        statement = f"SELECT {', '.join(columns)} FROM index_runs WHERE id = %(id)s"
        [row] = await rows(self.container, statement, id=run_id)
        return row


def make_slots(**limits: int) -> SlotLimits:
    """Return limits of one run of each kind, unless `limits` says otherwise."""
    return SlotLimits(**{field.name: 1 for field in fields(SlotLimits)} | limits)


@asynccontextmanager
async def working(hand: Hand, slots: SlotLimits | None = None, **config: float) -> AsyncIterator[Worker]:
    """Start a worker that polls often: the routes of a service with an idle worker notify nobody."""
    defaults: dict[str, Any] = {
        "slots": slots or make_slots(),
        "pending_retry_s": 60.0,
        "reindex_every_s": 0.0,
        "poll_interval_s": 0.02,
    }
    worker = Worker(hand.indexer, WorkerConfig(**(defaults | config)))
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def rows(container: Container, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    async with container.database.system_transaction() as session:
        return await session.rows(statement, parameters)


async def has_no_runs(container: Container) -> bool:
    """Whether no index run of anybody is queued or running."""
    return not await rows(container, "SELECT 1 FROM index_runs WHERE state IN ('queued', 'running')")


async def read_user_scope(container: Container, user: TestUser) -> CacheScope:
    """Return the scope of the vectors that are cached for this user alone."""
    async with container.database.system_transaction() as session:
        return get_user_scope(await get_user(session, user.id))


async def until(look: Callable[[], Awaitable[T | None]], seconds: float = 60.0) -> T:
    """Poll until `look` returns something true, and return that."""
    async with asyncio.timeout(seconds):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.02)


@asynccontextmanager
async def holding(
    container: Container, statement: str, *parameters: str
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Hold the locks of a statement, as the owner, until the block ends."""
    url = container.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(url) as blocker:
        await blocker.execute(statement.encode(), parameters)
        yield blocker


async def waiting(blocker: psycopg.AsyncConnection[Any], count: int, statement: str = "") -> None:
    """Wait until this many sessions of this database wait for a lock, with a statement that contains this text.

    Other databases belong to other services. Background tasks may wait for the lock as well.
    """

    async def look() -> bool:
        await blocker.execute("SELECT pg_stat_clear_snapshot()")  # the statistics are otherwise those of the first look
        cursor = await blocker.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
            "AND strpos(query, %s) > 0",
            [statement],
        )
        [(waiting,)] = await cursor.fetchall()
        return bool(waiting >= count)

    await until(look)


async def send(user: TestUser, server_id: str, tools: list[Any], **query: Any) -> dict[str, Any]:
    """Push tools without waiting, and return the accepted run."""
    answer = await user.http.put(f"/servers/{server_id}/tools", json={"tools": tools}, params=query)
    assert answer.status_code == 202, answer.text
    run: dict[str, Any] = answer.json()
    return run


async def finished(user: TestUser, run_id: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        run: dict[str, Any] = (await user.http.get(f"/runs/{run_id}")).json()
        return run if run["state"] in ("succeeded", "failed") else None

    return await until(look)


async def asked(fake: FakeEmbeddingServer, times: int = 1) -> None:
    """Wait until this many requests have reached the embedder."""

    async def look() -> bool:
        return len(fake.requests) >= times

    await until(look)


async def server_of(user: TestUser, server_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = (await user.http.get(f"/servers/{server_id}")).json()
    return answer


def levels_of(log: pytest.LogCaptureFixture, run_id: str) -> list[str]:
    """Return the levels of the log records about this run; shared services may log other runs at the same time."""
    return [record.levelname for record in log.records if vars(record).get("run_id") == run_id]


def listing_of(tools: str) -> ASGIApp:
    """Answer `tools/list` with these tools, given as JSON, whatever tools the server has."""
    return raw_result(f'{{"tools": {tools}, "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}}'.encode())


def unheard(name: str) -> dict[str, Any]:
    """Return a tool with a unique text, so that no cache holds its vector."""
    return tool(name, f"Does {uuid.uuid4().hex}.")


def numbered(count: int, note: str = "") -> list[dict[str, Any]]:
    return [tool(f"tool_{number:03}", f"Does thing {number}. {note}") for number in range(count)]
