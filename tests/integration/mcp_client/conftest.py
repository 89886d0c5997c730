import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, running_mcp_servers


@pytest.fixture(scope="session")
def mcp_servers() -> Iterator[dict[str, FakeMcpServer]]:
    """Servers for these tests only: they count connections, and services of other tests stay connected to theirs."""
    with running_mcp_servers() as servers:
        yield servers


@pytest.fixture(params=["mcp", "legacy_mcp", "sse_mcp"])
def server(request: pytest.FixtureRequest) -> FakeMcpServer:
    """A server of each kind, with a tool that returns its arguments."""
    return _add_echo_tool(request.getfixturevalue(request.param))


@pytest.fixture(params=["mcp", "legacy_mcp"])
def streamable(request: pytest.FixtureRequest) -> FakeMcpServer:
    """A streamable HTTP server of both protocols, with a tool that returns its arguments."""
    return _add_echo_tool(request.getfixturevalue(request.param))


def _add_echo_tool(server: FakeMcpServer) -> FakeMcpServer:
    server.tools = [tool("echo")]
    return server


@pytest.fixture(scope="module")
async def no_event_loop_errors() -> AsyncIterator[None]:
    """Check that the event loop reports no errors: no task exception that was never retrieved, no unclosed resource."""
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    gc.collect()  # errors that earlier tests left behind do not count
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    yield
    gc.collect()
    loop.set_exception_handler(None)
    # a program that exits while it is written to breaks its pipe; the SDK's writer does not handle that
    assert [context for context in errors if not isinstance(context.get("exception"), BrokenPipeError)] == []
