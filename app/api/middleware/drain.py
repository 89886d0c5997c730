"""Asks clients to reconnect while this process is stopping."""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ConnectionDrainMiddleware:
    """Sends `Connection: close` with every response once the process is draining.

    A client that keeps a connection until it is closed may send its next request at that moment, and lose it.
    """

    def __init__(self, app: ASGIApp, draining: asyncio.Event) -> None:
        self._app = app
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._draining.is_set():
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_with_close)
