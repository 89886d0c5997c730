"""What deployments carry, worked out from the recorded results, and the tables of the documentation that show it."""

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.search import snapshot_cache
from bench.load.contestants import CACHED, COLD, NEW
from bench.result_files import RESULTS
from bench.simulate import deployments
from bench.simulate.__main__ import main, parse_options
from bench.simulate.capacity import MEMORY, TOO_SLOW, Capacity, find_bound, find_capacity, find_memory_rate
from bench.simulate.check import Comparison, compare, median_error
from bench.simulate.costs import Costs, estimate_cv, find_row, make_costs, make_embedding, read_costs
from bench.simulate.deployments import (
    Deployment,
    build_network,
    count_held_users,
    count_hits,
    count_loads,
    count_searched_users,
)
from bench.simulate.network import simulate_open
from bench.simulate.replicas import FIRST, SECOND
from bench.simulate.scenario import Scenario
from bench.simulate.tables import (
    describe_errors,
    format_check,
    format_count,
    render_capacities,
    render_check,
    render_costs,
)
from tests.support.documents import DOCS

SCENARIO = Scenario()
PEOPLE = SCENARIO.workload
DEPLOYMENTS = {each.name: each for each in SCENARIO.list_deployments()}
ONE, MACHINE, APART, REPLICA, BY_USER, *_, CITUS = DEPLOYMENTS.values()


def read_result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = orjson.loads((RESULTS / f"{name}.json").read_bytes())
    return result


@pytest.fixture(scope="module")
def costs() -> Costs:
    return read_costs(RESULTS, SCENARIO.tools)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Capacity]:
    return {each["name"]: Capacity(**each) for each in read_result("simulation")["capacities"]}


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    return [Comparison(**each) for each in read_result("replicas")["comparisons"]]


def test_costs_are_those_of_the_recorded_results() -> None:
    load, scale, replicas, citus = (read_result(name) for name in ("load", "scale", "replicas", "citus"))
    costs = make_costs(load, scale, replicas, citus, load["tools"])
    cached = find_row(load["rows"], "discover, cached, 16 users", 16)
    alone, quiet, first = (find_row(load["rows"], name, 1) for name in (NEW, CACHED, COLD))
    assert costs.hit.loop_s * 1000 == pytest.approx(cached["app_cpu_ms"])
    assert costs.embedding.alone_s * 1000 == pytest.approx(alone["app_cpu_ms"] - quiet["app_cpu_ms"])
    assert (costs.miss.loop_s + costs.embedding.alone_s) * 1000 == pytest.approx(first["app_cpu_ms"])
    assert costs.miss.postgres_s * 1000 == pytest.approx(first["postgres_cpu_ms"])
    slower = find_row(replicas["rows"], FIRST, 1)["postgres_cpu_ms"] / first["postgres_cpu_ms"]
    second = find_row(replicas["rows"], SECOND, 1)["postgres_cpu_ms"]
    assert 0.8 * second < costs.load.postgres_s * 1000 * slower < second
    assert costs.index.loop_s * 1000 == replicas["indexing"]["app_cpu_ms"]
    assert costs.table_bytes == pytest.approx(scale["table"]["disk_mb"] * 1e6 / scale["table"]["rows"] * load["tools"])
    in_memory, in_postgres, indexing = citus["rows"]
    for shares, row in (
        (costs.citus.hit, in_memory),
        (costs.citus.miss, in_postgres),
        (costs.citus.index, indexing),
    ):
        assert (shares.coordinator + shares.nodes) * row["plain_ms"] == pytest.approx(
            row["coordinator_ms"] + row["nodes_ms"]
        )


def test_costs_of_other_machines_need_none_of_citus(tmp_path: Path) -> None:
    for name in ("load", "scale", "replicas"):
        (tmp_path / f"{name}.json").write_bytes((RESULTS / f"{name}.json").read_bytes())
    assert read_costs(tmp_path, 200) == read_costs(RESULTS, 200)
    (tmp_path / "citus.json").write_bytes(
        (RESULTS / "citus.json").read_bytes().replace(b'"plain_ms": 0', b'"plain_ms": 1')
    )
    assert read_costs(tmp_path, 200).citus.hit.nodes < read_costs(RESULTS, 200).citus.hit.nodes


def test_more_tools_cost_more() -> None:
    few, many = read_costs(RESULTS, 200), read_costs(RESULTS, 50_000)
    assert many.hit.loop_s > few.hit.loop_s > 0
    assert many.miss.postgres_s > few.miss.postgres_s > few.hit.postgres_s > 0
    assert many.load.postgres_s == pytest.approx(250 * few.load.postgres_s)
    assert many.snapshot_bytes > 100 * few.snapshot_bytes
    with pytest.raises(ValueError, match="at most 50000"):
        read_costs(RESULTS, 50_001)


def test_a_row_that_is_not_in_the_results_is_an_error() -> None:
    rows = read_result("load")["rows"]
    assert find_row(rows, CACHED, 16)["clients"] == 16
    with pytest.raises(ValueError, match="0 rows"):
        find_row(rows, CACHED, 17)


def test_a_full_batch_and_one_message_take_what_was_measured() -> None:
    embedding = make_embedding(0.005, 0.003)
    assert embedding.batch >= 2
    assert embedding.alone_s == pytest.approx(0.005)
    assert embedding.batched_s == pytest.approx(0.003)
    noisy = make_embedding(0.003, 0.004)  # a batch gains nothing
    assert (noisy.fixed_s, noisy.each_s) == (0.0, 0.003)


def test_the_variation_is_that_of_the_quietest_round() -> None:
    rounds = [{"p50_ms": 1.0, "p95_ms": 9.0}, {"p50_ms": 2.0, "p95_ms": 4.0}]
    assert estimate_cv(rounds) == estimate_cv(rounds[1:])
    assert 0.4 < estimate_cv(rounds) < estimate_cv(rounds[:1])


def test_constants_of_the_snapshots_are_those_of_the_service() -> None:
    assert deployments._MAX_SHARE_OF_A_USER == snapshot_cache._MAX_SHARE
    assert deployments._MAX_NOTED == snapshot_cache._MAX_NOTED


def test_tools_are_in_memory_as_far_as_they_fit(costs: Costs) -> None:
    users_that_fit = APART.snapshot_mb * 1e6 / costs.snapshot_bytes
    rate = users_that_fit * PEOPLE.messages_a_minute / 60
    assert count_hits(APART, costs, PEOPLE, rate / 2) == 1.0
    assert count_hits(APART, costs, PEOPLE, rate * 4) == pytest.approx(0.25)
    by_user = replace(APART, by_user=True)
    assert count_hits(by_user, costs, PEOPLE, rate * 40) == pytest.approx(0.25)
    assert count_hits(replace(APART, snapshot_mb=0.0), costs, PEOPLE, rate) == 0.0
    assert count_hits(replace(APART, snapshot_mb=costs.snapshot_bytes / 1e6), costs, PEOPLE, rate) == 0.0


def test_every_second_miss_loads_unless_too_many_users_come_between(costs: Costs) -> None:
    assert count_loads(APART, costs, PEOPLE, 1.0) == pytest.approx(0.5, abs=0.01)
    assert count_loads(APART, costs, PEOPLE, 100_000.0) < 0.01
    assert count_loads(replace(APART, snapshot_mb=0.0), costs, PEOPLE, 1.0) == 0.0


def test_rows_of_users_that_a_process_holds_need_no_memory_of_postgres(costs: Costs) -> None:
    rate = 1_000.0
    active = PEOPLE.count_active(rate)
    held = BY_USER.processes * BY_USER.snapshot_mb * 1e6 / costs.snapshot_bytes
    assert count_searched_users(APART, costs, PEOPLE, rate) == active
    assert count_searched_users(BY_USER, costs, PEOPLE, rate) == pytest.approx(max(0.0, active - held))
    assert count_searched_users(replace(APART, snapshot_mb=1e6), costs, PEOPLE, rate) == 0.0
    more_s = find_memory_rate(BY_USER, costs, PEOPLE) - find_memory_rate(APART, costs, PEOPLE)
    assert more_s == pytest.approx(held * PEOPLE.messages_a_minute / 60)


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=lambda each: each.name)
def test_the_simulation_is_as_busy_as_the_formula_says(deployment: Deployment, costs: Costs) -> None:
    rate = find_bound(deployment, costs, PEOPLE) / 2
    network = build_network(deployment, costs, PEOPLE, rate)
    simulated = simulate_open(network, rate, 1_500)
    expected = network.count_use(rate)
    [busiest] = sorted(simulated.machine_use, key=lambda name: expected[name])[-1:]
    # half-full batches take longer for each message than the full ones of the formula
    assert 0.8 < simulated.machine_use[busiest] / expected[busiest] < 1.6


def test_what_is_added_raises_what_it_should(costs: Costs) -> None:
    bounds = {name: find_bound(each, costs, PEOPLE) for name, each in DEPLOYMENTS.items()}
    assert bounds[ONE.name] < bounds[MACHINE.name] < bounds[APART.name]
    assert bounds[APART.name] < bounds[REPLICA.name]
    assert bounds[CITUS.name] < bounds[APART.name]
    memory = {name: find_memory_rate(each, costs, PEOPLE) for name, each in DEPLOYMENTS.items()}
    assert memory[CITUS.name] == pytest.approx(SCENARIO.citus_nodes * memory[APART.name])
    assert memory[MACHINE.name] < memory[ONE.name] < memory[APART.name]


def test_users_whose_tools_fit_cost_postgres_little(costs: Costs) -> None:
    large = replace(APART, snapshot_mb=1e6)
    rate = 100.0
    small_use, large_use = (
        build_network(each, costs, PEOPLE, rate).count_use(rate)["cores of Postgres"] for each in (APART, large)
    )
    assert large_use < small_use / 5


def test_few_connections_end_a_deployment(costs: Costs) -> None:
    one, enough = (find_bound(replace(APART, pool_size=size, processes=1), costs, PEOPLE) for size in (1, 10))
    assert one < enough
    target = replace(SCENARIO.target, messages=300)
    assert find_capacity(replace(APART, pool_size=1, processes=1), costs, PEOPLE, target).bottleneck == (
        "connections to cores of Postgres"
    )


def test_little_memory_of_postgres_ends_a_deployment(costs: Costs) -> None:
    target = replace(SCENARIO.target, messages=300)
    capacity = find_capacity(replace(APART, postgres_gb=1.0), costs, PEOPLE, target)
    assert (capacity.bottleneck, capacity.use) == (MEMORY, 1.0)
    assert capacity.postgres_gb == pytest.approx(0.75)
    assert capacity.rate < capacity.bound


@pytest.mark.parametrize(
    ("deployment", "p95_ms", "bottleneck"),
    [(replace(MACHINE, postgres_gb=1.0), 50.0, MEMORY), (MACHINE, 0.01, TOO_SLOW)],
    ids=["the processes fill the memory", "one message takes longer"],
)
def test_what_cannot_work_at_all_carries_nothing(
    deployment: Deployment, p95_ms: float, bottleneck: str, costs: Costs
) -> None:
    capacity = find_capacity(deployment, costs, PEOPLE, replace(SCENARIO.target, p95_ms=p95_ms, messages=100))
    assert (capacity.rate, capacity.users, capacity.bottleneck) == (0.0, 0.0, bottleneck)


def test_a_tighter_target_carries_less(costs: Costs) -> None:
    tight, loose = (
        find_capacity(ONE, costs, PEOPLE, replace(SCENARIO.target, p95_ms=p95_ms, messages=1_500))
        for p95_ms in (15.0, 100.0)
    )
    assert tight.rate < loose.rate < loose.bound
    assert tight.p95_ms <= 15.0 + costs.embedding.alone_s * 1000
    assert loose.users == pytest.approx(loose.rate * 60 / PEOPLE.messages_a_minute / PEOPLE.active_share)


def test_the_recorded_simulation_is_that_of_the_recorded_results(recorded: dict[str, Capacity], costs: Costs) -> None:
    """Run `make simulate-scale` after new results, and copy its table (`ARGS=--markdown`) into the guide."""
    assert read_result("simulation")["scenario"] == asdict(SCENARIO)
    assert list(recorded) == list(DEPLOYMENTS)
    bounds = {name: find_bound(each, costs, PEOPLE) for name, each in DEPLOYMENTS.items()}
    assert {name: each.bound for name, each in recorded.items()} == pytest.approx(bounds, rel=1e-4)


@pytest.mark.parametrize("deployment", [ONE, REPLICA, CITUS], ids=lambda each: each.name)
def test_the_recorded_times_are_simulated_again(
    deployment: Deployment, recorded: dict[str, Capacity], costs: Costs
) -> None:
    found = recorded[deployment.name]
    network = build_network(deployment, costs, PEOPLE, found.rate)
    simulated = simulate_open(network, found.rate, SCENARIO.messages, SCENARIO.seed)
    assert simulated.quantile_ms(0.5) == pytest.approx(found.p50_ms, rel=0.02)
    assert simulated.quantile_ms(0.95) == pytest.approx(found.p95_ms, rel=0.02)


def test_the_guide_shows_the_recorded_simulation(recorded: dict[str, Capacity], costs: Costs) -> None:
    guide = (DOCS / "guides/scaling.md").read_text()
    assert render_capacities(list(recorded.values())) in guide
    assert render_costs(costs) in guide
    people = f"A user has {SCENARIO.tools} tools"
    machines = f"Postgres has {SCENARIO.cores:g} cores and {SCENARIO.postgres_gb:g} GB"
    held = f"about {format_count(count_held_users(APART, costs))} users fit"
    assert all(text in guide.replace("\n", " ") for text in (people, machines, held))
    shares = costs.citus.miss
    words = f"takes {shares.coordinator + shares.nodes:.1f} times the processor time of one Postgres: "
    words += f"{shares.coordinator:.1f} times on the coordinator, through which all of them pass, and "
    assert f"{words}{shares.nodes:.1f} times on the nodes" in guide.replace("\n", " ")


def test_the_benchmarks_page_shows_what_citus_takes() -> None:
    page, citus = (DOCS / "benchmarks.md").read_text(), read_result("citus")
    for row in [*citus["rows"], citus["idle_ms_per_s"]]:
        plain, coordinator, nodes = (row[f"{name}_ms"] for name in ("plain", "coordinator", "nodes"))
        figures = f"{{:.{1 if plain > 2 else 2}f}}"
        cells = [figures.format(each) for each in (plain, coordinator, nodes)]
        assert f"| {' | '.join(cells)} | {(coordinator + nodes) / plain:.1f} |" in page


def test_the_benchmarks_page_shows_the_recorded_check(comparisons: list[Comparison]) -> None:
    page = (DOCS / "benchmarks.md").read_text()
    assert render_check(comparisons) in page
    assert describe_errors(comparisons) in page.replace("\n", " ")


def test_the_recorded_check_is_that_of_the_model(comparisons: list[Comparison]) -> None:
    again = compare(read_result("replicas"))
    assert [(each.name, each.replicas, each.clients, each.measured) for each in again] == [
        (each.name, each.replicas, each.clients, each.measured) for each in comparisons
    ]
    for new, recorded in zip(again, comparisons, strict=True):
        assert new.predicted == pytest.approx(recorded.predicted, rel=0.02)


def test_the_model_fits_one_replica_and_predicts_two(comparisons: list[Comparison]) -> None:
    assert all(abs(each.get_error("rate")) < 0.05 for each in comparisons if each.replicas == 1)
    assert all(abs(each.get_error("rate")) < 0.25 for each in comparisons if each.replicas == 2)
    assert median_error(comparisons, "p50_ms", replicas=2) < 0.25
    assert median_error(comparisons, "p95_ms", replicas=2) < 0.25


def test_the_error_is_that_of_the_prediction() -> None:
    rows = [
        Comparison("cached questions", replicas, 4, dict.fromkeys(("rate", "p50_ms", "p95_ms"), 100.0), predicted)
        for replicas, predicted in (
            (1, {"rate": 100.0, "p50_ms": 100.0, "p95_ms": 100.0}),
            (2, {"rate": 90.0, "p50_ms": 130.0, "p95_ms": 50.0}),
        )
    ]
    assert [median_error(rows, figure, 2) for figure in ("rate", "p50_ms", "p95_ms")] == pytest.approx([0.1, 0.3, 0.5])
    assert median_error(rows, "rate", 1) == 0.0
    assert "100 → 130" in format_check(rows)
    assert "10 % of the rate, 30 % of the p50, 50 % of the p95" in format_check(rows)


def test_counts_have_two_digits() -> None:
    assert [format_count(value) for value in (7.0, 1_234.0, 65_432.1, 1_250_000.0, 4e7)] == [
        "7",
        "1,200",
        "65,000",
        "1.2 million",
        "40 million",
    ]


def test_the_command_prints_and_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--messages", "100", "--processes", "2", "--json", "--results", str(tmp_path)])
    printed = orjson.loads(capsys.readouterr().out)
    assert printed == orjson.loads((tmp_path / "simulation.json").read_bytes())
    assert printed["scenario"]["processes"] == 2
    assert len(printed["capacities"]) == len(DEPLOYMENTS)
    main(["--messages", "100", "--processes", "2", "--results", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "2 processes, Postgres apart" in printed
    assert "loading the 200 tools of a user" in printed


def test_other_options_do_not_replace_the_recorded_results() -> None:
    choose: Callable[..., argparse.Namespace] = lambda *arguments: parse_options(list(arguments))  # noqa: E731
    assert choose().results == RESULTS
    assert choose("--tools", "100").results != RESULTS
    assert choose("--check", "--quick").results != RESULTS


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tools", "0"], "--tools must not be 0"),
        (["--tools", "60000"], "at most 50000"),
        (["--active-share", "2"], "--active-share must be at most 1"),
        (["--inputs", "nowhere"], "load.json"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert complaint in capsys.readouterr().err
