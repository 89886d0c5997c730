"""Histogram buckets and the quantiles estimated from them."""

import random

import pytest

from app.usage.histogram import BOUNDS_MS, BUCKETS, bucket_index, quantile_ms


def make_counts(times_ms: list[float]) -> list[int]:
    counts = [0] * BUCKETS
    for time_ms in times_ms:
        counts[bucket_index(time_ms / 1000)] += 1
    return counts


@pytest.mark.parametrize(("ms", "bucket"), [(0, 0), (0.5, 0), (1.5, 1), (5000, BUCKETS - 2), (9e9, BUCKETS - 1)])
def test_every_duration_has_its_bucket(ms: float, bucket: int) -> None:
    assert bucket_index(ms / 1000) == bucket


def test_an_empty_histogram_has_no_quantile() -> None:
    assert quantile_ms(make_counts([]), 0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_an_estimated_quantile_lies_in_the_bucket_of_the_true_one(share: float) -> None:
    rng = random.Random(20_261_117)
    for _ in range(200):
        times = sorted(rng.lognormvariate(2.5, 1) for _ in range(rng.randint(1, 400)))
        true = times[min(int(share * len(times)), len(times) - 1)]
        before = times[max(int(share * len(times)) - 1, 0)]
        estimate = quantile_ms(make_counts(times), share)
        assert estimate is not None
        assert bucket_index(before / 1000) <= bucket_index(estimate / 1000) <= bucket_index(true / 1000)


def test_a_quantile_in_the_last_bucket_is_its_lower_bound() -> None:
    assert quantile_ms(make_counts([60_000.0]), 0.5) == BOUNDS_MS[-1]
