"""Query terms, document vectors and inverse document frequency."""

import math

import pytest

from app.search.bm25 import (
    K1,
    MAX_QUERY_TERMS,
    MAX_TERM_WEIGHT,
    PIVOT_LENGTH,
    B,
    Field,
    build_document_vector,
    inverse_document_frequency,
    query_term_ids,
)


def test_a_query_has_each_term_once_and_a_maximum_of_terms() -> None:
    assert len(query_term_ids("rain rain rain")) == 1
    assert len(query_term_ids(" ".join(f"word{i}x" for i in range(500)))) == MAX_QUERY_TERMS


def test_a_document_vector_has_the_saturated_frequency_of_each_term() -> None:
    vector = build_document_vector([Field("rain rain wind", 1.0)])
    damping = K1 * (1 - B + B * 3 / PIVOT_LENGTH)
    weights = dict(zip(vector.indices(), vector.values(), strict=True))
    assert weights[query_term_ids("rain")[0]] == pytest.approx(2 * (K1 + 1) / (2 + damping))
    assert weights[query_term_ids("wind")[0]] == pytest.approx(1 * (K1 + 1) / (1 + damping))
    assert max(weights.values()) < MAX_TERM_WEIGHT


def test_a_field_with_a_higher_weight_counts_more() -> None:
    once = build_document_vector([Field("rain", 1.0)]).values()[0]
    twice = build_document_vector([Field("rain", 2.0)]).values()[0]
    assert twice > once


def test_a_long_document_has_a_maximum_of_terms() -> None:
    assert len(build_document_vector([Field(" ".join(f"w{i}" for i in range(5_000)), 1.0)]).indices()) == 500


def test_rare_terms_weigh_more_and_no_weight_is_negative() -> None:
    assert inverse_document_frequency(1, 100) > inverse_document_frequency(50, 100) > 0
    assert inverse_document_frequency(100, 100) > 0
    assert inverse_document_frequency(0, 0) == pytest.approx(math.log(2))
