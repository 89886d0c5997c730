import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from app.errors import InvalidInput
from app.text.strict_json import ToolDefinition, canonical_json, parse_json, strings_in
from tests.support.json_strategies import json_values

TOOL = ToolDefinition(
    name="read_file",
    title="Read file",
    description="Read a file.",
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}},
    output_schema={"type": "object"},
    annotations={"readOnlyHint": True},
    meta={"vendor": "x"},
)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        rb'{"a": "\ud800"}',
        rb'{"a": "\udc00 tail"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\xff"}',
        rb'{"a": "\u0000"}',
        rb'{"\u0000": 1}',
        rb'[[{"deep": ["\u0000"]}]]',
        b'{"a": "\0"}',
        b'{"a": 1,}',
        b'{"a": 1} {}',
        b"",
        b"{",
        b"[" * 5_000 + b"]" * 5_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_not_strict_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_json(body)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": 1.5}', {"a": 1.5}),
        (b'{"a": 1e300}', {"a": 1e300}),
        (rb'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        ('{"a": "Grüße"}'.encode(), {"a": "Grüße"}),
        (rb'{"a": "\\u0000"}', {"a": r"\u0000"}),
        (rb'{"a": "\\\\u0000"}', {"a": r"\\u0000"}),
        (rb'{"a": "\u0001"}', {"a": "\x01"}),
        (b'{"a": "NaN"}', {"a": "NaN"}),
        (b"[" * 500 + b"]" * 500, json.loads("[" * 500 + "]" * 500)),
    ],
    ids=lambda item: repr(item)[:32],
)
def test_what_is_strict_json_is_read_as_it_is(body: bytes, value: Any) -> None:
    assert parse_json(body) == value


def test_a_nul_behind_an_escaped_backslash_is_still_found() -> None:
    with pytest.raises(InvalidInput, match="NUL"):
        parse_json(rb'{"harmless": "\\u0000", "harmful": "\\\u0000"}')


@given(json_values)
def test_any_json_that_python_writes_is_read_back_alike(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def test_every_string_and_key_is_seen_however_deep() -> None:
    value = {"a": ["b", {"c": "d"}], "e": [[["f"]]], "g": 1, "h": None}
    assert sorted(strings_in(value)) == ["a", "b", "c", "d", "e", "f", "g", "h"]


def test_strings_are_found_far_below_the_recursion_limit() -> None:
    value: Any = "bottom"
    for _ in range(100_000):
        value = [value]
    found = list(strings_in(value))
    while isinstance(value, list):  # taken apart step by step: to free it whole would recurse
        value = value.pop()
    assert found == ["bottom"]


def test_key_order_and_white_space_do_not_count() -> None:
    assert canonical_json(parse_json(b'{"a": 1, "b": {"c": 2, "d": 3}}')) == canonical_json(
        parse_json(b'{\n "b":{"d":3,"c":2},"a":1 }')
    )


def test_the_order_of_a_list_counts() -> None:
    assert canonical_json(["a", "b"]) != canonical_json(["b", "a"])


def test_a_tool_is_shown_with_the_names_of_mcp_and_without_what_it_has_not() -> None:
    bare = replace(TOOL, title=None, output_schema=None, annotations=None, meta=None)
    assert bare.as_mcp() == {"name": "read_file", "description": "Read a file.", "inputSchema": TOOL.input_schema}
    assert TOOL.as_mcp().keys() == {
        "name",
        "title",
        "description",
        "inputSchema",
        "outputSchema",
        "annotations",
        "_meta",
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
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_any_changed_field_changes_the_fingerprint(changes: dict[str, Any]) -> None:
    assert replace(TOOL, **changes).fingerprint() != TOOL.fingerprint()


def test_a_reordered_schema_does_not_change_the_fingerprint() -> None:
    reordered = {"properties": {"path": {"type": "string"}}, "type": "object"}
    assert replace(TOOL, input_schema=reordered).fingerprint() == TOOL.fingerprint()
