"""The application behind a socket, as `toolscout serve` serves it, and clients that misbehave."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import httpx
import uvicorn

from app.cli.http_protocol import ConnectionLimits, DeadlineProtocol
from app.cli.serve import _make_config
from app.container import Container
from tests.support.clients import TestUser, get_app
from tests.support.worker_steps import until


@dataclass(frozen=True)
class RunningApp:
    port: int
    server: uvicorn.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections the server has."""
        return len(self.server.server_state.connections)

    def client(self, user: TestUser) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"Authorization": f"Bearer {user.key}"}, timeout=30)

    async def connect(self, sent: bytes) -> "RawClient":
        """Open a connection and send these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        await writer.drain()
        return RawClient(reader, writer)

    async def wait_for_connections(self, count: int) -> None:
        async def are_there() -> bool:
            return self.connections == count

        await until(are_there)


@dataclass(frozen=True)
class RawClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read_head(self) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)

    async def read_rest(self) -> bytes:
        """Return what comes until the connection is closed; a reset counts as closed."""
        try:
            return await asyncio.wait_for(self.reader.read(), 30)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def serve_app(
    container: Container, max_waiting: int | None = None, *, port: int = 0
) -> AsyncIterator[RunningApp]:
    """`max_waiting`: how many connections may wait for a request."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1_000)
    config = _make_config(get_app(container), container.settings)
    if max_waiting is not None:
        limits = ConnectionLimits(container.settings.head_timeout_s, container.settings.body_timeout_s, max_waiting)
        config.http = partial(DeadlineProtocol, limits)  # type: ignore[assignment]
    config.lifespan, config.timeout_graceful_shutdown = "off", 1
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))

    async def is_started() -> bool:
        return server.started

    await until(is_started)
    try:
        yield RunningApp(listener.getsockname()[1], server)
    finally:
        server.should_exit = True
        await serving


def make_request(
    path: str, *headers: str, method: str = "POST", body: bytes = b"", content_length: int | None = None
) -> bytes:
    """Return a request; its body is half sent if `content_length` says so."""
    length = len(body) if content_length is None else content_length
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode() + body
