"""Tests of signatures: JSON schemas as short lines."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.signatures import CUT, MAX_LENGTH, format_signature
from tests.support.json_strategies import json_values, scalars, texts

STRING = {"type": "string"}


def format_one(schema: Any, definitions: Any = None, *, required: bool = True) -> str:
    """Return how the type of a parameter is written."""
    names = ["x"] if required else []
    root = {"type": "object", "properties": {"x": schema}, "required": names, "$defs": definitions}
    text = format_signature("f", root).text
    return text.removeprefix("f(x: " if required else "f(x?: ").removesuffix(")")


def test_a_signature_has_required_parameters_first_and_marks_the_others() -> None:
    schema = {
        "type": "object",
        "properties": {
            "state": {"enum": ["open", "closed"]},
            "query": STRING,
            "labels": {"type": "array", "items": STRING},
            "assignee": {"type": "object", "properties": {"login": STRING}, "required": ["login"]},
        },
        "required": ["query"],
    }
    signature = format_signature("search_issues", schema)
    assert signature.text == (
        'search_issues(query: string, state?: "open"|"closed", labels?: string[], assignee?: {login: string})'
    )
    assert not signature.is_cut


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, "any"),
        (True, "any"),
        (False, "never"),
        ("nonsense", "any"),
        ({"type": "boolean"}, "boolean"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"anyOf": [STRING, {"type": "null"}]}, "string|null"),
        ({"oneOf": [STRING, {"type": "integer"}, STRING]}, "string|integer"),
        ({"anyOf": [STRING, {}]}, "any"),
        ({"const": "a"}, '"a"'),
        ({"enum": ["a", 1, None, True, 1.5]}, '"a"|1|null|true|1.5'),
        ({"type": "string", "format": "date-time"}, "string<date-time>"),
        ({"type": "string", "format": "no format\n"}, "string"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "string/^[a-z]+$/"),
        ({"type": "string", "minLength": 1, "maxLength": 80}, "string(..80)"),
        ({"type": "string", "minLength": 8, "maxLength": 100_000}, "string(8..)"),
        ({"type": "integer", "minimum": 1, "maximum": 100}, "integer 1..100"),
        ({"type": "number", "exclusiveMinimum": 0}, "number >0"),
        ({"type": "number", "minimum": 0.5, "multipleOf": 0.5}, "number 0.5.. step 0.5"),
        ({"type": "array"}, "any[]"),
        ({"items": {"type": "integer", "minimum": 1}}, "(integer 1..)[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1}, '("a"|"b")[1..]'),
        ({"items": {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}}, "({a?: any}|{b?: any})[]"),
        ({"type": "array", "prefixItems": [STRING, {"type": "integer"}]}, "[string, integer]"),
        ({"type": "object"}, "object"),
        ({"type": "object", "additionalProperties": STRING}, "{[key]: string}"),
        ({"properties": {"a b": STRING, "c-d": STRING}, "required": ["c-d"]}, '{c-d: string, "a b"?: string}'),
        (
            {"allOf": [{"properties": {"a": STRING}}, {"properties": {"b": {}}, "required": ["b"]}]},
            "{b: any, a?: string}",
        ),
        ({"$ref": "#/$defs/Point", "description": "where"}, "{x: number}"),
        ({"type": "array", "items": {"$ref": "#/$defs/Point"}}, "{x: number}[]"),
        ({"$ref": "#/$defs/A%20B"}, "string"),
        ({"$ref": "#/$defs/Union/anyOf/1"}, "{x: number}"),
        ({"$ref": "#/$defs/Chain 0"}, "string"),
        ({"$ref": "#/$defs/Point", "properties": {"y": STRING}, "required": ["y"]}, "{x: number, y: string}"),
        ({"items": [STRING, {"type": "integer"}]}, "[string, integer]"),
        ({"type": "array", "prefixItems": [STRING] * 21}, f"[{'string, ' * 20}{CUT}]"),
    ],
)
def test_a_type_is_written_as_in_typescript(schema: Any, expected: str) -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    chain = {f"Chain {number}": {"$ref": f"#/$defs/Chain%20{number + 1}"} for number in range(9)}
    definitions = {"Point": point, "A B": STRING, "Union": {"anyOf": [STRING, point]}, **chain, "Chain 9": STRING}
    assert format_one(schema, definitions) == expected


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/Missing",
        "elsewhere.json",
        "#anchor",
        "#/$defs/Loop",
        "#/$defs/List/9",
        "#/$defs/List/x",
        "#/$defs/List",
    ],
)
def test_a_reference_that_leads_nowhere_is_marked(reference: str) -> None:
    definitions = {"Loop": {"$ref": "#/$defs/Loop"}, "List": [STRING], "anchored": {"$anchor": "anchor", **STRING}}
    assert format_one({"$ref": reference}, definitions) == CUT
    assert format_one({"$ref": reference, "properties": {"a": STRING}}, definitions) == f"{{a?: string, {CUT}}}"


INHERITED = {
    "A": {"allOf": [{"$ref": "#/$defs/B"}, {"properties": {"a": STRING}, "required": ["a"]}]},
    "B": {"allOf": [{"properties": {"b": STRING, "kind": STRING}, "required": ["b", "kind"]}]},
}


def test_properties_are_inherited_through_references() -> None:
    child = {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"kind": {"const": "child"}}}]}
    expected = 'b: string, kind: "child", a: string'
    assert format_signature("f", child | {"$defs": INHERITED}).text == f"f({expected})"
    assert format_one(child, INHERITED) == f"{{{expected}}}"


def test_no_part_of_an_all_of_is_dropped() -> None:
    parts = [{"properties": {f"p{number}": STRING}, "required": [f"p{number}"]} for number in range(25)]
    assert format_signature("f", {"allOf": parts}).text.count("p") == 25


def test_parts_that_include_themselves_are_marked() -> None:
    itself = {"properties": {"a": STRING}, "allOf": [{"$ref": "#/$defs/Again"}]}
    assert format_one({"$ref": "#/$defs/Again"}, {"Again": itself}) == f"{{a?: string, {CUT}}}"


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ({"enum": ["a", "b"]}, {"enum": ["b", "c"]}, '"b"'),
        ({"enum": [1]}, {"enum": [True]}, "never"),
        ({"type": ["string", "null"]}, {"type": ["string", "integer"]}, "string"),
        ({"type": "number"}, {"type": "integer"}, "integer"),
        ({"type": "integer"}, {"type": "number"}, "integer"),
        ({"type": "string"}, {"type": "null"}, "never"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, {"minimum": 3, "maximum": 7}, "integer 3..7"),
        ({"items": STRING}, {"items": {"maxLength": 5}}, "string(..5)[]"),
        ({"type": "string", "description": "a"}, {"description": "b"}, "string"),
        ({"type": "string", "pattern": "a"}, {"pattern": "b"}, CUT),
        ({"anyOf": [{"const": 1}, {"const": 2}]}, {"anyOf": [{"const": 2}]}, CUT),
        ({"type": "string"}, {"anyOf": [STRING, {"type": "null"}]}, "string"),
        ({"type": "string"}, False, CUT),
    ],
)
def test_a_value_that_must_be_valid_twice_is_written_as_narrow_or_marked(one: Any, two: Any, expected: str) -> None:
    assert format_one({"allOf": [one, two]}) == expected


@pytest.mark.parametrize("condition", [{"dependentRequired": {"a": ["b"]}}, {"if": {"required": ["a"]}}, {"not": {}}])
def test_conditions_of_an_inner_object_are_marked(condition: Any) -> None:
    inner = {"type": "object", "properties": {"a": STRING, "b": STRING}}
    assert format_one(inner | condition) == f"{{a?: string, b?: string, {CUT}}}"
    assert format_one(inner) == "{a?: string, b?: string}"


def test_both_kinds_of_alternatives_at_once_are_marked() -> None:
    assert format_one({"anyOf": [STRING, {"type": "null"}], "oneOf": [STRING]}) == CUT


def test_a_parameter_that_may_be_left_out_need_not_be_null() -> None:
    optional = {"anyOf": [STRING, {"type": "null"}], "default": None}
    assert format_one(optional, required=False) == "string"
    assert format_one(optional) == "string|null"
    assert format_one({"type": "null"}, required=False) == "null"


def test_alternatives_of_the_whole_schema_are_shown() -> None:
    alternatives = [{"properties": {"url": STRING}, "required": ["url"]}, {"properties": {"path": STRING}}]
    assert format_signature("f", {"oneOf": alternatives}).text == "f({url: string}|{path?: string})"


def test_conditions_that_the_notation_lacks_are_marked() -> None:
    schema = {"properties": {"a": STRING, "b": STRING}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    signature = format_signature("f", schema)
    assert (signature.text, signature.is_cut) == (f"f(a?: string, b?: string, {CUT})", True)
    assert not format_signature("f", {"properties": schema["properties"]}).is_cut


def nest(levels: int) -> Any:
    return STRING if levels == 0 else {"type": "object", "properties": {"a": nest(levels - 1)}, "required": ["a"]}


def test_deep_types_are_cut() -> None:
    assert format_one(nest(4)) == "{a: {a: {a: {a: string}}}}"
    assert format_one(nest(5)) == f"{{a: {{a: {{a: {{a: {{{CUT}}}}}}}}}}}"


def test_a_long_optional_parameter_gives_way_before_the_others() -> None:
    large = {"type": "object", "properties": {f"field_{number}": nest(3) for number in range(30)}}
    schema = {"properties": {"large": large, "query": STRING, "limit": {"type": "integer"}}, "required": ["query"]}
    signature = format_signature("f", schema)
    assert signature.is_cut
    assert signature.text.startswith("f(query: string, large?: ")
    assert signature.text.endswith("limit?: integer)")
    required = format_signature("f", {"properties": {"large": large}, "required": ["large"]})
    assert len(required.text) > MAX_LENGTH, "a required one has more room"


def test_names_of_parameters_are_shown_while_there_is_room() -> None:
    schema = {"properties": {f"field_{number}": STRING for number in range(100)}}
    signature = format_signature("f", schema)
    assert signature.text.endswith(f", {CUT})")
    assert MAX_LENGTH - 30 < len(signature.text) <= MAX_LENGTH + len("f()")
    assert format_signature("f", {"properties": dict(list(schema["properties"].items())[:20])}).is_cut is False


def test_the_work_is_bounded_for_references_that_multiply() -> None:
    definitions = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 20} for n in range(30)}
    text = format_one({"$ref": "#/$defs/d0"}, definitions)
    assert CUT in text
    nested: Any = STRING
    for _ in range(400):
        nested = {"anyOf": [nested]}
    assert format_one(nested) == CUT


_AGAIN = [{"$ref": "#/$defs/again"}] * 20
_LARGE = {"required": ["r"] * 50_000}
_WIDE = {f"key_{number}": number for number in range(20_000)}


@pytest.mark.parametrize(
    "definitions",
    [
        {"large": _LARGE, "again": {"allOf": [{"$ref": "#/$defs/large"}] * 20, "anyOf": _AGAIN}},
        {"again": {"type": "object", "properties": {f"p{n}": _AGAIN[0] for n in range(20)}, **_LARGE}},
        {"wide": _WIDE, "again": {"anyOf": [{"$ref": "#/$defs/wide"}, *_AGAIN]}},
        {"again": {"anyOf": [{"$ref": "#/" + "a/" * 100_000}, *_AGAIN]}},
        {"again": {"type": ["string"] * 50_000, "allOf": [{"type": ["null"] * 50_000}, *_AGAIN]}},
        {"again": {"enum": ["x" * 100_000], "allOf": [{"enum": ["x" * 100_000]}, *_AGAIN]}},
        {"again": {"properties": {f"p{n}": _AGAIN[0] for n in range(100)}, "allOf": _AGAIN}},
    ],
    ids=["merged lists", "objects", "wide parts", "long references", "types", "enums", "recursive parts"],
)
def test_the_work_is_bounded_for_large_parts_that_are_read_again_and_again(definitions: dict[str, Any]) -> None:
    """Each of these is a definition that the index accepts. Without the bound, the first takes a minute."""
    started = time.process_time()
    signature = format_signature("f", {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/again"}}})
    assert time.process_time() - started < 1
    assert signature.is_cut


def test_many_properties_in_parts_that_are_merged_are_shown() -> None:
    parts = {f"d{n}": {"properties": {f"p{n}_{m}": STRING for m in range(8)}} for n in range(4)}
    schema = {"$defs": parts, "allOf": [{"$ref": f"#/$defs/d{n}"} for n in range(4)]}
    signature = format_signature("f", schema)
    assert "p3_7?: string" in signature.text
    assert not signature.is_cut


_KEYWORDS = (
    "type properties required items prefixItems enum const anyOf oneOf allOf $ref format pattern minimum maximum "
    "minLength maxItems additionalProperties $defs not if"
).split()
_kinds = st.sampled_from(["string", "integer", "number", "object", "array", "boolean", "null", "other"])
_references = st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/items", "#/allOf/0", "x"])
_schemas = st.recursive(
    scalars | texts | _kinds | _references,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*_KEYWORDS, "a", "b"]) | texts, inner, max_size=5)
    ),
    max_leaves=40,
)


@given(_schemas | json_values)
def test_any_schema_has_a_short_signature_in_one_line(schema: Any) -> None:
    signature = format_signature("f", schema)
    assert len(signature.text) <= 2 * MAX_LENGTH + len("f()")
    assert "\n" not in signature.text
    assert signature.is_cut == (CUT in signature.text)
