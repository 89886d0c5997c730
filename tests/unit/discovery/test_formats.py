"""Definitions in the formats of model APIs: valid, unique names, and stable bytes."""

import re
from dataclasses import replace

import orjson
import pytest

from app.catalog.definitions import ToolDefinitionView
from app.catalog.tool_names import make_aliases
from app.discovery.formats import Format, render_definitions

TOOL = ToolDefinitionView(
    tool_id="11111111-2222-3333-4444-555555555555",
    server_id="server",
    server_name="codehub",
    name="search_issues",
    title="Search issues",
    description="Finds issues.",
    input_schema='{"type": "object", "z": 1, "a": 2}',
    output_schema='{"type": "object"}',
    annotations='{"readOnlyHint": true}',
    tokens=10,
    has_shared_name=False,
    icons='[{"src": "https://example.com/issues.png"}]',
    meta='{"ui": {"resourceUri": "ui://issues/list.html"}}',
)
VALID = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


def test_a_valid_and_unique_name_is_kept() -> None:
    assert make_aliases([TOOL]) == ["search_issues"]


@pytest.mark.parametrize("name", ["a.b.c", "a:b:c", "with space", "ü", "x" * 128, "天气", "%", "_" * 70])
def test_other_names_are_made_valid(name: str) -> None:
    [alias] = make_aliases([replace(TOOL, name=name)])
    assert VALID.match(alias)


def test_two_tools_with_one_name_get_distinct_names_that_start_with_their_servers() -> None:
    here = replace(TOOL, name="search", has_shared_name=True)
    there = replace(here, tool_id="another", server_name="team chat")
    names = make_aliases([here, there])
    assert len(set(names)) == 2
    assert names[0].startswith("codehub_search_")
    assert names[1].startswith("team_chat_search_")


def test_names_that_differ_only_in_invalid_characters_stay_distinct() -> None:
    names = make_aliases([replace(TOOL, tool_id=f"id-{i}", name=name) for i, name in enumerate(["a.b", "a:b", "a b"])])
    assert len(set(names)) == 3


def test_an_alias_does_not_depend_on_the_rest_of_the_answer() -> None:
    shared = replace(TOOL, tool_id="another", name="search", has_shared_name=True)
    assert make_aliases([shared])[0] == make_aliases([TOOL, shared])[1]


def test_a_core_tool_keeps_its_name_and_the_other_tool_is_renamed() -> None:
    core = replace(TOOL, tool_id="core", server_id=None, server_name=None)
    names = make_aliases([TOOL, core])
    assert names[1] == "search_issues"
    assert names[0] != "search_issues"


SCHEMA = {"type": "object", "z": 1, "a": 2}


@pytest.mark.parametrize(
    ("api_format", "expected"),
    [
        (
            "mcp",
            {
                "name": "n",
                "title": "Search issues",
                "description": "Finds issues.",
                "inputSchema": SCHEMA,
                "outputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": True},
                "icons": [{"src": "https://example.com/issues.png"}],
                "_meta": {"ui": {"resourceUri": "ui://issues/list.html"}},
            },
        ),
        (
            "openai",
            {"type": "function", "function": {"name": "n", "description": "Finds issues.", "parameters": SCHEMA}},
        ),
        (
            "openai_responses",
            {"type": "function", "name": "n", "description": "Finds issues.", "parameters": SCHEMA, "strict": False},
        ),
        ("anthropic", {"name": "n", "description": "Finds issues.", "input_schema": SCHEMA}),
    ],
)
def test_each_api_gets_its_own_format(api_format: Format, expected: dict[str, object]) -> None:
    [definition] = render_definitions([TOOL], ["n"], api_format)
    assert orjson.loads(definition) == expected


def test_the_schema_is_passed_on_byte_for_byte() -> None:
    [definition] = render_definitions([TOOL], ["n"], "anthropic")
    assert TOOL.input_schema.encode() in definition
