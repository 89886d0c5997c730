"""The worker inside the app: takes runs from the queue, and sees to it that vectors that are still missing follow."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from sqlalchemy import Row, func, select

from app.errors import EmbeddingFailed, NotFound, QueryInterrupted, ToolscoutError, Unavailable
from app.indexing import jobs
from app.indexing.reindex import Indexer, reindex_server
from app.models import index_runs, mcp_servers

logger = logging.getLogger("toolscout.worker")

_IDLE_S = 1.0
_PENDING_AT_ONCE = 100
_LONGEST_PAUSE_S = 3600.0


class Worker:
    def __init__(self, indexer: Indexer, concurrency: int, pending_retry_s: float) -> None:
        self._indexer = indexer
        self._concurrency = concurrency
        self._pending_retry_s = pending_retry_s
        self._work_is_there = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        deeds = [self._take_runs] * self._concurrency + ([self._embed_pending] if self._concurrency else [])
        self._tasks = [asyncio.create_task(self._for_ever(deed)) for deed in deeds]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def wake(self) -> None:
        """After a run was queued in this process; those of other replicas are found within a second."""
        self._work_is_there.set()

    async def _take_runs(self) -> None:
        self._work_is_there.clear()  # before looking: what is queued while we look must not be slept over
        run = await self._claim()
        if run is None:
            await self._rest()
        else:
            await self._perform(run)

    async def _for_ever(self, deed: Callable[[], Awaitable[None]]) -> None:
        """Whatever goes wrong goes wrong once: a loop that ended would leave all later runs undone, unnoticed."""
        while True:
            try:
                await deed()
            except (Unavailable, QueryInterrupted):
                await asyncio.sleep(_IDLE_S)
            except Exception:  # the worker's boundary
                logger.exception("the worker stumbled and goes on")
                await asyncio.sleep(_IDLE_S)

    async def _claim(self) -> jobs.Claim | None:
        async with self._indexer.database.system_transaction() as session:
            return await jobs.claim(session)

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_S):
                await self._work_is_there.wait()

    async def _perform(self, run: jobs.Claim) -> None:
        heartbeat = asyncio.create_task(self._keep_lease(run))
        state: str = "failed"
        try:
            if run.attempts > jobs.MAX_ATTEMPTS:
                await self._fail(run, "crashed", f"given up after {jobs.MAX_ATTEMPTS} attempts that did not end")
            else:
                state = await reindex_server(self._indexer, run)
        except asyncio.CancelledError:
            await self._release(run, attempted=False)
            raise
        except jobs.LeaseLost:
            state = "lost"
        except (Unavailable, QueryInterrupted):
            await self._release(run, attempted=True)
            raise
        except ToolscoutError as error:
            await self._fail(run, error.code, error.message)
        except Exception:  # the worker's boundary: one bad run must not end the loop for all others
            logger.exception("index run failed", extra={"run_id": run.id})
            await self._fail(run, "internal_error", "an unexpected error; the log has it under this run's id")
        finally:
            heartbeat.cancel()
        self._indexer.metrics.index_runs.labels(state).inc()
        logger.info("index run ended", extra={"run_id": run.id, "state": state})

    async def _keep_lease(self, run: jobs.Claim) -> None:
        while True:
            await asyncio.sleep(jobs.HEARTBEAT_S)
            with suppress(Unavailable, QueryInterrupted):
                async with self._indexer.database.transaction(run.user_id) as session:
                    await jobs.keep_lease(session, run)

    async def _fail(self, run: jobs.Claim, cause: str, message: str) -> None:
        async with self._indexer.database.transaction(run.user_id) as session:
            await jobs.fail(session, run, cause, message, jobs.Outcome())

    async def _release(self, run: jobs.Claim, *, attempted: bool) -> None:
        with suppress(Unavailable, QueryInterrupted):
            async with self._indexer.database.transaction(run.user_id) as session:
                await jobs.release(session, run, attempted=attempted)

    async def _embed_pending(self) -> None:
        """Servers with tools that have no vector yet, from a time when the embedder was down, are queued again."""
        await asyncio.sleep(self._pending_retry_s)
        await self.queue_pending()

    async def queue_pending(self) -> int:
        pending = await self._pending()
        if not pending or not await self._embedder_answers():
            return 0
        for user_id, server_id in pending:
            with suppress(NotFound):  # deleted in this very moment
                async with self._indexer.database.transaction(user_id) as session:
                    await jobs.enqueue(session, user_id, server_id, None, force=False)
        self.wake()
        return len(pending)

    async def _embedder_answers(self) -> bool:
        """Asked before anything is queued, so that a long outage leaves no trail of vain runs."""
        try:
            await self._indexer.embedder.embed_query("ping")
        except EmbeddingFailed:
            return False
        return True

    async def _pending(self) -> Sequence[Row[str, str]]:
        waiting = select(index_runs.c.id).where(
            index_runs.c.user_id == mcp_servers.c.user_id,
            index_runs.c.server_id == mcp_servers.c.id,
            index_runs.c.state.in_(["queued", "running"]),
        )
        # after each vain try the next one waits twice as long, up to an hour
        pause_s = func.least(self._pending_retry_s * func.power(2, mcp_servers.c.pending_tries - 1), _LONGEST_PAUSE_S)
        due = mcp_servers.c.updated_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, pause_s)
        statement = select(mcp_servers.c.user_id, mcp_servers.c.id).where(
            mcp_servers.c.pending_count > 0, due, ~waiting.exists()
        )
        async with self._indexer.database.system_transaction() as session:
            return (await session.execute(statement.limit(_PENDING_AT_ONCE))).all()
