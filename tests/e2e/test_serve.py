"""`toolscout serve`: new keys are shown last, and a stop loses no request that has reached the port."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.cli.serve import _FIRST_REQUEST_S, _GRACE_S, _TOOL_CALLS_S, NewKeys, _make_config, _make_greeting, _Server
from app.container import Container
from bench.service import running_service
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, get_app
from tests.support.factories import make_settings, tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.worker_steps import until

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def make_server(container: Container, shutdown: asyncio.Event | None = None) -> _Server:
    """Return a server as `toolscout serve` makes it, which neither starts nor stops the application."""
    config = _make_config(get_app(container), container.settings)
    config.lifespan = "off"
    return _Server(config, lambda: None, asyncio.Event(), drain_s=0, shutdown=shutdown or asyncio.Event())


@pytest.fixture
def shutdown(container: Container) -> Iterator[asyncio.Event]:
    """The event of the application, which is cleared for other tests."""
    yield container.shutdown
    container.shutdown.clear()


async def start(server: _Server, listeners: list[socket.socket]) -> asyncio.Task[None]:
    serving = asyncio.create_task(server.serve(sockets=listeners))

    async def is_started() -> bool:
        return server.started

    await until(is_started)
    return serving


async def test_pending_connections_are_accepted_before_the_port_is_closed(container: Container) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    server = make_server(container)
    listeners = [listener]
    serving = await start(server, listeners)
    # Nothing is awaited here, so the kernel has accepted these connections, but the server has not.
    clients = [socket.create_connection(address) for _ in range(3)]
    for client in clients:
        client.sendall(REQUEST)
    server._accept_pending(listeners)
    listeners.clear()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    responses = [await asyncio.to_thread(client.recv, 65_536) for client in clients]
    assert {response[:15] for response in responses} == {b"HTTP/1.1 200 OK"}
    for client in clients:
        client.close()
    server.should_exit = True
    await serving


async def test_the_caller_of_a_slow_tool_is_answered_before_the_grace_period_ends(
    container: Container, user: TestUser, mcp: FakeMcpServer, shutdown: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _FIRST_REQUEST_S + _GRACE_S - _TOOL_CALLS_S >= 2, "no time to record the call and to answer"
    monkeypatch.setattr("app.cli.serve._TOOL_CALLS_S", 0)
    mcp.tools = [tool("work")]
    await user.connect(mcp, "files")
    mcp.stalled.add("work")
    body = {"tool_key": (await user.tools())["work"]["id"]}

    async def is_called() -> bool:
        return len(mcp.calls) == 1

    listener, server = socket.create_server(("127.0.0.1", 0)), make_server(container, shutdown)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    serving = await start(server, [listener])
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {user.key}"}, timeout=30) as http:
        waiting = asyncio.create_task(http.post("/execute", json=body))
        await until(is_called)
        server.should_exit = True
        problem = assert_problem(await waiting, 502, "TOOL_EXECUTION_ERROR")
    await serving
    assert problem["outcome"] == "unknown"


async def test_idle_connections_outlast_those_of_clients_and_end_with_the_service(container: Container) -> None:
    listener, server = socket.create_server(("127.0.0.1", 0)), make_server(container)
    assert server.config.timeout_keep_alive > 60 > (httpx.AsyncHTTPTransport()._pool._keepalive_expiry or 0)
    serving = await start(server, [listener])
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(REQUEST.replace(b"Connection: close\r\n", b""))
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
    server.should_exit = True
    async with asyncio.timeout(_GRACE_S):
        assert await reader.read() == b""
        await serving
    writer.close()


@pytest.mark.parametrize(
    ("role", "paths"),
    [("worker", {"/metrics"}), ("web", {"", "/docs", "/console"}), ("all", {"", "/docs", "/console"})],
)
def test_the_greeting_names_the_urls_that_the_role_serves(tmp_path: Path, role: str, paths: set[str]) -> None:
    greeting = "\n".join(_make_greeting(make_settings(tmp_path, role=role), "http://here", None))
    assert set(re.findall(r"http://here([/\w]*)", greeting)) == paths


def test_new_keys_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    keys = NewKeys(demo="ts_user_a", admin="ts_admin_b")
    keys.show()
    assert re.findall(r"^    (\w+)$", capsys.readouterr().out, re.MULTILINE) == ["ts_user_a", "ts_admin_b"]
    keys.show()
    NewKeys().show()
    assert capsys.readouterr().out == ""


def test_new_keys_come_after_the_log_of_the_start_and_are_not_in_the_log(tmp_path: Path) -> None:
    with running_service(tmp_path, {"TOOLSCOUT_DEMO": "1", "TOOLSCOUT_ADMIN_API_KEY": ""}):
        lines = (tmp_path / "service.log").read_text().splitlines()
    log = {number: json.loads(line) for number, line in enumerate(lines) if line.startswith("{")}
    start_log = [number for number, entry in log.items() if entry["logger"] != "toolscout.access"]
    keys = [number for number, line in enumerate(lines) if re.fullmatch(r" +ts_(user|admin)_\S+", line)]
    assert len(keys) == 2
    assert {log[number]["logger"] for number in start_log} >= {"toolscout.postgres", "toolscout.worker"}
    assert max(start_log) < min(keys)
    assert not any(line for number, line in enumerate(lines) if number > max(keys) and number not in log)
    assert not any("ts_user_" in lines[number] or "ts_admin_" in lines[number] for number in log)
