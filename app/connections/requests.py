"""Sends the requests of a sign-in to whichever host its metadata names: guarded, small, and with one deadline."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from app.connections.oauth import Send
from app.errors import ServerUnreachable
from app.mcp_client.guarded_request import send_guarded
from app.mcp_client.url_guard import Guard
from app.mcp_types import Transport

TIMEOUT_S = 10.0
"""For all requests of one step together."""
_MAX_BYTES = 256 * 1024


def make_sender(guard: Guard, user_id: str) -> Send:
    async def send(request: httpx2.Request) -> httpx2.Response:
        return await send_guarded(guard, user_id, request, max_bytes=_MAX_BYTES)

    return send


async def request_challenge(guard: Guard, user_id: str, url: str, transport: Transport) -> httpx2.Response:
    """Return the server's answer to a request without credentials. It has no effect on the server."""
    accept = {"Accept": "application/json, text/event-stream"}
    if transport == "sse":
        request = httpx2.Request("GET", url, headers=accept)
    else:
        ping = {"jsonrpc": "2.0", "id": "sign-in", "method": "ping"}
        request = httpx2.Request("POST", url, headers=accept, json=ping)
    return await send_guarded(guard, user_id, request, max_bytes=_MAX_BYTES, read_body=False)


@asynccontextmanager
async def limit_time(timeout_s: float | None = None) -> AsyncIterator[None]:
    """Raise `ServerUnreachable` if the block takes longer than this, or than one step may take."""
    try:
        async with asyncio.timeout(TIMEOUT_S if timeout_s is None else timeout_s):
            yield
    except TimeoutError as error:
        raise ServerUnreachable("timeout", "the server's sign-in did not answer in time") from error
