"""The sets of the relevance benchmark, and its baselines on five tools."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.embeddings.base import Vector
from app.evaluation.labelled_messages import LabelledMessage
from bench.relevance.baselines import Dense, PlainBm25, fuse, reciprocal_rank_fusion
from bench.relevance.sets import (
    OWN,
    PUBLIC,
    SETS,
    BenchTool,
    add_haystack,
    find_all_sets,
    is_tuned_on,
    last_user_text,
    read_set,
    take_sample,
)

TOOLS = [
    BenchTool(f"{server}/{name}", server, {"name": name, "description": description})
    for server, name, description in [
        ("weather", "get_forecast", "The weather forecast for a city."),
        ("mail", "sendMail", "Send an e-mail to somebody."),
        ("mail", "search_mail", "Search all e-mails."),
        ("files", "read_file", "Read a file."),
        ("files", "delete_file", "Delete a file for ever."),
    ]
]


def write_rows(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def make_row(tool_id: str, server: str, name: str) -> dict[str, Any]:
    return {"id": tool_id, "server": server, "name": name, "description": "", "tags": ["x"]}


def one_hot(position: int) -> Vector:
    vector: Vector = np.eye(5, dtype=np.float32)[position]
    return vector


def test_a_set_is_read_with_its_tools_and_both_kinds_of_messages(tmp_path: Path) -> None:
    write_rows(tmp_path, "tools.jsonl", make_row("a", "s", "a"), make_row("b", "s", "b"))
    write_rows(tmp_path, "queries.jsonl", {"id": "q", "query": "do b", "relevant": ["b"], "meta": {}})
    write_rows(tmp_path, "no_tool_queries.jsonl", {"id": "n", "query": "hello", "relevant": [], "meta": {}})
    bench = read_set(tmp_path)
    assert [tool.definition for tool in bench.tools] == [{"name": name, "description": ""} for name in "ab"]
    assert [(item.text, item.tools) for item in bench.items] == [("do b", ["b"]), ("hello", [])]


def test_an_unknown_label_ends_the_run(tmp_path: Path) -> None:
    write_rows(tmp_path, "tools.jsonl", make_row("a", "s", "a"))
    write_rows(tmp_path, "queries.jsonl", {"query": "do b", "relevant": ["b"]})
    with pytest.raises(SystemExit, match="unknown tool 'b'"):
        read_set(tmp_path)


def test_the_second_tool_of_a_name_moves_to_a_second_server(tmp_path: Path) -> None:
    write_rows(tmp_path, "tools.jsonl", make_row("a", "s", "a"), make_row("a#2", "s", "a"), make_row("b", "s", "b"))
    assert [(tool.id, tool.server) for tool in read_set(tmp_path).tools] == [("a", "s"), ("a#2", "s 2"), ("b", "s")]


def test_a_haystack_adds_tools_and_no_messages(tmp_path: Path) -> None:
    write_rows(tmp_path / "set", "tools.jsonl", make_row("a", "s", "a"))
    write_rows(tmp_path / "set", "queries.jsonl", {"query": "do a", "relevant": ["a"]})
    write_rows(tmp_path / "hay", "tools.jsonl", make_row("c", "s", "a"), make_row("d", "t", "d"))
    both = add_haystack(read_set(tmp_path / "set"), read_set(tmp_path / "hay"))
    assert [(tool.id, tool.server) for tool in both.tools] == [("a", "s"), ("hay:c", "s 2"), ("hay:d", "t")]
    assert len(both.items) == 1


def test_a_sample_has_messages_of_each_kind(tmp_path: Path) -> None:
    write_rows(tmp_path, "tools.jsonl", make_row("a", "s", "a"))
    write_rows(tmp_path, "queries.jsonl", *({"query": f"do a {n}", "relevant": ["a"]} for n in range(30)))
    write_rows(tmp_path, "no_tool_queries.jsonl", *({"query": f"hello {n}", "relevant": []} for n in range(8)))
    sample = take_sample(read_set(tmp_path), 10)
    assert [bool(item.tools) for item in sample.items].count(True) == 10
    assert [bool(item.tools) for item in sample.items].count(False) == 8
    assert take_sample(read_set(tmp_path), None) == read_set(tmp_path)


def test_our_own_set_is_about_the_demo_catalogue_and_large_enough() -> None:
    own = read_set(OWN)
    assert len(own.tools) > 50
    assert sum(bool(item.tools) for item in own.items) >= 150
    assert sum(not item.tools for item in own.items) >= 40
    assert any(item.messages for item in own.items)


@pytest.fixture
def pool_set(tmp_path: Path) -> Path:
    """A set whose tools are those of server `s` of the corpus `corpora/public`."""
    write_rows(tmp_path / "sets" / "mine", "queries.jsonl", {"query": "do b", "relevant": ["s/b"]})
    (tmp_path / "sets" / "pool.json").write_text('{"public": ["s"]}')
    return tmp_path / "sets" / "mine"


def test_a_set_without_tools_takes_those_of_the_servers_in_the_pool(pool_set: Path, tmp_path: Path) -> None:
    rows = make_row("s/a", "s", "a"), make_row("t/c", "t", "c"), make_row("s/b", "s", "b")
    write_rows(tmp_path / "corpora" / "public", "tools.jsonl", *rows)
    assert [tool.id for tool in read_set(pool_set, tmp_path / "corpora").tools] == ["s/a", "s/b"]


def test_a_set_with_a_pool_needs_the_corpora(pool_set: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="mine: its tools are not part of this repository: give --corpora DIR"):
        read_set(pool_set)
    with pytest.raises(SystemExit, match=r"has no public/tools\.jsonl"):
        read_set(pool_set, tmp_path)


def test_a_corpus_must_have_the_servers_of_the_pool(pool_set: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "corpora" / "public", "tools.jsonl", make_row("t/c", "t", "c"))
    with pytest.raises(SystemExit, match="public has no server 's'"):
        read_set(pool_set, tmp_path / "corpora")


def test_all_sets_are_the_public_ones_that_are_there_and_ours(tmp_path: Path) -> None:
    (tmp_path / "metatool").mkdir()
    folders = find_all_sets(tmp_path)
    assert folders[:2] == [tmp_path / "metatool", OWN]
    assert sorted(folders[2:]) == sorted(path for path in SETS.iterdir() if path.is_dir())


def test_every_set_but_the_held_out_ones_is_marked_as_tuned_on() -> None:
    assert all(map(is_tuned_on, [*PUBLIC, "own", "own+haystack", "everyday", "conversations", "languages"]))
    assert not any(map(is_tuned_on, ["everyday_held_out", "conversations_held_out", "languages_held_out", "mine"]))


def test_the_baselines_search_for_the_users_last_turn() -> None:
    turns = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "x"}]
    assert (
        last_user_text(LabelledMessage("1", [], messages=[*turns, {"role": "user", "content": "then"}, turns[1]]))
        == "then"
    )
    assert last_user_text(LabelledMessage("1", [], message="only")) == "only"


def test_plain_bm25_matches_words_of_the_split_name() -> None:
    bm25 = PlainBm25(TOOLS)
    assert bm25.rank("Send this!")[0] == "mail/sendMail"
    assert set(bm25.rank("a file")) == {"files/read_file", "files/delete_file"}
    assert bm25.rank("umbrella") == []


def test_plain_bm25_scores_match_a_manual_computation() -> None:
    bm25 = PlainBm25(TOOLS)
    # `delete` occurs twice in one of five documents, which has 5 of the 26 words without stop words
    lengths = [5, 6, 6, 4, 5]
    damping = 1.2 * (0.25 + 0.75 * 5 / (sum(lengths) / 5))
    expected = np.log(1 + 4.5 / 1.5) * 2 * 2.2 / (2 + damping)
    assert bm25.scores("delete")[4] == pytest.approx(expected)


def test_dense_ranks_by_cosine() -> None:
    dense = Dense({tool.id: one_hot(position) for position, tool in enumerate(TOOLS)})
    query: Vector = np.array([0, 0.1, 0, 0.9, 0.4], np.float32)
    assert dense.rank(query, 3) == ["files/read_file", "files/delete_file", "mail/sendMail"]


def test_reciprocal_rank_fusion_prefers_tools_in_both_rankings() -> None:
    assert reciprocal_rank_fusion([["a", "b", "c"], ["c", "b"]]) == ["c", "b", "a"]
    assert reciprocal_rank_fusion([["a", "b"], ["b", "c"]], depth=1) == ["b"]


def test_fusion_of_both_baselines() -> None:
    dense = Dense({tool.id: one_hot(position) for position, tool in enumerate(TOOLS)})
    assert fuse(PlainBm25(TOOLS), dense, "delete a file", one_hot(3))[:2] == ["files/read_file", "files/delete_file"]
