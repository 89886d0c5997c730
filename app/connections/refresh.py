"""Keeps access tokens fresh: one refresh request at a time for each account, across all processes.

A refresh token may be used only once, so that two processes that refresh at the same time would lose the account. The
one that gets the lease on the row asks the authorization server; the others wait until the row has a new version. No
transaction is open while anybody waits.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

from app.connections import oauth, repository
from app.connections.models import ServerConnection
from app.connections.requests import TIMEOUT_S, limit_time, make_sender
from app.crypto import Sealer
from app.db.engine import Database
from app.errors import AuthorizationRequired, ServerUnreachable
from app.mcp_client.url_guard import Guard

logger = logging.getLogger("toolscout.connections")

_LEASE = timedelta(seconds=TIMEOUT_S + 10)
"""Longer than a refresh takes. A process that dies with it blocks the others for so long."""
_MARGIN_S = 60.0
_JITTER_S = 30.0
_MAX_SHARE = 0.2
"""A short-lived token is refreshed in the last fifth of its life."""
_POLL_S = 0.1
_MIN_AGE_S = 60.0
"""A server that rejects a token younger than this would reject the next one, too."""

_Key = tuple[str, str, bool]

OnLost = Callable[[ServerConnection], Awaitable[None]]


class TokenRefresher:
    def __init__(self, database: Database, sealer: Sealer, guard: Guard, on_lost: OnLost) -> None:
        """`on_lost` is called if the authorization server no longer accepts the refresh token."""
        self._database = database
        self._sealer = sealer
        self._guard = guard
        self._on_lost = on_lost
        self._running: dict[_Key, asyncio.Task[ServerConnection]] = {}

    async def aclose(self) -> None:
        """Let running refreshes end: a new refresh token that is not stored is lost, and the account with it."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=TIMEOUT_S)

    async def get_fresh(self, connection: ServerConnection) -> ServerConnection:
        """Return the connection with a token that is still valid for a while, as far as anybody can know.

        Raise `AuthorizationRequired` if the user must sign in again, `ServerUnreachable` if the token has expired and
        the authorization server gives no usable answer.
        """
        if not _is_due(connection):
            return connection
        if connection.tokens is None or connection.tokens.refresh_token is None:
            if _has_expired(connection):
                await self._on_lost(connection)
                raise AuthorizationRequired
            return connection
        refreshing = self._start(connection, must_change=False)
        # the old token serves while it lives, even if the authorization server hangs
        return await asyncio.shield(refreshing) if _has_expired(connection) else connection

    async def replace_rejected(self, connection: ServerConnection) -> ServerConnection:
        """Return the connection with another token than the one that the server has just rejected.

        Raise `AuthorizationRequired` if there is none.
        """
        is_new = (connection.now - connection.refreshed_at).total_seconds() < _MIN_AGE_S
        if connection.tokens is None or connection.tokens.refresh_token is None:
            raise AuthorizationRequired
        if is_new and not _is_due(connection):
            raise AuthorizationRequired
        return await asyncio.shield(self._start(connection, must_change=True))

    def _start(self, connection: ServerConnection, *, must_change: bool) -> asyncio.Task[ServerConnection]:
        """Refresh in a task that all callers in this process share, and that goes on if they are cancelled."""
        key = connection.user_id, connection.server_id, must_change
        running = self._running.get(key)
        if running is None:
            running = asyncio.create_task(self._refresh_or_wait(connection, must_change=must_change))
            self._running[key] = running
            running.add_done_callback(lambda task: self._forget(key, task))
        return running

    def _forget(self, key: _Key, task: asyncio.Task[ServerConnection]) -> None:
        del self._running[key]
        _ = task.cancelled() or task.exception()  # retrieved, because nobody may be waiting any more

    async def _refresh_or_wait(self, connection: ServerConnection, *, must_change: bool) -> ServerConnection:
        async with limit_time(_LEASE.total_seconds()):
            while True:
                async with self._database.transaction(connection.user_id) as session:
                    has_lease = await repository.claim_refresh(session, connection, _LEASE)
                if has_lease:
                    return await self._refresh(connection)
                current = await self._read(connection)
                if not current.has_same_token(connection):
                    return current
                if not must_change and not _has_expired(current):
                    return current  # another process refreshes it; the old token serves meanwhile
                await asyncio.sleep(_POLL_S)

    async def _refresh(self, connection: ServerConnection) -> ServerConnection:
        assert connection.context is not None  # noqa: S101 it has tokens
        assert connection.tokens is not None  # noqa: S101 the callers have checked it
        send = make_sender(self._guard, connection.user_id)
        try:
            async with limit_time():
                tokens = await oauth.refresh(send, connection.context, connection.tokens)
        except oauth.GrantRefused as refusal:
            extra = {"server_id": connection.server_id, "code": refusal.code}
            logger.warning("refresh token refused", extra=extra)
            await self._on_lost(connection)
            raise AuthorizationRequired from refusal
        except ServerUnreachable as error:
            logger.warning("token refresh failed", extra={"server_id": connection.server_id, "cause": error.cause})
            async with self._database.transaction(connection.user_id) as session:
                await repository.release_refresh(session, connection)
            raise
        async with self._database.transaction(connection.user_id) as session:
            await repository.replace_tokens(session, self._sealer, connection, tokens)
        return await self._read(connection)

    async def _read(self, connection: ServerConnection) -> ServerConnection:
        async with self._database.transaction(connection.user_id) as session:
            current = await repository.read_connection(session, self._sealer, connection.user_id, connection.server_id)
        if current is None or current.tokens is None:
            raise AuthorizationRequired  # disconnected meanwhile
        return current


def _is_due(connection: ServerConnection) -> bool:
    if connection.expires_at is None:
        return False
    lifetime_s = (connection.expires_at - connection.refreshed_at).total_seconds()
    margin_s = min(_MARGIN_S + random.uniform(0, _JITTER_S), _MAX_SHARE * lifetime_s)  # noqa: S311 not a secret
    return connection.expires_at - timedelta(seconds=margin_s) <= connection.now


def _has_expired(connection: ServerConnection) -> bool:
    return connection.expires_at is not None and connection.expires_at <= connection.now
