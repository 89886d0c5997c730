"""The files that benchmarks of load write and read."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

RESULTS = Path(__file__).parent / "results"
PARTIAL_RESULTS = Path("build/bench")
"""For runs that measure less: the figures of the documentation come from `RESULTS`."""


def add_result_options(parser: argparse.ArgumentParser) -> None:
    add_results_option(parser)
    parser.add_argument("--before", type=Path, help="JSON file of another version, for the plot")


def add_results_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, help=f"folder of the results (default: bench/results; of a part: {PARTIAL_RESULTS})"
    )


def choose_results_folder(options: argparse.Namespace, *, is_partial: bool) -> None:
    """Set `options.results` unless the command line did."""
    if options.results is None:
        options.results = PARTIAL_RESULTS if is_partial else RESULTS


def write_results(options: argparse.Namespace, name: str, results: dict[str, Any]) -> None:
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{name}.json").write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))


def read_before(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the results of the version to compare with, if there is one."""
    return None if options.before is None else orjson.loads(options.before.read_bytes())


def has_matplotlib() -> bool:
    """Plots need the packages of the bench; the figures do not."""
    return find_spec("matplotlib") is not None
