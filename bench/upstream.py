"""What Toolscout adds to a call of a tool, and what servers that hang take from `/discover`."""

import asyncio
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import mcp

from bench.service import ADMIN_KEY, Service, free_port

CALLER = "caller"
ARGUMENTS = {"text": "hello"}


@contextmanager
def echo_server() -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.echo_server", str(port)])
    try:
        _await_port(port)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=10)


def _await_port(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the server to be called does not start")


@contextmanager
def silent_port() -> Iterator[int]:
    """The kernel takes the connections; nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as listening:
        port: int = listening.getsockname()[1]
        yield port


def add_hanging_servers(service: Service, port: int, count: int) -> None:
    """Each asked for its tools from now on, by a user of its own: one user's servers would wait for each other."""
    for number in range(count):
        with service.admin(f"hanging-{number}") as client:
            body = {"name": "silent", "transport": "streamable_http", "url": f"http://127.0.0.1:{port}/{number}"}
            client.post("/servers", json=body).raise_for_status()


def echo_tool(service: Service, port: int) -> str:
    """Its key, for whoever calls it through Toolscout."""
    with service.admin(CALLER) as client:
        body = {"name": "echo", "transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"}
        server = client.post("/servers", json=body).raise_for_status().json()
        run = client.post(f"/servers/{server['id']}/reindex", params={"wait": True}).json()
        assert run["state"] == "succeeded", run
        tools: list[dict[str, str]] = client.get("/tools").json()["items"]
        return tools[0]["id"]


def direct_and_through(service: Service, port: int, tool_key: str, calls: int) -> tuple[list[float], list[float]]:
    """Both in one run, one after the other, from a process that does nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (service.url, port, tool_key, calls))


def _measure(url: str, port: int, tool_key: str, calls: int) -> tuple[list[float], list[float]]:
    return asyncio.run(_both(url, port, tool_key, calls))


async def _both(url: str, port: int, tool_key: str, calls: int) -> tuple[list[float], list[float]]:
    """In turns, so that whatever else the machine does meets both alike."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}", "X-User-Id": CALLER}
    body = {"tool_key": tool_key, "arguments": ARGUMENTS}
    direct: list[float] = []
    through: list[float] = []
    async with mcp.Client(f"http://127.0.0.1:{port}/mcp") as server, httpx.AsyncClient(headers=headers) as toolscout:
        await server.list_tools()
        for _ in range(calls):
            started = time.perf_counter()
            await server.call_tool("echo", ARGUMENTS)
            between = time.perf_counter()
            (await toolscout.post(f"{url}/execute", json=body)).raise_for_status()
            direct.append((between - started) * 1000)
            through.append((time.perf_counter() - between) * 1000)
    return direct[calls // 10 :], through[calls // 10 :]
