"""Searchable texts and vectors of tools, and their hashes."""

import hashlib
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgvector import SparseVector

from app.indexing import documents
from app.indexing.documents import (
    MAX_EMBEDDED_BYTES,
    content_hash,
    embedded_text,
    enriched_description,
    index_hash,
    lexical_vector,
)
from app.indexing.parsing import parse_tool
from app.mcp_types import ToolDefinition
from app.search.bm25 import find_matching_words, query_term_ids
from app.text.strict_json import parse_json
from tests.support.json_strategies import json_values, texts

SEARCH = parse_tool(
    {
        "name": "search_repositories",
        "description": "Search code by topic. ",
        "inputSchema": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": " what to look for "}, "sort": {}},
        },
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
        "_meta": {"vendor": "x"},
    }
).definition


def make_tool(name: str, **fields: Any) -> ToolDefinition:
    return parse_tool({"name": name, **fields}).definition


def with_properties(properties: Any) -> ToolDefinition:
    return make_tool("a", inputSchema={"type": "object", "properties": properties})


def test_the_enriched_description_contains_every_part_in_order() -> None:
    assert enriched_description(SEARCH, "git-hub") == (
        "Tool: search repositories. Server: git hub. Description: Search code by topic. "
        "Parameters: query: what to look for, sort. Capabilities: search."
    )


def test_the_embedded_text_is_the_description_without_capabilities() -> None:
    assert enriched_description(SEARCH, "git-hub") == embedded_text(SEARCH, "git-hub") + " Capabilities: search."


def test_empty_parts_are_omitted() -> None:
    assert enriched_description(make_tool("ping", description="  "), "net") == "Tool: ping. Server: net."


def test_tags_stand_before_the_description_in_any_order() -> None:
    assert embedded_text(SEARCH, "git-hub", ["web-search", "code"]) == (
        "Tool: search repositories. Server: git hub. Tags: code, web search. Description: Search code by topic. "
        "Parameters: query: what to look for, sort."
    )
    assert embedded_text(SEARCH, "s", ["a", "b"]) == embedded_text(SEARCH, "s", ["b", "a"])
    assert " Tags: code. " in enriched_description(SEARCH, "s", ["code"])


def test_many_tags_do_not_displace_the_description() -> None:
    tags = [f"tag number {number}" for number in range(300)]
    assert "Description: Search code by topic." in embedded_text(SEARCH, "s", tags)
    assert len(embedded_text(SEARCH, "s", tags)) < len(embedded_text(SEARCH, "s")) + 600


def test_a_tool_without_tags_is_indexed_exactly_as_before_tags_were_searched() -> None:
    """Other values would embed every tool of every user again."""
    assert documents.ENRICHMENT_VERSION == 3
    assert index_hash(SEARCH, "git-hub") == "e9381b2738563459cdc02a41bb2bdbeaf29f2573189858492c20b8cf89ff4c43"
    assert embedded_text(SEARCH, "git-hub") == (
        "Tool: search repositories. Server: git hub. Description: Search code by topic. "
        "Parameters: query: what to look for, sort."
    )
    lexical = lexical_vector(SEARCH, "git-hub", 384).to_text().encode()
    assert hashlib.sha256(lexical).hexdigest() == "c37b7d6193bc9b9737db07901381ed0147c7f5e2457b85adae3b4033429a97cd"


def test_the_title_replaces_the_name() -> None:
    assert embedded_text(make_tool("srch", title="Search everything"), "s") == "Tool: Search everything. Server: s."


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("find_user", "search"),
        ("getOrCreateIssue", "read, create"),
        ("rename-branch", "update"),
        ("delete_all", "delete"),
        ("send_mail", "send"),
        ("execute", "run"),
        ("gettysburg", None),
    ],
)
def test_capabilities_come_from_the_verbs_in_the_name(name: str, capabilities: str | None) -> None:
    expected = "" if capabilities is None else f" Capabilities: {capabilities}."
    tool = make_tool(name)
    assert enriched_description(tool, "s").removeprefix(embedded_text(tool, "s")) == expected


@pytest.mark.parametrize("nested", [None, [], "x", {}, 7])
def test_invalid_nested_properties_add_no_parameters(nested: Any) -> None:
    text = embedded_text(with_properties({"a": {"type": "object", "properties": nested}}), "s")
    assert text == "Tool: a. Server: s. Parameters: a."


def test_parameters_without_a_valid_description_are_listed_by_name() -> None:
    properties = {
        "a": True,
        "b": None,
        "c": {"description": 7},
        "d": {"description": " "},
        "e": {"description": "fine"},
    }
    assert "Parameters: a, b, c, d, e: fine." in embedded_text(with_properties(properties), "s")


@pytest.mark.parametrize("word", ["word ", "größe ", "語"])
def test_a_long_description_is_truncated_before_embedding(word: str) -> None:
    text = embedded_text(replace(SEARCH, description=word * 10_000), "s")
    assert len(text.encode()) <= MAX_EMBEDDED_BYTES
    assert text.startswith(f"Tool: search repositories. Server: s. Description: {word}{word}")


def test_the_enriched_description_is_not_truncated() -> None:
    long = replace(SEARCH, description="word " * 10_000 + "at the very end")
    enriched = enriched_description(long, "s")
    assert "at the very end. Parameters: query: what to look for, sort. Capabilities: search." in enriched


CHANGES: list[dict[str, Any]] = [
    {"name": "search_repositorie"},
    {"title": "Search"},
    {"description": "Search code by topic"},
    {"input_schema": {**SEARCH.input_schema, "required": ["query"]}},
    {"output_schema": None},
    {"output_schema": {"type": "array"}},
    {"annotations": None},
    {"annotations": {"readOnlyHint": False}},
    {"meta": None},
    {"meta": {"vendor": "y"}},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_change_of_any_field_changes_the_hash(changes: dict[str, Any]) -> None:
    assert index_hash(replace(SEARCH, **changes), "github") != index_hash(SEARCH, "github")


def test_the_server_name_and_the_enrichment_version_are_part_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = index_hash(SEARCH, "github")
    assert index_hash(SEARCH, "gitlab") != before
    monkeypatch.setattr(documents, "ENRICHMENT_VERSION", documents.ENRICHMENT_VERSION + 1)
    assert index_hash(SEARCH, "github") != before


def test_tags_are_part_of_the_hash_in_any_order() -> None:
    tagged = index_hash(SEARCH, "github", ["code", "web"])
    assert tagged == index_hash(SEARCH, "github", ["web", "code"])
    assert len({tagged, index_hash(SEARCH, "github"), index_hash(SEARCH, "github", ["code"])}) == 3


def test_known_examples_are_part_of_the_hash_of_a_tool_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    before = index_hash(SEARCH, "github", [], ["find a repo", "who wrote this"])
    others = {index_hash(SEARCH, "github", [], examples) for examples in ([], ["find a repo"])}
    assert len({before, *others}) == 3
    assert index_hash(SEARCH, "github", [], []) == index_hash(SEARCH, "github")
    monkeypatch.setattr(documents, "EXAMPLES_VERSION", documents.EXAMPLES_VERSION + 1)
    assert index_hash(SEARCH, "github", [], ["find a repo", "who wrote this"]) != before
    assert {index_hash(SEARCH, "github")} < others


def test_words_of_known_examples_are_searchable_and_count_half() -> None:
    plain, known = (lexical_vector(SEARCH, "github", 384, (), examples) for examples in ((), ["where are my forks"]))
    assert find_matching_words("forks", plain) == []
    assert find_matching_words("forks", known) == ["forks"]
    described = lexical_vector(replace(SEARCH, description=f"{SEARCH.description} where are my forks"), "github", 384)
    assert get_weight(known, "fork") < get_weight(described, "fork")


def get_weight(vector: SparseVector, term: str) -> float:
    [term_id] = query_term_ids(term)
    weights: dict[int, float] = dict(zip(vector.indices(), vector.values(), strict=True))
    return weights[term_id]


def test_equal_definitions_have_equal_hashes() -> None:
    assert index_hash(replace(SEARCH), "github") == index_hash(SEARCH, "github")


def test_key_order_and_white_space_of_the_request_do_not_change_the_hash() -> None:
    sent = b'{"name":"a","inputSchema":{"type":"object","properties":{"x":{"type":"string"},"y":{}}}}'
    reordered = b"""
        { "inputSchema" : {"properties": { "y": {}, "x": {"type": "string"} }, "type" : "object"}, "name": "a" }
    """
    first, second = (parse_tool(parse_json(body)).definition for body in (sent, reordered))
    assert index_hash(first, "s") == index_hash(second, "s")
    assert first.fingerprint() == second.fingerprint()


def shuffle_keys(value: Any, chance: random.Random) -> Any:
    """Return the same value with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffle_keys(value[key], chance) for key in keys}
    return [shuffle_keys(item, chance) for item in value] if isinstance(value, list) else value


@settings(max_examples=40)
@given(st.dictionaries(texts, json_values, max_size=6), st.randoms(use_true_random=False))
def test_no_reordering_of_keys_changes_the_hash(schema: dict[str, Any], chance: random.Random) -> None:
    tool = replace(SEARCH, input_schema=schema, annotations=schema, icons=[schema], execution=schema)
    shuffled = shuffle_keys(schema, chance)
    other = replace(SEARCH, input_schema=shuffled, annotations=shuffled, icons=[shuffled], execution=shuffled)
    assert index_hash(tool, "s") == index_hash(other, "s")
    assert tool.fingerprint() == other.fingerprint()


@settings(max_examples=40)
@given(st.dictionaries(texts, json_values, max_size=6))
def test_a_definition_read_from_the_database_has_the_same_hash(schema: dict[str, Any]) -> None:
    """The columns are written and read with the json module of Python."""
    stored = replace(SEARCH, input_schema=json.loads(json.dumps(schema)))
    assert index_hash(replace(SEARCH, input_schema=schema), "s") == index_hash(stored, "s")


def test_the_content_hash_depends_on_definition_and_model() -> None:
    hashes = {content_hash(index, model) for index in ("a", "b") for model in ("local:x", "openai:x")}
    assert len(hashes) == 4
    assert content_hash("a", "local:x") == content_hash("a", "local:x")


def test_words_of_name_server_description_parameters_and_tags_are_searchable() -> None:
    size = len(lexical_vector(SEARCH, "github", 384).indices())
    assert len(lexical_vector(SEARCH, "git hub enterprise", 384).indices()) > size
    assert len(lexical_vector(make_tool("search_repositories"), "github", 384).indices()) < size
    assert find_matching_words("bills, webs", lexical_vector(SEARCH, "github", 384, ["billing", "web-search"])) == [
        "bills",
        "webs",
    ]
