"""Starts Toolscout so that each response says in a header how many round trips to Postgres its request took."""

import runpy
from typing import Any
from unittest.mock import patch

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.main import create_app
from bench.round_trips import counted_round_trips, traced_connections

HEADER = "X-Round-Trips"


class CountingApp:
    """The application with that header. It is the application in everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with counted_round_trips() as trips:

            async def send_with_count(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message)[HEADER] = str(trips.count)
                await send(message)

            await self._app(scope, receive, send_with_count)


def create_counting_app(*args: Any, **kwargs: Any) -> Any:
    return CountingApp(create_app(*args, **kwargs))


if __name__ == "__main__":
    with traced_connections(), patch("app.cli.serve.create_app", create_counting_app):
        runpy.run_module("app", run_name="__main__", alter_sys=True)
