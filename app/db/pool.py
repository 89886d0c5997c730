"""A pool of connections that each serve two ways: through SQLAlchemy, and directly through its driver.

SQLAlchemy's own pool would take as long for each transaction as a short statement, and is not fair to users.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import pq
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.fair_shares import FairShares, Owner
from app.db.pipeline import DriverConnection, roll_back
from app.db.scope import Mode
from app.observability.metrics import Metrics

MODE = "mode"
"""The key of a connection's `Mode` in SQLAlchemy's `info`."""
_ROLL_BACK_S = 5.0
"""How long the server may take to roll a transaction back before its connection is closed."""


class PoolTimeout(Exception):
    """No connection became free in time."""


@dataclass(frozen=True, eq=False)
class PooledConnection:
    alchemy: AsyncConnection
    driver: DriverConnection
    generation: int
    mode: Mode

    @property
    def is_idle(self) -> bool:
        return self._transaction_status == pq.TransactionStatus.IDLE

    @property
    def is_in_transaction(self) -> bool:
        return self._transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

    @property
    def _transaction_status(self) -> int:
        wire = self.driver.pgconn
        is_usable = wire.pipeline_status == pq.PipelineStatus.OFF
        return wire.transaction_status if is_usable else pq.TransactionStatus.UNKNOWN


class ConnectionPool:
    def __init__(
        self, connect: Callable[[], Awaitable[AsyncConnection]], size: int, wait_s: float, metrics: Metrics
    ) -> None:
        """`wait_s` is how long `acquire` waits for a free connection."""
        self._connect = connect
        self._wait_s = wait_s
        self._shares = FairShares(size)
        self._idle: list[PooledConnection] = []
        self._in_use: set[PooledConnection] = set()
        self._generation = 0
        self._metrics = metrics
        metrics.pool_size.set(size)
        metrics.pool_in_use.set_function(lambda: self._shares.in_use)
        metrics.pool_waiting.set_function(lambda: self._shares.waiting)

    async def acquire(self, owner: Owner) -> PooledConnection:
        """Return a connection that nobody else uses until `release`. It may have been lost since its last use.

        Raise `PoolTimeout` if none becomes free in time.
        """
        await self._wait_for_turn(owner)
        try:
            while self._idle:
                connection = self._idle.pop()  # the one used last: its caches are warm
                if connection.generation == self._generation:
                    self._in_use.add(connection)
                    return connection
                await _close(connection)
            alchemy = await self._connect()
            driver = get_driver_connection(alchemy)
            connection = PooledConnection(alchemy, driver, self._generation, _get_mode(alchemy))
            self._in_use.add(connection)
            return connection
        except BaseException:
            self._shares.release(owner)
            raise

    async def _wait_for_turn(self, owner: Owner) -> None:
        if self._shares.try_acquire(owner):
            self._metrics.pool_wait_seconds.observe(0.0)
            return
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._shares.acquire(owner)
        except TimeoutError as error:
            self._metrics.pool_timeouts.inc()
            raise PoolTimeout from error
        finally:
            self._metrics.pool_wait_seconds.observe(time.perf_counter() - started)

    async def release(self, owner: Owner, connection: PooledConnection) -> None:
        """Take a connection back. Roll back what was not committed; close one that is lost or in an unknown state."""
        try:
            if connection.is_in_transaction:
                await _try_to_roll_back(connection)
        finally:
            try:
                if connection.is_idle and connection.generation == self._generation:
                    self._idle.append(connection)
                else:
                    await _close(connection)
            finally:
                self._in_use.discard(connection)
                self._shares.release(owner)

    def expire_connections(self) -> None:
        """Let all connections be replaced at their next use."""
        self._generation += 1

    def disconnect(self) -> None:
        """Break all connections that are in use: what waits for the server on them fails at once."""
        for connection in self._in_use:
            _disconnect(connection.driver)

    async def close(self) -> None:
        self.expire_connections()
        while self._idle:
            await _close(self._idle.pop())


def get_driver_connection(connection: AsyncConnection) -> DriverConnection:
    """Return what `get_raw_connection` leads to, without its detour through another greenlet."""
    assert connection.sync_connection is not None  # noqa: S101 it was just opened
    driver = connection.sync_connection.connection.driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)  # noqa: S101 the URL names no other driver
    return driver


def _get_mode(connection: AsyncConnection) -> Mode:
    assert connection.sync_connection is not None  # noqa: S101 it was just opened
    mode: Mode = connection.sync_connection.info[MODE]
    return mode


async def _try_to_roll_back(connection: PooledConnection) -> None:
    """Leave the connection closed, unless the server answers in time."""
    disconnecting = asyncio.get_running_loop().call_later(_ROLL_BACK_S, _disconnect, connection.driver)
    try:
        await roll_back(connection.driver)
    except psycopg.Error:
        connection.driver.pgconn.finish()
    except BaseException:
        connection.driver.pgconn.finish()
        raise
    finally:
        disconnecting.cancel()


def _disconnect(driver: DriverConnection) -> None:
    """Let the driver find out that the connection is lost.

    A task that waits for the server would, when cancelled, still wait for it: the driver tries to cancel the statement.
    Nor may the connection be closed meanwhile: the driver waits for a file descriptor, which a new one could get.
    """
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(driver.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


async def _close(connection: PooledConnection) -> None:
    connection.driver.pgconn.finish()  # first, and at once: a task that is cancelled below must not leave it open
    await connection.alchemy.invalidate()  # otherwise SQLAlchemy would roll back, and fail
    await connection.alchemy.close()
