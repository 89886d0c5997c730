from dataclasses import replace
from typing import Any

import pytest

from app.mcp_types import ToolDefinition, guess_transport

TOOL = ToolDefinition(
    name="read_file",
    title="Read file",
    description="Read a file.",
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}},
    output_schema={"type": "object"},
    annotations={"readOnlyHint": True},
    meta={"vendor": "x"},
    icons=[{"src": "https://example.com/a.png"}],
    execution={"taskSupport": "optional"},
)


def test_a_tool_is_rendered_with_mcp_names_and_without_missing_fields() -> None:
    bare = replace(TOOL, title=None, output_schema=None, annotations=None, meta=None, icons=None, execution=None)
    assert bare.as_mcp() == {"name": "read_file", "description": "Read a file.", "inputSchema": TOOL.input_schema}
    assert TOOL.as_mcp().keys() == {
        "name",
        "title",
        "description",
        "inputSchema",
        "outputSchema",
        "annotations",
        "_meta",
        "icons",
        "execution",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "read_files"},
        {"title": None},
        {"description": "Read a file!"},
        {"input_schema": {"type": "object", "properties": {}}},
        {"output_schema": None},
        {"annotations": {"readOnlyHint": False}},
        {"meta": None},
        {"icons": None},
        {"execution": {"taskSupport": "forbidden"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_any_changed_field_changes_the_fingerprint(changes: dict[str, Any]) -> None:
    assert replace(TOOL, **changes).fingerprint() != TOOL.fingerprint()


def test_a_reordered_schema_does_not_change_the_fingerprint() -> None:
    reordered = {"properties": {"path": {"type": "string"}}, "type": "object"}
    assert replace(TOOL, input_schema=reordered).fingerprint() == TOOL.fingerprint()


def test_a_hash_of_version_1_covers_neither_icons_nor_execution() -> None:
    bare = TOOL.without_icons_and_execution()
    assert TOOL.fingerprint_of_version_1() == bare.fingerprint() != TOOL.fingerprint()
    assert replace(TOOL, title=None).fingerprint_of_version_1() != TOOL.fingerprint_of_version_1()


@pytest.mark.parametrize(
    ("url", "transport"),
    [
        ("http://127.0.0.1:3002/sse", "sse"),
        ("https://mcp.example.com/v1/sse/?key=a/b#c", "sse"),
        ("https://mcp.example.com/mcp", "streamable_http"),
        ("https://mcp.example.com/mcp?next=/sse", "streamable_http"),
        ("https://mcp.example.com/essse", "streamable_http"),
        ("https://mcp.example.com/sse/mcp", "streamable_http"),
        ("https://sse", "streamable_http"),
        ("https://[/", "streamable_http"),
    ],
)
def test_the_transport_is_guessed_from_the_path_of_the_url(url: str, transport: str) -> None:
    assert guess_transport(url) == transport
