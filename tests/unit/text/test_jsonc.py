"""JSON with comments and trailing commas."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.text.jsonc import parse_jsonc


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1, // one\n "b": [1, 2,],}', {"a": 1, "b": [1, 2]}),
        ('/* first */ {"a": /* in\nside */ 1}', {"a": 1}),
        ('{"url": "https://example.com/mcp"} // end', {"url": "https://example.com/mcp"}),
        (r'{"a": "\"// no comment", "b": "\\"} // "', {"a": '"// no comment', "b": "\\"}),
        ('{"a": ",}", "b": "/* text */"}', {"a": ",}", "b": "/* text */"}),
        ('{"a": [1, // last\n ], /* end */ }', {"a": [1]}),
        ('\ufeff{"a": 1}', {"a": 1}),
        ("[]", []),
    ],
)
def test_comments_and_trailing_commas_are_removed_outside_of_strings(text: str, value: Any) -> None:
    assert parse_jsonc(text.encode(), "the file") == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1 /* open', "the file has a comment that does not end"),
        ('{"a": "open', "the file is not valid JSON"),
        ('{"a": "open\\', "the file is not valid JSON"),
        ('{"a": 1,, }', "the file is not valid JSON"),
        ("", "the file is not valid JSON"),
    ],
)
def test_what_is_not_json_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_jsonc(text.encode(), "the file")
    assert refused.value.message.startswith(reason)


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not UTF-8 text"):
        parse_jsonc(b'{"a": "\xff"}', "the file")


def test_errors_name_the_position_in_the_original_text() -> None:
    with pytest.raises(InvalidInput, match=r"line 3, column 4\)"):
        parse_jsonc(b"{ // one\n/* two\n*/ x}", "the file")


_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(alphabet='a"\\/*,]} \n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a"\\/*,]}'), inner),
)


@given(_JSON_VALUES)
def test_plain_json_is_parsed_as_it_is(value: Any) -> None:
    assert parse_jsonc(json.dumps(value).encode(), "the text") == value


@pytest.mark.parametrize("text", ['"' + '\\"' * 200_000, "/*" * 200_000, "[" + "," * 200_000, '"/*' * 100_000])
def test_the_time_is_linear_in_the_length(text: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidInput):
        parse_jsonc(text.encode(), "the text")
    assert time.process_time() - started < 2
