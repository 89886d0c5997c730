"""The whole relevance benchmark on a tiny set: indexed, searched through `discover()`, and compared to every baseline.

It needs the packages of the `bench` extra: see `conftest.py`.
"""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from app.container import Container
from app.evaluation.labelled_messages import LabelledMessage
from bench.relevance.compare import OURS, compare
from bench.relevance.messages import read_results, write_results
from bench.relevance.plot import draw_rankings, draw_versions
from bench.relevance.sets import BenchSet, BenchTool
from bench.relevance.tables import format_intervals, format_summary, format_table, to_json

TOOLS = [
    ("weather", "get_forecast", "The weather forecast for a city."),
    ("mail", "send_mail", "Send an e-mail to somebody."),
    ("files", "read_file", "Read a file."),
    ("files", "delete_file", "Delete a file for ever."),
    ("files", "bad\u0007name", "A name that no product should take."),
]
ITEMS = [
    LabelledMessage("1", ["weather/get_forecast"], "weather forecast for Oslo", kind="direct"),
    LabelledMessage("2", ["files/delete_file", "files/bad\u0007name"], "delete this file", kind="terse"),
    LabelledMessage("3", [], "thank you!"),
]


@pytest.fixture
def tiny_set() -> BenchSet:
    tools = [BenchTool(f"{server}/{name}", server, {"name": name, "description": text}) for server, name, text in TOOLS]
    return BenchSet("tiny", tools, ITEMS)


async def test_a_set_is_compared_formatted_and_plotted(
    container: Container, tiny_set: BenchSet, tmp_path: Path
) -> None:
    comparison = await compare(container, tiny_set)
    assert comparison.rankings[0].name == OURS
    assert len(comparison.rankings) == 5
    ours = comparison.rankings[0].measures
    assert (ours.hit_at_1, ours.recall_at_5) == (1.0, 0.75)  # a rejected tool is never found
    assert comparison.refused.keys() == {"files/bad\u0007name"}
    assert all(0 < ranking.measures.recall_at_10 <= 1 for ranking in comparison.rankings)
    assert comparison.kinds.keys() == {"direct", "terse"}

    table = format_table(comparison)
    assert "tiny: 5 tools, 2 messages that need tools, 1 that need none" in table
    assert all(ranking.name in table for ranking in comparison.rankings)
    [written] = orjson.loads(orjson.dumps(to_json([comparison])))["sets"]
    assert (written["summary"]["degraded"], written["is_tuned_on"], written["results"]) == (0, False, {})

    draw_rankings([comparison], tmp_path / "relevance.png")
    assert (tmp_path / "relevance.png").read_bytes().startswith(b"\x89PNG")


async def test_a_set_is_measured_as_shipped(container: Container, tiny_set: BenchSet) -> None:
    now = (await compare(container, tiny_set, baselines=False)).versions.now
    assert (now.needing, now.not_needing) == (2, 1)
    assert now.shipped is not None
    assert (now.shipped.hit_at_1, now.shipped.hit_at_8, now.empty) == (1, 1, 0)
    assert (now.toolless_size, now.toolless_empty) == (0, 1)


async def test_a_set_is_compared_to_the_version_before(
    container: Container, tiny_set: BenchSet, tmp_path: Path
) -> None:
    first = await compare(container, replace(tiny_set, name="everyday"), baselines=False)
    assert first.versions.change is None
    assert "before" not in format_table(first)
    assert format_intervals([first]) == ""
    write_results(tmp_path / "messages.json", {"everyday": first.results})
    before = read_results(tmp_path / "messages.json")["everyday"]

    second = await compare(container, replace(tiny_set, name="everyday"), before, baselines=False)
    change = second.versions.change
    assert change is not None
    assert all(abs(interval.difference) < 1e-4 for interval in change.intervals.values())
    assert "everyday, before" in format_summary([second])
    assert "everyday*" in format_intervals([second])
    draw_versions([second], tmp_path / "versions.png")
    assert (tmp_path / "versions.png").read_bytes().startswith(b"\x89PNG")


async def test_a_second_run_starts_from_scratch(container: Container, tiny_set: BenchSet) -> None:
    first, second = [await compare(container, tiny_set) for _ in range(2)]
    assert first.rankings == second.rankings
