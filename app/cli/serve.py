"""`toolscout serve`: the service, from the first key to the last request."""

import argparse
import asyncio
import gc
import logging
import signal
import socket
import sys
import textwrap
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI
from sse_starlette.sse import AppStatus

from app import audit
from app.auth.keys import NewKey, admin_key_exists, create_key
from app.cli.context import ACTOR
from app.container import Container, open_container
from app.demo.seed import finish_demo, seed_demo
from app.errors import ConfigurationError
from app.local_postgres.database import open_database
from app.main import create_app
from app.settings import Settings, find_typos

logger = logging.getLogger("toolscout")

_GRACE_S = 6
_CALLS_S = 4
"""From the closing of the port until calls of tools are given up: well within the grace, whose end cuts off whoever is
left without a word, so that their callers are told and what is known of them is written down."""
_KEEP_ALIVE_S = 75
"""Longer than clients (httpx: 5 s) and balancers (nginx: 60 s) keep a connection that nobody uses: one that we close in
the moment in which they write to it costs them a request."""
_FIRST_WORDS_S = 0.5
"""Between a connection and the request on it: until then it looks like an idle one, which is closed."""


async def serve(settings: Settings, _options: argparse.Namespace) -> int:
    # before anything else: keys that are made and shown once must not be made for a service that cannot start
    with _listening(settings) as listener:
        async with open_database(settings) as url, open_container(settings, url) as container:
            for message in find_typos():
                logger.warning(message)
            await _announce_keys(container)
            await _serve_until_stopped(container, listener)
    return 0


def _listening(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        place = f"{settings.host}:{settings.port}"
        raise ConfigurationError(
            f"cannot listen on {place} ({error.strerror}): set TOOLSCOUT_PORT to another"
        ) from error
    return listener


async def _serve_until_stopped(container: Container, listener: socket.socket) -> None:
    config = _config(create_app(container))
    # modules and models stay for good: going through them again for garbage stopped all answers for 150 ms at a time
    gc.collect()
    gc.freeze()
    # the MCP SDK answers older clients through a library that, left to itself, cuts all streams off at the first signal
    AppStatus.enable_automatic_graceful_drain = False
    # uvicorn raises the signal that stopped it once more when it is done, which must not end us half-closed
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, signal.SIG_IGN)
    host, port = listener.getsockname()[:2]
    greeting = _greeting(container.settings, f"http://{_reached_by(host)}:{port}")
    drain_s = container.settings.drain_s
    await _Server(config, greeting, container.draining, drain_s, container.shutdown).serve(sockets=[listener])


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )


def _greeting(settings: Settings, address: str) -> str:
    """Names only what is there."""
    if settings.role == "worker":
        return f"\n  Toolscout works on index runs   (how it fares: {address}/metrics, stop with Ctrl-C)\n"
    return (
        f"\n  Toolscout answers at {address}   (API: {address}/docs, stop with Ctrl-C)\n"
        f"  The console: {address}/console   (sign in with a key)\n"
    )


def _reached_by(host: str) -> str:
    """An address that listens on all of them is none to go to."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 read, not listened on
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


class _Server(uvicorn.Server):
    """Greets when the port is open, and not before; says when it begins to stop."""

    def __init__(
        self, config: uvicorn.Config, greeting: str, draining: asyncio.Event, drain_s: float, shutdown: asyncio.Event
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._last: list[asyncio.Task[Any]] = []
        self._greeting = greeting
        self._draining = draining
        self._leaving = shutdown

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._greeting, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Whoever comes before the others have noticed is still let in, and whoever was let in is heard."""
        logger.info("stopping")
        self._draining.set()
        await asyncio.sleep(self._drain_s)
        self._let_in_the_last(sockets or [])
        asyncio.get_running_loop().call_later(_CALLS_S, self._leaving.set)
        await asyncio.sleep(_FIRST_WORDS_S)
        await asyncio.sleep(0)  # on a busy machine the time may be over before anybody has listened
        await super().shutdown(sockets)
        logger.info("stopped")

    def _let_in_the_last(self, listeners: list[socket.socket]) -> None:
        """In one go with closing the port: the system turns away whoever has knocked and was not let in by then."""
        loop = asyncio.get_running_loop()
        for listener in listeners:
            listener.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    connection, _ = listener.accept()
                    self._last.append(loop.create_task(loop.connect_accepted_socket(self._protocol, connection)))
        for server in self.servers:
            server.close()

    def _protocol(self) -> asyncio.Protocol:
        """As uvicorn makes it for those who come in time."""
        return self.config.http_protocol_class(
            config=self.config,  # type: ignore[call-arg]
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )


async def _announce_keys(container: Container) -> None:
    """Each at the moment it is made: whatever happens next, nobody is locked out."""
    settings = container.settings
    if settings.role == "worker":
        return
    if (admin_key := await _first_admin_key(container)) is not None:
        _say("The first admin key, shown this once:", f"  {admin_key}")
    if settings.wants_demo and (demo_key := await seed_demo(container)) is not None:
        _say("A demo user with tools on eight servers is being made. Its key, shown this once:", f"  {demo_key}")
        await finish_demo(container)
        address = f"http://{settings.host}:{settings.port}"
        _say("Ask for the tools that a message needs:", _curl(address, demo_key))
        _say("Or from an MCP client, such as Claude Code:", _claude(address, demo_key))
    _say(f"More keys: {sys.argv[0]} key create --help")


def _say(*lines: str) -> None:
    print("\n" + "\n\n".join(textwrap.indent(line, "  ") for line in lines), flush=True)


async def _first_admin_key(container: Container) -> str | None:
    if container.settings.admin_api_key is not None:
        return None
    async with container.database.system_transaction() as session:
        if await admin_key_exists(session):
            return None
        key, secret = await create_key(session, NewKey("admin", name="first"))
        await audit.record(session, None, ACTOR, "key.create", key.id)
        return secret


def _claude(address: str, key: str) -> str:
    return f'  claude mcp add --transport http toolscout {address}/mcp --header "Authorization: Bearer {key}"'


def _curl(address: str, key: str) -> str:
    return (
        f"  curl -s {address}/discover -H 'Authorization: Bearer {key}' \\\n"
        "    -H 'Content-Type: application/json' \\\n"
        '    -d \'{"query": "do I need an umbrella in Salzburg this weekend?"}\''
    )
