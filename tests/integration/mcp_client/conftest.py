import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, one_of_each


@pytest.fixture(scope="session")
def mcp_servers() -> Iterator[dict[str, FakeMcpServer]]:
    """Of our own: services that other tests have opened stay connected to theirs, and here every connection counts."""
    with one_of_each() as servers:
        yield servers


@pytest.fixture(params=["mcp", "legacy_mcp", "sse_mcp"])
def server(request: pytest.FixtureRequest) -> FakeMcpServer:
    """Of each kind, with a tool that says what it was called with."""
    return _with_a_tool(request.getfixturevalue(request.param))


@pytest.fixture(params=["mcp", "legacy_mcp"])
def streamable(request: pytest.FixtureRequest) -> FakeMcpServer:
    """Of both eras."""
    return _with_a_tool(request.getfixturevalue(request.param))


def _with_a_tool(server: FakeMcpServer) -> FakeMcpServer:
    server.tools = [tool("echo")]
    return server


@pytest.fixture(scope="module")
async def nothing_forgotten() -> AsyncIterator[None]:
    """The event loop had nothing to complain of: no task whose error nobody saw, nothing closed by chance."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    gc.collect()  # what tests before have left behind is no complaint of these
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    yield
    gc.collect()
    loop.set_exception_handler(None)
    # a program that ends while it is written to breaks its pipe, which the SDK's writer takes for granted
    assert [each for each in complaints if not isinstance(each.get("exception"), BrokenPipeError)] == []
