"""`toolscout serve`: start the service, show new keys once, and stop without losing a request."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from sse_starlette.sse import AppStatus

from app.cli.context import ACTOR, with_settings
from app.cli.group import make_group
from app.cli.hangup import HangupHandler
from app.cli.http_protocol import ConnectionLimits, DeadlineProtocol
from app.cli.running_services import announce_service
from app.container import Container, open_container
from app.demo.seed import finish_demo, seed_demo
from app.errors import ConfigurationError, NodeDown
from app.local_postgres.database import open_database
from app.main import create_app
from app.management.keys import create_first_admin_key
from app.observability.logging import configure_logging
from app.settings import Settings, find_typos

logger = logging.getLogger("toolscout")

_GRACE_S = 6
"""How long requests may take to finish after the port is closed. The rest are cancelled without a response."""
_TICK_S = 1.0
_TOOL_CALLS_S = 4
"""How long tool calls may take to finish after the port is closed. It is shorter than the grace period, so that there
is time to record a call that is given up and to answer its caller."""
_KEEP_ALIVE_S = 75
"""Longer than clients (httpx: 5 s) and load balancers (nginx: 60 s) keep an idle connection. If the server closes it
first, at the moment in which a client writes to it, the client loses a request."""
_FIRST_REQUEST_S = 0.5
"""Time for the first request on a new connection. Until it arrives the connection looks idle, and idle connections are
closed at the shutdown."""

_DEMO_DISCOVERY = '{"query": "what time is it in Tokyo?", "format": "anthropic"}'
_DEMO_CALL = '{"tool_key": "toolbox.get_current_time", "arguments": {"timezone": "Tokyo"}}'
"""With the name of the server: it stays right when another server has a tool of that name."""

commands = make_group()


@commands.command("serve")
@with_settings
async def serve(settings: Settings) -> int:
    """Run the service.

    The settings are read from environment variables and from `.env`. The first start creates an admin key and shows it
    once.
    """
    configure_logging(settings.log_level, settings.log_format)
    # Listen first: keys that are shown only once must not be created for a service that cannot start.
    with _listen(settings) as listener:
        async with open_database(settings) as url, open_container(settings, url) as container:
            for message in find_typos():
                logger.warning(message)
            await _serve_with_new_keys(container, listener)
    return 0


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}): set TOOLSCOUT_PORT to another port"
        ) from error
    return listener


@dataclass
class NewKeys:
    """Keys that this start has created. They are shown once, and written to stdout, never to the log."""

    demo: str | None = None
    admin: str | None = None

    def show(self) -> None:
        """Print the keys that have not been shown yet."""
        if self.demo is not None:
            _print_paragraphs("The key of the demo user, shown only once:", f"  {self.demo}")
        if self.admin is not None:
            _print_paragraphs("The first admin key, shown only once:", f"  {self.admin}")
        if self.demo is not None or self.admin is not None:
            print(flush=True)
        self.demo = self.admin = None


async def _serve_with_new_keys(container: Container, listener: socket.socket) -> None:
    """Show new keys after the log lines of the start, which would scroll them away, and also if the start fails."""
    keys = NewKeys()
    try:
        await _create_keys(container, keys)
        host, port = listener.getsockname()[:2]
        greeting = _make_greeting(container.settings, f"http://{_reachable_host(host)}:{port}", keys.demo)

        def announce() -> None:
            _print_paragraphs(*greeting)
            keys.show()

        await _serve_until_stopped(container, listener, announce)
    finally:
        keys.show()


async def _create_keys(container: Container, keys: NewKeys) -> None:
    """Create the admin key last, because indexing the demo tools takes seconds in which the process may be killed."""
    settings = container.settings
    if settings.role == "worker":
        return
    if settings.seeds_demo and (demo_key := await seed_demo(container)) is not None:
        keys.demo = demo_key
        await finish_demo(container)
    keys.admin = await _create_first_admin_key(container)


async def _create_first_admin_key(container: Container) -> str | None:
    if container.settings.admin_api_key is not None:
        return None
    try:
        return await create_first_admin_key(container.database, actor=ACTOR)
    except NodeDown:  # its keys cannot be read: there may be one
        logger.warning("no admin key is created while a node of the database is away")
        return None


def _make_greeting(settings: Settings, address: str, demo_key: str | None) -> list[str]:
    """Return paragraphs that name the URLs which this role serves."""
    if settings.role == "worker":
        return [f"Toolscout processes index runs   (metrics: {address}/metrics, stop with Ctrl-C)", ""]
    greeting = [
        f"Toolscout is running at {address}   (API: {address}/docs, stop with Ctrl-C)\n"
        f"Console: {address}/console   (sign in with a key)\n"
        f"Create more keys: {sys.argv[0]} key create --help"
    ]
    if demo_key is not None:
        greeting += [
            "A demo user has tools on nine servers. Find the tools that a message needs, then run one:",
            _format_curl(address, demo_key, "/discover", _DEMO_DISCOVERY),
            _format_curl(address, demo_key, "/execute", _DEMO_CALL),
            "Or connect an MCP client, such as Claude Code:",
            f'  claude mcp add --transport http toolscout {address}/mcp --header "Authorization: Bearer {demo_key}"',
        ]
    return greeting


def _format_curl(address: str, key: str, path: str, body: str) -> str:
    return (
        f"  curl -s {address}{path} -H 'Authorization: Bearer {key}' \\\n"
        f"    -H 'Content-Type: application/json' \\\n    -d '{body}'"
    )


def _reachable_host(host: str) -> str:
    """Return a host for URLs: a wildcard address can be listened on, but not connected to."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 compared, not listened on
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _print_paragraphs(*paragraphs: str) -> None:
    print("\n" + "\n\n".join(textwrap.indent(paragraph, "  ") for paragraph in paragraphs), flush=True)


async def _serve_until_stopped(container: Container, listener: socket.socket, announce: Callable[[], None]) -> None:
    app = create_app(container)
    config = _make_config(app, container.settings)
    # Modules and models are never freed. Collecting them again and again paused all requests for 150 ms at a time.
    gc.collect()
    gc.freeze()
    # The MCP SDK serves older clients through sse-starlette, which by default ends all streams at the first signal.
    AppStatus.enable_automatic_graceful_drain = False
    # When uvicorn has stopped, it raises the signal again. That must not end the process while resources are closed.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, signal.SIG_IGN)
    drain_s = container.settings.drain_s
    server = _Server(config, announce, container.draining, drain_s, container.shutdown)
    with announce_service(container.settings.data_dir) as service:
        HangupHandler(app.state.reloader, service, server.stop).install()
        await server.serve(sockets=[listener])


def _make_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    limits = ConnectionLimits(settings.head_timeout_s, settings.body_timeout_s)
    return uvicorn.Config(
        app,
        http=partial(DeadlineProtocol, limits),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=settings.proxy_addresses,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )


class _Server(uvicorn.Server):
    """A server that announces itself when the port is open, and that stops in steps.

    Stopping: set `draining`, wait for load balancers to notice, accept pending connections and close the port, set
    `shutdown` when tool calls have had their time, and let uvicorn finish the remaining requests.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        announce: Callable[[], None],
        draining: asyncio.Event,
        drain_s: float,
        shutdown: asyncio.Event,
    ) -> None:
        super().__init__(config)
        self._announce = announce
        self._draining = draining
        self._drain_s = drain_s
        self._shutdown_event = shutdown
        self._accepting: list[asyncio.Task[Any]] = []
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """May be called by a signal's handler."""
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._stopping.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.stop()

    async def main_loop(self) -> None:
        """Once a second, renew the date in the answers' headers. uvicorn itself wakes up ten times a second."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._stopping.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info("stopping")
        self._draining.set()
        await asyncio.sleep(self._drain_s)
        self._accept_pending(sockets or [])
        asyncio.get_running_loop().call_later(_TOOL_CALLS_S, self._shutdown_event.set)
        await asyncio.sleep(_FIRST_REQUEST_S)
        await asyncio.sleep(0)  # on a busy machine the time may be over before any connection was read
        await super().shutdown(sockets)
        logger.info("stopped")

    def _accept_pending(self, listeners: list[socket.socket]) -> None:
        """Accept the connections that wait in the backlog and close the port, without awaiting in between.

        The kernel resets a connection that is still in the backlog when the port is closed.
        """
        loop = asyncio.get_running_loop()
        for listener in listeners:
            listener.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    connection, _ = listener.accept()
                    task = loop.create_task(loop.connect_accepted_socket(self._make_protocol, connection))
                    self._accepting.append(task)
        for server in self.servers:
            server.close()

    def _make_protocol(self) -> asyncio.Protocol:
        """Make a protocol as uvicorn does for connections that it accepts itself."""
        return self.config.http_protocol_class(
            config=self.config,  # type: ignore[call-arg]
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
