"""Hear at once what other processes commit, through LISTEN and NOTIFY, on a connection of its own.

A notification hastens what happens anyway: each subscriber also polls every few seconds. So nothing breaks
while the connection is away, nor behind a pooler that does not pass notifications on.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum

import psycopg
from psycopg.conninfo import make_conninfo

from app.db.engine import Session, keepalives_for, libpq_url
from app.db.pipeline import DriverConnection
from app.db.scope import APP_ROLE

logger = logging.getLogger("toolscout.db")

POLL_S = 5.0
"""How often a subscriber looks by itself."""
_CONNECT_S = 3
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0


class Channel(StrEnum):
    MODELS = "toolscout_models"
    """The list of embedding models, or a model's calibration, has changed."""
    RUNS = "toolscout_runs"
    """A run has been queued, or one has ended, so that the server's next may begin."""
    SHARED_SERVERS = "toolscout_shared_servers"
    """A shared server, or who may use one, has changed."""


NOTIFY = "SELECT pg_notify(%(channel)s, '')"


async def notify(session: Session, channel: Channel) -> None:
    """Wake the subscribers of all processes when the transaction commits. Several in one transaction count once."""
    await session.rows(NOTIFY, {"channel": channel.value})


class Notifications:
    def __init__(self, url: str) -> None:
        """`url` leads to Postgres itself or to a pooler that keeps one connection for a session."""
        plain_url = libpq_url(url, "TOOLSCOUT_LISTEN_DATABASE_URL")
        self._conninfo = make_conninfo(plain_url, connect_timeout=_CONNECT_S, **keepalives_for(plain_url))
        self._subscribers: dict[Channel, list[Callable[[], object]]] = {channel: [] for channel in Channel}
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    def subscribe(self, channel: Channel, callback: Callable[[], object]) -> None:
        """Call `callback` after each notification, and after a time in which some may have been missed."""
        self._subscribers[channel].append(callback)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def is_listening(self) -> bool:
        return self._listening.is_set()

    async def wait_until_listening(self) -> None:
        await self._listening.wait()

    async def _run(self) -> None:
        """Listen for ever. After a failure try again, at growing intervals."""
        pause_s, is_reported = _FIRST_PAUSE_S, False
        while True:
            try:
                connection = await self._connect()
            except psycopg.Error as error:
                if not is_reported:  # once, until it works again
                    logger.warning("cannot listen for notifications, polling instead", extra={"error": str(error)})
                is_reported = True
            else:
                pause_s, is_reported = _FIRST_PAUSE_S, False
                await self._listen(connection)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)

    async def _connect(self) -> DriverConnection:
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        try:
            channels = "; ".join(f"LISTEN {channel}" for channel in Channel)
            await connection.execute(f"SET ROLE {APP_ROLE}; {channels}".encode())
        except BaseException:
            connection.pgconn.finish()
            raise
        return connection

    async def _listen(self, connection: DriverConnection) -> None:
        """Return when the connection is lost.

        psycopg's own `notifies` would wake up ten times a second.
        """
        loop, lost, wire = asyncio.get_running_loop(), asyncio.Event(), connection.pgconn
        socket = wire.socket

        def read() -> None:
            try:
                wire.consume_input()
            except psycopg.OperationalError:
                loop.remove_reader(socket)
                lost.set()
                return
            while notification := wire.notifies():
                with suppress(ValueError):  # a channel of a newer version
                    self._call(Channel(notification.relname.decode()))

        loop.add_reader(socket, read)
        self._listening.set()
        for channel in Channel:
            self._call(channel)
        try:
            await lost.wait()
            logger.info("lost the connection that listens for notifications")
        finally:
            self._listening.clear()
            loop.remove_reader(socket)
            wire.finish()

    def _call(self, channel: Channel) -> None:
        for callback in self._subscribers[channel]:
            try:
                callback()
            except Exception:  # boundary: one subscriber must not silence the others
                logger.exception("subscriber of notifications failed", extra={"channel": channel.value})
