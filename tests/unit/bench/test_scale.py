"""The scale benchmark: its tools, its options and its table."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from pgvector import SparseVector

from app.db.tables import TERM_SPACE
from bench.scale.__main__ import SIZES, check_disk, parse_options
from bench.scale.catalogue import RealTools, read_messages, vary_tools
from bench.scale.results import Growth, Results, Table, format_results, get_p50s
from bench.scale.routes import EXACT, INDEXED, RouteResult


@pytest.fixture
def real() -> RealTools:
    vectors = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    lexical = [SparseVector({10 * tool + term: 1.0 for term in range(10)}, TERM_SPACE) for tool in range(5)]
    return RealTools([{"name": f"tool_{number}"} for number in range(5)], vectors, lexical)


def test_a_user_has_the_real_tools_first_and_then_variations_of_them(real: RealTools) -> None:
    tools = list(vary_tools(real, 40))
    assert [tool.definition["name"] for tool in tools[:5]] == [f"tool_{number}" for number in range(5)]
    assert len({tool.definition["name"] for tool in tools}) == len(tools) == 40
    varied = np.array([tool.vector.to_numpy() for tool in tools[5:]], np.float32)
    assert np.linalg.norm(varied, axis=1) == pytest.approx(np.ones(35), abs=1e-2)
    nearest = (varied @ real.vectors.T).max(axis=1)
    assert nearest.min() > 0.5
    assert nearest.max() < 1.0
    assert {len(tool.lexical.indices()) for tool in tools[5:]} != {10}


def test_the_same_tools_come_every_time(real: RealTools) -> None:
    first, second = (list(vary_tools(real, 12)) for _ in range(2))
    assert [tool.vector.to_list() for tool in first] == [tool.vector.to_list() for tool in second]
    assert len(list(vary_tools(real, 3))) == 3


def test_the_messages_are_real_and_the_same_every_time() -> None:
    assert read_messages(20) == read_messages(20)
    assert len(set(read_messages(20))) == 20


def test_a_quick_run_measures_every_route_in_small() -> None:
    assert parse_options([]).sizes == list(SIZES)
    options = parse_options(["--quick"])
    assert max(options.sizes) > options.indexed_from > min(options.sizes)
    assert 0 < options.users < 100


def test_a_run_that_does_not_fit_the_disk_is_refused(tmp_path: Path) -> None:
    check_disk(tmp_path, 1)
    with pytest.raises(SystemExit, match="tools need"):
        check_disk(tmp_path, 10**15)


def test_the_table_shows_each_route_and_the_ratio_of_the_large_table() -> None:
    results = Results(
        questions=10,
        routes=[
            RouteResult(EXACT, 50_000, 160.0, 200.0, 300.0, 2.0, 150.0),
            RouteResult(INDEXED, 50_000, 8.0, 12.0, 9.0, 2.0, 6.0, recall=0.99, first_same=1.0),
        ],
        growth=[Growth(50_000, 200.0, 60.0, 3.0, 5.0)],
        table=Table(1_000_000, 5_000, 2.0, 2.5, 2_000.0, 11.0, 0.2),
    )
    text = format_results(results)
    assert "0.990" in text
    assert "(1.25 times)" in text
    assert "indexes built in 60 s" in text
    stored = orjson.loads(orjson.dumps(results.to_json()))
    assert stored["table"]["ratio"] == 1.25
    assert get_p50s(stored, INDEXED) == [(50_000, 8.0)]
