"""The end of a service: nobody who has knocked stands before a closed door."""

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.cli.serve import _CALLS_S, _FIRST_WORDS_S, _GRACE_S, _config, _greeting, _Server
from app.container import Container
from tests.conftest import TestUser, app_of, make_settings
from tests.support.calls import connect_with_tools
from tests.support.checks import assert_problem
from tests.support.mcp_server import FakeMcpServer
from tests.support.worker_steps import until

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def server_of(container: Container, shutdown: asyncio.Event | None = None) -> _Server:
    """As `toolscout serve` has it, but for the start and the end of the application, which goes on."""
    config = _config(app_of(container))
    config.lifespan = "off"
    return _Server(config, "", asyncio.Event(), drain_s=0, shutdown=shutdown or asyncio.Event())


@pytest.fixture
def shutdown(container: Container) -> Iterator[asyncio.Event]:
    """The application's own, which other tests find as it was."""
    yield container.shutdown
    container.shutdown.clear()


async def opened(server: _Server, listeners: list[socket.socket]) -> asyncio.Task[None]:
    serving = asyncio.create_task(server.serve(sockets=listeners))

    async def is_open() -> bool:
        return server.started

    await until(is_open)
    return serving


async def test_whoever_has_knocked_is_let_in_before_the_port_is_closed(container: Container) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    place = listener.getsockname()
    server = server_of(container)
    listeners = [listener]
    serving = await opened(server, listeners)
    # the system has let them in, but we have not looked since: nothing is awaited in between
    knocking = [socket.create_connection(place) for _ in range(3)]
    for client in knocking:
        client.sendall(REQUEST)
    server._let_in_the_last(listeners)
    listeners.clear()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    answers = [await asyncio.to_thread(client.recv, 65_536) for client in knocking]
    assert {answer[:15] for answer in answers} == {b"HTTP/1.1 200 OK"}
    for client in knocking:
        client.close()
    server.should_exit = True
    await serving


async def test_whoever_waits_for_a_slow_tool_is_told_before_the_grace_ends(
    container: Container, user: TestUser, mcp: FakeMcpServer, shutdown: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _FIRST_WORDS_S + _GRACE_S - _CALLS_S >= 2, "no time to write it down and to answer"
    monkeypatch.setattr("app.cli.serve._CALLS_S", 0)
    await connect_with_tools(user, mcp, "work")
    mcp.stalled.add("work")
    body = {"tool_key": (await user.tools())["work"]["id"]}

    async def called() -> bool:
        return len(mcp.calls) == 1

    listener, server = socket.create_server(("127.0.0.1", 0)), server_of(container, shutdown)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    serving = await opened(server, [listener])
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {user.key}"}, timeout=30) as http:
        waiting = asyncio.create_task(http.post("/execute", json=body))
        await until(called)
        server.should_exit = True
        problem = assert_problem(await waiting, 502, "TOOL_EXECUTION_ERROR")
    await serving
    assert problem["outcome"] == "unknown"


async def test_idle_connections_outlast_those_who_use_them_and_end_with_the_service(container: Container) -> None:
    listener, server = socket.create_server(("127.0.0.1", 0)), server_of(container)
    assert server.config.timeout_keep_alive > 60 > (httpx.AsyncHTTPTransport()._pool._keepalive_expiry or 0)
    serving = await opened(server, [listener])
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(REQUEST.replace(b"Connection: close\r\n", b""))
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
    server.should_exit = True
    async with asyncio.timeout(_GRACE_S):
        assert await reader.read() == b""
        await serving
    writer.close()


@pytest.mark.parametrize(
    ("role", "there"),
    [("worker", {"/metrics"}), ("web", {"", "/docs", "/console"}), ("all", {"", "/docs", "/console"})],
)
def test_the_greeting_names_what_is_there_for_the_role(tmp_path: Path, role: str, there: set[str]) -> None:
    said = _greeting(make_settings(tmp_path, role=role), "http://here")
    assert set(re.findall(r"http://here([/\w]*)", said)) == there
