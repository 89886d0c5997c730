"""nginx as we deploy it: streams pass, metrics stay private, and a request that may have run is not sent twice."""

import asyncio
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from app.api.middleware.body_limit import MAX_BODY_BYTES, MAX_PUSH_BYTES
from bench.service import free_port
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.nginx import nginx_command, running_nginx, write_configuration

pytestmark = pytest.mark.needs_nginx


@pytest.fixture
def port(address: str) -> int:
    """The port of the application."""
    return int(address.rpartition(":")[2])


def test_nginx_accepts_the_configuration(tmp_path: Path) -> None:
    configuration = write_configuration(tmp_path, free_port(), [free_port()])
    done = subprocess.run(nginx_command(configuration, "-t"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_requests_pass_and_metrics_are_not_public(user: TestUser, port: int, tmp_path: Path) -> None:
    with running_nginx(tmp_path, [port]) as url:
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {user.key}"}, timeout=60) as http:
            assert (await http.get("/tools")).status_code == 200
            assert (await http.get("/readyz")).status_code == 200
            assert (await http.get("/proxy/healthz")).status_code == 200
            assert (await http.get("/metrics")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "max_bytes"),
    [("PUT", "/servers/x/tools", MAX_PUSH_BYTES), ("POST", "/discover", MAX_BODY_BYTES)],
)
async def test_a_body_that_is_too_large_is_refused_by_the_service_and_not_by_nginx(
    user: TestUser, port: int, tmp_path: Path, method: str, path: str, max_bytes: int
) -> None:
    headers = {"Authorization": f"Bearer {user.key}", "Content-Type": "application/json"}
    with running_nginx(tmp_path, [port]) as url:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
            refused = await http.request(method, path, content=b"[" * (max_bytes + 1))
            accepted = await http.request(method, path, content=b"[" * max_bytes)
    assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    assert refused.headers["content-type"] == "application/problem+json"
    assert accepted.status_code == 422


async def test_events_are_not_buffered(user: TestUser, port: int, tmp_path: Path, mcp: FakeMcpServer) -> None:
    mcp.tools, mcp.stalled = [tool("work")], {"work"}
    await user.connect(mcp)
    headers = {"Authorization": f"Bearer {user.key}", "Accept": "text/event-stream"}
    body = {"tool_key": (await user.tools())["work"]["id"], "arguments": {}}
    with running_nginx(tmp_path, [port]) as url:
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=10) as http,
            http.stream("POST", "/execute", json=body) as answer,
        ):
            # the response begins while the tool is still running
            assert answer.headers["content-type"].startswith("text/event-stream")
            mcp.stalled = set()
            assert "event: result" in "".join([line async for line in answer.aiter_lines()])


@contextmanager
def failing_replica() -> Iterator[tuple[int, list[bytes]]]:
    """Run a replica that reads a request and closes the connection; yield its port and the requests it has read."""
    listening, requests = socket.create_server(("127.0.0.1", 0)), []
    listening.settimeout(0.1)
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(5)
                requests.append(connection.recv(65_536))

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()[1], requests
    stopped.set()
    thread.join()
    listening.close()


async def test_a_replica_that_refuses_connections_is_passed_over(user: TestUser, port: int, tmp_path: Path) -> None:
    with running_nginx(tmp_path, [free_port(), port]) as url:
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {user.key}"}, timeout=60) as http:
            answers = await asyncio.gather(*(http.post("/discover", json={"query": "x"}) for _ in range(6)))
    assert {answer.status_code for answer in answers} == {200}


async def test_a_request_that_a_replica_may_have_run_is_not_sent_to_another(tmp_path: Path) -> None:
    with (
        failing_replica() as (first, to_first),
        failing_replica() as (second, to_second),
        running_nginx(tmp_path, [first, second]) as url,
    ):
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            answer = await http.post("/execute", json={"tool_key": "x"})
    assert (answer.status_code, answer.json()["code"]) == (502, "unavailable")
    assert "retry-after" not in answer.headers
    assert len(to_first) + len(to_second) == 1
