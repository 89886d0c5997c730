"""The measures, compared to values computed by hand."""

import math
from dataclasses import astuple

import pytest

from app.evaluation.scores import Measures, mean_measures, paired_interval, score_ranking


def test_a_relevant_tool_at_rank_one_is_perfect() -> None:
    assert score_ranking(["a", "b"], ["a"]) == Measures(1.0, 1.0, 1.0, 1.0, 1.0)


def test_an_empty_ranking_scores_zero() -> None:
    assert score_ranking([], ["a"]) == Measures(0.0, 0.0, 0.0, 0.0, 0.0)


def test_two_relevant_tools_at_ranks_two_and_six() -> None:
    found = score_ranking(["x", "a", "y", "z", "w", "b"], ["a", "b"])
    gain, ideal = 1 / math.log2(3) + 1 / math.log2(7), 1 + 1 / math.log2(3)
    assert astuple(found) == pytest.approx((0.0, 0.5, 1.0, gain / ideal, 0.5))


def test_ranks_beyond_ten_count_for_the_reciprocal_rank_only() -> None:
    found = score_ranking([*"abcdefghij", "target"], ["target"])
    assert astuple(found) == pytest.approx((0.0, 0.0, 0.0, 0.0, 1 / 11))


def test_the_ideal_ranking_has_at_most_ten_tools() -> None:
    relevant = [f"tool {n}" for n in range(20)]
    found = score_ranking(relevant[:10], relevant)
    assert found.ndcg_at_10 == pytest.approx(1.0)
    assert found.recall_at_10 == 0.5


def test_the_mean_is_computed_for_each_measure() -> None:
    measures = [score_ranking(["a"], ["a"]), score_ranking(["b"], ["a"])]
    assert mean_measures(measures) == Measures(0.5, 0.5, 0.5, 0.5, 0.5)


def test_there_is_no_mean_over_no_messages() -> None:
    assert mean_measures([]) is None


def test_a_constant_difference_has_an_interval_of_zero_width() -> None:
    interval = paired_interval([0.2, 0.5, 0.7], [0.3, 0.6, 0.8])
    assert (interval.difference, interval.low, interval.high) == pytest.approx((0.1, 0.1, 0.1))


def test_the_interval_of_equally_good_rankings_contains_zero() -> None:
    interval = paired_interval([0.0, 1.0] * 50, [1.0, 0.0] * 50)
    assert interval.difference == 0.0
    assert interval.low < 0 < interval.high


def test_the_interval_of_a_mostly_better_ranking_is_above_zero() -> None:
    interval = paired_interval([0.0] * 90 + [1.0] * 10, [1.0] * 90 + [0.0] * 10)
    assert interval.difference == pytest.approx(0.8)
    assert 0.6 < interval.low < 0.8 < interval.high < 0.95


def test_the_interval_is_deterministic() -> None:
    values = [n % 7 / 7 for n in range(60)], [n % 5 / 5 for n in range(60)]
    assert paired_interval(*values) == paired_interval(*values)
