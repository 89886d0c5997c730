"""The victim: a user who sends requests at a gentle, steady rate from a process of its own.

A latency counts from the moment at which the request was due, so that a service that hangs does not hide the requests
that it prevents.
"""

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.pool import AsyncResult, Pool
from typing import Any, Literal

import httpx
import orjson
import uvloop

from bench.load.results import make_quantiles
from bench.load.traffic import make_question

Kind = Literal["discover", "push", "register"]
_TIMEOUT_S = 10.0
_RATES = {"discover": 20.0, "push": 3.0, "register": 10.0}
"""Requests in a second. Pushes to one server wait for each other, and take some 150 ms."""
_STRETCH = {"push": 2.0}
"""How many times as long as others a kind of victim is measured, since it sends few requests."""


@dataclass(frozen=True)
class Victim:
    url: str
    key: str
    kind: Kind
    server_id: str
    """The server that is pushed to."""
    upstream_url: str
    """The server that is registered."""
    start: int = 0
    """The number of the first question or tool: each is sent once."""


@dataclass
class Sample:
    """What the victim saw. `errors` has failed requests and degraded answers."""

    latencies_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def p50_ms(self) -> float:
        return make_quantiles(self.latencies_ms)[49]

    @property
    def p95_ms(self) -> float:
        return make_quantiles(self.latencies_ms)[94]

    def __add__(self, other: "Sample") -> "Sample":
        return Sample(self.latencies_ms + other.latencies_ms, self.errors + other.errors)


class VictimProcess:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def measure(self, victim: Victim, seconds: float) -> Sample:
        return self.start(victim, seconds).get()

    def start(self, victim: Victim, seconds: float) -> "AsyncResult[Sample]":
        return self._pool.apply_async(_measure_in_process, (victim, seconds))


@contextmanager
def victim_process() -> Iterator[VictimProcess]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield VictimProcess(pool)


def _measure_in_process(victim: Victim, seconds: float) -> Sample:
    return uvloop.run(_measure(victim, seconds))


async def _measure(victim: Victim, seconds: float) -> Sample:
    sample = Sample()
    interval_s = 1 / _RATES[victim.kind]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    headers = {"Authorization": f"Bearer {victim.key}"}
    async with httpx.AsyncClient(base_url=victim.url, headers=headers, timeout=_TIMEOUT_S, limits=limits) as client:
        await client.get("/healthz")  # the first request would also load and connect
        started, requests = time.perf_counter(), []
        for number in range(round(seconds * _STRETCH.get(victim.kind, 1.0) / interval_s)):
            due = started + number * interval_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            requests.append(asyncio.create_task(_send(client, victim, victim.start + number, due, sample)))
        await asyncio.gather(*requests)
    return sample


async def _send(client: httpx.AsyncClient, victim: Victim, number: int, due: float, sample: Sample) -> None:
    try:
        response = await _REQUESTS[victim.kind](client, victim, number)
    except httpx.HTTPError as error:
        sample.errors[type(error).__name__] += 1
        # as slow as it was: leaving out the slowest would improve the percentiles
        sample.latencies_ms.append((time.perf_counter() - due) * 1000)
        return
    sample.latencies_ms.append((time.perf_counter() - due) * 1000)
    if not response.is_success:
        sample.errors[str(response.status_code)] += 1
    elif (fault := _find_fault(orjson.loads(response.content))) is not None:
        sample.errors[fault] += 1


def _find_fault(body: dict[str, Any]) -> str | None:
    if body.get("degraded"):
        return f"degraded: {body['degraded_reason']}"
    return f"run {body['state']}" if body.get("state") not in (None, "succeeded") else None


async def _discover(client: httpx.AsyncClient, _victim: Victim, number: int) -> httpx.Response:
    return await client.post("/discover", json={"query": make_question(number)})


async def _push(client: httpx.AsyncClient, victim: Victim, number: int) -> httpx.Response:
    """Push three tools, one of which is new."""
    tools = [{"name": f"tool_{n}", "description": make_question(n)} for n in range(number, number + 3)]
    return await client.put(f"/servers/{victim.server_id}/tools", params={"wait": True}, json={"tools": tools})


async def _register(client: httpx.AsyncClient, victim: Victim, number: int) -> httpx.Response:
    """Register a server by its host name, which is resolved before the server is stored."""
    body = {"name": f"server-{number}", "transport": "streamable_http", "url": victim.upstream_url, "enabled": False}
    return await client.post("/servers", json=body)


_REQUESTS: dict[Kind, Callable[[httpx.AsyncClient, Victim, int], Any]] = {
    "discover": _discover,
    "push": _push,
    "register": _register,
}
