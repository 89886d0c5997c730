"""Terms, and BM25 against a plain implementation of it."""

import math

import pytest

from app.search.bm25 import (
    K1,
    MAX_QUERY_TERMS,
    MOST_PER_TERM,
    PIVOT_LENGTH,
    B,
    Field,
    document_vector,
    inverse_document_frequency,
    query_term_ids,
    terms,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("search_issues", {"search_issues", "search", "issu"}),
        ("searchIssues", {"search", "issu", "searchissu"}),
        ("HTTPServer", {"http", "server", "httpserver"}),
        ("list-files", {"list-files", "list", "file"}),
        ("booking, booked, books", {"book"}),
        ("s3 ec2 utf8Text 3f09c1", {"s3", "ec2", "ec", "2", "utf8", "text", "utf8text", "3f09c1"}),
        ("Wetter für Österreich", {"wetter", "fur", "osterreich"}),
        ("Ελλάδα, Россия", {"ελλάδα", "россия"}),
        ("हिन्दी", {"हिन्दी"}),
        ("天气预报 雨", {"天气", "气预", "预报", "雨"}),
        ("天気を知りたい", {"天気", "気を", "を知", "知り", "りた", "たい"}),
        ("ｆｕｌｌｗｉｄｔｈ", {"fullwidth"}),
        ("what is the", set()),
        ("!!! ???", set()),
        ("", set()),
    ],
)
def test_terms_are_words_and_identifiers_with_their_parts(text: str, expected: set[str]) -> None:
    assert set(terms(text)) == expected


def test_a_query_names_each_term_once_and_not_endlessly_many() -> None:
    assert len(query_term_ids("rain rain rain")) == 1
    assert len(query_term_ids(" ".join(f"word{i}x" for i in range(500)))) == MAX_QUERY_TERMS


def test_a_document_holds_the_saturated_frequency_of_its_terms() -> None:
    vector = document_vector([Field("rain rain wind", 1.0)])
    damping = K1 * (1 - B + B * 3 / PIVOT_LENGTH)
    weights = dict(zip(vector.indices(), vector.values(), strict=True))
    assert weights[query_term_ids("rain")[0]] == pytest.approx(2 * (K1 + 1) / (2 + damping))
    assert weights[query_term_ids("wind")[0]] == pytest.approx(1 * (K1 + 1) / (1 + damping))
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
