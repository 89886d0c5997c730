"""Tests of the meta-tools: the token cost of their list, their results, and what they hide."""

import pytest
from jsonschema import Draft202012Validator

from app.auth.permissions import Permission
from app.mcp_server.meta_tools import ALL_TOOLS, BASIC_TOOLS, MetaTool
from app.text.strict_json import Json

BASIC_NAMES = ["tool_discovery", "tool_execute"]
ALL_NAMES = [*BASIC_NAMES, "list_servers", "list_tools", "get_tool_details", "search_tools"]
PERMISSIONS = {
    "tool_discovery": Permission.DISCOVER,
    "tool_execute": Permission.EXECUTE,
    "list_servers": Permission.READ_TOOLS,
    "list_tools": Permission.READ_TOOLS,
    "get_tool_details": Permission.READ_TOOLS,
    "search_tools": Permission.DISCOVER,
}


@pytest.mark.parametrize("meta_tool", ALL_TOOLS, ids=ALL_NAMES)
def test_every_meta_tool_has_a_description_valid_schemas_and_annotations(meta_tool: MetaTool) -> None:
    definition = meta_tool.definition
    assert definition["name"] == meta_tool.name
    assert len(definition["description"]) > 20
    for name in definition.keys() & {"inputSchema", "outputSchema"}:
        Draft202012Validator.check_schema(definition[name])
        assert definition[name]["type"] == "object"
    assert definition.get("annotations") == (None if meta_tool.name == "tool_execute" else {"readOnlyHint": True})


def test_all_tools_begin_with_the_basic_tools() -> None:
    assert [meta_tool.name for meta_tool in BASIC_TOOLS] == BASIC_NAMES
    assert list(ALL_TOOLS[:2]) == list(BASIC_TOOLS)
    assert [meta_tool.name for meta_tool in ALL_TOOLS] == ALL_NAMES


@pytest.mark.parametrize(
    ("sent", "coerced"),
    [
        ({"query": "", "describe": ["a.b"]}, {"describe": ["a.b"]}),
        ({"query": ["x"], "describe": ""}, {"query": ["x"]}),
        ({"query": " ", "describe": "a.b"}, {"describe": ["a.b"]}),
        ({"query": ["x"], "detail": ""}, {"query": ["x"]}),
        ({"query": "", "describe": ""}, {"query": []}),
        ({"query": ["x"], "detail": "full", "context": ""}, {"query": ["x"], "detail": "full", "context": ""}),
    ],
    ids=str,
)
def test_an_empty_text_stands_for_an_argument_that_is_not_used(sent: Json, coerced: Json) -> None:
    assert BASIC_TOOLS[0]._coerce_arguments(sent) == coerced


def test_every_meta_tool_declares_its_permission() -> None:
    assert {meta_tool.name: meta_tool.permission for meta_tool in ALL_TOOLS} == PERMISSIONS
