"""The figures of one row of the table, from several short slices of load."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.load.client import Responses
from bench.load.cpu import CpuTime

EMPTY = "empty endpoint"


@dataclass(frozen=True)
class Slice:
    """What one round measured."""

    requests: int
    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    app_cpu_ms: float
    postgres_cpu_ms: float
    client_cpu_ms: float
    errors: dict[str, int]


@dataclass
class Row:
    name: str
    clients: int
    slices: list[Slice] = field(default_factory=list)

    def median(self, figure: str) -> float:
        values: list[float] = [getattr(each, figure) for each in self.slices]
        return statistics.median(values)

    @property
    def errors(self) -> Counter[str]:
        return sum((Counter(each.errors) for each in self.slices), Counter[str]())

    @property
    def cpu_ms(self) -> float:
        """The CPU time of a request in the app and in Postgres together."""
        return statistics.median(each.app_cpu_ms + each.postgres_cpu_ms for each in self.slices)


def make_slice(responses: Responses, cpu: CpuTime) -> Slice:
    answered = len(responses.latencies_ms)
    requests = answered + sum(responses.errors.values())
    quantiles = make_quantiles(responses.latencies_ms)
    return Slice(
        requests=requests,
        rate=answered / responses.seconds,
        p50_ms=quantiles[49],
        p95_ms=quantiles[94],
        p99_ms=quantiles[98],
        app_cpu_ms=cpu.app * 1000 / max(requests, 1),
        postgres_cpu_ms=cpu.postgres * 1000 / max(requests, 1),
        client_cpu_ms=responses.client_cpu_s * 1000 / max(requests, 1),
        errors=dict(responses.errors),
    )


def make_quantiles(latencies_ms: Sequence[float]) -> list[float]:
    """Return the 99 percentiles; of one value, that value, and of none, infinity: nothing was answered."""
    if len(latencies_ms) < 2:
        return [*(latencies_ms or [float("inf")])] * 99
    return statistics.quantiles(latencies_ms, n=100, method="inclusive")


def share_of_empty(row: Row, rows: Sequence[Row]) -> float | None:
    """Return the rate as a share of the empty endpoint's with as many clients, as the median over the rounds.

    Both are of the same round, so that what slows the machine slows both.
    """
    empty = next((each for each in rows if each.name == EMPTY and each.clients == row.clients), None)
    if empty is None:
        return None
    pairs = zip(row.slices, empty.slices, strict=True)
    return statistics.median(each.rate / reference.rate for each, reference in pairs)


def format_table(rows: Sequence[Row]) -> str:
    width = max(len(row.name) for row in rows) + 2
    names = ["clients", "req/s", "of empty", "p50 ms", "p95 ms", "p99 ms", "CPU app", "CPU pg", "CPU ms", "errors"]
    lines = [" " * width + "".join(f"{name:>9}" for name in names)]
    for row in rows:
        share = share_of_empty(row, rows)
        figures = [f"{row.clients}", f"{row.median('rate'):.0f}", "–" if share is None else f"{share:.1%}"]
        figures += [f"{row.median(name):.2f}" for name in ("p50_ms", "p95_ms", "p99_ms")]
        figures += [f"{row.median(name):.2f}" for name in ("app_cpu_ms", "postgres_cpu_ms")]
        figures += [f"{row.cpu_ms:.2f}", f"{row.errors.total()}"]
        lines.append(f"{row.name:{width}}" + "".join(f"{figure:>9}" for figure in figures))
    return "\n".join(lines)


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "clients": row.clients,
            "rate": round(row.median("rate"), 1),
            "share_of_empty": share_of_empty(row, rows),
            "p50_ms": round(row.median("p50_ms"), 3),
            "p95_ms": round(row.median("p95_ms"), 3),
            "p99_ms": round(row.median("p99_ms"), 3),
            "app_cpu_ms": round(row.median("app_cpu_ms"), 3),
            "postgres_cpu_ms": round(row.median("postgres_cpu_ms"), 3),
            "cpu_ms": round(row.cpu_ms, 3),
            "client_cpu_ms": round(row.median("client_cpu_ms"), 3),
            "requests": sum(each.requests for each in row.slices),
            "errors": dict(row.errors),
            "rounds": [asdict(each) for each in row.slices],
        }
        for row in rows
    ]
