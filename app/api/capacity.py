"""What this process takes on: so much at once, and nothing more when it is about to stop."""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import problem
from app.errors import Unavailable
from app.telemetry import Metrics

_ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz", "/metrics"})


class Capacity:
    """An ASGI layer that refuses before a byte of the body is read: a queue would only make everybody wait. Never
    those who ask how we are."""

    def __init__(self, app: ASGIApp, most: int, metrics: Metrics) -> None:
        """0: as many as come."""
        self._app = app
        self._most = most
        self._in_flight = 0
        metrics.requests_in_flight.set_function(lambda: self._in_flight)
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
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1


class Farewell:
    """An ASGI layer that, when the process is about to stop, asks each client to come back on another connection: one
    that is closed in the moment of a client's next request would cost it that request."""

    def __init__(self, app: ASGIApp, draining: asyncio.Event) -> None:
        self._app = app
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_word(message: Message) -> None:
            if message["type"] == "http.response.start" and self._draining.is_set():
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_word)
