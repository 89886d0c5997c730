"""Limits how many requests this process handles at once."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.errors import RateLimited, ToolscoutError, Unavailable
from app.observability.metrics import Metrics

_MAX_SHARE = 0.8
_UNKNOWN_SHARE = 0.1
_MIN_UNKNOWN = 8


class ConcurrencyLimit:
    """Slots for requests. Beyond the limit they are refused: a queue would only make everybody wait.

    One user may have at most 80 % of the slots, and gets 429 beyond. Requests without a valid key use slots of their
    own: no stranger takes the place of a user.
    """

    def __init__(self, get_max_in_flight: Callable[[], int], metrics: Metrics) -> None:
        """The limit is read for each request, because a reload may change it. 0 means no limit."""
        self._get_max_in_flight = get_max_in_flight
        self._by_owner: Counter[str] = Counter()
        self._known = 0
        self._unknown = 0
        self._in_flight = metrics.requests_in_flight
        self._refused = metrics.refused

    @contextmanager
    def slot(self, owner: str) -> Iterator[None]:
        """Hold a slot of this owner, a resolved user or key, for the duration of the block."""
        if max_in_flight := self._get_max_in_flight():
            self._check_limits(owner, max_in_flight)
        self._known += 1
        self._in_flight.inc()
        self._by_owner[owner] += 1
        try:
            yield
        finally:
            self._known -= 1
            self._in_flight.dec()
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]

    @contextmanager
    def unknown_slot(self) -> Iterator[None]:
        """Hold a slot of the pool that all requests without a valid key share."""
        max_in_flight = self._get_max_in_flight()
        if max_in_flight and self._unknown >= max(_MIN_UNKNOWN, math.ceil(max_in_flight * _UNKNOWN_SHARE)):
            raise self.refuse_overload()
        self._unknown += 1
        self._in_flight.inc()
        try:
            yield
        finally:
            self._unknown -= 1
            self._in_flight.dec()

    def _check_limits(self, owner: str, max_in_flight: int) -> None:
        if self._known >= max_in_flight:
            raise self.refuse_overload()
        if self._by_owner[owner] >= math.ceil(max_in_flight * _MAX_SHARE):
            self._refused.labels("rate_limited").inc()
            raise RateLimited("too many of your requests are in progress; wait for some of them", retry_after_s=1)

    def refuse_overload(self) -> ToolscoutError:
        """Count a refused request, and return its error."""
        self._refused.labels("overloaded").inc()
        return Unavailable("this process handles as many requests as it can; try again shortly")
