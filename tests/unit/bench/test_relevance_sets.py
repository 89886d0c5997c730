"""The bench's reader of folders, and its floors on five tools."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.embeddings.base import Vector
from app.evaluation.labelled import LabelledMessage
from bench.relevance.floors import Dense, PlainBm25, fused, reciprocal_rank_fusion
from bench.relevance.sets import OWN, BenchTool, last_said, read_set, shortened, with_haystack

FIVE = [
    BenchTool(f"{server}/{name}", server, {"name": name, "description": description})
    for server, name, description in [
        ("weather", "get_forecast", "The weather forecast for a city."),
        ("mail", "sendMail", "Send an e-mail to somebody."),
        ("mail", "search_mail", "Search all e-mails."),
        ("files", "read_file", "Read a file."),
        ("files", "delete_file", "Delete a file for ever."),
    ]
]


def write(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def row(tool_id: str, server: str, name: str) -> dict[str, Any]:
    return {"id": tool_id, "server": server, "name": name, "description": "", "tags": ["x"]}


def one_hot(place: int) -> Vector:
    vector: Vector = np.eye(5, dtype=np.float32)[place]
    return vector


def test_a_folder_is_read_with_its_tools_and_both_kinds_of_messages(tmp_path: Path) -> None:
    write(tmp_path, "tools.jsonl", row("a", "s", "a"), row("b", "s", "b"))
    write(tmp_path, "queries.jsonl", {"id": "q", "query": "do b", "relevant": ["b"], "meta": {}})
    write(tmp_path, "no_tool_queries.jsonl", {"id": "n", "query": "hello", "relevant": [], "meta": {}})
    bench = read_set(tmp_path)
    assert [tool.definition for tool in bench.tools] == [{"name": name, "description": ""} for name in "ab"]
    assert [(asked.text, asked.tools) for asked in bench.item] == [("do b", ["b"]), ("hello", [])]


def test_a_label_that_names_no_tool_of_the_set_ends_the_run(tmp_path: Path) -> None:
    write(tmp_path, "tools.jsonl", row("a", "s", "a"))
    write(tmp_path, "queries.jsonl", {"query": "do b", "relevant": ["b"]})
    with pytest.raises(SystemExit, match="there is no tool 'b'"):
        read_set(tmp_path)


def test_the_second_tool_of_a_name_stands_on_a_second_server(tmp_path: Path) -> None:
    write(tmp_path, "tools.jsonl", row("a", "s", "a"), row("a#2", "s", "a"), row("b", "s", "b"))
    assert [(tool.id, tool.server) for tool in read_set(tmp_path).tools] == [("a", "s"), ("a#2", "s 2"), ("b", "s")]


def test_a_haystack_adds_tools_and_no_messages(tmp_path: Path) -> None:
    write(tmp_path / "set", "tools.jsonl", row("a", "s", "a"))
    write(tmp_path / "set", "queries.jsonl", {"query": "do a", "relevant": ["a"]})
    write(tmp_path / "hay", "tools.jsonl", row("c", "s", "a"), row("d", "t", "d"))
    both = with_haystack(read_set(tmp_path / "set"), read_set(tmp_path / "hay"))
    assert [(tool.id, tool.server) for tool in both.tools] == [("a", "s"), ("hay:c", "s 2"), ("hay:d", "t")]
    assert len(both.item) == 1


def test_a_quick_look_takes_some_of_each_kind(tmp_path: Path) -> None:
    write(tmp_path, "tools.jsonl", row("a", "s", "a"))
    write(tmp_path, "queries.jsonl", *({"query": f"do a {n}", "relevant": ["a"]} for n in range(30)))
    write(tmp_path, "no_tool_queries.jsonl", *({"query": f"hello {n}", "relevant": []} for n in range(8)))
    quick = shortened(read_set(tmp_path), 10)
    assert [bool(asked.tools) for asked in quick.item].count(True) == 10
    assert [bool(asked.tools) for asked in quick.item].count(False) == 8
    assert shortened(read_set(tmp_path), None) == read_set(tmp_path)


def test_our_own_set_is_about_the_demo_catalogue_and_large_enough() -> None:
    own = read_set(OWN)
    assert len(own.tools) > 50
    assert sum(bool(asked.tools) for asked in own.item) >= 150
    assert sum(not asked.tools for asked in own.item) >= 40
    assert any(asked.messages for asked in own.item)


def test_the_floors_search_for_what_the_user_said_last() -> None:
    turns = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "x"}]
    assert (
        last_said(LabelledMessage("1", [], messages=[*turns, {"role": "user", "content": "then"}, turns[1]])) == "then"
    )
    assert last_said(LabelledMessage("1", [], message="only")) == "only"


def test_plain_bm25_finds_by_words_of_the_split_name_and_nothing_by_none() -> None:
    bm25 = PlainBm25(FIVE)
    assert bm25.ranked("Send this!")[0] == "mail/sendMail"
    assert set(bm25.ranked("a file")) == {"files/read_file", "files/delete_file"}
    assert bm25.ranked("umbrella") == []


def test_plain_bm25_scores_as_computed_by_hand() -> None:
    bm25 = PlainBm25(FIVE)
    # `delete` is twice in one of five documents, which has 5 of the 26 words that are no stop words
    lengths = [5, 6, 6, 4, 5]
    damping = 1.2 * (0.25 + 0.75 * 5 / (sum(lengths) / 5))
    expected = np.log(1 + 4.5 / 1.5) * 2 * 2.2 / (2 + damping)
    assert bm25.scores("delete")[4] == pytest.approx(expected)


def test_dense_ranks_by_cosine() -> None:
    dense = Dense({tool.id: one_hot(place) for place, tool in enumerate(FIVE)})
    query: Vector = np.array([0, 0.1, 0, 0.9, 0.4], np.float32)
    assert dense.ranked(query, 3) == ["files/read_file", "files/delete_file", "mail/sendMail"]


def test_reciprocal_rank_fusion_takes_what_both_like() -> None:
    assert reciprocal_rank_fusion([["a", "b", "c"], ["c", "b"]]) == ["c", "b", "a"]
    assert reciprocal_rank_fusion([["a", "b"], ["b", "c"]], depth=1) == ["b"]


def test_fusion_of_both_floors() -> None:
    dense = Dense({tool.id: one_hot(place) for place, tool in enumerate(FIVE)})
    assert fused(PlainBm25(FIVE), dense, "delete a file", one_hot(3))[:2] == ["files/read_file", "files/delete_file"]
