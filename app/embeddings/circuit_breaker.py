"""A circuit breaker: after a few failures in a row nobody waits for the embedder until it had time to recover."""

import time
from collections.abc import Callable


class CircuitBreaker:
    def __init__(self, failures: int, retry_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures_allowed = failures
        self._retry_s = retry_s
        self._clock = clock
        self._failures = 0
        self._closed_again_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._failures >= self._failures_allowed and self._clock() < self._closed_again_at

    def allows_attempt(self) -> bool:
        """While open, nobody; after the pause, one caller, whose outcome decides for the rest."""
        if self._failures < self._failures_allowed:
            return True
        if self._clock() < self._closed_again_at:
            return False
        self._closed_again_at = self._clock() + self._retry_s
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= self._failures_allowed:
            self._closed_again_at = self._clock() + self._retry_s
