"""The files that benchmarks of load write and read."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

RESULTS = Path(__file__).parent / "results"


def add_result_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results (default: bench/results)")
    parser.add_argument("--before", type=Path, help="JSON file of another version, for the plot")


def write_results(options: argparse.Namespace, name: str, results: dict[str, Any]) -> None:
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{name}.json").write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))


def read_before(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the results of the version to compare with, if there is one."""
    return None if options.before is None else orjson.loads(options.before.read_bytes())


def has_matplotlib() -> bool:
    """Plots need the packages of the bench; the figures do not."""
    return find_spec("matplotlib") is not None
