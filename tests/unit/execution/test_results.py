"""Tests of how a tool's result is cut to the size limit."""

import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from app.execution.results import truncate

Json = dict[str, Any]


TEXTS = st.text(alphabet=st.sampled_from(list('ab"\\\n\t\x00\x1f\x7f/ü€🦉\u2028')), max_size=60)
BLOCKS = st.builds(lambda text: {"type": "text", "text": text, "annotations": {"priority": 1}}, TEXTS) | st.builds(
    lambda data: {"type": "image", "data": data, "mimeType": "image/png"}, TEXTS
)
RESULTS = st.builds(
    lambda blocks, extra: {"content": blocks, **extra},
    st.lists(BLOCKS, max_size=4),
    st.fixed_dictionaries({}, optional={"isError": st.booleans(), "structuredContent": st.just({"a": "x" * 30})}),
)


@settings(max_examples=200)
@given(RESULTS, st.integers(40, 400))
def test_a_truncated_result_fits_and_is_the_beginning_of_the_whole_result(result: Json, limit: int) -> None:
    shortened, truncated = truncate(result, limit)
    assert len(orjson.dumps(shortened)) <= limit
    assert truncated is (len(orjson.dumps(result)) > limit)
    if not truncated:
        assert shortened == result
        return
    assert shortened.get("isError") == result.get("isError")
    for block, original in zip(shortened["content"], result["content"], strict=False):
        assert block == original or (block["type"] == "text" and original["text"].startswith(block["text"]))
    assert all(block == original for block, original in zip(shortened["content"][:-1], result["content"], strict=False))


def test_a_text_is_cut_as_late_as_possible_between_two_characters() -> None:
    result = {"content": [{"type": "text", "text": "🦉" * 100}]}
    texts = [truncate(result, limit)[0]["content"][0]["text"] for limit in (80, 81, 82, 83, 84)]
    assert [len(text) for text in texts] == [10, 10, 10, 11, 11]


def test_other_fields_of_a_truncated_text_block_are_dropped() -> None:
    result = {"content": [{"type": "text", "text": "x", "_meta": {"filler": "y" * 500}}], "_meta": {"a": 1}}
    assert truncate(result, 100) == ({"content": [{"type": "text", "text": "x"}]}, True)


def test_integers_of_any_size_count_with_all_their_digits() -> None:
    result = {"content": [], "structuredContent": {"n": 10**300}}
    size = len(json.dumps(result, separators=(",", ":")))
    assert truncate(result, size) == (result, False)
    assert truncate(result, size - 1) == ({"content": []}, True)
