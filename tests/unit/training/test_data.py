"""The training data is consistent, and its test split is kept apart."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from app.search.glossary import Glossary
from training.data import DATA, Data, make_pairs, read_data, read_lines

SETS = Path(__file__).parents[3] / "bench" / "sets"


@pytest.fixture(scope="module")
def data() -> Data:
    return read_data(glossary=Glossary())


def _normalize(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def _read_bench_messages() -> Iterator[str]:
    for path in SETS.glob("*/*.jsonl"):
        yield from (_normalize(row["message"]) for row in read_lines(path) if "message" in row)


def test_every_label_is_a_tool_of_the_catalogue_of_its_message(data: Data) -> None:
    for message in data.messages:
        known = {tool.id for tool in data.catalogues[message.catalogue].tools}
        assert set(message.tools) <= known, message.id
        assert bool(message.tools) == (message.kind == "tool"), message.id
        assert len(set(message.tools)) == len(message.tools), message.id


def test_ids_are_unique(data: Data) -> None:
    assert len({message.id for message in data.messages}) == len(data.messages)
    for catalogue in data.catalogues.values():
        assert len({tool.id for tool in catalogue.tools}) == len(catalogue.tools), catalogue.name


def test_there_are_as_many_messages_as_the_readme_says(data: Data) -> None:
    assert len(data.select("train")) > 8_000
    assert len(data.select("validation")) > 2_500
    assert len(data.select("test")) > 800
    without = [message for message in data.messages if message.kind != "tool"]
    assert len(without) > 2_000
    assert len({tool for message in data.messages for tool in message.tools}) > 4_000


def test_no_server_is_in_two_splits(data: Data) -> None:
    splits = defaultdict(set)
    for catalogue in data.catalogues.values():
        for tool in catalogue.tools:
            splits[tool.server].add(catalogue.split)
    assert [server for server, found in splits.items() if len(found) > 1] == []


def test_no_message_is_there_twice_or_in_a_benchmark(data: Data) -> None:
    texts = [_normalize(f"{message.query.context} {message.query.user_text}") for message in data.messages]
    assert len(set(texts)) == len(texts)
    assert set(texts).isdisjoint(_read_bench_messages())


def test_the_validation_servers_are_those_of_the_benchmarks(data: Data) -> None:
    pool = {server for servers in orjson.loads((SETS / "pool.json").read_bytes()).values() for server in servers}
    for catalogue in data.catalogues.values():
        if catalogue.split != "validation":
            assert pool.isdisjoint(tool.server for tool in catalogue.tools), catalogue.name


def test_a_message_of_a_conversation_is_trained_in_its_context(data: Data) -> None:
    in_context = [message for message in data.select("train") if message.query.context]
    assert len(in_context) > 300
    for pair, message in zip(make_pairs(in_context, data), in_context, strict=True):
        assert pair.message == message.query.texts[-1]
        assert len(pair.message) > len(message.query.search_text)


def test_the_sources_of_the_definitions_are_named() -> None:
    corpora = {row["corpus"] for row in read_lines(DATA / "tools.jsonl")}
    sources = (DATA / "SOURCES.md").read_text()
    assert corpora
    assert all(f"`{corpus}`" in sources for corpus in corpora)
