"""The bench as a whole, on a tiny set: indexed by the product, asked through `discover()`, beside every floor.

It needs the packages of the `bench` extra: see `conftest.py`.
"""

from pathlib import Path

import orjson
import pytest

from app.container import Container
from app.evaluation.labelled import LabelledMessage
from bench.relevance.comparing import OURS, compared
from bench.relevance.plot import draw
from bench.relevance.sets import BenchSet, BenchTool
from bench.relevance.tables import as_json, table

TOOLS = [
    ("weather", "get_forecast", "The weather forecast for a city."),
    ("mail", "send_mail", "Send an e-mail to somebody."),
    ("files", "read_file", "Read a file."),
    ("files", "delete_file", "Delete a file for ever."),
    ("files", "bad\u0007name", "A name that no product should take."),
]
ASKED = [
    LabelledMessage("1", ["weather/get_forecast"], "weather forecast for Oslo", kind="direct"),
    LabelledMessage("2", ["files/delete_file", "files/bad\u0007name"], "delete this file", kind="terse"),
    LabelledMessage("3", [], "thank you!"),
]


@pytest.fixture
def tiny() -> BenchSet:
    tools = [BenchTool(f"{server}/{name}", server, {"name": name, "description": said}) for server, name, said in TOOLS]
    return BenchSet("tiny", tools, ASKED)


async def test_a_set_is_compared_tabled_and_drawn(container: Container, tiny: BenchSet, tmp_path: Path) -> None:
    comparison = await compared(container, tiny)
    assert comparison.rankings[0].name == OURS
    assert len(comparison.rankings) == 6
    ours = comparison.rankings[0].measures
    assert (ours.hit_at_1, ours.recall_at_5) == (1.0, 0.75)  # what was refused is never found
    assert comparison.refused.keys() == {"files/bad\u0007name"}
    assert (comparison.needing, comparison.not_needing) == (2, 1)
    assert all(0 < ranking.measures.recall_at_10 <= 1 for ranking in comparison.rankings)
    assert comparison.kinds.keys() == {"direct", "terse"}

    shown = table(comparison)
    assert "tiny: 5 tools, 2 messages" in shown
    assert all(ranking.name in shown for ranking in comparison.rankings)
    assert orjson.loads(orjson.dumps(as_json([comparison])))["sets"][0]["summary"]["degraded"] == 0

    draw([comparison], tmp_path / "relevance.png")
    assert (tmp_path / "relevance.png").read_bytes().startswith(b"\x89PNG")


async def test_a_second_run_starts_anew(container: Container, tiny: BenchSet) -> None:
    first, second = [await compared(container, tiny) for _ in range(2)]
    assert first.rankings == second.rankings
