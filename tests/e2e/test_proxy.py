"""nginx as we deploy it: streams pass, metrics stay private, and a request that may have run is not sent twice."""

import asyncio
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from app.api.middleware.body_limit import MAX_BODY_BYTES, MAX_PUSH_BYTES, _max_bytes
from app.main import create_routes
from bench.service import free_port
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.nginx import CONFIGURATION, nginx_command, running_nginx, write_configuration

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


def list_limits() -> list[tuple[str, str, int]]:
    """Return the route of every large body, and one of the others, with the size that the service accepts."""
    paths = [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in create_routes().openapi()["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    limits = [(method, path, _max_bytes({"method": method, "path": path})) for method, path in paths]
    large = [limit for limit in limits if limit[2] == MAX_PUSH_BYTES]
    assert len(large) < len(limits)
    return [*large, ("POST", "/discover", MAX_BODY_BYTES)]


def test_lists_of_tools_may_be_large() -> None:
    assert {path for _, path, max_bytes in list_limits() if max_bytes == MAX_PUSH_BYTES} >= {
        "/servers/server_id/tools",
        "/catalog/search",
    }


@pytest.mark.parametrize(("method", "path", "max_bytes"), list_limits())
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


async def test_nginx_and_the_service_have_the_same_limit_on_every_route(tmp_path: Path) -> None:
    """A route whose limit is raised in the service needs a location in nginx.conf."""
    text = CONFIGURATION.read_text()
    [pattern] = re.findall(r"location ~ (\S+) {\s+client_max_body_size 16m;", text)
    for path, methods in create_routes().openapi()["paths"].items():
        limits = {_max_bytes({"method": method.upper(), "path": path}) for method in methods}
        assert bool(re.search(pattern, path)) is (MAX_PUSH_BYTES in limits), path


@pytest.mark.parametrize(
    ("headers", "is_public", "is_secure"),
    [
        ({"X-Forwarded-Proto": "https"}, False, True),
        ({"X-Forwarded-Proto": "https"}, True, False),
        ({"X-Forwarded-Proto": "http"}, False, False),
        ({}, False, False),
    ],
    ids=["a private proxy with TLS", "a stranger", "a private proxy without TLS", "no proxy"],
)
async def test_the_cookie_of_the_console_is_secure_where_a_proxy_in_front_terminates_tls(
    user: TestUser, port: int, tmp_path: Path, headers: dict[str, str], *, is_public: bool, is_secure: bool
) -> None:
    with running_nginx(tmp_path, [port], is_public=is_public) as url:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
            answer = await http.post("/console/sign-in", data={"key": user.key})
    assert answer.status_code == 303
    assert ("; Secure" in answer.headers["set-cookie"]) is is_secure


async def test_a_stranger_cannot_choose_the_address_that_the_service_sees(tmp_path: Path) -> None:
    headers = {"X-Forwarded-For": "198.51.100.1"}
    for is_public, expected in [(True, b"127.0.0.1"), (False, b"198.51.100.1, 127.0.0.1")]:
        with failing_replica() as (replica, requests), running_nginx(tmp_path, [replica], is_public=is_public) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                await http.get("/tools", headers=headers)
        assert re.findall(rb"(?i)x-forwarded-for: (.*?)\r\n", requests[0]) == [expected]
        assert re.findall(rb"(?i)x-forwarded-proto: (.*?)\r\n", requests[0]) == [b"http"]


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
