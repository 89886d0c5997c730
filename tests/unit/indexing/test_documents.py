import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.indexing import documents
from app.indexing.documents import (
    MAX_EMBEDDED_BYTES,
    content_hash,
    embedded_text,
    enriched_description,
    index_hash,
    lexical_vector,
    text_hash,
)
from app.indexing.parsing import read_tool as read_listed
from app.mcp_types import ToolDefinition
from app.text.strict_json import parse_json
from tests.support.strategies import json_values, texts


def read_tool(raw: dict[str, Any]) -> ToolDefinition:
    return read_listed(raw).definition


SEARCH = read_tool(
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
)


def named(name: str, **fields: Any) -> ToolDefinition:
    return read_tool({"name": name, **fields})


def with_properties(properties: Any) -> ToolDefinition:
    return named("a", inputSchema={"type": "object", "properties": properties})


def test_the_enriched_description_has_every_part_in_its_place() -> None:
    assert enriched_description(SEARCH, "git-hub") == (
        "Tool: search repositories. Server: git hub. Description: Search code by topic. "
        "Parameters: query: what to look for, sort. Capabilities: search."
    )


def test_what_is_embedded_is_the_same_without_the_capabilities() -> None:
    assert enriched_description(SEARCH, "git-hub") == embedded_text(SEARCH, "git-hub") + " Capabilities: search."


def test_parts_that_are_empty_are_left_out() -> None:
    assert enriched_description(named("ping", description="  "), "net") == "Tool: ping. Server: net."


def test_a_title_is_spoken_instead_of_the_name() -> None:
    assert embedded_text(named("srch", title="Search everything"), "s") == "Tool: Search everything. Server: s."


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
    tool = named(name)
    assert enriched_description(tool, "s").removeprefix(embedded_text(tool, "s")) == expected


@pytest.mark.parametrize("nested", [None, [], "x", {}, 7])
def test_a_part_with_no_proper_properties_has_no_parameters(nested: Any) -> None:
    shown = embedded_text(with_properties({"a": {"type": "object", "properties": nested}}), "s")
    assert shown == "Tool: a. Server: s. Parameters: a."


def test_odd_parameter_definitions_are_shown_by_name_alone() -> None:
    odd = {"a": True, "b": None, "c": {"description": 7}, "d": {"description": " "}, "e": {"description": "fine"}}
    assert "Parameters: a, b, c, d, e: fine." in embedded_text(with_properties(odd), "s")


@pytest.mark.parametrize("word", ["word ", "größe ", "語"])
def test_a_long_description_is_embedded_only_up_to_the_limit(word: str) -> None:
    text = embedded_text(replace(SEARCH, description=word * 10_000), "s")
    assert len(text.encode()) <= MAX_EMBEDDED_BYTES
    assert text.startswith(f"Tool: search repositories. Server: s. Description: {word}{word}")


def test_the_enriched_description_is_kept_in_full() -> None:
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
def test_any_field_changed_alone_changes_the_hash(changes: dict[str, Any]) -> None:
    assert index_hash(replace(SEARCH, **changes), "github") != index_hash(SEARCH, "github")


def test_the_servers_name_and_the_enrichments_version_are_part_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = index_hash(SEARCH, "github")
    assert index_hash(SEARCH, "gitlab") != before
    monkeypatch.setattr(documents, "ENRICHMENT_VERSION", documents.ENRICHMENT_VERSION + 1)
    assert index_hash(SEARCH, "github") != before


def test_the_same_definition_has_the_same_hash_every_time() -> None:
    assert index_hash(replace(SEARCH), "github") == index_hash(SEARCH, "github")


def test_key_order_and_white_space_of_what_was_sent_do_not_change_the_hash() -> None:
    sent = b'{"name":"a","inputSchema":{"type":"object","properties":{"x":{"type":"string"},"y":{}}}}'
    reordered = b"""
        { "inputSchema" : {"properties": { "y": {}, "x": {"type": "string"} }, "type" : "object"}, "name": "a" }
    """
    first, second = (read_tool(parse_json(body)) for body in (sent, reordered))
    assert index_hash(first, "s") == index_hash(second, "s")
    assert first.fingerprint() == second.fingerprint()


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same value with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffled(value[key], chance) for key in keys}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


@settings(max_examples=40)
@given(st.dictionaries(texts, json_values, max_size=6), st.randoms(use_true_random=False))
def test_no_reordering_of_keys_changes_the_hash(schema: dict[str, Any], chance: random.Random) -> None:
    tool = replace(SEARCH, input_schema=schema, annotations=schema)
    other = replace(SEARCH, input_schema=shuffled(schema, chance), annotations=shuffled(schema, chance))
    assert index_hash(tool, "s") == index_hash(other, "s")


@settings(max_examples=40)
@given(st.dictionaries(texts, json_values, max_size=6))
def test_what_the_database_gives_back_has_the_hash_of_what_was_sent(schema: dict[str, Any]) -> None:
    """The columns are written and read by Python's own json."""
    stored = replace(SEARCH, input_schema=json.loads(json.dumps(schema)))
    assert index_hash(replace(SEARCH, input_schema=schema), "s") == index_hash(stored, "s")


def test_the_content_hash_depends_on_definition_and_model() -> None:
    hashes = {content_hash(index, model) for index in ("a", "b") for model in ("local:x", "openai:x")}
    assert len(hashes) == 4
    assert content_hash("a", "local:x") == content_hash("a", "local:x")


def test_the_text_hash_tells_texts_apart() -> None:
    assert text_hash("Grüße") == text_hash("Grüße")
    assert text_hash("a") != text_hash("b")
    assert len(text_hash("a")) == 32


def test_words_of_name_server_description_and_parameters_are_searchable() -> None:
    size = len(lexical_vector(SEARCH, "github", 384).indices())
    assert len(lexical_vector(SEARCH, "git hub enterprise", 384).indices()) > size
    assert len(lexical_vector(named("search_repositories"), "github", 384).indices()) < size
