"""Read from a streaming replica of the database, where it has reached what the request must see.

Every request is authenticated on the primary, which returns the user's versions. A read on the replica is one snapshot
whose first statement compares them: if the replica is behind, the result is dropped, and the primary is asked.

A failed read is repeated on the primary, and the replica is left alone until it has answered in the background and is
still a replica of this primary. So requests do not wait for a replica that is away.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, TypeVar

import psycopg
from cachetools import TTLCache
from sqlalchemy.exc import SQLAlchemyError

from app.db.engine import Database, NotServed, Session, Versions
from app.db.pipeline import Rows, Statement
from app.db.pool import PoolTimeout
from app.db.server_facts import find_problem, read_facts
from app.errors import DatabaseDown, QueryFailed, ToolscoutError, Unavailable
from app.observability.metrics import Metrics

logger = logging.getLogger("toolscout.db")

SETTING = "TOOLSCOUT_READ_DATABASE_URL"
POOL_WAIT_S = 0.05
"""How long a read waits for a connection to the replica before the primary answers."""
_ANSWER_S = 0.5
"""How long a request waits for the replica, connecting included."""
_BACKGROUND_S = 10.0
"""The same, for a read that no request waits for."""
_CONNECT_S = 3.0
"""How long the comparison waits for a connection."""
_WATCH_S = 5.0
"""How often the replica is compared with the primary."""
_RETRY_S = 2.0
"""How often, while it is not used."""
_STOP_S = 6.0
"""How long `stop` waits for reads that were given up: longer than the driver tries to cancel a statement."""
_BEHIND_S = 1.0
"""How long a user is served by the primary after the replica was behind."""
_FAILING_S = 10.0
"""The same, after a statement for the user failed or took too long there."""
_MAX_USERS = 10_000
"""How many users are remembered for whom the replica was behind, or failed."""

_SERVER_ERRORS = (TimeoutError, DatabaseDown, QueryFailed, SQLAlchemyError, psycopg.Error)
"""What a read raises because of the server. Others are the caller's own: they say nothing about the replica."""

T = TypeVar("T")
Outcome = Literal["served", "behind", "busy", "failed", "unavailable"]

# A new model's rows are complete once it is active. A process may learn of it after it has read the user's versions.
_CHECK = """
    SELECT pg_is_in_recovery(), pg_postmaster_start_time(), EXISTS (
        SELECT 1 FROM users
        WHERE id = %(user_id)s AND catalog_version >= %(catalog)s AND examples_version >= %(examples)s
    ) AND EXISTS (SELECT 1 FROM embedding_models WHERE id = %(model)s AND active)
"""


def _make_check(user_id: str, at_least: Versions) -> Statement:
    versions = {"catalog": at_least.catalog, "examples": at_least.examples, "model": at_least.model}
    return _CHECK, {"user_id": user_id, **versions}


class _Behind(Exception):
    pass


class _Promoted(Exception):
    pass


class _NotCompared(Exception):
    """The connection leads to another server than the one that was compared with the primary, or it has restarted."""


class ReadReplica:
    """Answers reads for `Database.use_replica`, from `start` to `stop`."""

    def __init__(self, primary: Database, server: Database, metrics: Metrics) -> None:
        """`server` connects to the replica. This object closes it."""
        self._primary = primary
        self._server = server
        self._metrics = metrics
        self._is_in_use = False
        self._has_served = True
        """Whether it has answered since the last failure."""
        self._check_requests = 0
        self._started_at: datetime | None = None
        """When the server was started that was compared last: no two servers share this time."""
        self._problem: str | None = None
        self._behind: TTLCache[str, None] = TTLCache(_MAX_USERS, _BEHIND_S)
        self._failing: TTLCache[str, None] = TTLCache(_MAX_USERS, _FAILING_S)
        self._check_requested = asyncio.Event()
        self._became_unavailable: asyncio.Future[None] | None = None
        """Done when the replica turns out to be away: reads in progress stop."""
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None

    @property
    def warning(self) -> str | None:
        """Why the replica is not used, or what is wrong with its URL, without the address; None if nothing is known."""
        if self._problem is not None:
            return f"the read replica ({SETTING}) is not used: {self._problem}"
        return self._server.warning

    @property
    def is_in_use(self) -> bool:
        return self._is_in_use

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        self._is_in_use = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._abandoned:
            # They are cancelled already. A second time would interrupt the driver, which then waits for the server to
            # cancel their statements.
            self._server.disconnect()
            await asyncio.wait(self._abandoned, timeout=_STOP_S)
        await self._server.close()

    async def fetch(self, user_id: str, statements: Sequence[Statement], at_least: Versions) -> list[Rows]:
        """Raise `NotServed` unless the replica answers, and has reached these versions."""

        async def attempt() -> list[Rows]:
            checked = [_make_check(user_id, at_least), *statements]
            [check], *rows = await self._server.fetch(user_id, checked, snapshot=True)
            self._require(*check)
            return rows

        return await self._serve(user_id, attempt, _ANSWER_S)

    async def read(
        self, user_id: str, work: Callable[[Session], Awaitable[T]], at_least: Versions, *, background: bool
    ) -> T:
        """Like `fetch`, for reads of several round trips. `background`: no request waits for the result."""

        async def attempt() -> T:
            async with self._server.snapshot(user_id) as session:
                [check] = await session.rows(*_make_check(user_id, at_least))
                self._require(*check)
                return await work(session)

        return await self._serve(user_id, attempt, _BACKGROUND_S if background else _ANSWER_S)

    def request_check(self) -> None:
        """Compare the replica with the primary before it is used again: another server may be the primary now."""
        self._take_out_of_use(check_at_once=True)

    async def _serve(self, user_id: str, attempt: Callable[[], Coroutine[Any, Any, T]], within_s: float) -> T:
        outcome = self._find_obstacle(user_id)
        if outcome is None:
            try:
                answer = await self._run_in_time(attempt(), within_s)
            except Exception as error:  # boundary: what is wrong on the primary, too, is raised there
                if isinstance(error, ToolscoutError) and not isinstance(error, (DatabaseDown, QueryFailed)):
                    raise  # it is an answer, such as that there is no such project
                outcome = self._note_failure(user_id, error)
            else:
                self._has_served = True
                self._count("served")
                return answer
        self._count(outcome)
        raise NotServed

    def _find_obstacle(self, user_id: str) -> Outcome | None:
        if not self._is_in_use or self._primary.is_distributed:
            return "unavailable"
        if user_id in self._behind:
            return "behind"
        return "failed" if user_id in self._failing else None

    def _note_failure(self, user_id: str, error: Exception) -> Outcome:
        if isinstance(error, _Behind):
            self._behind[user_id] = None
            return "behind"
        if _is_pool_timeout(error):
            return "busy"
        if isinstance(error, _NotCompared):
            logger.info("a connection leads to another server than the replica that was compared last")
        if isinstance(error, (_Promoted, _NotCompared)):
            self._leave_alone()
            return "unavailable"
        logger.info("a read of the replica failed: the primary answers", extra={"error": find_root_cause(error)})
        is_of_server = isinstance(error, _SERVER_ERRORS) and not isinstance(error, QueryFailed)
        if not is_of_server or isinstance(error, TimeoutError):
            self._failing[user_id] = None
        if is_of_server:
            self._leave_alone()
        return "failed"

    def _leave_alone(self) -> None:
        """Check the replica at once, unless it fails again and again: then it answers too slowly, and has a pause."""
        self._take_out_of_use(check_at_once=self._has_served)
        self._has_served = False

    def _take_out_of_use(self, *, check_at_once: bool) -> None:
        """Use the replica no more until it has been compared with the primary, in the background."""
        self._check_requests += 1
        if self._is_in_use and check_at_once:
            self._check_requested.set()
        self._set_in_use(False)

    def _require(self, is_replica: bool, started_at: datetime, has_reached: bool) -> None:
        if not is_replica:
            raise _Promoted
        if started_at != self._started_at:
            raise _NotCompared
        if not has_reached:
            raise _Behind

    async def _run_in_time(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Raise `TimeoutError` after that time, or as soon as the replica is known to be away.

        The driver waits for the server also when it is cancelled. So the work is left to end by itself.
        """
        if self._became_unavailable is None:
            self._became_unavailable = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(work)
        waiting: set[asyncio.Future[Any]] = {task, self._became_unavailable}
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                self._abandoned.add(task)
                task.add_done_callback(self._forget)
        if not task.done():
            raise TimeoutError
        return task.result()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # asyncio would log that it was never retrieved

    async def _watch(self) -> None:
        while True:
            self._check_requested.clear()
            try:
                await self._check()
            except Exception:  # the task's boundary: the primary answers meanwhile
                logger.exception("unexpected error while checking the read replica")
                self._set_in_use(False)
                self._problem = (
                    "an unexpected error, which the log shows, keeps it from being compared with the primary"
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S if self._is_in_use else _RETRY_S):
                    await self._check_requested.wait()

    async def _check(self) -> None:
        """Compare the replica with the primary, and use it if it is one."""
        requests = self._check_requests
        try:
            problem, detail = await self._find_problem(), ""
        except _SERVER_ERRORS as error:
            if _is_pool_timeout(error):
                return  # all connections are in use: nothing is known about the server
            problem, detail = "it does not answer as it should", find_root_cause(error)
        if problem is not None:
            self._set_in_use(False)
            if self._became_unavailable is not None:
                self._became_unavailable.set_result(None)
                self._became_unavailable = None
            if problem != self._problem:
                logger.warning("the read replica is not used: %s", problem, extra={"error": detail})
            self._problem = problem
        elif requests == self._check_requests:
            self._set_in_use(True)
            if self._problem is not None:
                self._problem = None
                self._failing.clear()  # their statements were not the cause
                self._server.expire_connections()  # a late request to cancel a statement would hit the next one
                logger.info("the read replica is used again")

    async def _find_problem(self) -> str | None:
        try:
            primary = await read_facts(self._primary)
        except Unavailable as error:
            if _is_pool_timeout(error):
                raise
            return "the primary does not answer"
        if self._primary.is_distributed:
            return "the database of DATABASE_URL is distributed over several nodes"
        connecting = self._server.system_fetch([("SELECT 1", None)], urgent=True)
        await self._run_in_time(connecting, _CONNECT_S)
        replica = await self._run_in_time(read_facts(self._server), _ANSWER_S)
        self._metrics.read_replica_lag.set(replica.lag_behind(primary))
        if self._started_at not in (None, replica.started_at):
            self._server.expire_connections()  # others may lead to the server before it
        self._started_at = replica.started_at
        return find_problem(primary, replica)

    def _set_in_use(self, is_in_use: bool) -> None:
        self._is_in_use = is_in_use
        self._metrics.read_replica_in_use.set(is_in_use)

    def _count(self, outcome: Outcome) -> None:
        self._metrics.read_replica_reads.labels(outcome).inc()


def _is_pool_timeout(error: Exception) -> bool:
    return isinstance(error, DatabaseDown) and isinstance(error.__cause__, PoolTimeout)


def find_root_cause(error: Exception) -> str:
    """Return the message of the driver, for operators."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return str(cause).partition("\n")[0] or type(cause).__name__
