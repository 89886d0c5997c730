"""The worker inside the app: takes runs from the queue, and sees to it that what is indexed stays true.

Vectors that are still missing follow when the embedder is back; servers are asked again after a while, and when they
say that their tools have changed.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from cachetools import TTLCache
from sqlalchemy import Row, case, func, select

from app.catalog.visibility import recompute_stale
from app.db.tables import index_runs, mcp_servers
from app.errors import EmbeddingFailed, NotFound, QueryInterrupted, ServerUnreachable, ToolscoutError, Unavailable
from app.indexing import queue
from app.indexing.reindex import Indexer, reindex_server
from app.mcp_types import Endpoint

logger = logging.getLogger("toolscout.worker")

Deed = Callable[[], Awaitable[None]]

_AT_ONCE = 100
_HEARTBEATS_IN_A_LEASE = 4
_LOOK_ROUND_S = 60.0
_AWAY_S = 300.0
_SERVERS_REMEMBERED = 10_000
_LONGEST_PAUSE_S = 3600.0


@dataclass(frozen=True)
class WorkerConfig:
    runs_at_once: int
    """0: this process leaves the work to others."""
    pending_retry_s: float
    reindex_every_s: float
    """0: servers are asked only when somebody says so."""
    idle_s: float = 1.0
    """How long nobody looks for runs that other processes have queued."""
    lease_s: float = 60.0
    """A run whose worker has not been heard of for so long is another's to take."""
    retry_s: float = 1.0
    """Before a server that was away is tried again; before the last try it is four times as long."""
    announcement_s: float = 2.0
    """How long further announcements of a server are waited for."""
    announcements_apart_s: float = 30.0
    """A server that announces a change whenever it is asked must not keep us asking."""


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Worker:
    def __init__(self, indexer: Indexer, pace: WorkerConfig) -> None:
        self._indexer = indexer
        self._pace = pace
        self._room = asyncio.Semaphore(pace.runs_at_once)
        self._work_is_there = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._runs: set[asyncio.Task[None]] = set()
        self._announced: dict[str, asyncio.TimerHandle] = {}
        self._followed: TTLCache[str, float] = TTLCache(_SERVERS_REMEMBERED, pace.announcements_apart_s)
        self._stopped = False

    def start(self) -> None:
        if self._pace.runs_at_once:
            deeds = [self._take_runs, self._embed_pending, self._ask_again]
            self._loops = [asyncio.create_task(self._for_ever(deed)) for deed in deeds]

    async def stop(self) -> None:
        self._stopped = True
        for timer in self._announced.values():
            timer.cancel()
        await _end(self._loops)
        await asyncio.sleep(0)  # what they have taken last has to begin, or nobody hands it back
        await _end(self._runs)

    def wake(self) -> None:
        """After a run was queued in this process; those of other replicas are found within a second."""
        self._work_is_there.set()

    def tools_changed(self, endpoint: Endpoint) -> None:
        """A server says so. One that says so all the time is believed every now and then."""
        if endpoint.server_id in self._announced or self._stopped:
            return
        loop = asyncio.get_running_loop()
        turn = max(loop.time() + self._pace.announcement_s, self._followed.get(endpoint.server_id) or 0.0)
        self._announced[endpoint.server_id] = loop.call_at(turn, self._follow_announcement, endpoint)

    def _follow_announcement(self, endpoint: Endpoint) -> None:
        del self._announced[endpoint.server_id]
        not_before = asyncio.get_running_loop().time() + self._pace.announcements_apart_s
        self._followed[endpoint.server_id] = not_before
        servers = [(endpoint.user_id, endpoint.server_id)]
        self._begin(partial(self._queue, servers, f"server:{endpoint.server_id}"))

    def _begin(self, deed: Deed) -> None:
        task = asyncio.create_task(self._once(deed))
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def _once(self, deed: Deed) -> None:
        try:
            await deed()
        except (Unavailable, QueryInterrupted):
            await asyncio.sleep(self._pace.idle_s)
        except Exception:  # the worker's boundary
            logger.exception("the worker stumbled and goes on")
            await asyncio.sleep(self._pace.idle_s)

    async def _take_runs(self) -> None:
        await self._room.acquire()
        run = None
        try:
            self._work_is_there.clear()  # before looking: what is queued while we look must not be slept over
            run = await self._claim()
        finally:
            if run is None:
                self._room.release()
        if run is None:
            await self._rest()
        else:
            self._begin(partial(self._perform_in_room, run))

    async def _perform_in_room(self, run: queue.Claim) -> None:
        try:
            await self._perform(run)
        finally:
            self._room.release()
            self.wake()  # the server's next run may have waited for this one

    async def _for_ever(self, deed: Deed) -> None:
        """Whatever goes wrong goes wrong once: a loop that ended would leave all later runs undone, unnoticed."""
        while True:
            await self._once(deed)

    async def take(self, run_id: str) -> None:
        """This one run, here and now, unless somebody else has it."""
        if (run := await self._claim(run_id)) is not None:
            await self._perform(run)

    async def _claim(self, run_id: str | None = None) -> queue.Claim | None:
        async with self._indexer.database.system_transaction() as session:
            return await queue.claim(session, self._pace.lease_s, run_id)

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.idle_s):
                await self._work_is_there.wait()

    async def _perform(self, run: queue.Claim) -> None:
        state, started = "failed", time.perf_counter()
        try:
            if run.attempts > queue.MAX_ATTEMPTS:
                await self._fail(run, "crashed", f"given up after {queue.MAX_ATTEMPTS} attempts that did not end")
            else:
                async with self._lease_kept(run):
                    state = await reindex_server(self._indexer, run)
        except asyncio.CancelledError:
            await self._hand_back(run)
            raise
        except (queue.LeaseLost, NotFound):  # another has it, or it is gone with its server
            state = "lost"
        except (Unavailable, QueryInterrupted):
            await self._release(run)
            raise
        except ServerUnreachable as error:
            state = await self._retry_or_fail(run, error)
        except ToolscoutError as error:
            await self._fail(run, error.code, error.message)
        except Exception:  # the worker's boundary: one bad run must not end the loop for all others
            logger.exception("an index run met what nobody foresaw", extra={"run_id": run.id})
            await self._fail(run, "internal_error", "an unexpected error; the log has it under this run's id")
        self._indexer.metrics.index_runs.labels(state).inc()
        self._indexer.metrics.index_seconds.labels(state).observe(time.perf_counter() - started)
        logger.info("index run ended", extra={"run_id": run.id, "state": state})

    async def _retry_or_fail(self, run: queue.Claim, error: ServerUnreachable) -> str:
        if not error.retryable or run.attempts >= queue.MAX_ATTEMPTS:
            await self._fail(run, error.cause, error.message)
            return "failed"
        # jitter, so that servers behind one gateway that stumbled are not all asked again at once
        pause_s = self._pace.retry_s * 4 ** (run.attempts - 1) * random.uniform(0.75, 1.25)  # noqa: S311
        async with self._indexer.database.transaction(run.user_id) as session:
            await queue.retry_later(session, run, error.cause, error.message, pause_s)
        return "retried"

    @asynccontextmanager
    async def _lease_kept(self, run: queue.Claim) -> AsyncIterator[None]:
        heartbeat = asyncio.create_task(self._keep_lease(run))
        try:
            yield
        finally:
            # its last beat is over before the lease is given back: it would take it again
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

    async def _keep_lease(self, run: queue.Claim) -> None:
        while True:
            await asyncio.sleep(run.lease_s / _HEARTBEATS_IN_A_LEASE)
            with suppress(Unavailable, QueryInterrupted):
                async with self._indexer.database.transaction(run.user_id) as session:
                    await queue.renew_lease(session, run)

    async def _fail(self, run: queue.Claim, cause: str, message: str) -> None:
        extra = {"run_id": run.id, "server_id": run.server_id, "cause": cause}
        logger.warning("index run failed", extra=extra)
        async with self._indexer.database.transaction(run.user_id) as session:
            await queue.fail(session, run, cause, message, queue.RunSummary())

    async def _release(self, run: queue.Claim) -> None:
        with suppress(Unavailable, QueryInterrupted):
            async with self._indexer.database.transaction(run.user_id) as session:
                await queue.release(session, run, self._pace.retry_s)

    async def _hand_back(self, run: queue.Claim) -> None:
        with suppress(Unavailable, QueryInterrupted):
            async with self._indexer.database.transaction(run.user_id) as session:
                await queue.requeue(session, run)

    async def _embed_pending(self) -> None:
        """Servers with tools that have no vector yet, from a time when the embedder was down, are queued again."""
        await asyncio.sleep(self._pace.pending_retry_s)
        await self.queue_pending()

    async def queue_pending(self) -> int:
        pending = await self._pending()
        if not pending or not await self._embedder_answers():
            return 0
        await self._queue([(user_id, server_id) for user_id, server_id in pending], queue.SYSTEM, asks=False)
        return len(pending)

    async def _queue(self, servers: Sequence[tuple[str, str]], asked_by: str, *, asks: bool = True) -> None:
        for user_id, server_id in servers:
            with suppress(NotFound):  # deleted in this very moment
                async with self._indexer.database.transaction(user_id) as session:
                    await queue.enqueue(session, user_id, server_id, asks=asks, asked_by=asked_by)
        self.wake()

    async def _embedder_answers(self) -> bool:
        """Asked before anything is queued, so that a long outage leaves no trail of vain runs."""
        try:
            active, *_ = await self._indexer.models()
            await active.embedder.embed_queries(["ping"])
        except EmbeddingFailed:
            return False
        return True

    async def _pending(self) -> Sequence[Row[str, str]]:
        waiting = select(index_runs.c.id).where(
            index_runs.c.user_id == mcp_servers.c.user_id,
            index_runs.c.server_id == mcp_servers.c.id,
            index_runs.c.state.in_(["queued", "running"]),
        )
        retry_s = self._pace.pending_retry_s
        # after each vain try the next one waits twice as long, up to an hour
        pause_s = func.least(retry_s * func.power(2, mcp_servers.c.pending_tries - 1), _LONGEST_PAUSE_S)
        due = mcp_servers.c.updated_at < func.now() - queue.seconds(pause_s)
        statement = select(mcp_servers.c.user_id, mcp_servers.c.id).where(
            mcp_servers.c.pending_count > 0, due, ~waiting.exists()
        )
        async with self._indexer.database.system_transaction() as session:
            return (await session.execute(statement.limit(_AT_ONCE))).all()

    async def _ask_again(self) -> None:
        """Servers that have not been asked for long; those that were away, sooner."""
        every_s = self._pace.reindex_every_s
        await asyncio.sleep(min(_LOOK_ROUND_S, every_s / 2) if every_s else _LOOK_ROUND_S)
        await recompute_stale(self._indexer.database)
        if every_s:
            await self.queue_unasked()

    async def queue_unasked(self) -> int:
        unasked = await self._not_asked_for(self._pace.reindex_every_s)
        await self._queue(unasked, queue.SCHEDULE)
        return len(unasked)

    async def _not_asked_for(self, seconds: float) -> Sequence[tuple[str, str]]:
        away = mcp_servers.c.status == "disconnected"
        pause_s = case((away, min(seconds, _AWAY_S)), else_=seconds)
        lately = select(index_runs.c.id).where(
            index_runs.c.user_id == mcp_servers.c.user_id,
            index_runs.c.server_id == mcp_servers.c.id,
            index_runs.c.created_at > func.now() - queue.seconds(pause_s),
        )
        statement = select(mcp_servers.c.user_id, mcp_servers.c.id).where(
            mcp_servers.c.enabled, mcp_servers.c.transport != "push", ~lately.exists()
        )
        async with self._indexer.database.system_transaction() as session:
            return [(row.user_id, row.id) for row in await session.execute(statement.limit(_AT_ONCE))]
