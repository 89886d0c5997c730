"""Measure one replica and two on one Postgres, each under closed load, with the processor time of everything."""

import base64
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app import __version__
from bench.load.catalogue import PRODUCTS, TOOLS_PER_PRODUCT, copy_users, database_url, push_tools
from bench.load.client import Load, LoadClient, Responses, load_client
from bench.load.contestants import USERS
from bench.load.cpu import CpuTime, read_cpu_time, read_postmaster_pid
from bench.load.results import Row, make_slice, to_json
from bench.load.traffic import MESSAGE, NewQuestions, Once, Repeated, Traffic, authorize, discover
from bench.machine import describe_machine
from bench.service import Service, running_service

CACHED, NEW = "cached questions", "new questions"
FIRST, SECOND = "first request of a user", "second request of a user"
CLIENTS = {1: (1, 4, 16), 2: (2, 4, 16)}
"""By the number of replicas: little load, more, and as much as they answer. Those in the same place belong together."""
_COLD_S = 60.0
_LOAD_DEADLINE_S = 30.0
_POLL_S = 0.02
_QUESTIONS = '{"query": "QUESTION"}'


@dataclass(frozen=True)
class Plan:
    """How much is measured. A first request has a user of its own each time."""

    rounds: int
    seconds: float
    warm_up_s: float
    cold_per_round: int
    products: Sequence[str]

    @property
    def tools(self) -> int:
        return len(self.products) * TOOLS_PER_PRODUCT

    @property
    def users(self) -> int:
        return USERS + self.rounds * self.cold_per_round


FULL = Plan(rounds=7, seconds=1.0, warm_up_s=0.2, cold_per_round=20, products=PRODUCTS)
QUICK = Plan(rounds=1, seconds=0.2, warm_up_s=0.05, cold_per_round=3, products=PRODUCTS[:1])


@contextmanager
def running_replicas(folder: Path) -> Iterator[tuple[Service, Service]]:
    """Run a service with its embedded Postgres, and a second one on that Postgres."""
    settings = {
        "TOOLSCOUT_RATE_PER_USER": "0",
        "TOOLSCOUT_SECRET_KEY": base64.b64encode(os.urandom(32)).decode(),
        "TOOLSCOUT_QUERY_EMBED_BUDGET_MS": "60000",  # on a busy machine, too, each message is embedded
    }
    folders = [folder / name for name in ("first", "second")]
    for each in folders:
        each.mkdir()
    with running_service(folders[0], settings, own_session=True) as first:
        shared = settings | {"DATABASE_URL": database_url(folders[0])}
        with running_service(folders[1], shared, own_session=True) as second:
            yield first, second


class Bench:
    def __init__(self, services: tuple[Service, Service], client: LoadClient, plan: Plan) -> None:
        self._services, self._client, self._plan = services, client, plan
        self._postmaster = read_postmaster_pid(services[0].folder)
        self._question = 1

    def create_population(self) -> dict[str, float]:
        """Create the users, and return the processor time of indexing a tool."""
        first, plan = self._services[0], self._plan
        push_tools(first, ["warm-up"], "warm-up")  # loads the model
        before = self._read_cpu_time(2)  # either of them takes a run
        push_tools(first, plan.products)
        cpu = self._read_cpu_time(2).since(before)
        copy_users(first, plan.users - 1, plan.tools)
        with first.admin() as admin:
            self._key = admin.post("/keys", json={"kind": "service"}).raise_for_status().json()["key"]
        return {
            "tools": plan.tools,
            "app_cpu_ms": round(cpu.app * 1000 / plan.tools, 3),
            "postgres_cpu_ms": round(cpu.postgres * 1000 / plan.tools, 3),
        }

    def measure(self) -> list["Measured"]:
        points = [
            Measured(workload, replicas, Row(workload, clients))
            for workload in (CACHED, NEW)
            for numbers in zip(*CLIENTS.values(), strict=True)  # one replica and two soon after each other
            for replicas, clients in zip(CLIENTS, numbers, strict=True)
        ]
        cold = [Measured(name, 1, Row(name, 1)) for name in (FIRST, SECOND)]
        for replicas in CLIENTS:
            self._send(Repeated(self._ask_all()), replicas, USERS, 10 * self._plan.warm_up_s)
        for number in range(self._plan.rounds):
            print(f"round {number + 1} of {self._plan.rounds}", flush=True)
            for point in points:
                self._measure_point(point)
            self._measure_cold_users(cold, number)
        return points + cold

    def _measure_point(self, point: "Measured") -> None:
        clients = point.row.clients
        self._send(self._next_traffic(point.workload), point.replicas, clients, self._plan.warm_up_s)
        before = self._read_cpu_time(point.replicas)
        responses = self._send(self._next_traffic(point.workload), point.replicas, clients, self._plan.seconds)
        point.row.slices.append(make_slice(responses, self._read_cpu_time(point.replicas).since(before)))

    def _measure_cold_users(self, cold: Sequence["Measured"], number: int) -> None:
        """Let some users ask for the first time, and again: the second request loads a snapshot."""
        start = USERS + number * self._plan.cold_per_round
        headers = [authorize(self._key, f"user-{start + each}") for each in range(self._plan.cold_per_round)]
        for point in cold:
            loaded = self._count_loads()
            before = self._read_cpu_time(1)
            responses = self._send(Once([discover(MESSAGE, each) for each in headers]), 1, 1, _COLD_S)
            if point.workload == SECOND:
                self._wait_for_loads(loaded + len(headers))
            point.row.slices.append(make_slice(responses, self._read_cpu_time(1).since(before)))

    def _wait_for_loads(self, count: int) -> None:
        deadline = time.monotonic() + _LOAD_DEADLINE_S
        while self._count_loads() < count:
            if time.monotonic() > deadline:
                raise RuntimeError("the tools of the users were not loaded into memory")
            time.sleep(_POLL_S)

    def _next_traffic(self, workload: str) -> Traffic:
        if workload == CACHED:
            return Repeated(self._ask_all())
        self._question += 100_000
        headers = [authorize(self._key, f"user-{number}") for number in range(USERS)]
        return NewQuestions("/discover", _QUESTIONS, headers, self._question)

    def _ask_all(self) -> list[bytes]:
        return [discover(MESSAGE, authorize(self._key, f"user-{number}")) for number in range(USERS)]

    def _send(self, traffic: Traffic, replicas: int, clients: int, seconds: float) -> Responses:
        ports = [service.port for service in self._services[:replicas]]
        return self._client.send(Load(ports, traffic, clients, seconds))

    def _read_cpu_time(self, replicas: int) -> CpuTime:
        return read_cpu_time([service.process.pid for service in self._services[:replicas]], self._postmaster)

    def _count_loads(self) -> int:
        text = httpx.get(f"{self._services[0].url}/metrics").text
        prefix = 'toolscout_snapshot_loads_total{outcome="loaded"} '
        [line] = [line for line in text.splitlines() if line.startswith(prefix)]
        return int(float(line.removeprefix(prefix)))


@dataclass(frozen=True)
class Measured:
    """One row: what was asked, of how many replicas."""

    workload: str
    replicas: int
    row: Row

    def to_json(self) -> dict[str, Any]:
        [row] = to_json([self.row])
        del row["share_of_empty"]
        return row | {"replicas": self.replicas}


def measure_replicas(folder: Path, plan: Plan) -> dict[str, Any]:
    started = time.monotonic()
    with running_replicas(folder) as services, load_client() as client:
        bench = Bench(services, client, plan)
        indexing = bench.create_population()
        measured = bench.measure()
    return {
        "version": __version__,
        "machine": describe_machine(),
        "tools": plan.tools,
        "rounds": plan.rounds,
        "slice_s": plan.seconds,
        "measured_s": round(time.monotonic() - started),
        "indexing": indexing,
        "rows": [each.to_json() for each in measured],
    }
