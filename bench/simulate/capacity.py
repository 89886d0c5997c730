"""Find what a deployment carries: how many messages a second, of how many users, and what ends it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from bench.simulate.costs import Costs
from bench.simulate.deployments import (
    Deployment,
    Workload,
    build_network,
    count_held_users,
    count_hits,
    count_searched_users,
)
from bench.simulate.network import simulate_open

MEMORY = "memory of Postgres"
TOO_SLOW = "the time of one message"
_BUFFERS = 0.75
"""The share of the memory of a machine of Postgres that can hold rows."""
_STEPS = 6
_BOUND_STEPS = 40
_MAX_RATE = 1e7


@dataclass(frozen=True)
class Target:
    """The 95th percentile of the time of a message, beyond the time that the embedder takes for one message alone."""

    p95_ms: float
    messages: int
    """How many are simulated for each rate that is tried."""
    seed: int = 1


@dataclass(frozen=True)
class Capacity:
    """`rate` is in messages a second. `bound` is the rate at which the busiest part would never rest."""

    name: str
    rate: float
    bound: float
    p50_ms: float
    p95_ms: float
    active_users: float
    users: float
    tools: float
    indexed: float
    """Tools a second that are indexed while no messages come."""
    in_memory: float
    """The share of messages whose tools are in the memory of their process."""
    postgres_gb: float
    """Memory for the rows of the active users that Postgres searches, in all nodes together."""
    process_gb: float
    """Memory of a process."""
    bottleneck: str
    use: float
    """How busy the bottleneck is, 1 being all of it."""


def find_capacity(deployment: Deployment, costs: Costs, workload: Workload, target: Target) -> Capacity:
    bound = find_bound(deployment, costs, workload)
    in_memory = find_memory_rate(deployment, costs, workload)
    rate = _find_rate(deployment, costs, workload, target, min(bound, in_memory))
    if rate == in_memory:
        bottleneck, busy = MEMORY, 1.0
    elif rate == 0:
        bottleneck, busy = TOO_SLOW, 1.0
    else:
        use = build_network(deployment, costs, workload, rate).count_use(rate)
        busiest = max(use, key=lambda name: round(use[name], 6))
        bottleneck, busy = _without_number(busiest), use[busiest]
    p50_ms, p95_ms = _simulate_times(deployment, costs, workload, target, rate)
    active, users = workload.count_active(rate), workload.count_users(rate)
    return Capacity(
        deployment.name,
        rate,
        bound,
        p50_ms,
        p95_ms,
        active,
        users,
        users * costs.tools,
        count_indexed(deployment, costs),
        count_hits(deployment, costs, workload, rate) if rate else 0.0,
        count_searched_users(deployment, costs, workload, rate) * costs.table_bytes / 1e9,
        (costs.process_bytes + deployment.snapshot_mb * 1e6) / 1e9,
        bottleneck,
        busy,
    )


def find_bound(deployment: Deployment, costs: Costs, workload: Workload) -> float:
    """Return the rate at which the first part is busy all the time. The mix of messages depends on the rate, too."""

    def is_possible(rate: float) -> bool:
        return max(build_network(deployment, costs, workload, rate).count_use(rate).values()) <= 1

    low, high = 0.0, 1.0
    while is_possible(high) and high < _MAX_RATE:
        low, high = high, high * 2
    return _bisect(is_possible, low, high, _BOUND_STEPS)


def find_memory_rate(deployment: Deployment, costs: Costs, workload: Workload) -> float:
    """Return the rate at which the rows of the users that Postgres searches fill its memory."""
    memory = deployment.postgres_gb * 1e9
    if not memory:
        return math.inf
    if deployment.app_cores is None:  # the processes are on the same machine
        memory -= deployment.processes * (costs.process_bytes + deployment.snapshot_mb * 1e6)
    if memory <= 0:
        return 0.0
    users = memory * _BUFFERS * deployment.nodes / costs.table_bytes
    held = count_held_users(deployment, costs)
    users = users + held * deployment.processes if deployment.by_user else max(users, held)
    return users / workload.count_active(1.0)


def count_indexed(deployment: Deployment, costs: Costs) -> float:
    """Return how many tools a second all processes index, each with one thread."""
    by_processes = deployment.processes / costs.index.loop_s
    if deployment.app_cores is None:
        return min(by_processes, deployment.postgres_cores / (costs.index.loop_s + costs.index.postgres_s))
    tools = deployment.postgres_cores / costs.index.postgres_s  # that one Postgres writes
    if deployment.citus_nodes:
        shares = costs.citus.index
        tools *= min(1 / shares.coordinator, deployment.citus_nodes / shares.nodes)
    return min(by_processes * min(1.0, deployment.app_cores), tools)


def _find_rate(deployment: Deployment, costs: Costs, workload: Workload, target: Target, highest: float) -> float:
    limit_ms = target.p95_ms + costs.embedding.alone_s * 1000

    def is_fast(rate: float) -> bool:
        return _simulate_times(deployment, costs, workload, target, rate)[1] <= limit_ms

    return highest if is_fast(highest) else _bisect(is_fast, 0.0, highest, _STEPS)


def _simulate_times(
    deployment: Deployment, costs: Costs, workload: Workload, target: Target, rate: float
) -> tuple[float, float]:
    """Return the 50th and 95th percentile in ms; 0 if nothing is sent."""
    if rate == 0:
        return 0.0, 0.0
    network = build_network(deployment, costs, workload, rate)
    simulated = simulate_open(network, rate, target.messages, target.seed)
    return simulated.quantile_ms(0.5), simulated.quantile_ms(0.95)


def _bisect(is_possible: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """Return about the largest rate that is possible, if every smaller one is, too."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if is_possible(middle) else (low, middle)
    return low


def _without_number(name: str) -> str:
    """Stations and machines of one kind are equally busy: the processes have numbers."""
    return " ".join(word for word in name.split() if not word.isdigit())
