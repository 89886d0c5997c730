"""Lone surrogates are replaced wherever a chunk ends, and nothing else is changed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.mcp_client.surrogates import (
    LONE_SURROGATE,
    LoneSurrogateFilter,
    replace_lone_surrogates,
    show_replacement,
)

MARKER = LONE_SURROGATE.encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (rb'"\ud83d"', b'"%s"'),
        (rb'"\uDE00 tail"', b'"%s tail"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"%s\ud83d\ude00"'),
        (rb'"\ude00\ud83d"', b'"%s%s"'),
        (rb'"\ud83d\u0041"', rb'"%s\u0041"'),
        (rb'"\\\ud800"', rb'"\\%s"'),
        (b'"\xed\xa0\x80"', b'"%s"'),
    ],
)
def test_a_lone_surrogate_is_replaced(body: bytes, expected: bytes) -> None:
    replaced = replace_lone_surrogates(body)
    assert replaced == expected.replace(b"%s", MARKER)
    json.loads(replaced.decode())


@pytest.mark.parametrize(
    "body",
    [
        rb'"\ud83d\ude00"',
        rb'"\\ud800"',
        rb'"\\\\ud800"',
        rb'"\ud7ff\ue000\u0000\n\""',
        '"Grüße 🦉 힣"'.encode(),
        b"ud800 not an escape",
    ],
)
def test_other_text_is_unchanged(body: bytes) -> None:
    assert replace_lone_surrogates(body) == body


PARTS = st.sampled_from(
    [
        rb"\ud83d",
        rb"\ude00",
        rb"\uD83D\uDE00",
        rb"\\",
        rb"\n",
        rb"\u0041",
        b"ud800",
        b"a",
        b'"',
        b"\xed\xa0\x80",
        b"\xed\x95\x9c",
    ]
)


@given(st.lists(PARTS, max_size=12).map(b"".join), st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_it_does_not_matter_where_chunks_end(body: bytes, sizes: list[int]) -> None:
    stream, replaced, rest = LoneSurrogateFilter(), b"", body
    for size in [*sizes, len(body)]:
        replaced, rest = replaced + stream.feed(rest[:size]), rest[size:]
    assert replaced + stream.flush() == replace_lone_surrogates(body)


@pytest.mark.parametrize(
    "event", [rb'data: {"a": "b\n"}', rb'data: {"a": "\\"}', rb'data: {"a": "\ud800"}', rb'data: {"a": "\u0041"}']
)
def test_a_complete_event_is_not_held_back(event: bytes) -> None:
    stream = LoneSurrogateFilter()
    assert stream.feed(event + b"\n\n") == replace_lone_surrogates(event + b"\n\n")
    assert stream.flush() == b""


def test_a_run_of_backslashes_is_passed_on() -> None:
    stream = LoneSurrogateFilter()
    assert sum(len(stream.feed(b"\\" * 999)) for _ in range(100)) + len(stream.flush()) == 99_900


def test_results_show_the_replacement_character() -> None:
    value: Any = {f"a{LONE_SURROGATE}": [f"{LONE_SURROGATE}b", 1, None], "c": {"d": "e"}}
    assert show_replacement(value) == {"a\ufffd": ["\ufffdb", 1, None], "c": {"d": "e"}}
