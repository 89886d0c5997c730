"""What this process takes on: so much at once, and nothing more when it is about to stop."""

import asyncio
import math
from collections import Counter

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import problem
from app.errors import RateLimited, ToolscoutError, Unavailable
from app.observability.metrics import Metrics

_ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz", "/metrics"})
_SHARE_OF_ONE = 0.8
_WHO_ASKS = frozenset({b"authorization", b"x-api-key", b"x-user-id", b"cookie"})


class ConcurrencyLimitMiddleware:
    """An ASGI layer that refuses before a byte of the body is read: a queue would only make everybody wait. Never
    those who ask how we are. Whoever is at the door with one key fills it for nobody else."""

    def __init__(self, app: ASGIApp, most: int, metrics: Metrics) -> None:
        """0: as many as come."""
        self._app = app
        self._most = most
        self._most_of_one = math.ceil(most * _SHARE_OF_ONE)
        self._in_flight = 0
        self._of_one: Counter[bytes] = Counter()
        metrics.requests_in_flight.set_function(lambda: self._in_flight)
        self._refused = metrics.refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
            return
        who = b"\0".join(value for name, value in scope["headers"] if name in _WHO_ASKS)
        if (full := self._full(who)) is not None:
            await problem(full)(scope, receive, send)
        else:
            await self._answered(who, scope, receive, send)

    def _full(self, who: bytes) -> ToolscoutError | None:
        if self._most and self._in_flight >= self._most:
            self._refused.labels("overloaded").inc()
            return Unavailable("as many requests are under way as this process takes; try again shortly")
        if self._most and self._of_one[who] >= self._most_of_one:
            self._refused.labels("rate_limited").inc()
            return RateLimited("as many of your requests are under way as one may have", retry_after_s=1)
        return None

    async def _answered(self, who: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        self._in_flight += 1
        self._of_one[who] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1
            self._of_one[who] -= 1
            if not self._of_one[who]:
                del self._of_one[who]


class ConnectionDrainMiddleware:
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
