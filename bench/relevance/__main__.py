"""Compare the ranking quality of Toolscout to simpler rankings: `make bench-relevance ARGS="FOLDER …"`.

Tools are indexed into a real Postgres and searched through `discover()`, so the benchmark measures the product as it
ships. The baselines rank the same tools for the same messages in the same run.
"""

import argparse
import asyncio
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import orjson

from app.observability.logging import configure_logging
from bench.relevance.compare import Comparison, compare
from bench.relevance.feedback import format_simulation, simulate
from bench.relevance.index import open_bench_container
from bench.relevance.plot import draw
from bench.relevance.sets import OWN, BenchSet, add_haystack, read_set, take_sample
from bench.relevance.tables import format_table, to_json

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    options = _parser().parse_args()
    configure_logging("WARNING")
    with _open_data_folder(options.data) as data:
        if options.feedback:
            asyncio.run(_simulate(_read_sets(options), Path(data)))
            return
        comparisons = asyncio.run(_compare(_read_sets(options), Path(data), baselines=not options.ours_alone))
    _write_results(comparisons, options.results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.relevance", description=__doc__)
    parser.add_argument("folder", nargs="*", type=Path, default=[OWN], help="labelled sets (default: our own)")
    parser.add_argument("--haystack", type=Path, metavar="FOLDER", help="tools to add to every set")
    parser.add_argument("--limit-queries", type=int, metavar="N", help="use about N messages of each kind")
    parser.add_argument("--ours-alone", action="store_true", help="skip the baselines, which do not change")
    parser.add_argument(
        "--feedback",
        action="store_true",
        help="simulate how feedback on one half of the messages changes the other half",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="keep the database, and with it the vectors of the tools"
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", default=RESULTS, help="where to write the results and the plot"
    )
    return parser


def _read_sets(options: argparse.Namespace) -> list[BenchSet]:
    sets = [take_sample(read_set(folder), options.limit_queries) for folder in options.folder]
    if options.haystack is None:
        return sets
    haystack = read_set(options.haystack)
    return [add_haystack(each, haystack) for each in sets]


def _open_data_folder(path: Path | None) -> AbstractContextManager[str | Path]:
    if path is None:
        return tempfile.TemporaryDirectory()
    path.mkdir(parents=True, exist_ok=True)
    return nullcontext(path)


async def _compare(sets: list[BenchSet], data: Path, *, baselines: bool) -> list[Comparison]:
    comparisons = []
    async with open_bench_container(data) as container:
        for bench in sets:
            comparisons.append(await compare(container, bench, baselines=baselines))
            print(f"\n{format_table(comparisons[-1])}\n", flush=True)
    return comparisons


async def _simulate(sets: list[BenchSet], data: Path) -> None:
    async with open_bench_container(data) as container:
        for bench in sets:
            simulation = await simulate(container, bench)
            print(f"\n{format_simulation(simulation)}\n", flush=True)
            if not simulation.within_bounds:
                raise SystemExit("a prior changed a score by more than its maximum")


def _write_results(comparisons: list[Comparison], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "relevance.json").write_bytes(orjson.dumps(to_json(comparisons), option=orjson.OPT_INDENT_2))
    draw(comparisons, folder / "relevance.png")


if __name__ == "__main__":
    main()
