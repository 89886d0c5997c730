"""Arguments against schemas: every error with its place, every dialect, and no schema that takes us down."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from app.errors import ArgumentsInvalid
from app.execution.validation import check_arguments, check_serializable, is_valid_schema
from tests.support.calls import Json, check, failed, succeeded
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, listener

PATIENCE_S = 3.0
"""Far above the budget, which is counted in time of computing: other tests compute too."""

DRAFTS = {
    "4": "http://json-schema.org/draft-04/schema#",
    "6": "http://json-schema.org/draft-06/schema#",
    "7": "http://json-schema.org/draft-07/schema#",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}


def of_a(schema: Any) -> Json:
    return {"type": "object", "properties": {"a": schema}}


def errors_of(schema: Json, arguments: Json) -> list[Json]:
    try:
        check(schema, arguments)
    except ArgumentsInvalid as error:
        return [dict(item) for item in error.errors or ()]
    return []


def places(schema: Json, arguments: Json) -> list[str]:
    return [".".join(map(str, item["loc"])) for item in errors_of(schema, arguments)]


ORDER = {
    "type": "object",
    "required": ["customer", "lines"],
    "additionalProperties": False,
    "properties": {
        "customer": {"type": "string", "minLength": 1},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "currency": {"enum": ["EUR", "USD"]},
    },
    "$defs": {
        "line": {
            "type": "object",
            "required": ["sku"],
            "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
        }
    },
}


def test_arguments_that_fit_pass() -> None:
    check(ORDER, {"customer": "c", "lines": [{"sku": "s", "count": 2}], "currency": "EUR"})


def test_every_error_is_told_with_its_place() -> None:
    arguments = {"lines": [{"sku": "s"}, {"count": 0}, {"sku": 7, "count": "x"}], "currency": "GBP", "extra": 1}
    found = errors_of(ORDER, arguments)
    assert sorted((".".join(map(str, item["loc"])), item["type"]) for item in found) == [
        ("arguments", "additionalProperties"),
        ("arguments", "required"),
        ("arguments.currency", "enum"),
        ("arguments.lines.1", "required"),
        ("arguments.lines.1.count", "minimum"),
        ("arguments.lines.2.count", "type"),
        ("arguments.lines.2.sku", "type"),
    ]
    assert all(item["msg"] for item in found)


def test_the_list_of_errors_and_their_length_are_bounded() -> None:
    found = errors_of(of_a({"items": {"type": "integer"}}), {"a": ["x" * 10_000] * 1_000})
    assert len(found) == 50
    assert max(len(item["msg"]) for item in found) == 300


@pytest.mark.parametrize("dialect", DRAFTS.values(), ids=DRAFTS.keys())
def test_each_dialect_knows_its_own_references_and_types(dialect: str) -> None:
    schema = {
        "$schema": dialect,
        **of_a({"$ref": "#/definitions/positive"}),
        "definitions": {"positive": {"type": "integer", "minimum": 1}},
    }
    assert places(schema, {"a": 1}) == []
    assert places(schema, {"a": 0}) == ["arguments.a"]
    assert places(schema, {"a": "1"}) == ["arguments.a"]


def test_what_the_dialects_disagree_on_is_read_as_each_of_them_does() -> None:
    """Draft 4 has a switch where the others have a limit; a limit there is no schema at all."""
    switch, limit = {"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}
    for draft, dialect in DRAFTS.items():
        assert is_valid_schema(json.dumps({"$schema": dialect, **of_a(switch)})) is (draft == "4")
        assert is_valid_schema(json.dumps({"$schema": dialect, **of_a(limit)})) is (draft != "4")
        refused = places({"$schema": dialect, **of_a(switch if draft == "4" else limit)}, {"a": 1})
        assert refused == ["arguments.a"]


def test_tuples_are_read_as_each_dialect_spells_them() -> None:
    for draft, dialect in DRAFTS.items():
        spelling = "prefixItems" if draft == "2020-12" else "items"
        schema = {"$schema": dialect, **of_a({spelling: [{"type": "string"}, {"type": "integer"}]})}
        assert places(schema, {"a": ["x", 1]}) == []
        assert places(schema, {"a": [1, "x"]}) == ["arguments.a.0", "arguments.a.1"]


@pytest.mark.parametrize("dialect", [None, "https://example.com/ours", "http://json-schema.org/schema#", "http://["])
def test_a_schema_that_names_no_known_dialect_is_read_as_the_newest(dialect: str | None) -> None:
    schema = of_a({"prefixItems": [{"type": "string"}]}) | ({} if dialect is None else {"$schema": dialect})
    assert places(schema, {"a": [1]}) == ["arguments.a.0"]
    assert places(schema, {"a": ["x"]}) == []


TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "children": {"items": {"$ref": "#/$defs/node"}}},
        }
    },
    **of_a({"$ref": "#/$defs/node"}),
}


def test_a_reference_in_a_circle_is_followed_as_far_as_the_arguments_go() -> None:
    assert places(TREE, {"a": {"name": "x", "children": [{"name": "y", "children": []}]}}) == []
    assert places(TREE, {"a": {"name": "x", "children": [{"name": "y", "children": [{}]}]}}) == [
        "arguments.a.children.0.children.0"
    ]


@pytest.mark.parametrize(
    "reference", ["#/$defs/a%20b", "#anchor", "https://example.com/root.json#/$defs/a%20b", "other.json"]
)
def test_references_within_the_schema_are_followed_in_every_spelling(reference: str) -> None:
    schema = {
        "$id": "https://example.com/root.json",
        **of_a({"$ref": reference}),
        "$defs": {
            "a b": {"type": "integer", "$anchor": "anchor"},
            "embedded": {"$id": "other.json", "type": "integer"},
        },
    }
    assert places(schema, {"a": 1}) == []
    assert places(schema, {"a": "1"}) == ["arguments.a"]


def test_what_a_reference_does_not_lead_to_is_left_to_the_server_and_the_rest_is_checked() -> None:
    for nowhere in (
        "#/$defs/missing",
        "#missing",
        "#/title",
        "#/required",
        "#/required/x",
        "#/required/9",
        "\\",
        "a:[",
    ):
        schema = {"title": "t", "required": ["b"], **of_a({"$ref": nowhere})}
        assert places(schema, {"a": 1, "b": 1}) == []
        assert places(schema, {"a": 1}) == ["arguments"]


@pytest.mark.parametrize("dialect", DRAFTS.values(), ids=DRAFTS.keys())
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef", "$schema", "$id"])
def test_nothing_is_ever_fetched(dialect: str, keyword: str) -> None:
    with listener() as somebody:
        address = f"http://127.0.0.1:{somebody.port}/schema.json"
        errors_of({"$schema": dialect, **of_a({keyword: address})}, {"a": 1})
        errors_of({"$schema": address, **of_a({"type": "integer"})}, {"a": 1})
        assert somebody.connects == 0


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": {"a": {"minimum": "1"}}},
        {"type": "object", "properties": []},
        {"$schema": []},
        {"$schema": {"a": 1}},
        {"$id": 5},
        {"$ref": 5},
        {"enum": "abc"},
    ],
    ids=str,
)
def test_a_schema_that_is_not_valid_checks_nothing(schema: Json) -> None:
    assert not is_valid_schema(json.dumps(schema))
    check(schema, {"a": 0})


def test_what_is_said_of_one_property_and_is_no_schema_leaves_the_others_checked() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "strin"}, "b": {"$ref": "#/$defs/count"}},
        "required": ["b"],
        "additionalProperties": False,
        "$defs": {"count": {"type": "integer"}},
    }
    assert not is_valid_schema(json.dumps(schema))
    assert places(schema, {"a": 1}) == ["arguments"]
    assert places(schema, {"a": 1, "b": "no"}) == ["arguments.b"]
    assert places(schema, {"b": 1, "c": 2}) == ["arguments"]
    check(schema, {"a": 1, "b": 2})


def test_a_pattern_that_python_cannot_read_does_not_make_a_schema_invalid() -> None:
    assert places(of_a({"pattern": r"^\p{Lu}"}) | {"required": ["b"]}, {"a": "x"}) == ["arguments.a", "arguments"]


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("^[a-z]+$", "abc", "abc\n"),
        ("b", "abc", "ac"),
        (r"^\d{3}$", "123", "１２３"),
        (r"^(https?)\:\/\/[^\s\/]+\/?$", "http://x/", "ftp://x/"),
        (r"^[\w.+-]+@\w+\.\w{2,}$", "a+b@c.de", "a@b"),
        ("^(a+)+$", "aaaa", "aaab"),
    ],
)
def test_patterns_are_searched_for_as_in_javascript(pattern: str, fits: str, fits_not: str) -> None:
    assert places(of_a({"pattern": pattern}), {"a": fits}) == []
    assert places(of_a({"pattern": pattern}), {"a": fits_not}) == ["arguments.a"]


@pytest.mark.parametrize("pattern", ["^(?=.*x)(?=.*y)", "(?<!a)b", r"(a)\1", "(", "a{99999999999}x|", "(?i"])
def test_a_pattern_that_only_other_engines_can_read_is_left_to_the_server(pattern: str) -> None:
    check(of_a({"pattern": pattern}), {"a": "neither"})
    check(of_a({"patternProperties": {pattern: True}, "additionalProperties": False}), {"a": {"neither": 1}})


def test_properties_are_known_by_name_or_pattern_or_are_additional() -> None:
    schema = {
        "properties": {"name": True},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
    }
    assert places(schema, {"name": 1, "x-a": 1, "other": "text"}) == []
    assert places(schema, {"name": 1, "x-a": "1", "other": 1}) == ["arguments.x-a", "arguments.other"]


def test_items_are_different_by_their_value() -> None:
    unique = of_a({"uniqueItems": True})
    doubled: list[Any]
    for different in ([1, True, "1", None], [0, False, ""], [{"a": 1}, {"a": 2}], [[1], [2]], [1, [1]]):
        assert places(unique, {"a": different}) == []
    for doubled in ([1, 1.0], ["x", "x"], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [[], []], [None, None]):
        assert places(unique, {"a": doubled}) == ["arguments.a"]
    assert places(of_a({"uniqueItems": False}), {"a": [1, 1]}) == []


def branching(keyword: str) -> Json:
    """Each step asks for the next one twice: 2 to the 60th checks."""
    steps = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    return {"$ref": "#/$defs/d0", "$defs": {**steps, "d60": {"type": "string"}}}


LONG = list(range(150_000))
WORDS = {f"word {i}": i for i in range(40_000)}
NESTED_DIALECT = {"$schema": DRAFTS["7"], "pattern": "^(a+)+$"}

NASTY: dict[str, tuple[Json, Json]] = {
    "a pattern that others backtrack on": (of_a({"pattern": "^(a+)+$"}), {"a": "a" * 500_000 + "!"}),
    "the same in a part with a dialect of its own": (of_a(NESTED_DIALECT), {"a": "a" * 60 + "!"}),
    "the same behind a reference": (
        {"foreign": {"x": NESTED_DIALECT}, **of_a({"$ref": "#/foreign/x"})},
        {"a": "a" * 60 + "!"},
    ),
    "the same for properties that are not evaluated": (
        {"patternProperties": {"^(a+)+$": True}, "unevaluatedProperties": False},
        {"a" * 60 + "!": 1},
    ),
    "a pattern that makes RE2 keep many states": (of_a({"pattern": "(a|b)*a(a|b){999}c"}), {"a": "ab" * 400_000}),
    "a pattern too large for RE2": (of_a({"pattern": "((((.{1000}){1000}){1000}){1000})"}), {"a": "x"}),
    "a deep pattern": (of_a({"pattern": "(" * 5_000 + ")" * 5_000}), {"a": "x"}),
    "2^60 checks, all of them": (branching("allOf"), {"a": 1}),
    "2^60 checks, any of them, with long messages": (branching("anyOf"), {"a": LONG}),
    "2^60 checks, one of them": (branching("oneOf"), {"a": 1}),
    "a reference to itself": ({"$ref": "#"}, {"a": 1}),
    "a reference to itself among other things": ({"allOf": [{"$ref": "#"}], "unevaluatedProperties": False}, {"a": 1}),
    "many long messages": ({"anyOf": [{"type": "string"}] * 900}, {"a": LONG}),
    "many values for many items": (of_a({"items": {"enum": [[i] for i in range(900)]}}), {"a": [[]] * 150_000}),
    "many values for a wanted item": (of_a({"contains": {"enum": [[i] for i in range(900)]}}), {"a": [[]] * 150_000}),
    "many names for many items": (
        of_a({"items": {"properties": {f"p{i}": True for i in range(1_900)}}}),
        {"a": [{}] * 150_000},
    ),
    "many patterns for many names": (
        {"patternProperties": {f"^{i}": True for i in range(900)}, "additionalProperties": False},
        WORDS,
    ),
    "different items": (of_a({"uniqueItems": True}), {"a": LONG}),
    "different objects": (of_a({"uniqueItems": True}), {"a": [{"i": i} for i in range(60_000)]}),
    "items that are not evaluated": (of_a({"items": True, "unevaluatedItems": False}), {"a": LONG}),
    "items that nothing is asked of, again and again": (of_a({"allOf": [{"items": True}] * 900}), {"a": LONG}),
    "the largest schema": ({"properties": {f"p{i}": {} for i in range(1_990)}, "required": ["a"]}, {"a": 1}),
    "a tiny step": (of_a({"multipleOf": 5e-324}), {"a": 1e308}),
}


@pytest.mark.parametrize(("schema", "arguments"), NASTY.values(), ids=NASTY.keys())
def test_a_nasty_schema_takes_bounded_time(monkeypatch: pytest.MonkeyPatch, schema: Json, arguments: Json) -> None:
    """With a part of the budget, to spare us the wait."""
    monkeypatch.setattr("app.execution.validation._SCHEMA_S", 0.1)
    monkeypatch.setattr("app.execution.validation._ARGUMENTS_S", 0.1)
    written = json.dumps(schema)
    started = time.process_time()
    is_valid_schema(written)
    with suppress(ArgumentsInvalid):
        check_arguments(written, arguments)
    assert time.process_time() - started < PATIENCE_S


def test_the_largest_schema_is_still_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more time than elsewhere: measured for coverage, on a busy machine, all takes several times as long."""
    monkeypatch.setattr("app.execution.validation._SCHEMA_S", 60.0)
    monkeypatch.setattr("app.execution.validation._ARGUMENTS_S", 60.0)
    schema = {"properties": {f"p{i}": {} for i in range(1_900)}, "required": ["a"]}
    assert places(schema, {"b": 1}) == ["arguments"]


def test_errors_that_were_found_before_the_budget_ended_are_told() -> None:
    endless = branching("anyOf")
    schema = {"required": ["b"], **of_a({"$ref": endless.pop("$ref")}), **endless}
    assert places(schema, {"a": 1}) == ["arguments"]


def nested(depth: int) -> Json:
    arguments: Json = {}
    for _ in range(depth - 1):
        arguments = {"a": arguments}
    return arguments


def test_arguments_that_nobody_could_write_down_are_refused() -> None:
    check_serializable(nested(253) | {"n": 2**63})
    for depth in (254, 1_000, 5_000):
        with pytest.raises(ArgumentsInvalid, match="too deeply"):
            check_serializable(nested(depth))
    with pytest.raises(ArgumentsInvalid, match="64 bits"):
        check_serializable({"n": 2**64})


def test_deep_arguments_are_checked_as_deep_as_we_can() -> None:
    schema = {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}, "additionalProperties": False}
    assert places(schema, nested(20)) == []
    assert places(schema, {"a": {"a": {"b": 1}}}) == ["arguments.a"]
    check(schema, nested(253))


NAMES = st.sampled_from(["a", "b", "$ref", "x-y", ""])
PATTERNS = st.sampled_from(["^a", "(a+)+$", "(?=x)", "[", "", r"\p{L}", "a{1000}{1000}", "."])
REFERENCES = st.sampled_from(
    [
        "#",
        "#/properties/a",
        "#/$defs/a",
        "#/required",
        "#/title/0",
        "#a",
        "http://[",
        "x:y",
        "a b",
        "#/%",
        "",
        "#/$defs",
    ]
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FLOATS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
SIZES = st.integers(0, 3)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    by_name = st.dictionaries(NAMES, inner, max_size=2)
    some = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "$schema": st.sampled_from([*DRAFTS.values(), "http://[", "x"]),
            "$id": st.sampled_from(["a", "http://[", "#a", "x:y"]),
            "$ref": REFERENCES,
            "$dynamicRef": REFERENCES,
            "$anchor": st.just("a"),
            "$defs": by_name,
            "type": st.sampled_from(["object", "string", "integer", "array", ["null", "number"], "any"]),
            "title": st.just("t"),
            "properties": by_name,
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "dependencies": by_name,
            "dependentSchemas": by_name,
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2), max_size=2),
            "required": st.lists(NAMES, max_size=2, unique=True) | st.booleans(),
            "items": inner | some,
            "prefixItems": some,
            "additionalItems": inner,
            "contains": inner,
            "minContains": SIZES,
            "maxContains": SIZES,
            "unevaluatedItems": inner,
            "unevaluatedProperties": inner,
            "uniqueItems": st.booleans(),
            "allOf": some,
            "anyOf": some,
            "oneOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "const": VALUES,
            "pattern": PATTERNS,
            "minLength": SIZES,
            "maxLength": SIZES,
            "multipleOf": st.floats(min_value=0, exclude_min=True, allow_infinity=False) | st.integers(1, 5),
            "exclusiveMinimum": st.integers(-2, 2) | st.booleans(),
            "maximum": FLOATS,
        },
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), keywords, max_leaves=5).filter(
    lambda schema: type(schema) is dict
)
ANYTHING = st.dictionaries(st.sampled_from(["type", "$ref", "properties", "items", "$id", "$schema"]), VALUES)


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(SCHEMAS | ANYTHING, st.dictionaries(NAMES, VALUES, max_size=3))
@example({"$dynamicRef": "#"}, {})
@example({"$id": "http://[", "$ref": "#/$defs/a"}, {})
def test_no_schema_and_no_arguments_raise_anything_but_their_errors(schema: Json, arguments: Json) -> None:
    """Also where a caller would not have asked, since the schema is not valid."""
    for run in (check, lambda schema, arguments: check_arguments(json.dumps(schema), arguments)):
        with suppress(ArgumentsInvalid):
            run(schema, arguments)


TYPICAL = {
    "type": "object",
    "required": ["query", "limit"],
    "additionalProperties": False,
    "properties": {
        **{f"field_{i}": {"type": "string", "description": "Some text", "maxLength": 100} for i in range(6)},
        "query": {"type": "string", "pattern": "^[a-z ]+$"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "order": {"enum": ["newest", "oldest"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


def fastest(deed: Callable[[], object]) -> float:
    def took() -> float:
        started = time.thread_time()
        deed()
        return time.thread_time() - started

    return min(took() for _ in range(20))


def test_checking_a_typical_call_takes_far_less_than_looking_at_its_schema_again() -> None:
    """A tenth of a millisecond where that takes two and a half."""
    arguments = {"query": "some words", "limit": 3, "order": "newest", "tags": ["a", "b"], "field_1": "x"}
    written = json.dumps(TYPICAL)
    assert is_valid_schema(written)
    anew = fastest(lambda: Draft202012Validator.check_schema(TYPICAL))
    assert fastest(lambda: check_arguments(written, arguments)) < anew / 3


async def test_wrong_arguments_are_refused_with_all_errors_and_the_server_sees_nothing(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("order", inputSchema=ORDER)]
    await user.connect(mcp)
    problem = failed(await user.execute("order", {"customer": "", "lines": [{}]}), 422, "TOOL_VALIDATION_ERROR")
    assert [item["loc"] for item in problem["errors"]] == [["arguments", "customer"], ["arguments", "lines", 0]]
    assert problem["errors"][1]["msg"] == "'sku' is a required property"
    assert mcp.calls == []
    right = {"customer": "c", "lines": [{"sku": "s"}]}
    succeeded(await user.execute("order", right))
    assert mcp.calls == [("order", right)]


@pytest.mark.parametrize("reason", ["invalid", "unreachable"])
async def test_a_schema_that_cannot_be_used_lets_the_call_through(
    user: TestUser, mcp: FakeMcpServer, reason: str
) -> None:
    with listener() as somebody:
        schema = {
            "invalid": {"type": "object", "minProperties": "a"},
            "unreachable": of_a({"$ref": f"http://127.0.0.1:{somebody.port}/x.json"}),
        }[reason]
        mcp.tools = [tool("free", inputSchema=schema)]
        await user.connect(mcp)
        succeeded(await user.execute("free", {"a": 1}))
        assert somebody.connects == 0
    assert mcp.calls == [("free", {"a": 1})]


async def test_a_schema_is_looked_at_once_and_not_confused_with_another(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [
        tool("number", inputSchema=of_a({"type": "integer"})),
        tool("text", inputSchema=of_a({"type": "string"})),
    ]
    server_id = await user.connect(mcp)
    for _ in range(2):
        succeeded(await user.execute("number", {"a": 1}))
        failed(await user.execute("number", {"a": "1"}), 422, "TOOL_VALIDATION_ERROR")
        succeeded(await user.execute("text", {"a": "1"}))
        failed(await user.execute("text", {"a": 1}), 422, "TOOL_VALIDATION_ERROR")
    mcp.tools[0] = tool("number", inputSchema=of_a({"type": "string"}))
    await user.reindex(server_id)
    succeeded(await user.execute("number", {"a": "1"}))
    failed(await user.execute("number", {"a": 1}), 422, "TOOL_VALIDATION_ERROR")


@pytest.mark.parametrize("key", [None, "deep"])
async def test_arguments_too_deep_for_the_wire_are_the_callers_mistake(
    user: TestUser, mcp: FakeMcpServer, key: str | None
) -> None:
    mcp.tools = [tool("echo")]
    await user.connect(mcp)
    tool_key = (await user.tools())["echo"]["id"]
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": key})
    for depth, status in ((1_000, 422), (254, 422), (250, 200)):
        arguments = '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)
        body = f'{{"tool_key": "{tool_key}", "arguments": {arguments}}}'
        answer = await user.http.post("/execute", content=body, headers=headers)
        assert answer.status_code == status, answer.text
    assert len(mcp.calls) == 1
