"""The load client: plain HTTP/1.1 over keep-alive connections, in a process of its own.

It writes prepared bytes and looks only for the end of each response, so that it needs little of the two cores that it
shares with the service.
"""

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.pool import Pool
from typing import cast

import uvloop

from bench.load.traffic import Traffic

_END_OF_HEAD = b"\r\n\r\n"
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"
_FAILED_CALL = b'"isError":true'
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Load:
    """Client n connects to the n-th port, and to the first one again after the last."""

    ports: Sequence[int]
    traffic: Traffic
    clients: int
    seconds: float


@dataclass
class Responses:
    """What the clients of one slice saw. Only responses with status 200 have a latency."""

    latencies_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    client_cpu_s: float = 0.0


class LoadClient:
    """Sends requests from another process. The process is started once, so that slices can be short."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def send(self, load: Load) -> Responses:
        return self._pool.apply(_send_in_process, (load,))


@contextmanager
def load_client() -> Iterator[LoadClient]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield LoadClient(pool)


def _send_in_process(load: Load) -> Responses:
    return uvloop.run(_send(load))


async def _send(load: Load) -> Responses:
    responses = Responses()
    loop = asyncio.get_running_loop()
    started, cpu_before_s = time.perf_counter(), time.process_time()
    connections = []
    for client in range(load.clients):
        requests = load.traffic.requests(client, load.clients)
        connection = _Connection(requests, started + load.seconds, responses, loop.create_future())
        port = load.ports[client % len(load.ports)]
        await loop.create_connection(lambda connection=connection: connection, "127.0.0.1", port)  # type: ignore[misc]
        connections.append(connection)
    finished = asyncio.gather(*(connection.finished for connection in connections))
    try:
        async with asyncio.timeout(load.seconds + _PATIENCE_S):
            await finished
    except TimeoutError:
        responses.errors["timeout"] += sum(not connection.finished.done() for connection in connections)
    responses.seconds = time.perf_counter() - started
    responses.client_cpu_s = time.process_time() - cpu_before_s
    return responses


class _Connection(asyncio.Protocol):
    """Sends a request as soon as the one before is answered, until the deadline."""

    def __init__(
        self, requests: Iterator[bytes], deadline: float, responses: Responses, finished: asyncio.Future[None]
    ) -> None:
        self._requests = requests
        self._deadline = deadline
        self._responses = responses
        self.finished = finished
        self._buffer = b""
        self._started = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send_next()

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if is_complete(self._buffer):
            self._record(time.perf_counter())
            self._buffer = b""
            self._send_next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the interface
        if not self.finished.done():
            self._responses.errors["connection lost"] += 1
            self.finished.set_result(None)

    def _send_next(self) -> None:
        now = time.perf_counter()
        request = next(self._requests, None) if now < self._deadline else None
        if request is None:
            self.finished.set_result(None)
            self._transport.close()
            return
        self._started = now
        self._transport.write(request)

    def _record(self, now: float) -> None:
        if self._buffer.startswith(b"HTTP/1.1 200") and _FAILED_CALL not in self._buffer:
            self._responses.latencies_ms.append((now - self._started) * 1000)
        else:
            self._responses.errors[self._buffer[9:12].decode()] += 1


def is_complete(response: bytes) -> bool:
    """Whether these bytes are a whole response: as long as its Content-Length says, or with the last chunk."""
    end = response.find(_END_OF_HEAD)
    if end < 0:
        return False
    head = response[:end].lower()
    _, found, rest = head.partition(b"content-length: ")
    if found:
        return len(response) >= end + len(_END_OF_HEAD) + int(rest.partition(b"\r\n")[0])
    return response.endswith(_END_OF_CHUNKS)
