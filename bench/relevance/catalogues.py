"""Measure the catalogues of `training/data`: `python -m bench.relevance.catalogues SPLIT`.

Each catalogue is a user of its own. `test` has the servers that neither the adapter nor the known examples have seen:
no choice may depend on it. `validation` has servers whose examples ship, measured with the very messages that most of
these examples are, so that its figures with examples say nothing: use `bench/sets/everyday` for known servers.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import orjson

from app.evaluation.labelled_messages import parse_labelled_messages
from app.observability.logging import configure_logging
from bench.relevance.compare import compare
from bench.relevance.index import open_bench_container, open_data_folder
from bench.relevance.messages import (
    MessageResult,
    Results,
    compare_results,
    read_results,
    summarize_results,
    write_results,
)
from bench.relevance.sets import BenchSet, read_tools, separate_duplicates
from training.data import DATA, read_lines


def main() -> None:
    options = _parser().parse_args()
    configure_logging("WARNING")
    sets = make_catalogue_sets(options.split)
    with open_data_folder(options.data) as data:
        results = asyncio.run(_measure(sets, data))
    if options.output is not None:
        write_results(options.output, {options.split: results})
    before = {} if options.before is None else read_results(options.before)[options.split]
    print(format_results(sets, results, before))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.relevance.catalogues", description=__doc__)
    parser.add_argument("split", choices=("validation", "test"))
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the database, and with it the vectors")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result of each message")
    parser.add_argument("--before", type=Path, metavar="FILE", help="the results of another version")
    return parser


def make_catalogue_sets(split: str, folder: Path = DATA) -> list[BenchSet]:
    """Make a set of each catalogue: its tools and all of its messages."""
    tools = {tool.id: tool for tool in read_tools((folder / "tools.jsonl").read_bytes())}
    rows = read_lines(folder / "messages.jsonl")
    return [
        BenchSet(
            entry["name"],
            separate_duplicates([tools[tool_id] for tool_id in entry["tools"]]),
            parse_labelled_messages(b"\n".join(_to_line(row) for row in rows if row["catalogue"] == entry["name"])),
        )
        for entry in orjson.loads((folder / "catalogues.json").read_bytes())
        if entry["split"] == split
    ]


def _to_line(row: dict[str, object]) -> bytes:
    fields = {name: row[name] for name in ("id", "message", "messages", "tools") if name in row}
    return orjson.dumps({**fields, "meta": {"kind": row["kind"]}})


async def _measure(sets: Sequence[BenchSet], data: Path) -> Results:
    results: dict[str, MessageResult] = {}
    async with open_bench_container(data) as container:
        for bench in sets:
            results |= (await compare(container, bench, baselines=False)).results
    return results


def format_results(sets: Sequence[BenchSet], results: Results, before: Results) -> str:
    """Format the means over all catalogues, and the differences to another version with their intervals."""
    quality = summarize_results(list(results.values()))
    lines = [f"{quality.needing} messages that need a tool, {quality.not_needing} that need none or have none"]
    for name, scores in (("as shipped", quality.shipped), ("without abstention", quality.ranking)):
        if scores is not None:
            lines.append(
                f"{name}: hit@1 {scores.hit_at_1:.3f}, hit@8 {scores.hit_at_8:.3f}, nDCG@10 {scores.ndcg_at_10:.3f}"
            )
    lines.append(f"size {quality.size:.1f}, empty {quality.empty:.1%}, low {quality.low:.1%}")
    for kind in ("none", "missing"):
        ids = [item.id for bench in sets for item in bench.items if item.kind == kind]
        answers = summarize_results([results[key] for key in ids])
        lines.append(f"{kind}: {answers.toolless_size:.1f} tools, empty {answers.toolless_empty:.1%}")
    change = compare_results(results, before)
    for name, interval in ({} if change is None else change.intervals).items():
        lines.append(f"{name}: {interval.difference:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
