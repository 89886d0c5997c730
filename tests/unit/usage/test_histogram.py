"""Counts in spans, and the times that they stand for."""

import random

import pytest

from app.usage.histogram import BOUNDS_MS, SPANS, quantile_ms, span_of


def counted(times_ms: list[float]) -> list[int]:
    counts = [0] * SPANS
    for time_ms in times_ms:
        counts[span_of(time_ms / 1000)] += 1
    return counts


@pytest.mark.parametrize(("ms", "span"), [(0, 0), (0.5, 0), (1.5, 1), (5000, SPANS - 2), (9e9, SPANS - 1)])
def test_every_time_has_its_span(ms: float, span: int) -> None:
    assert span_of(ms / 1000) == span


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile_ms(counted([]), 0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_quantile_lies_in_the_span_of_the_true_one(share: float) -> None:
    chance = random.Random(20_261_117)
    for _ in range(200):
        times = sorted(chance.lognormvariate(2.5, 1) for _ in range(chance.randint(1, 400)))
        true = times[min(int(share * len(times)), len(times) - 1)]
        before = times[max(int(share * len(times)) - 1, 0)]
        estimate = quantile_ms(counted(times), share)
        assert estimate is not None
        assert span_of(before / 1000) <= span_of(estimate / 1000) <= span_of(true / 1000)


def test_beyond_the_last_bound_only_that_is_known() -> None:
    assert quantile_ms(counted([60_000.0]), 0.5) == BOUNDS_MS[-1]
