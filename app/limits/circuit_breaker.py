"""A circuit breaker: after several failures in a row, reject calls until the other side had time to recover."""

import time
from collections.abc import Callable


class CircuitBreaker:
    """Opens for all users only if calls of different users failed: those of a single one may be the cause themselves.

    Callers that do not tell users apart count as one user.
    """

    def __init__(self, failures: int, retry_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Open after `failures` failures in a row, for `retry_s` seconds."""
        self._max_failures = failures
        self._retry_s = retry_s
        self._clock = clock
        self._failures = 0
        self._only_user: str | None = None
        """The user of all failures in the row; None if there are several, or no failures."""
        self._retry_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it is open for anybody."""
        return self._failures >= self._max_failures and self._clock() < self._retry_at

    def allows_attempt(self, user_id: str = "") -> bool:
        """Reject every call while open. After the pause, let one call through; its outcome decides for the rest."""
        if self._failures < self._max_failures or self._only_user not in (None, user_id):
            return True
        if self._clock() < self._retry_at:
            return False
        self._retry_at = self._clock() + self._retry_s
        return True

    def record_success(self) -> None:
        self._failures = 0

    def record_failure(self, user_id: str = "") -> None:
        is_same_user = self._failures == 0 or self._only_user == user_id
        self._only_user = user_id if is_same_user else None
        self._failures += 1
        if self._failures >= self._max_failures:
            self._retry_at = self._clock() + self._retry_s
