"""How long discoveries took, as counts in fixed spans: they can be added up over users and minutes. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

BOUNDS_MS = (1, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000)
"""The upper end of each span but the last, which has none. They are stored by their places: a change of these numbers
needs a migration."""

SPANS = len(BOUNDS_MS) + 1


def span_of(seconds: float) -> int:
    return bisect_left(BOUNDS_MS, seconds * 1000)


def quantile_ms(counts: Sequence[int], share: float) -> float | None:
    """As if the discoveries of a span were spread over it evenly. Beyond the last bound nothing is known but that."""
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    reached = list(accumulate(counts))
    span = min(bisect_left(reached, wanted), SPANS - 1)
    if span == SPANS - 1:
        return float(BOUNDS_MS[-1])
    low, high = BOUNDS_MS[span - 1] if span else 0, BOUNDS_MS[span]
    before = reached[span] - counts[span]
    return round(low + (high - low) * (wanted - before) / counts[span], 2)
