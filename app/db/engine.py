"""Connections and transactions.

This is the only module that commits, and the one in which the driver's errors are translated into ours.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import psycopg
from pgvector.psycopg import register_vector_async
from sqlalchemy import Executable, event
from sqlalchemy.engine import CursorResult, ScalarResult, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from app.db.fair_shares import Lane, Owner
from app.db.pipeline import DriverConnection, Rows, Statement, name_statements_uniquely, run_pipeline
from app.db.pool import MODE, ConnectionPool, PooledConnection, PoolTimeout
from app.db.scope import (
    APP_ROLE,
    DISTRIBUTED_SETTINGS,
    SETTINGS,
    STATEMENT_TIMEOUT_S,
    Mode,
    Scope,
    open_fetch,
    open_transaction,
)
from app.errors import ConfigurationError, DatabaseDown, NodeDown, QueryFailed, QueryInterrupted
from app.observability.metrics import Metrics
from app.settings import Pooler

logger = logging.getLogger("toolscout.db")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# the second one names a table that is not there without the extension
_HAS_CITUS = "SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL"
_IS_DISTRIBUTED = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_dist_partition WHERE logicalrelid = to_regclass('users'))"

# The role of each transaction is local to it in any case. With `none`, a connection is the service's own, and has the
# app role also between transactions.
_PREPARING: Mapping[Pooler, Mapping[str, Any]] = {
    "none": {},
    "transaction": {"prepare_threshold": None},
    "transaction_prepared": {},
}

_MODES = {  # by whether Citus distributes the tables, and whether the URL leads to a pooler
    (False, False): Mode.SESSION,
    (False, True): Mode.TRANSACTION,
    (True, False): Mode.DISTRIBUTED,
    (True, True): Mode.DISTRIBUTED_TRANSACTION,
}

# The role, too, although each transaction sets it: a statement outside of all transactions must not be the owner's.
_ON_CONNECT = {
    mode: "; ".join([f"SET ROLE {APP_ROLE}", *(f"SET {name} = '{value}'" for name, value in settings.items())])
    for mode, settings in {Mode.SESSION: SETTINGS, Mode.DISTRIBUTED: DISTRIBUTED_SETTINGS}.items()
}

_POSTGRES_SCHEMES = frozenset({"postgres", "postgresql"})
_POOL_WAIT_S = 5
"""How long a request waits for a pooled connection before it is answered with 503."""
_CONNECT_S = 3
# A connection whose other end has vanished, or that a firewall has dropped, looks alive for hours otherwise.
_KEEPALIVES = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}

# SQLSTATE prefixes. A connection error on a connection that is open is about another one: of Citus, to a node.
_NODE_DOWN_STATE = "08"
_DOWN_STATES = ("57P0",)
# a prepared statement does not exist, or exists already
_LOST_STATEMENT_STATES = ("26000", "42P05")
_LOST_STATEMENT = "prepared statements are lost: {setting} leads to a pooler that does not keep them; {advice}"
_POOLER_ADVICE = {"DATABASE_URL": "set TOOLSCOUT_DATABASE_POOLER=transaction"}
_DIRECT_ADVICE = "let it lead to Postgres itself, or to a pooler in session mode"
# serialization failures, deadlocks, time-outs, missing resources, a read-only server: may succeed on a retry
_RETRYABLE_STATES = ("40001", "40P01", "57014", "55P03", "53", "25006")

_CONNECTION_ERRORS = (
    OperationalError,
    InterfaceError,
    PoolTimeout,
    psycopg.OperationalError,
    psycopg.InterfaceError,
)


def driver_url(url: str, setting: str = "DATABASE_URL") -> str:
    """Return the URL with psycopg as its driver, whichever spelling (`postgres://`, `postgresql://`) it has.

    `setting` is where it comes from, for the error.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            f"{setting} is not valid; it looks like postgresql://user:password@host:port/name"
        ) from error
    backend = parsed.get_backend_name().lower()
    if backend not in _POSTGRES_SCHEMES:
        raise ConfigurationError(
            f"{setting} names a {backend} database, and Toolscout needs Postgres with pgvector: use a URL like "
            f"postgresql://user:password@host:port/name, or leave {setting} out"
            + (", and Toolscout starts a Postgres of its own" if setting == "DATABASE_URL" else "")
        )
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def libpq_url(url: str, setting: str = "DATABASE_URL") -> str:
    """Return the URL as psycopg itself takes it."""
    return driver_url(url, setting).replace("postgresql+psycopg://", "postgresql://", 1)


def keepalives_for(url: str) -> dict[str, int]:
    """Return the parameters with which a lost connection is noticed in half a minute; the URL may have its own."""
    own = make_url(url).query
    return {name: value for name, value in _KEEPALIVES.items() if name not in own}


@dataclass(frozen=True)
class Session:
    """A connection inside a transaction that is bound to one user, or to the system.

    `execute`, `scalar` and `scalars` take SQLAlchemy statements. `rows` takes plain SQL and bypasses SQLAlchemy: the
    few statements that every discovery runs would spend most of their time in it.
    """

    _connection: AsyncConnection
    _driver: DriverConnection
    is_distributed: bool = False
    _on_lost_statement: Callable[[], object] = lambda: None
    _callbacks: list[Callable[[], object]] = field(default_factory=list)

    def after_commit(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call `callback(*args)` once the transaction has committed; never if it rolls back.

        Callbacks run in the order in which they were registered. They must not block: the connection is still held.
        One that raises is logged, and the others still run, since the write itself has happened. Where the outcome of
        the commit is unknown, because the connection was lost or the task was cancelled during it, none runs:
        register only what hastens something that happens anyway, such as clearing a cache whose entries expire.
        """
        self._callbacks.append(partial(callback, *args))

    async def commit(self) -> None:
        """For `Database` alone."""
        try:
            with self._translate_errors():
                await self._driver.commit()
        except QueryInterrupted:
            raise
        except QueryFailed as error:
            if not self.is_distributed:
                raise
            # Citus reports a lost node with an internal error. Whether the node has committed is unknown.
            raise _node_down() from error

    def run_callbacks(self) -> None:
        """For `Database` alone, right after the commit."""
        while self._callbacks:
            callback = self._callbacks.pop(0)
            try:
                callback()
            except Exception:  # the write has happened: it must not be reported as failed
                logger.exception("after-commit callback failed")

    async def execute(
        self, statement: Executable, rows: Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        with self._translate_errors():
            return await self._connection.execute(statement, rows)

    async def scalar(self, statement: Executable) -> Any:
        with self._translate_errors():
            return await self._connection.scalar(statement)

    async def scalars(self, statement: Executable) -> ScalarResult[Any]:
        with self._translate_errors():
            return await self._connection.scalars(statement)

    async def rows(self, statement: str, parameters: Mapping[str, Any] | None = None, *, binary: bool = False) -> Rows:
        """`binary`: receive the rows in binary form, which is faster for vectors, arrays and bytes."""
        with self._translate_errors():
            cursor = await self._driver.execute(statement, parameters, binary=binary)
            return [] if cursor.rownumber is None else await cursor.fetchall()

    async def pipeline(self, statements: Sequence[Statement]) -> list[Rows]:
        """Return the rows of each statement, in one round trip. If one fails, those after it are not run."""
        with self._translate_errors():
            return await run_pipeline(self._driver, statements)

    async def stream(self, statement: str, parameters: Mapping[str, Any]) -> AsyncIterator[tuple[Any, ...]]:
        """Yield rows, in binary form, as they arrive: the event loop is free between two of them."""
        with self._translate_errors():
            async with self._driver.cursor(binary=True) as cursor:
                async for row in cursor.stream(statement, parameters):
                    yield row

    def _translate_errors(self) -> AbstractContextManager[None]:
        return _translate_errors(self._driver, self.is_distributed, self._on_lost_statement)


@contextmanager
def _translate_errors(
    driver: DriverConnection, is_distributed: bool, on_lost_statement: Callable[[], object]
) -> Iterator[None]:
    """Turn errors of a statement into `QueryFailed` or `QueryInterrupted`.

    `IntegrityError` passes through to the caller, and a lost connection to the transaction.
    """
    try:
        yield
    except IntegrityError:
        raise
    except (DBAPIError, psycopg.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        state = getattr(cause, "sqlstate", None) or ""
        if driver.closed:
            raise
        if state.startswith(_NODE_DOWN_STATE) and is_distributed:
            raise _node_down() from error
        if state.startswith((*_DOWN_STATES, _NODE_DOWN_STATE)):
            raise
        if state in _LOST_STATEMENT_STATES:
            on_lost_statement()
            driver.pgconn.finish()  # it would miss the statement again
            raise QueryInterrupted("the database has lost a prepared statement; try again shortly") from error
        if state.startswith(_RETRYABLE_STATES):
            raise QueryInterrupted("the database interrupted a statement; try again shortly") from error
        raise QueryFailed("the database rejected a statement") from error


@dataclass(frozen=True)
class Versions:
    """The state that a read for one user must see, or a later one. A server that is behind it does not answer."""

    catalog: int
    examples: int
    model: str
    """It must be the active embedding model: only then its rows are complete."""


class NotServed(Exception):
    """The read replica has not answered: the primary must."""


class Replica(Protocol):
    """What reads in place of the primary (`read_replica.py`). Each read sees one state."""

    async def fetch(self, user_id: str, statements: Sequence[Statement], at_least: Versions) -> list[Rows]:
        """Raise `NotServed` unless the replica answers, and has reached these versions."""

    async def read(
        self, user_id: str, work: Callable[[Session], Awaitable[T]], at_least: Versions, *, background: bool
    ) -> T:
        """Like `fetch`, for reads of several round trips. `background`: no request waits for the result."""

    def request_check(self) -> None:
        """Compare the replica with the primary before it is used again: another server may be the primary now."""


class Reader(Protocol):
    """What reads rows of one user: a session, or a `UserReader`."""

    async def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Rows: ...


@dataclass(frozen=True)
class UserReader:
    """Runs each statement by itself: in one round trip, where a transaction takes one more to begin and to commit."""

    _database: "Database"
    _user_id: str
    _at_least: Versions | None = None

    async def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        [rows] = await self._database.fetch(self._user_id, [(statement, parameters)], at_least=self._at_least)
        return rows


class BatchReader:
    """Runs the statements of tasks that start together, as those of `asyncio.gather`, in one round trip.

    If one of them fails, all do.
    """

    def __init__(self, database: "Database", user_id: str, *, at_least: Versions | None = None) -> None:
        self._database = database
        self._user_id = user_id
        self._at_least = at_least
        self._statements: list[Statement] = []
        self._batch: asyncio.Task[list[Rows]] | None = None

    async def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        position = len(self._statements)
        self._statements.append((statement, parameters))
        if self._batch is None:
            self._batch = asyncio.create_task(self._run())  # it starts after the tasks that were created before
        return (await self._batch)[position]

    async def _run(self) -> list[Rows]:
        statements, self._statements, self._batch = self._statements, [], None
        return await self._database.fetch(self._user_id, statements, at_least=self._at_least)


class Database:
    def __init__(
        self,
        url: str,
        pool_size: int,
        metrics: Metrics | None = None,
        *,
        pooler: Pooler = "none",
        pool_wait_s: float | None = None,
        setting: str = "DATABASE_URL",
    ) -> None:
        """Commands pass no `metrics`: they end before a scrape. `pooler` says what the URL leads to.

        `setting` is where the URL comes from, for messages.
        """
        self._setting = setting
        self._engine = create_async_engine(
            driver_url(url, setting),
            poolclass=NullPool,  # `ConnectionPool` keeps the connections
            pool_reset_on_return=None,
            hide_parameters=True,  # a logged error must not contain a user's texts
            isolation_level="AUTOCOMMIT",  # `_transaction` begins and commits
            connect_args={"connect_timeout": _CONNECT_S, **keepalives_for(url), **_PREPARING[pooler]},
        )
        self._is_pooled = pooler != "none"
        self.is_distributed = False
        """Whether Citus distributes the tables, as the newest connection has found them."""
        self.warning: str | None = None
        """What an operator should change."""
        self._pool_size = pool_size
        wait_s = _POOL_WAIT_S if pool_wait_s is None else pool_wait_s
        self._pool = ConnectionPool(self._engine.connect, pool_size, wait_s, metrics or Metrics())
        self._replica: Replica | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        event.listen(self._engine.sync_engine, "connect", self._prepare_connection)
        event.listen(self._engine.sync_engine, "engine_disposed", lambda _: self.expire_connections())

    @property
    def engine(self) -> AsyncEngine:
        return self._engine

    def use_replica(self, replica: Replica) -> None:
        """Let the replica answer reads that say which versions they need."""
        self._replica = replica

    @asynccontextmanager
    async def transaction(self, user_id: str) -> AsyncIterator[Session]:
        """Open a transaction that can see and write the rows of this user only."""
        async with self._transaction(Scope(user_id), user_id) as session:
            yield session

    @asynccontextmanager
    async def exclusive_transaction(self, user_id: str) -> AsyncIterator[Session]:
        """Like `transaction`, for work that locks the user's row, one at a time for each user in this process.

        Further ones wait here: at the row's lock each of them would hold a connection. Raise `QueryInterrupted` if it
        takes as long as a statement may take.
        """
        writing = self._writing.setdefault(user_id, asyncio.Lock())
        try:
            async with asyncio.timeout(STATEMENT_TIMEOUT_S):
                await writing.acquire()
        except TimeoutError as error:
            raise QueryInterrupted("other changes of this user are still being made; try again shortly") from error
        try:
            async with self.transaction(user_id) as session:
                yield session
        finally:
            writing.release()

    @asynccontextmanager
    async def snapshot(self, user_id: str) -> AsyncIterator[Session]:
        """Open a read-only transaction whose statements all see the same state of this user's rows."""
        async with self._transaction(Scope(user_id), user_id, snapshot=True) as session:
            yield session

    @asynccontextmanager
    async def system_transaction(self) -> AsyncIterator[Session]:
        """Open a transaction across users: to look up keys and queued runs, for administrators, for statistics."""
        async with self._transaction(Scope(), Lane.SYSTEM) as session:
            yield session

    async def read_snapshot(
        self,
        user_id: str,
        work: Callable[[Session], Awaitable[T]],
        *,
        at_least: Versions | None = None,
        background: bool = False,
    ) -> T:
        """Return what `work` reads in a `snapshot`. It may run twice: if a read replica fails, again on the primary.

        `at_least` lets a read replica answer that has reached these versions. `background`: no request waits for it.
        """
        if at_least is not None and self._replica is not None:
            with suppress(NotServed):
                return await self._replica.read(user_id, work, at_least, background=background)
        async with self.snapshot(user_id) as session:
            return await work(session)

    async def fetch(
        self,
        user_id: str,
        statements: Sequence[Statement],
        *,
        snapshot: bool = False,
        at_least: Versions | None = None,
    ) -> list[Rows]:
        """Return the rows of each statement, in one round trip. They see the rows of this user only.

        For reading: a statement that writes is rejected. Each statement sees what is committed when it starts; with
        `snapshot`, all see the same state. `at_least` lets a read replica answer that has reached these versions.
        """
        if at_least is not None and self._replica is not None:
            with suppress(NotServed):
                return await self._replica.fetch(user_id, statements, at_least)
        return await self._fetch(statements, Scope(user_id), user_id, snapshot=snapshot)

    def reader(self, user_id: str, *, at_least: Versions | None = None) -> "UserReader":
        """Return what runs single statements for this user, each in one round trip."""
        return UserReader(self, user_id, at_least)

    async def system_fetch(self, statements: Sequence[Statement], *, urgent: bool = False) -> list[Rows]:
        """Like `fetch`, across users. `urgent`: for authentication, which no user's work may delay."""
        lane = Lane.AUTHENTICATION if urgent else Lane.SYSTEM
        return await self._fetch(statements, Scope(), lane)

    async def _fetch(
        self, statements: Sequence[Statement], scope: Scope, owner: Owner, *, snapshot: bool = False
    ) -> list[Rows]:
        async def attempt() -> list[Rows]:
            connection = await self._pool.acquire(owner)
            try:
                opening = open_fetch(scope, connection.mode, snapshot=snapshot)
                bound = [*opening.statements, *statements]
                is_distributed = connection.mode.is_distributed
                with _translate_errors(connection.driver, is_distributed, self._warn_of_lost_statement):
                    rows = await run_pipeline(
                        connection.driver, bound, opening=opening.texts, commit=bool(opening.texts)
                    )
                return rows[len(opening.statements) :]
            finally:
                await self._pool.release(owner, connection)

        try:
            return await self._retry(attempt)
        except _CONNECTION_ERRORS as error:
            raise self._give_up(error) from error

    @asynccontextmanager
    async def _transaction(self, scope: Scope, owner: Owner, *, snapshot: bool = False) -> AsyncIterator[Session]:
        async def attempt() -> PooledConnection:
            connection = await self._pool.acquire(owner)
            try:
                await _begin(connection, scope, snapshot=snapshot)
            except BaseException:
                await self._pool.release(owner, connection)
                raise
            return connection

        try:
            connection = await self._retry(attempt)
            try:
                is_distributed = connection.mode.is_distributed
                session = Session(connection.alchemy, connection.driver, is_distributed, self._warn_of_lost_statement)
                yield session
                await session.commit()
                # nothing is awaited in between: a task that is cancelled later cannot skip them
                session.run_callbacks()
            finally:
                await self._pool.release(owner, connection)  # it rolls back what was not committed
        except _CONNECTION_ERRORS as error:
            raise self._give_up(error) from error

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """After a restart of Postgres every pooled connection may be dead: try and drop each, then make a new one.

        If that one fails too, or a pooler lets each attempt wait, Postgres is down.
        """
        deadline = time.monotonic() + _POOL_WAIT_S
        for _ in range(self._pool_size):
            try:
                return await attempt()
            except (psycopg.OperationalError, psycopg.InterfaceError):
                self._request_replica_check()
                if time.monotonic() > deadline:
                    raise
        return await attempt()

    def _give_up(self, error: Exception) -> DatabaseDown:
        if not isinstance(error, PoolTimeout):
            self._request_replica_check()
        return DatabaseDown("the database is not available; try again shortly")

    def _request_replica_check(self) -> None:
        """Call this for every connection that is lost or refused: it may have been a failover."""
        if self._replica is not None:
            self._replica.request_check()

    async def ping(self) -> None:
        """Raise `DatabaseDown` if the database does not answer.

        Concurrent callers share one statement, and one connection: `/readyz` needs no key.
        """
        if self._pinging is None or self._pinging.done():
            self._pinging = asyncio.create_task(self._send_ping())
            self._pinging.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._pinging)

    async def _send_ping(self) -> None:
        async with self.system_transaction() as session:
            await session.rows("SELECT 1")

    def expire_connections(self) -> None:
        """Let all connections be replaced at their next use."""
        self._pool.expire_connections()

    def disconnect(self) -> None:
        """Break all connections that are in use: what waits for the server fails at once."""
        self._pool.disconnect()

    async def close(self) -> None:
        await self._pool.close()
        await self._engine.dispose()

    def _warn_of_lost_statement(self) -> None:
        advice = _POOLER_ADVICE.get(self._setting, _DIRECT_ADVICE)
        warning = _LOST_STATEMENT.format(setting=self._setting, advice=advice)
        if self.warning is None:
            logger.error(warning)
        self.warning = warning

    def _prepare_connection(self, connection: Any, record: Any) -> None:
        connection.autocommit = True
        name_statements_uniquely(connection.driver_connection)
        try:
            connection.run_async(register_vector_async)
            self.is_distributed = _has_distributed_tables(connection)
            mode = record.info[MODE] = _MODES[self.is_distributed, self._is_pooled]
            if mode in _ON_CONNECT:
                _execute(connection, _ON_CONNECT[mode])
        except BaseException:  # also when the request was cancelled: nothing else would close the connection
            connection.driver_connection.pgconn.finish()
            raise


def _has_distributed_tables(connection: Any) -> bool:
    """Return whether Citus distributes the table of the users."""
    return bool(_execute(connection, _HAS_CITUS)) and bool(_execute(connection, _IS_DISTRIBUTED))


def _execute(connection: Any, statement: str) -> Any:
    """Return the value of the statement, if it has one."""
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None
    finally:
        cursor.close()


async def _begin(connection: PooledConnection, scope: Scope, *, snapshot: bool) -> None:
    texts = open_transaction(scope, connection.mode, snapshot=snapshot)
    if len(texts) == 1:
        # one message of two statements, which cannot be prepared
        await connection.driver.execute(texts[0].encode(), prepare=False)
    else:
        await run_pipeline(connection.driver, [], opening=texts)


def _node_down() -> NodeDown:
    return NodeDown("a node of the database is not available; try again shortly")
