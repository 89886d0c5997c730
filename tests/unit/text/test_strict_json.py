import json
from typing import Any

import pytest
from hypothesis import given

from app.errors import InvalidInput
from app.text.strict_json import (
    canonical_json,
    dump_json,
    iter_strings,
    load_json,
    parse_json,
)
from tests.support.strategies import json_values


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
def test_invalid_json_is_rejected(body: bytes) -> None:
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
def test_valid_json_is_parsed_unchanged(body: bytes, value: Any) -> None:
    assert parse_json(body) == value


def test_a_nul_after_an_escaped_backslash_is_found() -> None:
    with pytest.raises(InvalidInput, match="NUL"):
        parse_json(rb'{"harmless": "\\u0000", "harmful": "\\\u0000"}')


@given(json_values)
def test_json_written_by_python_round_trips(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def test_every_string_and_key_is_found_at_any_depth() -> None:
    value = {"a": ["b", {"c": "d"}], "e": [[["f"]]], "g": 1, "h": None}
    assert sorted(iter_strings(value)) == ["a", "b", "c", "d", "e", "f", "g", "h"]


def test_strings_are_found_deeper_than_the_recursion_limit() -> None:
    value: Any = "bottom"
    for _ in range(100_000):
        value = [value]
    found = list(iter_strings(value))
    while isinstance(value, list):  # dismantled level by level: freeing it at once would recurse
        value = value.pop()
    assert found == ["bottom"]


def test_key_order_and_white_space_do_not_matter() -> None:
    assert canonical_json(parse_json(b'{"a": 1, "b": {"c": 2, "d": 3}}')) == canonical_json(
        parse_json(b'{\n "b":{"d":3,"c":2},"a":1 }')
    )


def test_list_order_matters() -> None:
    assert canonical_json(["a", "b"]) != canonical_json(["b", "a"])


LONG_INTEGERS = [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**25 + 1, -(10**300)]


@pytest.mark.parametrize("number", [*LONG_INTEGERS, 2**63 - 1, 10**18, 0, -1])
def test_integers_of_any_size_are_read_and_written_exactly(number: int) -> None:
    value = {"b": [number, "text", {"c": -number}], "a": (1.5, None)}
    text = json.dumps(value, separators=(",", ":"))
    read = parse_json(text.encode())
    assert isinstance(read["b"][0], int)
    assert read == load_json(text) == json.loads(text)
    assert dump_json(value).decode() == text
    assert canonical_json(value) == json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def test_long_runs_of_digits_elsewhere_change_nothing() -> None:
    body = b'{"id": "12345678901234567890123", "pi": 3.14159265358979323846264, "large": 1e30}'
    assert parse_json(body) == {"id": "12345678901234567890123", "pi": 3.141592653589793, "large": 1e30}


def test_a_long_integer_beside_deep_nesting_is_rejected_and_does_not_crash() -> None:
    deep = b"[" * 1_010 + b"1" * 20 + b"]" * 1_010
    with pytest.raises(InvalidInput, match="too deeply"):
        parse_json(deep)
    nested: Any = 2**64
    for _ in range(2_000):
        nested = [nested]
    with pytest.raises(TypeError, match="Recursion limit"):
        dump_json([2**64, nested])
