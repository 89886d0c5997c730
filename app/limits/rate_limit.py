"""Rate limit: a token bucket for each user, in this process."""

import math
import time
from collections.abc import Callable

from cachetools import TTLCache

from app.errors import RateLimited
from app.observability.metrics import Metrics

BURST_S = 4.0
"""A bucket holds as many tokens as flow in within this time."""
_MAX_BUCKETS = 20_000


class RateLimiter:
    def __init__(self, per_second: float, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_second` is the rate of one user; 0 means no limit."""
        self._per_second = per_second
        self._burst = max(1.0, per_second * BURST_S)
        self._clock = clock
        self._refused = metrics.refused.labels("rate_limited")
        # after this time without a request a bucket is full again, and need not be kept
        refill_s = self._burst / per_second if per_second else 0.0
        self._buckets: TTLCache[str, tuple[float, float]] = TTLCache(_MAX_BUCKETS, refill_s, clock)

    def acquire(self, user_id: str, count: int = 1, *, taken: int = 0) -> None:
        """Take all of these tokens, or none and raise `RateLimited`, which says when there will be as many.

        `taken` tells how many the same request has taken before, and will take again when it is repeated.
        """
        if not self._per_second or count == 0:
            return
        now = self._clock()
        tokens, updated_at = self._buckets.get(user_id) or (self._burst, now)
        tokens = min(self._burst, tokens + (now - updated_at) * self._per_second)
        if tokens < count:
            self._refused.inc()
            needed, burst = count + taken, int(self._burst)
            wait_s = max(1, math.ceil((min(needed, burst) - tokens) / self._per_second))
            problem = (
                "slow down" if needed <= burst else f"at most {burst} are possible at once, and these are {needed}"
            )
            raise RateLimited(f"too many requests for this user; {problem}", retry_after_s=wait_s)
        self._buckets[user_id] = (tokens - count, now)
