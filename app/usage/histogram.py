"""Durations of discoveries as counts in fixed buckets, which can be summed over users and minutes. Pure functions."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

BOUNDS_MS = (1, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000)
"""The upper bound of each bucket but the last, which has none. The database stores counts by position, so a change of
these bounds needs a migration."""

BUCKETS = len(BOUNDS_MS) + 1


def bucket_index(seconds: float) -> int:
    return bisect_left(BOUNDS_MS, seconds * 1000)


def quantile_ms(counts: Sequence[int], share: float) -> float | None:
    """Estimate a quantile, assuming that values are spread evenly within a bucket.

    The last bucket has no upper bound, so its lower bound is returned.
    """
    total = sum(counts)
    if not total:
        return None
    rank = share * total
    cumulative = list(accumulate(counts))
    bucket = min(bisect_left(cumulative, rank), BUCKETS - 1)
    if bucket == BUCKETS - 1:
        return float(BOUNDS_MS[-1])
    low, high = BOUNDS_MS[bucket - 1] if bucket else 0, BOUNDS_MS[bucket]
    before = cumulative[bucket] - counts[bucket]
    return round(low + (high - low) * (rank - before) / counts[bucket], 2)
