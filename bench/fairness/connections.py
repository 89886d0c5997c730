"""Connections of an attacker: they send a part of a request, wait, and send it again when the server hangs up."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

import httpx

RECONNECT_S = 5.0
"""Pause before a connection that the server has closed is opened again: the attack holds on, and does not flood."""
_CHUNK = 64 * 1024


def make_head(path: str, length: int, headers: Iterable[tuple[str, str]] = (), method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers)]
    lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def hold_open(port: int, sent: Iterable[bytes], statuses: Counter[str]) -> None:
    """Open one connection for each of these, send it and nothing more, and keep all open until cancelled.

    The statuses of responses are counted.
    """
    async with asyncio.TaskGroup() as tasks:
        for content in sent:
            tasks.create_task(_hold_one(port, content, statuses))


async def _hold_one(port: int, content: bytes, statuses: Counter[str]) -> None:
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for start in range(0, len(content), _CHUNK):
                    writer.write(content[start : start + _CHUNK])
                    await writer.drain()
                while received := await reader.read(_CHUNK):
                    if received.startswith(b"HTTP/1.1 "):
                        statuses[received[9:12].decode()] += 1
            finally:
                writer.transport.abort()
        await asyncio.sleep(RECONNECT_S)


async def send_and_hang_up(port: int, request: bytes, hold_s: float, delay_s: float = 0.0) -> None:
    """Send the request again and again, and hang up each time before it is answered. Begin after the delay."""
    await asyncio.sleep(delay_s)
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request)
                await asyncio.sleep(hold_s)
            finally:
                writer.transport.abort()


def open_client(url: str, key: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits)
