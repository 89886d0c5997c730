"""Compare what the model says of two replicas with what was measured.

The model gets the machine as it was: its cores, the processor time of a request on one replica, and as many other
programs as explain the rate of that replica. Times on one replica then show how well it fits; two are predicted.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.settings import Settings
from bench.simulate.costs import Embedding, estimate_cv, find_row, make_embedding
from bench.simulate.network import Kind, Machine, Network, Simulated, Station, Step, simulate_closed
from bench.simulate.replicas import CACHED, CLIENTS, NEW

FIGURES = ("rate", "p50_ms", "p95_ms")
MESSAGES = 3_000
_MOST_OTHERS = 50.0
_STEPS = 8


@dataclass(frozen=True)
class Comparison:
    name: str
    replicas: int
    clients: int
    measured: dict[str, float]
    predicted: dict[str, float]

    def get_error(self, figure: str) -> float:
        return self.predicted[figure] / self.measured[figure] - 1


def compare(results: dict[str, Any], messages: int = MESSAGES) -> list[Comparison]:
    return [
        comparison
        for name in (CACHED, NEW)
        for numbers in zip(*CLIENTS.values(), strict=True)
        for comparison in _compare_pair(results, name, dict(zip(CLIENTS, numbers, strict=True)), messages)
    ]


def _compare_pair(results: dict[str, Any], name: str, clients: Mapping[int, int], messages: int) -> list[Comparison]:
    rows = {replicas: find_row(results["rows"], name, count, replicas=replicas) for replicas, count in clients.items()}
    one = Replicas.of(results, rows[1])
    others = find_others(lambda others: one.simulate(1, clients[1], others, messages).rate, rows[1]["rate"])
    return [
        _compare(row, one.simulate(replicas, clients[replicas], others, messages)) for replicas, row in rows.items()
    ]


def _compare(row: dict[str, Any], simulated: Simulated) -> Comparison:
    predicted = (simulated.rate, simulated.quantile_ms(0.5), simulated.quantile_ms(0.95))
    return Comparison(
        row["name"],
        row["replicas"],
        row["clients"],
        {figure: row[figure] for figure in FIGURES},
        dict(zip(FIGURES, predicted, strict=True)),
    )


def find_others(get_rate: Callable[[float], float], rate: float) -> float:
    """Return how many other programs let the replica answer so many requests a second; none, if it answers fewer."""
    low, high = 0.0, _MOST_OTHERS
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if get_rate(middle) > rate else (low, middle)
    return low


@dataclass(frozen=True)
class Replicas:
    """Replicas on the measured machine, with what a request took on one of them."""

    cores: float
    loop_s: float
    postgres_s: float
    client_s: float
    embedding: Embedding | None
    cv: float

    @classmethod
    def of(cls, results: dict[str, Any], row: dict[str, Any]) -> "Replicas":
        rows, clients = results["rows"], row["clients"]
        return cls(
            results["machine"]["cores"],
            find_row(rows, CACHED, clients, replicas=1)["app_cpu_ms"] / 1_000,
            row["postgres_cpu_ms"] / 1_000,
            row["client_cpu_ms"] / 1_000,
            _read_embedding(rows) if row["name"] == NEW else None,
            estimate_cv([find_row(rows, row["name"], 1, replicas=1)]),
        )

    def simulate(self, replicas: int, clients: int, others: float, messages: int) -> Simulated:
        return simulate_closed(self._make_network(replicas, others), clients, messages)

    def _make_network(self, replicas: int, others: float) -> Network:
        """Return the clients, which are one process, the replicas and Postgres, on one machine."""
        pool_size = Settings.model_fields["database_pool_size"].default
        embed = [] if self.embedding is None else [self.embedding]
        stations, routes = [Station("clients", 0)], []
        for number in range(replicas):
            loop, embedder, pool = range(len(stations), len(stations) + 3)
            stations += [
                Station(f"event loop {number}", 0),
                Station(f"embedder {number}", 0, batch=max([1, *(each.batch for each in embed)])),
                Station(f"connections {number}", 0, pool_size),
            ]
            client, half = Step(0, self.client_s / 2), Step(loop, self.loop_s / 2)
            embedded = [Step(embedder, each.fixed_s, each.each_s) for each in embed]
            routes.append([client, half, Step(pool, self.postgres_s), *embedded, half, client])
        return Network([Machine("machine", self.cores, others)], stations, [Kind("request", 1.0, routes)], self.cv)


def _read_embedding(rows: Sequence[dict[str, Any]]) -> Embedding:
    alone, batched = (
        find_row(rows, NEW, clients, replicas=1)["app_cpu_ms"]
        - find_row(rows, CACHED, clients, replicas=1)["app_cpu_ms"]
        for clients in (CLIENTS[1][0], CLIENTS[1][-1])
    )
    return make_embedding(alone / 1_000, batched / 1_000)


def median_error(comparisons: Sequence[Comparison], figure: str, replicas: int) -> float:
    """Return the median of the absolute errors."""
    return statistics.median(abs(each.get_error(figure)) for each in comparisons if each.replicas == replicas)
