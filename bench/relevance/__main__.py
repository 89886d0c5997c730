"""Measure how often the right tools are found: `make bench-relevance ARGS="FOLDER …"`, or `ARGS="--corpora DIR"` for
all sets.

Tools are indexed into a real Postgres and searched through `discover()`, so the benchmark measures the product as it
ships. The baselines rank the same tools for the same messages in the same run, and the version before is compared
message by message.
"""

import argparse
import asyncio
from pathlib import Path

import orjson

from app.observability.logging import configure_logging
from bench.relevance.compare import Comparison, compare
from bench.relevance.feedback import WRONG_SHARE, format_simulation, simulate
from bench.relevance.index import open_bench_container, open_data_folder
from bench.relevance.messages import read_results, write_results
from bench.relevance.plot import draw_rankings, draw_versions
from bench.relevance.sets import OWN, BenchSet, add_haystack, find_all_sets, read_set, take_sample
from bench.relevance.tables import format_intervals, format_summary, format_table, to_json

RESULTS = Path(__file__).parents[1] / "results"
BEFORE = RESULTS / "messages-0.2.0.json"


def main() -> None:
    options = _parser().parse_args()
    configure_logging("WARNING")
    with open_data_folder(options.data) as data:
        if options.feedback:
            asyncio.run(_simulate(options, data))
            return
        comparisons = asyncio.run(_compare(options, data))
    print(f"\n{format_summary(comparisons)}\n\n{format_intervals(comparisons)}", flush=True)
    _write_results(comparisons, options.results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.relevance", description=__doc__)
    parser.add_argument(
        "folder",
        nargs="*",
        type=Path,
        help="labelled sets (default: the one about the demo catalogue, and with --corpora all known sets)",
    )
    parser.add_argument(
        "--corpora", type=Path, metavar="DIR", help="where the public sets are, and the tools of the sets in bench/sets"
    )
    parser.add_argument("--haystack", type=Path, metavar="FOLDER", help="tools to add to every set")
    parser.add_argument("--limit-queries", type=int, metavar="N", help="use about N messages of each kind")
    parser.add_argument("--ours-alone", action="store_true", help="skip the baselines, which do not change")
    parser.add_argument(
        "--without-examples", action="store_true", help="index known tools without the examples that ship"
    )
    parser.add_argument(
        "--feedback",
        action="store_true",
        help="simulate users who live through some messages, and measure their other messages",
    )
    parser.add_argument(
        "--wrong-feedback",
        type=float,
        metavar="SHARE",
        default=WRONG_SHARE,
        help="how often a simulated user reports success for a wrong tool (default: %(default)s)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="keep the database, and with it the vectors of the tools"
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FILE",
        default=BEFORE,
        help="the messages.json of the version to compare to (default: 0.2.0)",
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", default=RESULTS, help="where to write the results and the plot"
    )
    return parser


def _read_sets(options: argparse.Namespace) -> list[BenchSet]:
    folders = options.folder or ([OWN] if options.corpora is None else find_all_sets(options.corpora))
    sets = [take_sample(read_set(folder, options.corpora), options.limit_queries) for folder in folders]
    if options.haystack is None:
        return sets
    haystack = read_set(options.haystack, options.corpora)
    return [add_haystack(each, haystack) for each in sets]


async def _compare(options: argparse.Namespace, data: Path) -> list[Comparison]:
    sets, before, comparisons = _read_sets(options), read_results(options.before), list[Comparison]()
    async with open_bench_container(data, known_examples=not options.without_examples) as container:
        for bench in sets:
            results = before.get(bench.name)
            comparisons.append(await compare(container, bench, results, baselines=not options.ours_alone))
            print(f"\n{format_table(comparisons[-1])}\n", flush=True)
    return comparisons


async def _simulate(options: argparse.Namespace, data: Path) -> None:
    sets = _read_sets(options)
    async with open_bench_container(data, known_examples=not options.without_examples) as container:
        for bench in sets:
            simulation = await simulate(container, bench, wrong=options.wrong_feedback)
            print(f"\n{format_simulation(simulation)}\n", flush=True)


def _write_results(comparisons: list[Comparison], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "relevance.json").write_bytes(orjson.dumps(to_json(comparisons), option=orjson.OPT_INDENT_2))
    write_results(folder / "messages.json", {each.name: each.results for each in comparisons})
    draw_rankings(comparisons, folder / "relevance.png")
    draw_versions(comparisons, folder / "versions.png")


if __name__ == "__main__":
    main()
