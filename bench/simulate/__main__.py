"""Work out what a deployment carries, from what the other benchmarks measured: `make simulate-scale`.

A queueing model of processes, embedders, connections and machines is given the processor time and the memory of
`make bench-load` and `make bench-scale`, as recorded in `bench/results`. It prints how many messages a second each
deployment answers in time, of how many users with how many tools, and what there is too little of. `--check` measures
one replica and two on this machine and compares them with the model, which takes some minutes.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from bench.result_files import RESULTS, add_results_option, choose_results_folder, write_results
from bench.simulate.check import MESSAGES, compare
from bench.simulate.costs import read_costs
from bench.simulate.replicas import FULL, QUICK, measure_replicas
from bench.simulate.scenario import Scenario, add_scenario_options, find_capacities, read_scenario
from bench.simulate.tables import (
    format_capacities,
    format_check,
    format_costs,
    render_capacities,
    render_check,
    render_costs,
)

QUICK_MESSAGES = 300


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="measure one replica and two, and compare them")
    parser.add_argument("--quick", action="store_true", help="with --check: one round of very short slices")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of a table")
    form.add_argument("--markdown", action="store_true", help="print the tables as they stand in the documentation")
    parser.add_argument(
        "--inputs", type=Path, default=RESULTS, help="folder of load.json, scale.json and replicas.json (default: ours)"
    )
    add_scenario_options(parser)
    add_results_option(parser)
    options = parser.parse_args(arguments)
    try:
        options.scenario = read_scenario(options)
        options.costs = None if options.check else read_costs(options.inputs, options.tools)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    choose_results_folder(options, is_partial=options.quick or options.scenario != Scenario())
    return options


def simulate(options: argparse.Namespace) -> None:
    scenario = options.scenario
    capacities = find_capacities(scenario, options.costs)
    results = {"scenario": asdict(scenario), "capacities": [asdict(each) for each in capacities]}
    write_results(options, "simulation", results)
    if options.json:
        print(orjson.dumps(results, option=orjson.OPT_INDENT_2).decode())
    elif options.markdown:
        print(f"{render_costs(options.costs)}\n\n{render_capacities(capacities)}")
    else:
        print(f"{format_costs(options.costs)}\n\n{format_capacities(capacities)}")


def check(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = measure_replicas(Path(folder), QUICK if options.quick else FULL)
    comparisons = compare(results, QUICK_MESSAGES if options.quick else MESSAGES)
    results["comparisons"] = [asdict(each) for each in comparisons]
    write_results(options, "replicas", results)
    if options.json:
        print(orjson.dumps(results["comparisons"], option=orjson.OPT_INDENT_2).decode())
    else:
        print(render_check(comparisons) if options.markdown else format_check(comparisons))


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    (check if options.check else simulate)(options)


if __name__ == "__main__":
    main()
