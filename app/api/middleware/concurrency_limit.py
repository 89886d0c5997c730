"""Limits how many requests this process handles at once."""

import math
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.problems import problem_response
from app.errors import RateLimited, ToolscoutError, Unavailable
from app.observability.metrics import Metrics

_EXEMPT_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_MAX_SHARE = 0.8
_CREDENTIAL_HEADERS = frozenset({b"authorization", b"x-api-key", b"x-user-id", b"cookie"})


class ConcurrencyLimitMiddleware:
    """Answers 503 beyond the limit, before the body is read: a queue would only make everybody wait.

    Health and metrics endpoints are exempt. One credential may use at most 80 % of the slots, and gets 429 beyond.
    """

    def __init__(self, app: ASGIApp, get_max_in_flight: Callable[[], int], metrics: Metrics) -> None:
        """The limit is read for each request, because a reload may change it. 0 means no limit."""
        self._app = app
        self._get_max_in_flight = get_max_in_flight
        self._in_flight = 0
        self._by_credential: Counter[bytes] = Counter()
        metrics.requests_in_flight.set_function(lambda: self._in_flight)
        self._refused = metrics.refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _EXEMPT_PATHS:
            await self._app(scope, receive, send)
            return
        credential = b"\0".join(value for name, value in scope["headers"] if name in _CREDENTIAL_HEADERS)
        if (refusal := self._check_limits(credential)) is not None:
            await problem_response(refusal)(scope, receive, send)
            return
        self._in_flight += 1
        self._by_credential[credential] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1
            self._by_credential[credential] -= 1
            if not self._by_credential[credential]:
                del self._by_credential[credential]

    def _check_limits(self, credential: bytes) -> ToolscoutError | None:
        max_in_flight = self._get_max_in_flight()
        if not max_in_flight:
            return None
        if self._in_flight >= max_in_flight:
            self._refused.labels("overloaded").inc()
            return Unavailable("this process handles as many requests as it can; try again shortly")
        if self._by_credential[credential] >= math.ceil(max_in_flight * _MAX_SHARE):
            self._refused.labels("rate_limited").inc()
            return RateLimited("too many of your requests are in progress; wait for some of them", retry_after_s=1)
        return None
