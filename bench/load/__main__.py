"""Measure `/discover` beside an empty endpoint, a plain pgvector query and, where they are installed, two peers.

`make bench-load`. Each of them has a short slice in every round, so that other work on the machine slows all alike; the
figures are medians over the rounds. The client is a process of its own, whose CPU time does not count, but it shares
the cores with the servers: compare shares and CPU time, not absolute rates. `CPU` is in milliseconds of one core for
each request.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from app import __version__
from bench import upstream
from bench.load.catalogue import PRODUCTS, TOOLS_PER_PRODUCT, copy_users, create_large_user, push_tools
from bench.load.client import Load, LoadClient, load_client
from bench.load.contestants import (
    CACHED,
    OVER_MCP,
    OVER_OLDER_MCP,
    USERS,
    Contestant,
    Population,
    list_contestants,
)
from bench.load.request_trips import count_round_trips
from bench.load.results import Row, format_table, make_slice, to_json
from bench.load.servers import Servers, running_servers
from bench.machine import describe_machine
from bench.result_files import add_result_options, choose_results_folder, has_matplotlib, read_before, write_results
from bench.service import Service, running_service

CALLS = 300
COLD_S = 60.0


@dataclass(frozen=True)
class Plan:
    """How much is measured. Each user has ten times as many tools as a product, or one product's in a quick run."""

    rounds: int
    seconds: float
    warm_up_s: float
    cold_per_round: int
    products: Sequence[str]
    large: dict[str, int]
    calls: int

    @property
    def tools(self) -> int:
        return len(self.products) * TOOLS_PER_PRODUCT

    @property
    def users(self) -> int:
        return USERS + self.rounds * self.cold_per_round


def make_plan(options: argparse.Namespace) -> Plan:
    if options.quick:
        return Plan(1, 0.2, 0.05, 5, PRODUCTS[:1], {"large-10": 10}, 20)
    large = {f"large-{copies}": copies for copies in (10, 100)}
    return Plan(options.rounds, options.seconds, 0.2, 30, PRODUCTS, large, CALLS)


def create_population(service: Service, plan: Plan) -> Population:
    print(f"creating {plan.users} users with {plan.tools} tools each …", flush=True)
    push_tools(service, plan.products)
    copy_users(service, plan.users - 1, plan.tools)
    large = {user: copies * plan.tools for user, copies in plan.large.items()}
    for user, tools in large.items():
        print(f"creating a user with {tools:,} tools …", flush=True)
        create_large_user(service, user, plan.large[user], plan.tools)
    with service.admin() as client:
        key = client.post("/keys", json={"kind": "service"}).raise_for_status().json()["key"]
    return Population(key, plan.users, large, plan.cold_per_round)


def measure(client: LoadClient, contestants: Sequence[Contestant], plan: Plan) -> list[Row]:
    rows = [Row(each.name, each.clients) for each in contestants]
    for number in range(plan.rounds):
        print(f"round {number + 1} of {plan.rounds}", flush=True)
        for row, contestant in zip(rows, contestants, strict=True):
            ports, clients = (contestant.server.port,), contestant.clients
            if not contestant.is_cold:
                client.send(Load(ports, contestant.next_traffic(), clients, plan.warm_up_s))
            before = contestant.server.read_cpu_time()
            seconds = COLD_S if contestant.is_cold else plan.seconds
            responses = client.send(Load(ports, contestant.next_traffic(), clients, seconds))
            row.slices.append(make_slice(responses, contestant.server.read_cpu_time().since(before)))
    return rows


def measure_calls(service: Service, echo_port: int, calls: int) -> dict[str, float]:
    """Return how long a call of a tool takes directly and through `/execute`."""
    tool_key = upstream.register_echo_tool(service, echo_port)
    direct, through = upstream.measure_calls(service, echo_port, tool_key, calls)
    return {
        "direct_p50_ms": round(statistics.median(direct), 2),
        "through_p50_ms": round(statistics.median(through), 2),
        "direct_p95_ms": round(statistics.quantiles(direct, n=20)[-1], 2),
        "through_p95_ms": round(statistics.quantiles(through, n=20)[-1], 2),
    }


def print_results(rows: Sequence[Row], calls: dict[str, float], memory_mb: float) -> None:
    print(f"\n{format_table(rows)}\n")
    rates = {(row.name, row.clients): row.median("rate") for row in rows}
    for name in (OVER_MCP, OVER_OLDER_MCP):
        shares = [f"{rates[name, clients] / rates[CACHED, clients]:.2f} at {clients}" for clients in (1, 16)]
        print(f"{name}: {', '.join(shares)} clients, of the rate of POST /discover")
    print(
        f"one call of a tool: {calls['direct_p50_ms']:.1f} ms directly, {calls['through_p50_ms']:.1f} ms through "
        f"POST /execute (p50; p95: {calls['direct_p95_ms']:.1f} and {calls['through_p95_ms']:.1f} ms)"
    )
    print(f"memory of the app: {memory_mb:.0f} MB")


def run(service: Service, echo_port: int, plan: Plan) -> dict[str, Any]:
    population = create_population(service, plan)
    with running_servers(service, plan.products) as servers, load_client() as client:
        list_missing_peers(servers)
        started = time.monotonic()
        rows = measure(client, list(list_contestants(servers, population)), plan)
        seconds = time.monotonic() - started
    calls = measure_calls(service, echo_port, plan.calls)
    memory_mb = psutil.Process(service.process.pid).memory_info().rss / 2**20
    print_results(rows, calls, memory_mb)
    return {
        "version": __version__,
        "machine": describe_machine(),
        "tools": plan.tools,
        "users": plan.users,
        "rounds": plan.rounds,
        "slice_s": plan.seconds,
        "measured_s": round(seconds),
        "rows": to_json(rows),
        "execute": calls,
        "memory_mb": round(memory_mb),
    }


def list_missing_peers(servers: Servers) -> None:
    missing = [name for name in ("fastmcp", "toolrank") if getattr(servers, name) is None]
    if missing:
        print(f"not installed, left out: {', '.join(missing)} (make bench-test installs the packages of the bench)")


def make_settings(echo_port: int) -> dict[str, str]:
    """All defaults, except that one user may send as many requests as it can."""
    return {"TOOLSCOUT_RATE_PER_USER": "0", "TOOLSCOUT_OUTBOUND_ALLOW": f"127.0.0.1:{echo_port}"}


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.load", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="slices for each row (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a slice (default: 1)")
    parser.add_argument("--quick", action="store_true", help="one round of very short slices with 50 tools a user")
    add_result_options(parser)
    options = parser.parse_args(arguments)
    choose_results_folder(options, is_partial=options.quick)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    plan = make_plan(options)
    with tempfile.TemporaryDirectory() as folder:
        with (
            upstream.echo_server() as echo_port,
            running_service(Path(folder), make_settings(echo_port)) as service,
        ):
            results = run(service, echo_port, plan)
        results["round_trips"] = count_round_trips(Path(folder), plan.users)
    print(
        f"round trips to Postgres: {', '.join(f'{count} ({name})' for name, count in results['round_trips'].items())}"
    )
    write_results(options, "load", results)
    if has_matplotlib():
        from bench.load.plot import draw_load  # noqa: PLC0415 needs matplotlib

        draw_load(results, read_before(options), options.results / "load.png")


if __name__ == "__main__":
    main()
