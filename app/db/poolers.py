"""Find out what a pooler in front of Postgres does with connections.

Postgres sends each client, when it connects, the number of the process that serves it. A pooler lets clients in before
it has a connection of the server for them, and sends a number of its own.
"""

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
from sqlalchemy import Connection, text

from app.db.engine import libpq_url
from app.db.pipeline import DriverConnection
from app.errors import ConfigurationError
from app.settings import Pooler

_TIMEOUT_S = 5.0
_ATTEMPTS = 3

# processes of two servers may have the same number
_SERVING_PROCESS = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_OWN_NUMBER = "SELECT pg_backend_pid()"
_IDENTITY = """
    SELECT pg_postmaster_start_time(), (SELECT oid FROM pg_database WHERE datname = current_database()), session_user
"""


def refuse_shared_connections(connection: Connection, url: str, setting: str) -> None:
    """Raise `ConfigurationError` if the URL, to which this connection is open, leads to a pooler in transaction mode.

    What is set there for a session, and a lock that it holds, would stay behind for the next client.
    """
    driver = connection.connection.driver_connection
    assert driver is not None  # noqa: S101 it is open
    is_direct = driver.pgconn.backend_pid == connection.scalar(text(_OWN_NUMBER))
    connection.rollback()
    if is_direct or not asyncio.run(shares_connections(url)):
        return
    if setting == "DATABASE_URL":
        advice = "set TOOLSCOUT_DATABASE_POOLER=transaction, and TOOLSCOUT_LISTEN_DATABASE_URL to a URL that leads to"
    else:
        advice = "let it lead to"
    raise ConfigurationError(
        f"{setting} leads to a pooler in transaction mode, where connections are shared: {advice} Postgres itself"
    )


async def refuse_another_database(url: str, direct_url: str) -> None:
    """Raise `ConfigurationError` if the two URLs lead to two databases. Those that lead nowhere are left to others."""
    with suppress(TimeoutError, psycopg.OperationalError):
        async with asyncio.timeout(_TIMEOUT_S), await _connect(url) as pooled, await _connect(direct_url) as direct:
            await _refuse_another_database(pooled, direct)


async def _refuse_another_database(pooled: DriverConnection, direct: DriverConnection) -> None:
    if await _fetch_one(pooled, _IDENTITY) != await _fetch_one(direct, _IDENTITY):
        raise ConfigurationError(
            "DATABASE_URL and TOOLSCOUT_LISTEN_DATABASE_URL must lead to the same database of the same server, with "
            "the same role"
        )


async def check_pooler(url: str, direct_url: str, pooler: Pooler) -> str | None:
    """Return what could be better about a pooler that the settings name, or None.

    Raise `ConfigurationError` if it cannot be used as they say.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            async with await _connect(url) as pooled, await _connect(direct_url) as direct:
                await _refuse_another_database(pooled, direct)
                is_direct = await _is_direct(pooled)
            keeps_statements = pooler == "transaction" or await _keeps_prepared_statements(url)
    except TimeoutError:
        raise ConfigurationError(f"the pooler at DATABASE_URL gives no connection within {_TIMEOUT_S:.0f} s") from None
    except psycopg.OperationalError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"cannot connect to the database through its pooler: {reason}") from error
    if not keeps_statements:
        raise ConfigurationError(
            "the pooler at DATABASE_URL does not keep prepared statements: set TOOLSCOUT_DATABASE_POOLER=transaction, "
            "or, for pgbouncer 1.22 or later, its max_prepared_statements"
        )
    if is_direct:
        return "DATABASE_URL leads to Postgres itself: without TOOLSCOUT_DATABASE_POOLER, requests take less time"
    return None


async def leads_to_shared_connections(url: str) -> bool:
    """Return whether a URL that answers leads to a pooler in transaction mode, as far as can be seen."""
    async with asyncio.timeout(_TIMEOUT_S), await _connect(url) as connection:
        is_direct = await _is_direct(connection)
    return not is_direct and await shares_connections(url)


async def shares_connections(url: str) -> bool:
    """Return whether clients of this URL use the same connections of the server in turn.

    False is no proof: behind a busy pooler, a client may get the same one again by chance.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S), await _connect(url) as one, await _connect(url) as other:
            for _ in range(_ATTEMPTS):
                serving = await _fetch_one(one, _SERVING_PROCESS)
                async with other.transaction():  # which keeps the connection that it gets
                    if await _fetch_one(other, _SERVING_PROCESS) == serving:
                        return True
                    if await _fetch_one(one, _SERVING_PROCESS) != serving:
                        return True
    except (TimeoutError, psycopg.OperationalError):  # in session mode, the other one waits until a client leaves
        pass
    return False


async def _keeps_prepared_statements(url: str) -> bool:
    """Let two clients prepare different statements of the same name."""
    async with await _connect(url) as one, await _connect(url) as other:
        clients = {"SELECT 'one'": one, "SELECT 'other'": other}
        try:
            answers = [
                await _fetch_one(client, statement, prepare=True)
                for _ in range(_ATTEMPTS)
                for statement, client in clients.items()
            ]
        except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement):
            return False
    return answers == [("one",), ("other",)] * _ATTEMPTS


async def _connect(url: str) -> DriverConnection:
    return await psycopg.AsyncConnection.connect(libpq_url(url), autocommit=True)


async def _is_direct(connection: DriverConnection) -> bool:
    [number] = await _fetch_one(connection, _OWN_NUMBER)
    return bool(connection.pgconn.backend_pid == number)


async def _fetch_one(connection: DriverConnection, statement: str, *, prepare: bool = False) -> Any:
    return await (await connection.execute(statement.encode(), prepare=prepare)).fetchone()
