"""How fast one user may ask: a bucket of tokens for each, in this process. It fills while the user is quiet."""

import math
import time
from collections.abc import Callable

from cachetools import TTLCache

from app.errors import RateLimited
from app.observability.metrics import Metrics

BURST_S = 4.0
"""A bucket holds what flows in within so long."""
_USERS_REMEMBERED = 20_000


class RateLimiter:
    def __init__(self, per_second: float, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        """0 a second: no limit."""
        self._per_second = per_second
        self._burst = max(1.0, per_second * BURST_S)
        self._clock = clock
        self._refused = metrics.refused.labels("rate_limited")
        # whoever was quiet for so long has a full bucket again, and need not be remembered
        filled_s = self._burst / per_second if per_second else 0.0
        self._buckets: TTLCache[str, tuple[float, float]] = TTLCache(_USERS_REMEMBERED, filled_s, clock)

    def acquire(self, user_id: str) -> None:
        """One token, or `RateLimited`, which says when there is one again."""
        if not self._per_second:
            return
        now = self._clock()
        tokens, filled_at = self._buckets.get(user_id) or (self._burst, now)
        tokens = min(self._burst, tokens + (now - filled_at) * self._per_second)
        if tokens < 1:
            self._refused.inc()
            wait_s = math.ceil((1 - tokens) / self._per_second)
            raise RateLimited("this user asks faster than the operator allows; slow down", retry_after_s=wait_s)
        self._buckets[user_id] = (tokens - 1, now)
