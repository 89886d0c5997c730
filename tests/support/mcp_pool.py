"""The pool of connections by itself, with no database behind it, allowed to reach the fakes and nothing else."""

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
async def reaching(
    *ports: int | FakeMcpServer,
    operators: StdioServerRegistry | None = None,
    idle_s: float = 60,
    max_connections: int = 100,
    **limits: Any,
) -> AsyncIterator[McpPool]:
    """Closed at the end, with no task left behind; others that live on this loop come and go."""
    loop, begun = asyncio.get_running_loop(), set[asyncio.Task[Any]]()
    factory, token = loop.get_task_factory(), _begun.set(begun)
    loop.set_task_factory(_noting)
    allowed = [f"127.0.0.1:{port if isinstance(port, int) else port.port}" for port in ports]
    bounds = Limits(**{"connect_s": 60, "list_s": 60, "max_bytes": 1_000_000, "max_tools": 1_000, **limits})
    mcp_pool = McpPool(
        _guard(tuple(allowed)),
        operators or StdioServerRegistry({}),
        bounds,
        idle_s=idle_s,
        max_connections=max_connections,
    )
    mcp_pool.start()
    try:
        yield mcp_pool
    finally:
        await mcp_pool.aclose()
        loop.set_task_factory(factory)
        _begun.reset(token)
    if left := {task for task in begun if not task.done()}:
        _, staying = await asyncio.wait(left, timeout=60)
        assert not staying, staying


_begun: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("_begun", default=None)


def _noting(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """What is begun on behalf of a test, however far from it, is begun in a copy of its context."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    if (begun := _begun.get()) is not None:
        begun.add(task)
    return task


@cache
def _guard(allowed: Sequence[str]) -> Guard:
    """Made once, for it reads all certificates. Closing it ends its look-ups, of which addresses need none."""
    return Guard(allowed, resolve_nothing)


def endpoint(server: FakeMcpServer | str, **changes: Any) -> Endpoint:
    """Of a fake, or of a server that the operator has listed under that name."""
    fields: dict[str, Any] = {"user_id": "someone", "server_id": "a-server", "server_name": "files"}
    fields |= {"config_version": 1, "transport": "stdio", "url": None}
    if isinstance(server, str):
        fields["server_name"] = server
    else:
        fields |= {"transport": server.transport, "url": server.url}
    return Endpoint(**{**fields, **changes})


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another thread or process
            await asyncio.sleep(0.005)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """On a quiet machine; one that is busy with other things is given ten times as long."""
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    assert took < 10 * seconds, f"it took {took:.2f} s"
