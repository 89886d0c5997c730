"""What a message costs, from the recorded results of the other benchmarks. Nothing here is typed by hand."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from app.embeddings.local import BATCH_TOKENS, estimate_tokens
from app.settings import Settings
from bench.load import contestants as load
from bench.load.traffic import make_question
from bench.result_files import RESULTS
from bench.scale import routes
from bench.simulate import replicas

Rows = Sequence[dict[str, Any]]

_P95 = statistics.NormalDist().inv_cdf(0.95)
_MANY = load.USERS
_QUESTIONS = 1_000
_INPUTS = ("load", "scale", "replicas")
_CITUS_IN_MEMORY = "cached question, in memory"
_CITUS_IN_POSTGRES = "cached question, in Postgres"
_CITUS_INDEXING = "index run of one tool"


@dataclass(frozen=True)
class Work:
    """Processor time in seconds: of the event loop (with its threads), and of Postgres."""

    loop_s: float
    postgres_s: float


@dataclass(frozen=True)
class Embedding:
    """The local model works at all waiting messages at once, up to `batch`: a batch costs `fixed_s`, and `each_s` more
    for each message."""

    fixed_s: float
    each_s: float
    batch: int

    @property
    def alone_s(self) -> float:
        return self.fixed_s + self.each_s

    @property
    def batched_s(self) -> float:
        """Of one message among as many as fit."""
        return self.fixed_s / self.batch + self.each_s


@dataclass(frozen=True)
class Shares:
    """What Citus takes for a statement, as multiples of the processor time that one Postgres takes."""

    coordinator: float
    nodes: float
    """Of all nodes together."""


@dataclass(frozen=True)
class CitusShares:
    hit: Shares
    miss: Shares
    index: Shares


@dataclass(frozen=True)
class Costs:
    """Of users with `tools` tools each."""

    tools: int
    hit: Work
    """A message whose tools are in memory."""
    miss: Work
    """One that Postgres searches."""
    load: Work
    """Reading the tools of a user into memory."""
    index: Work
    """Indexing a tool that is new or has changed, with its vector."""
    unchanged_s: float
    """Looking at a tool that has not changed."""
    citus: CitusShares
    embedding: Embedding
    cv: float
    """The coefficient of variation of the time of a message."""
    hit_trips: int
    miss_trips: int
    snapshot_bytes: float
    """What the tools of a user take in the memory of a process."""
    table_bytes: float
    """What they take in Postgres."""
    process_bytes: float
    """What a process takes beside the tools."""


class Curves:
    """How time and memory grow with the tools of a user, from `bench-scale`. Between its sizes, in straight lines."""

    def __init__(self, scale: dict[str, Any]) -> None:
        self._routes: Rows = scale["routes"]
        self._growth: Rows = scale["growth"]
        self.unchanged_s: float = scale["table"]["unchanged_1000_s"] / 1_000
        self.table_bytes: float = scale["table"]["disk_mb"] * 1e6 / scale["table"]["rows"]
        """For each tool of a large table."""

    @property
    def max_tools(self) -> int:
        sizes: list[int] = [row["tools"] for row in self._routes if row["route"] == routes.IN_MEMORY]
        return max(sizes)

    def read(self, route: str, figure: str, tools: float) -> float:
        rows = [row for row in self._routes if row["route"] == route]
        return float(np.interp(tools, [row["tools"] for row in rows], [row[figure] for row in rows]))

    def difference_s(self, route: str, figure: str, tools: int, measured: int) -> float:
        """Return how much longer a search takes with `tools` tools than with as many as were `measured`."""
        return (self.read(route, figure, tools) - self.read(route, figure, measured)) / 1_000


def read_costs(folder: Path, tools: int) -> Costs:
    """The costs of Citus are those that come with the project, unless the folder has its own."""
    citus = folder / "citus.json"
    files = [*(folder / f"{name}.json" for name in _INPUTS), citus if citus.exists() else RESULTS / citus.name]
    loaded, scaled, replicated, distributed = (orjson.loads(file.read_bytes()) for file in files)
    return make_costs(loaded, scaled, replicated, distributed, tools)


def make_costs(
    loaded: dict[str, Any], scaled: dict[str, Any], replicated: dict[str, Any], distributed: dict[str, Any], tools: int
) -> Costs:
    curves, measured = Curves(scaled), loaded["tools"]
    if not 0 < tools <= curves.max_tools:
        raise ValueError(f"{tools} tools a user are outside of what bench-scale measured: at most {curves.max_tools}")
    cached = find_row(loaded["rows"], f"{load.CACHED[: load.CACHED.index(' question')]}, {_MANY} users", _MANY)
    new = find_row(loaded["rows"], f"{load.NEW}, {_MANY} users", _MANY)
    alone, quiet = find_row(loaded["rows"], load.NEW, 1), find_row(loaded["rows"], load.CACHED, 1)
    first = find_row(loaded["rows"], load.COLD, 1)
    embedding = make_embedding(
        (alone["app_cpu_ms"] - quiet["app_cpu_ms"]) / 1_000, (new["app_cpu_ms"] - cached["app_cpu_ms"]) / 1_000
    )
    in_memory_s = curves.difference_s(routes.IN_MEMORY, "app_cpu_ms", tools, measured)
    exact_app_s = curves.difference_s(routes.EXACT, "app_cpu_ms", tools, measured)
    exact_postgres_s = curves.difference_s(routes.EXACT, "postgres_cpu_ms", tools, measured)
    miss = Work(first["app_cpu_ms"] / 1_000 - embedding.alone_s, first["postgres_cpu_ms"] / 1_000)
    trips, settings = loaded["round_trips"], Settings.model_fields
    return Costs(
        tools,
        hit=Work(cached["app_cpu_ms"] / 1_000 + in_memory_s, new["postgres_cpu_ms"] / 1_000),
        miss=Work(miss.loop_s + exact_app_s, miss.postgres_s + exact_postgres_s),
        load=_make_load(first, replicated, curves, tools),
        index=Work(replicated["indexing"]["app_cpu_ms"] / 1_000, replicated["indexing"]["postgres_cpu_ms"] / 1_000),
        unchanged_s=curves.unchanged_s,
        citus=CitusShares(
            *(_read_shares(distributed, name) for name in (_CITUS_IN_MEMORY, _CITUS_IN_POSTGRES, _CITUS_INDEXING))
        ),
        embedding=embedding,
        cv=estimate_cv(quiet["rounds"]),
        hit_trips=trips["new question"],
        miss_trips=trips["first request of a user"],
        snapshot_bytes=curves.read(routes.IN_MEMORY, "memory_mb", tools) * 1e6,
        table_bytes=curves.table_bytes * tools,
        process_bytes=(loaded["memory_mb"] - settings["snapshot_mb"].default) * 1e6,
    )


def _make_load(first: dict[str, Any], replicated: dict[str, Any], curves: Curves, tools: int) -> Work:
    """Return the work of loading a user's tools, which grows with them.

    It is what the second request of a user takes more than one whose tools are in memory, without the search in
    Postgres that answers it meanwhile. A busier machine takes longer for everything: the first request of a user, which
    both runs measured, says by how much.
    """
    measured: int = replicated["tools"]
    first_there = find_row(replicated["rows"], replicas.FIRST, 1)
    second = find_row(replicated["rows"], replicas.SECOND, 1)
    cached = find_row(replicated["rows"], replicas.CACHED, 1, replicas=1)

    def get_seconds(figure: str) -> float:
        searched = curves.read(routes.EXACT, figure, measured) - curves.read(routes.IN_MEMORY, figure, measured)
        loaded_ms = float(second[figure] - cached[figure] - searched)
        there, here = float(first_there[figure]), float(first[figure])
        slower = there / here if there and here else 1.0  # a short run may have measured nothing
        return max(0.0, loaded_ms) / slower / 1_000 * tools / measured

    return Work(get_seconds("app_cpu_ms"), get_seconds("postgres_cpu_ms"))


def _read_shares(distributed: dict[str, Any], name: str) -> Shares:
    [row] = [row for row in distributed["rows"] if row["name"] == name]
    return Shares(row["coordinator_ms"] / row["plain_ms"], row["nodes_ms"] / row["plain_ms"])


def find_row(rows: Rows, name: str, clients: int, **others: int) -> dict[str, Any]:
    wanted = {"name": name, "clients": clients} | others
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    if len(found) != 1:
        raise ValueError(f"the results have {len(found)} rows with {wanted}")
    return found[0]


def make_embedding(alone_s: float, batched_s: float) -> Embedding:
    """Return what makes one message take `alone_s`, and each of a full batch `batched_s`."""
    tokens = statistics.fmean(estimate_tokens(make_question(number)) for number in range(_QUESTIONS))
    batch, alone_s = max(2, int(BATCH_TOKENS / tokens)), max(0.0, alone_s)
    fixed_s = min(max(0.0, (alone_s - batched_s) * batch / (batch - 1)), alone_s)
    return Embedding(fixed_s, alone_s - fixed_s, batch)


def estimate_cv(rounds: Rows) -> float:
    """Estimate the variation from the 50th and 95th percentile of the round that other work disturbed least.

    As if times had a log-normal distribution.
    """
    ratio = min(each["p95_ms"] / each["p50_ms"] for each in rounds)
    return math.sqrt(math.exp((math.log(ratio) / _P95) ** 2) - 1)
