"""The benchmarks of load, fairness and scale run against the real service, and write their results. So does the check
of the simulation, against two of them."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.fairness.__main__ import main as run_fairness
from bench.load.__main__ import main as run_load
from bench.load.contestants import CACHED, COLD, NEW
from bench.load.results import EMPTY
from bench.result_files import RESULTS
from bench.scale.__main__ import main as run_scale
from bench.simulate.__main__ import main as run_simulation
from bench.simulate.costs import make_costs, read_costs
from bench.simulate.replicas import CACHED as CACHED_QUESTIONS
from bench.simulate.replicas import CLIENTS, FIRST, SECOND
from bench.simulate.replicas import NEW as NEW_QUESTIONS


def read_results(folder: Path, name: str) -> dict[str, Any]:
    results: dict[str, Any] = orjson.loads((folder / name).read_bytes())
    return results


def test_load_is_measured_beside_the_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_load(["--quick", "--results", str(tmp_path)])
    results = read_results(tmp_path, "load.json")
    rows = {(row["name"], row["clients"]): row for row in results["rows"]}
    assert {
        (name, clients) for name in (EMPTY, "one pgvector query", CACHED, NEW) for clients in (1, 16)
    } <= rows.keys()
    assert [key for key, row in rows.items() if row["errors"] or not row["requests"]] == []
    assert rows[COLD, 1]["requests"] == 5
    assert 0 < rows[CACHED, 1]["share_of_empty"] < 1
    assert rows[CACHED, 16]["app_cpu_ms"] > 0
    assert results["execute"]["through_p50_ms"] > results["execute"]["direct_p50_ms"]
    assert all(1 <= count < 50 for count in results["round_trips"].values())
    assert "of empty" in capsys.readouterr().out


def test_the_victim_of_an_attack_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_fairness(["--quick", "--only", "half-heads", "--only", "stop", "--results", str(tmp_path)])
    heads, stop = read_results(tmp_path, "fairness.json")["attacks"]
    assert (heads["name"], heads["requests"], heads["errors"], heads["held"]) == ("half-heads", 20, {}, {})
    assert heads["quiet_p95_ms"] > 0
    assert 0 < stop["figures"]["stopped_after_s"] < 30
    assert "half-heads" in capsys.readouterr().out


def test_an_unknown_attack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_fairness(["--only", "nothing"])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err


def test_a_user_and_the_table_grow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_scale(["--quick", "--results", str(tmp_path)])
    results = read_results(tmp_path, "scale.json")
    assert [(row["tools"], row["route"]) for row in results["routes"]] == [
        (50, "exact"),
        (50, "in memory"),
        (600, "exact"),
        (600, "indexes"),
        (600, "in memory"),
    ]
    recalls = {row["route"]: row["recall"] for row in results["routes"] if row["tools"] == 600}
    assert recalls["in memory"] == 1.0
    assert recalls["indexes"] >= 0.9
    assert all(row["p50_ms"] > 0 for row in results["routes"])
    assert results["growth"][1]["build_s"] > 0
    assert results["table"]["rows"] == 300
    assert results["table"]["unchanged_1000_s"] < results["table"]["index_1000_s"]
    assert "an ordinary user's p50" in capsys.readouterr().out


def test_two_replicas_are_measured_and_compared_with_the_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_simulation(["--check", "--quick", "--results", str(tmp_path)])
    results = read_results(tmp_path, "replicas.json")
    rows = {(row["name"], row["replicas"], row["clients"]): row for row in results["rows"]}
    loads = {(replicas, clients) for replicas, numbers in CLIENTS.items() for clients in numbers}
    expected = {(name, *load) for name in (CACHED_QUESTIONS, NEW_QUESTIONS) for load in loads}
    assert rows.keys() == expected | {(FIRST, 1, 1), (SECOND, 1, 1)}
    assert [key for key, row in rows.items() if row["errors"] or not row["requests"]] == []
    assert results["indexing"]["app_cpu_ms"] > 1  # with its vector, wherever the run went
    assert {(each["name"], each["replicas"], each["clients"]) for each in results["comparisons"]} == expected
    assert all(each["predicted"]["rate"] > 0 for each in results["comparisons"])
    loaded, scaled, citus = (read_results(RESULTS, f"{name}.json") for name in ("load", "scale", "citus"))
    assert make_costs(loaded, scaled, results, citus, 200).hit == read_costs(RESULTS, 200).hit
    assert "median error for two replicas" in capsys.readouterr().out
