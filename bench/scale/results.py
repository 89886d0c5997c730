"""The figures of a run, and its table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.scale.routes import RouteResult


@dataclass(frozen=True)
class Growth:
    """What a user of this size costs beside a search."""

    tools: int
    disk_mb: float
    build_s: float | None
    """How long the indexes of a large user took, with the counts."""
    changed_100_s: float
    """How long an index run of 100 new tools took, embedding included."""
    delete_s: float


@dataclass(frozen=True)
class Table:
    """An ordinary user in a small and in a large database, and index runs in the large one."""

    rows: int
    users: int
    small_p50_ms: float
    large_p50_ms: float
    disk_mb: float
    index_1000_s: float
    unchanged_1000_s: float

    @property
    def ratio(self) -> float:
        return self.large_p50_ms / self.small_p50_ms


@dataclass
class Results:
    questions: int
    routes: list[RouteResult] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    table: Table | None = None

    def to_json(self) -> dict[str, Any]:
        table = None if self.table is None else asdict(self.table) | {"ratio": self.table.ratio}
        return asdict(self) | {"table": table}


def format_results(results: Results) -> str:
    columns = " ".join(f"{name:>8}" for name in ("p50 ms", "new", "p95", "CPU app", "CPU pg"))
    lines = [
        f"{'tools':>8} {'route':10} {columns} {'recall':>7} {'MB':>6}",
        *(_format_route(row) for row in results.routes),
        "",
    ]
    lines += [
        f"{row.tools:>8} tools: {row.disk_mb:.0f} MB on disk, 100 new tools in {row.changed_100_s:.1f} s, deleted in "
        f"{row.delete_s:.1f} s" + ("" if row.build_s is None else f", indexes built in {row.build_s:.0f} s")
        for row in results.growth
    ]
    if (table := results.table) is not None:
        lines += [
            "",
            f"{table.rows:,} rows of {table.users:,} users ({table.disk_mb:.0f} MB): an ordinary user's p50 "
            f"{table.large_p50_ms:.2f} ms, in a small database {table.small_p50_ms:.2f} ms ({table.ratio:.2f} times)",
            f"1,000 tools indexed in {table.index_1000_s:.1f} s, unchanged in {table.unchanged_1000_s:.2f} s",
        ]
    return "\n".join(lines)


def _format_route(row: RouteResult) -> str:
    figures = (row.p50_ms, row.new_p50_ms, row.p95_ms, row.app_cpu_ms, row.postgres_cpu_ms)
    return (
        f"{row.tools:>8} {row.route:10} "
        + " ".join(f"{figure:8.2f}" for figure in figures)
        + f" {_format(row.recall, '.3f'):>7} {_format(row.memory_mb, '.0f'):>6}"
    )


def _format(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def get_p50s(results: dict[str, Any], route: str) -> Sequence[tuple[int, float]]:
    """Return the p50 of a route by number of tools, from the JSON form."""
    return [(row["tools"], row["p50_ms"]) for row in results["routes"] if row["route"] == route]
