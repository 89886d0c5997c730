"""A connection pool without a database, which may connect to the given fake servers only."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from app.mcp_client.connection import Limits
from app.mcp_client.pool import McpPool
from app.mcp_client.stdio_servers import StdioServerRegistry
from app.mcp_client.url_guard import Guard
from app.mcp_types import Endpoint
from tests.support.factories import resolve_nothing
from tests.support.mcp_server import FakeMcpServer


@asynccontextmanager
async def running_pool(
    *ports: int | FakeMcpServer,
    stdio_servers: StdioServerRegistry | None = None,
    idle_s: float = 60,
    max_connections: int = 100,
    **limits: Any,
) -> AsyncIterator[McpPool]:
    """Close the pool at the end and check that it leaves no task behind. Other tasks of the event loop are ignored."""
    loop, started_tasks = asyncio.get_running_loop(), set[asyncio.Task[Any]]()
    factory, token = loop.get_task_factory(), _started_tasks.set(started_tasks)
    loop.set_task_factory(_create_tracked_task)
    allowed = [f"127.0.0.1:{port if isinstance(port, int) else port.port}" for port in ports]
    pool_limits = Limits(**{"connect_s": 60, "list_s": 60, "max_bytes": 1_000_000, "max_tools": 1_000, **limits})
    mcp_pool = McpPool(
        _guard(tuple(allowed)),
        stdio_servers or StdioServerRegistry({}),
        pool_limits,
        idle_s=idle_s,
        max_connections=max_connections,
    )
    mcp_pool.start()
    try:
        yield mcp_pool
    finally:
        await mcp_pool.aclose()
        loop.set_task_factory(factory)
        _started_tasks.reset(token)
    if unfinished := {task for task in started_tasks if not task.done()}:
        _, remaining = await asyncio.wait(unfinished, timeout=60)
        assert not remaining, remaining


_started_tasks: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("_started_tasks", default=None)


def _create_tracked_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Track the tasks that a test starts, directly or indirectly: they run in a copy of its context."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    if (started_tasks := _started_tasks.get()) is not None:
        started_tasks.add(task)
    return task


@cache
def _guard(allowed: Sequence[str]) -> Guard:
    """Cached, because it loads all certificates. A closed guard cannot resolve names, but tests use addresses only."""
    return Guard(allowed, resolve_nothing)


def make_endpoint(server: FakeMcpServer | str, **changes: Any) -> Endpoint:
    """Return the endpoint of a fake server, or of the stdio server of this name."""
    fields: dict[str, Any] = {"user_id": "someone", "server_id": "a-server", "server_name": "files"}
    fields |= {"config_version": 1, "transport": "stdio", "url": None}
    if isinstance(server, str):
        fields["server_name"] = server
    else:
        fields |= {"transport": server.transport, "url": server.url}
    return Endpoint(**{**fields, **changes})


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 the condition changes in another thread or process
            await asyncio.sleep(0.005)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Check that the block takes less than ten times this long; the factor allows for a busy machine."""
    started = time.monotonic()
    yield
    elapsed = time.monotonic() - started
    assert elapsed < 10 * seconds, f"it took {elapsed:.2f} s"
