"""A circuit breaker: after several failures in a row, reject calls until the other side had time to recover."""

import time
from collections.abc import Callable


class CircuitBreaker:
    def __init__(self, failures: int, retry_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Open after `failures` failures in a row, for `retry_s` seconds."""
        self._max_failures = failures
        self._retry_s = retry_s
        self._clock = clock
        self._failures = 0
        self._retry_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._failures >= self._max_failures and self._clock() < self._retry_at

    def allows_attempt(self) -> bool:
        """Reject every call while open. After the pause, let one call through; its outcome decides for the rest."""
        if self._failures < self._max_failures:
            return True
        if self._clock() < self._retry_at:
            return False
        self._retry_at = self._clock() + self._retry_s
        return True

    def record_success(self) -> None:
        self._failures = 0

    def record_failure(self) -> None:
        self._failures += 1
        if self._failures >= self._max_failures:
            self._retry_at = self._clock() + self._retry_s
