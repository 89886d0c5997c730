"""What this process takes on at once. Beyond it, it says so at once: a queue would only make everybody wait."""

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import problem
from app.errors import Unavailable
from app.telemetry import Metrics

_ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz", "/metrics"})


class Capacity:
    """An ASGI layer that refuses before a byte of the body is read; never those who ask how we are."""

    def __init__(self, app: ASGIApp, most: int, metrics: Metrics) -> None:
        """0: as many as come."""
        self._app = app
        self._most = most
        self._in_flight = 0
        self._gauge = metrics.requests_in_flight
        self._refused = metrics.refused.labels("overloaded")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
        elif self._most and self._in_flight >= self._most:
            self._refused.inc()
            full = Unavailable("as many requests are under way as this process takes; try again shortly")
            await problem(full)(scope, receive, send)
        else:
            await self._answered(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._in_flight += 1
        self._gauge.set(self._in_flight)
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1
            self._gauge.set(self._in_flight)
