"""Does it find the right tools, and more of them than simpler rankings do? `make bench-relevance ARGS="FOLDER …"`.

Tools are indexed by the product's own code into a real Postgres and asked for through `discover()`: what is measured is
what ships. The floors rank the same tools for the same messages in the same run.
"""

import argparse
import asyncio
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import orjson

from app.observability.logging import configure_logging
from bench.relevance.comparing import Comparison, compared
from bench.relevance.feedback import shown, simulated
from bench.relevance.index import opened
from bench.relevance.plot import draw
from bench.relevance.sets import OWN, BenchSet, read_set, shortened, with_haystack
from bench.relevance.tables import as_json, table

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    options = _parser().parse_args()
    configure_logging("WARNING")
    with _data_folder(options.data) as data:
        if options.feedback:
            asyncio.run(_simulate(_sets(options), Path(data)))
            return
        comparisons = asyncio.run(_compare(_sets(options), Path(data), floors=not options.ours_alone))
    _keep(comparisons, options.results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.relevance", description=__doc__)
    parser.add_argument("folder", nargs="*", type=Path, default=[OWN], help="labelled sets; without any, our own")
    parser.add_argument("--haystack", type=Path, metavar="FOLDER", help="tools to add to every set's pool")
    parser.add_argument("--limit-queries", type=int, metavar="N", help="about so many of each kind, for a quick look")
    parser.add_argument("--ours-alone", action="store_true", help="without the floors, which do not change")
    parser.add_argument("--feedback", action="store_true", help="what one half's successes change for the other half")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keeps the database, and so the tools' vectors")
    parser.add_argument("--results", type=Path, metavar="DIR", default=RESULTS, help="where figures and plot go")
    return parser


def _sets(options: argparse.Namespace) -> list[BenchSet]:
    sets = [shortened(read_set(folder), options.limit_queries) for folder in options.folder]
    if options.haystack is None:
        return sets
    haystack = read_set(options.haystack)
    return [with_haystack(each, haystack) for each in sets]


def _data_folder(kept: Path | None) -> AbstractContextManager[str | Path]:
    if kept is None:
        return tempfile.TemporaryDirectory()
    kept.mkdir(parents=True, exist_ok=True)
    return nullcontext(kept)


async def _compare(sets: list[BenchSet], data: Path, *, floors: bool) -> list[Comparison]:
    comparisons = []
    async with opened(data) as container:
        for bench in sets:
            comparisons.append(await compared(container, bench, floors=floors))
            print(f"\n{table(comparisons[-1])}\n", flush=True)
    return comparisons


async def _simulate(sets: list[BenchSet], data: Path) -> None:
    async with opened(data) as container:
        for bench in sets:
            simulation = await simulated(container, bench)
            print(f"\n{shown(simulation)}\n", flush=True)
            if not simulation.within_bounds:
                raise SystemExit("a prior moved a score by more than it may")


def _keep(comparisons: list[Comparison], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "relevance.json").write_bytes(orjson.dumps(as_json(comparisons), option=orjson.OPT_INDENT_2))
    draw(comparisons, folder / "relevance.png")


if __name__ == "__main__":
    main()
