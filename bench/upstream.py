"""Measure what Toolscout adds to a tool call, and what unresponsive servers cost `/discover`."""

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
        wait_for_port(port)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=10)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the echo server did not start")


@contextmanager
def silent_port() -> Iterator[int]:
    """Open a port where connections succeed and nothing ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as listener:
        port: int = listener.getsockname()[1]
        yield port


def add_hanging_servers(service: Service, port: int, count: int) -> None:
    """Register servers that Toolscout will try to list, one user each: servers of one user wait for each other."""
    for number in range(count):
        with service.admin(f"hanging-{number}") as client:
            body = {"name": "silent", "transport": "streamable_http", "url": f"http://127.0.0.1:{port}/{number}"}
            client.post("/servers", json=body).raise_for_status()


def register_echo_tool(service: Service, port: int) -> str:
    """Register the echo server and return the key of its tool."""
    with service.admin(CALLER) as client:
        body = {"name": "echo", "transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"}
        server = client.post("/servers", json=body).raise_for_status().json()
        run = client.post(f"/servers/{server['id']}/reindex", params={"wait": True}).json()
        assert run["state"] == "succeeded", run
        tools: list[dict[str, str]] = client.get("/tools").json()["items"]
        return tools[0]["id"]


def measure_calls(service: Service, port: int, tool_key: str, calls: int) -> tuple[list[float], list[float]]:
    """Return the latencies of direct calls and of calls through Toolscout, measured in a separate process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (service.url, port, tool_key, calls))


def _measure(url: str, port: int, tool_key: str, calls: int) -> tuple[list[float], list[float]]:
    return asyncio.run(_call_alternately(url, port, tool_key, calls))


async def _call_alternately(url: str, port: int, tool_key: str, calls: int) -> tuple[list[float], list[float]]:
    """Alternate between both kinds of calls, so that other load on the machine affects both alike."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}", "X-User-Id": CALLER}
    body = {"tool_key": tool_key, "arguments": ARGUMENTS}
    direct: list[float] = []
    through: list[float] = []
    async with mcp.Client(f"http://127.0.0.1:{port}/mcp") as server, httpx.AsyncClient(headers=headers) as toolscout:
        await server.list_tools()
        for _ in range(calls):
            started = time.perf_counter()
            await server.call_tool("echo", ARGUMENTS)
            finished_direct = time.perf_counter()
            (await toolscout.post(f"{url}/execute", json=body)).raise_for_status()
            direct.append((finished_direct - started) * 1000)
            through.append((time.perf_counter() - finished_direct) * 1000)
    return direct[calls // 10 :], through[calls // 10 :]
