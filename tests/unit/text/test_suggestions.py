"""Tests of the suggestions for names that do not exist."""

import time

import pytest

from app.text.suggestions import describe_unknown_name, suggest_name

FIELDS = ["query", "messages", "limit", "tool_key", "similarity_threshold"]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("toolKey", "tool_key"),
        ("TOOL-KEY", "tool_key"),
        ("querry", "query"),
        ("limits", "limit"),
        ("similarity_treshold", "similarity_threshold"),
        ("message", "messages"),
        ("zzz", None),
        ("", None),
        ("…", None),
    ],
)
def test_the_nearest_spelling_is_suggested(name: str, suggestion: str | None) -> None:
    assert suggest_name(name, FIELDS) == suggestion


def test_a_synonym_comes_before_a_similar_spelling_and_after_the_same_name() -> None:
    synonyms = {"message": "query", "tool_key": "query", "top_k": "limit"}
    assert suggest_name("message", FIELDS, synonyms) == "query"
    assert suggest_name("topK", FIELDS, synonyms) == "limit"
    assert suggest_name("toolKey", FIELDS, synonyms) == "tool_key"


def test_the_description_quotes_names_and_no_other_text() -> None:
    synonyms = {"user": "the header `X-User-Id`"}
    assert describe_unknown_name("field", "querry", FIELDS) == "unknown field `querry`; did you mean `query`?"
    assert describe_unknown_name("field", "zzz", FIELDS) == "unknown field `zzz`"
    user = describe_unknown_name("field", "user", FIELDS, synonyms)
    assert user == "unknown field `user`; did you mean the header `X-User-Id`?"


def test_a_long_name_is_cut_and_gets_no_suggestion() -> None:
    name = "query" * 100_000
    assert suggest_name(name, FIELDS) is None
    assert len(describe_unknown_name("field", name, FIELDS)) < 200
    assert suggest_name("query", ["query" * 100_000, "query_"]) == "query_"


def test_the_number_of_comparisons_is_bounded() -> None:
    names = [f"name_{number:x}" * 8 for number in range(50_000)]
    started = time.thread_time()
    assert suggest_name("nane_7" * 8, names) is None
    assert time.thread_time() - started < 1
    assert suggest_name("nane_7" * 8, names[:100]) is not None
