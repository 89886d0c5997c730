"""Terms, and BM25 against a plain implementation of it."""

import math

import pytest

from app.search.lexical import (
    K1,
    MAX_QUERY_TERMS,
    MOST_PER_TERM,
    PIVOT_LENGTH,
    B,
    Field,
    document_vector,
    inverse_document_frequency,
    query_places,
    terms,
)
from app.search.query import LONGEST_SEARCHED, search_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("search_issues", {"search_issues", "search", "issues"}),
        ("searchIssues", {"search", "issues", "searchissues"}),
        ("HTTPServer", {"http", "server", "httpserver"}),
        ("list-files", {"list-files", "list", "files"}),
        ("Wetter für Österreich", {"wetter", "für", "österreich"}),
        ("天气 预报", {"天气", "预报"}),
        ("ｆｕｌｌｗｉｄｔｈ", {"fullwidth"}),
        ("what is the", set()),
        ("!!! ???", set()),
        ("", set()),
    ],
)
def test_terms_are_words_and_identifiers_with_their_parts(text: str, expected: set[str]) -> None:
    assert set(terms(text)) == expected


def test_a_query_names_each_term_once_and_not_endlessly_many() -> None:
    assert len(query_places("rain rain rain")) == 1
    assert len(query_places(" ".join(f"word{i}x" for i in range(500)))) == MAX_QUERY_TERMS


def test_a_document_holds_the_saturated_frequency_of_its_terms() -> None:
    vector = document_vector([Field("rain rain wind", 1.0)])
    damping = K1 * (1 - B + B * 3 / PIVOT_LENGTH)
    weights = dict(zip(vector.indices(), vector.values(), strict=True))
    assert weights[query_places("rain")[0]] == pytest.approx(2 * (K1 + 1) / (2 + damping))
    assert weights[query_places("wind")[0]] == pytest.approx(1 * (K1 + 1) / (1 + damping))
    assert max(weights.values()) < MOST_PER_TERM


def test_a_heavier_field_counts_more() -> None:
    once = document_vector([Field("rain", 1.0)]).values()[0]
    twice = document_vector([Field("rain", 2.0)]).values()[0]
    assert twice > once


def test_a_document_of_endless_words_still_fits_a_row() -> None:
    assert len(document_vector([Field(" ".join(f"w{i}" for i in range(5_000)), 1.0)]).indices()) == 500


def test_rare_terms_weigh_more_and_common_ones_never_less_than_nothing() -> None:
    assert inverse_document_frequency(1, 100) > inverse_document_frequency(50, 100) > 0
    assert inverse_document_frequency(100, 100) > 0
    assert inverse_document_frequency(0, 0) == pytest.approx(math.log(2))


def test_the_query_is_what_is_searched() -> None:
    assert search_text("  find it ", None) == "find it"


def test_a_pasted_document_is_searched_by_both_its_ends() -> None:
    text = search_text("begin " + "x" * 100_000 + " end", None)
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) <= LONGEST_SEARCHED + 1


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": "first"}, {"role": "assistant", "content": "?"}], "first"),
        ([{"role": "user", "content": "first"}, {"role": "user", "content": "last"}], "last"),
        ([{"role": "user", "content": [{"type": "text", "text": "block"}, {"type": "image"}]}], "block"),
        ([{"role": "user", "content": "asked"}, {"role": "user", "content": [{"type": "tool_result"}]}], "asked"),
        ([{"role": "assistant", "content": "nothing of the user's"}], ""),
        ([{"role": "user", "content": 7}], ""),
        ([], ""),
    ],
)
def test_of_messages_the_last_words_of_the_user_count(messages: list[dict[str, object]], expected: str) -> None:
    assert search_text(None, messages) == expected
