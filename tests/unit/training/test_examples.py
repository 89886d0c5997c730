"""The examples that ship are chosen from the training data, and never from what measures them."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.evaluation.labelled_messages import parse_labelled_messages
from app.indexing.known_tools.matching import MAX_EXAMPLES, KnownTool
from app.indexing.known_tools.pack import decode_tools
from bench.relevance.sets import SETS, last_user_text
from training.examples import DATA, MAX_BYTES, MAX_CHARS, TARGET, build_examples, choose_examples

Row = dict[str, Any]


def label(message: str, *tools: str) -> Row:
    return {"message": message, "tools": list(tools or ["a"])}


def write_data(folder: Path, messages: list[Row]) -> Path:
    rows = [{"catalogue": "training", "kind": "tool", **message} for message in messages]
    tools = [
        {"id": "s/send", "name": "send", "description": "Send an e-mail."},
        {"id": "s/read", "name": "read", "description": "Read  an\ne-mail."},
        {"id": "s/mute", "name": "mute", "description": ""},
        {"id": "t/pay", "name": "pay", "description": "Pay a bill."},
    ]
    catalogues = [
        {"name": "training", "split": "train", "tools": ["s/send", "s/mute"]},
        {"name": "check", "split": "validation", "tools": ["s/read"]},
        {"name": "held out", "split": "test", "tools": ["t/pay"]},
    ]
    (folder / "catalogues.json").write_text(json.dumps(catalogues))
    for name, lines in (("tools", tools), ("messages", rows)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_the_messages_of_shipped_splits_are_the_examples_of_their_first_tool(tmp_path: Path) -> None:
    messages = [
        label("mail bob", "s/send"),
        {**label("what did he write", "s/read", "s/send"), "catalogue": "check"},
        {**label("pay the plumber", "t/pay"), "catalogue": "held out"},
        {**label("hello", "s/send"), "kind": "none", "tools": []},
        {"messages": [{"role": "user", "content": "and to ann"}], "tools": ["s/send"]},
        label("be quiet", "s/mute"),
    ]
    assert build_examples(write_data(tmp_path, messages)) == [
        KnownTool("read", "Read an e-mail", ("what did he write",)),
        KnownTool("send", "Send an e-mail", ("mail bob",)),
    ]


def test_the_order_of_the_data_does_not_matter(tmp_path: Path) -> None:
    messages = [label(f"message {n} about {n * n} things", "s/send") for n in range(20)]
    forwards = build_examples(write_data(tmp_path, messages))
    assert build_examples(write_data(tmp_path, messages[::-1])) == forwards


def test_a_tool_has_the_few_messages_that_differ_most() -> None:
    alike = [label(f"send the report to bob now please number {n}") for n in range(10)]
    other = [label("kindly forward yesterday's minutes"), label("shoot ann a note"), label("ping carla by e-mail")]
    chosen = choose_examples([*alike, *other])
    assert len(chosen) == MAX_EXAMPLES
    assert {row["message"] for row in other} <= set(chosen)


def test_long_and_repeated_messages_are_left_out() -> None:
    longest = "w" * MAX_CHARS
    assert choose_examples([label(longest), label(f"{longest}w"), label("mail bob"), label("mail bob")]) == [
        "mail bob",
        longest,
    ]


def test_messages_for_several_tools_count_only_if_there_are_few_others() -> None:
    alone = [label(f"wish {n}") for n in range(4)]
    shared = [label("read it and send it", "a", "b"), label("send it and read it", "a", "b")]
    assert "read it and send it" not in choose_examples([*alone, *shared])
    few = choose_examples([*alone[:3], *shared])
    assert len(few) == 4
    assert len(set(few) & {row["message"] for row in shared}) == 1


@pytest.fixture(scope="module")
def shipped() -> list[KnownTool]:
    return decode_tools(TARGET.read_bytes())


def normalize(message: str) -> str:
    return " ".join(message.lower().split())


def test_the_shipped_examples_keep_their_limits(shipped: list[KnownTool]) -> None:
    assert TARGET.stat().st_size <= MAX_BYTES
    assert len(shipped) > 2_000
    assert all(tool.description and 1 <= len(tool.examples) <= MAX_EXAMPLES for tool in shipped)
    assert all(len(example) <= MAX_CHARS for tool in shipped for example in tool.examples)


def test_no_message_of_a_benchmark_set_ships_as_an_example(shipped: list[KnownTool]) -> None:
    paths = sorted(SETS.glob("*/*.jsonl"))
    items = [item for path in paths for item in parse_labelled_messages(path.read_bytes())]
    assert len(items) > 1_000
    measured = {normalize(last_user_text(item)) for item in items}
    assert not measured & {normalize(example) for tool in shipped for example in tool.examples}


@pytest.mark.skipif(not DATA.is_dir(), reason="this checkout has no training data")
def test_the_shipped_examples_are_those_of_the_training_data_and_none_of_held_out_servers(
    shipped: list[KnownTool],
) -> None:
    assert shipped == build_examples(DATA), "run `python -m training.examples`"
    held_out = {row["name"] for row in json.loads((DATA / "catalogues.json").read_text()) if row["split"] == "test"}
    messages = [json.loads(line) for line in (DATA / "messages.jsonl").read_text().splitlines()]
    tested = {normalize(row["message"]) for row in messages if row["catalogue"] in held_out and "message" in row}
    examples = {normalize(example) for tool in shipped for example in tool.examples}
    assert len(tested) > 500
    assert not tested & examples
