"""The measures, against figures computed by hand."""

import math
from dataclasses import astuple

import pytest

from app.evaluation.scores import Measures, mean, measure, paired_interval


def test_a_right_tool_in_the_first_place_is_perfect() -> None:
    assert measure(["a", "b"], ["a"]) == Measures(1.0, 1.0, 1.0, 1.0, 1.0)


def test_nothing_found_is_nothing() -> None:
    assert measure([], ["a"]) == Measures(0.0, 0.0, 0.0, 0.0, 0.0)


def test_two_right_tools_in_the_second_and_the_sixth_place() -> None:
    found = measure(["x", "a", "y", "z", "w", "b"], ["a", "b"])
    gain, ideal = 1 / math.log2(3) + 1 / math.log2(7), 1 + 1 / math.log2(3)
    assert astuple(found) == pytest.approx((0.0, 0.5, 1.0, gain / ideal, 0.5))


def test_places_beyond_the_tenth_count_for_the_reciprocal_rank_alone() -> None:
    found = measure([*"abcdefghij", "wanted"], ["wanted"])
    assert astuple(found) == pytest.approx((0.0, 0.0, 0.0, 0.0, 1 / 11))


def test_the_ideal_holds_no_more_than_ten() -> None:
    relevant = [f"tool {n}" for n in range(20)]
    found = measure(relevant[:10], relevant)
    assert found.ndcg_at_10 == pytest.approx(1.0)
    assert found.recall_at_10 == 0.5


def test_the_mean_is_taken_measure_by_measure() -> None:
    assert mean([measure(["a"], ["a"]), measure(["b"], ["a"])]) == Measures(0.5, 0.5, 0.5, 0.5, 0.5)


def test_over_no_messages_there_is_no_mean() -> None:
    assert mean([]) is None


def test_a_difference_that_is_the_same_everywhere_has_no_width() -> None:
    interval = paired_interval([0.2, 0.5, 0.7], [0.3, 0.6, 0.8])
    assert (interval.difference, interval.low, interval.high) == pytest.approx((0.1, 0.1, 0.1))


def test_rankings_that_take_turns_at_being_better_cannot_be_told_apart() -> None:
    interval = paired_interval([0.0, 1.0] * 50, [1.0, 0.0] * 50)
    assert interval.difference == 0.0
    assert interval.low < 0 < interval.high


def test_a_ranking_that_is_mostly_better_is_told_apart() -> None:
    interval = paired_interval([0.0] * 90 + [1.0] * 10, [1.0] * 90 + [0.0] * 10)
    assert interval.difference == pytest.approx(0.8)
    assert 0.6 < interval.low < 0.8 < interval.high < 0.95


def test_the_interval_is_the_same_every_time() -> None:
    figures = [n % 7 / 7 for n in range(60)], [n % 5 / 5 for n in range(60)]
    assert paired_interval(*figures) == paired_interval(*figures)
