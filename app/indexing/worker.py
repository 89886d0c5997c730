"""The worker inside the app: processes queued index runs and keeps the index up to date.

It also queues runs by itself: for vectors that are missing since an outage of the embedder, for servers whose list is
old, and for servers that announce a change of their tools.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from cachetools import TTLCache

from app.catalog.visibility import recompute_stale
from app.db.engine import Session
from app.db.notifications import POLL_S
from app.db.tables import SHARED_OWNER
from app.errors import (
    EmbeddingFailed,
    NodeDown,
    NotFound,
    QueryInterrupted,
    ServerUnreachable,
    ToolscoutError,
    Unavailable,
)
from app.indexing import public_listings, queue
from app.indexing.reindex import Indexer, reindex_server
from app.indexing.run_slots import RunSlots, SlotLimits
from app.indexing.schedule import ServerKey, find_servers_to_refresh, find_servers_with_pending_tools
from app.mcp_types import Endpoint

logger = logging.getLogger("toolscout.worker")

Job = Callable[[], Awaitable[None]]

_HEARTBEATS_PER_LEASE = 4
_CLOCK_TOLERANCE_S = 0.02
_ERROR_PAUSE_S = 1.0
_MAINTENANCE_INTERVAL_S = 60.0
_MAX_REMEMBERED_SERVERS = 10_000


@dataclass(frozen=True)
class WorkerConfig:
    slots: SlotLimits | None
    """None: this process leaves all runs to other processes."""
    pending_retry_s: float
    reindex_every_s: float
    """0: servers are listed only on request."""
    poll_interval_s: float = POLL_S
    """How long the worker waits before it looks again for runs that it has not heard of."""
    lease_s: float = 60.0
    """After so long without a heartbeat another worker may claim the run."""
    retry_s: float = 1.0
    """Delay before a disconnected server is tried again; before the last attempt it is four times as long."""
    debounce_s: float = 2.0
    """After an announced change, wait so long for further announcements of the same server."""
    debounce_interval_s: float = 30.0
    """Minimum time between two runs for announcements, for servers that announce a change at every listing."""


class Worker:
    def __init__(self, indexer: Indexer, config: WorkerConfig) -> None:
        self.indexer = indexer
        self._config = config
        self._slots = None if config.slots is None else RunSlots(config.slots)
        self._has_work = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._announcements: dict[str, asyncio.TimerHandle] = {}
        self._announced_at: dict[str, float] = {}
        """When each of these servers announced its last change."""
        self._not_before: TTLCache[str, float] = TTLCache(_MAX_REMEMBERED_SERVERS, config.debounce_interval_s)
        self._is_stopped = False
        self.on_indexed: Callable[[], None] = lambda: None
        """Called when a run has changed a user's tools, or may have."""

    def start(self) -> None:
        if self._slots is not None:
            jobs: list[Job] = [partial(self._poll, self._slots), self._retry_pending, self._maintain]
            self._loops = [asyncio.create_task(self._loop(job)) for job in jobs]

    async def stop(self) -> None:
        """Stop all loops and put unfinished runs back into the queue."""
        self._is_stopped = True
        for timer in self._announcements.values():
            timer.cancel()
        await _cancel(self._loops)
        await asyncio.sleep(0)  # a run that was claimed last must start, or its task could not requeue it
        await _cancel(self._tasks)

    def notify(self) -> None:
        """Look for work now: a run was queued. Without a notification it is found by polling."""
        self._has_work.set()

    def _notify_after(self, delay_s: float) -> None:
        """Look for work when the lease that was shortened to this delay has expired."""
        asyncio.get_running_loop().call_later(delay_s + _CLOCK_TOLERANCE_S, self.notify)

    async def enqueue_listing(self, session: Session, user_id: str, server_id: str, actor: str) -> None:
        """Queue a run that lists a server's tools, as part of the transaction."""
        await queue.enqueue(session, user_id, server_id, asked_by=actor)
        session.after_commit(self.notify)

    async def run_now(self, run_id: str) -> None:
        """Process this run, unless another worker has claimed it."""
        if (run := await self._claim(run_id)) is not None:
            await self._process(run)

    def on_tools_changed(self, endpoint: Endpoint) -> None:
        """Queue a run for a server that announces a change, after the debounce interval; for a copy, for its source."""
        if self._is_stopped:
            return
        if endpoint.shared_id is not None:
            endpoint = replace(endpoint, user_id=SHARED_OWNER, server_id=endpoint.shared_id, shared_id=None)
        loop = asyncio.get_running_loop()
        self._announced_at[endpoint.server_id] = loop.time()
        if endpoint.server_id in self._announcements:
            return
        due = max(loop.time() + self._config.debounce_s, self._not_before.get(endpoint.server_id) or 0.0)
        self._announcements[endpoint.server_id] = loop.call_at(due, self._handle_announcement, endpoint)

    def _handle_announcement(self, endpoint: Endpoint) -> None:
        del self._announcements[endpoint.server_id]
        not_before = asyncio.get_running_loop().time() + self._config.debounce_interval_s
        self._not_before[endpoint.server_id] = not_before
        self._start_task(partial(self._list_again, endpoint, self._announced_at.pop(endpoint.server_id)))

    async def _list_again(self, endpoint: Endpoint, announced_at: float) -> None:
        age_s = asyncio.get_running_loop().time() - announced_at
        await public_listings.invalidate(self.indexer.database, endpoint, age_s)
        await self._enqueue([(endpoint.user_id, endpoint.server_id)], f"{queue.ANNOUNCEMENT}{endpoint.server_id}")

    def _start_task(self, job: Job) -> None:
        task = asyncio.create_task(self._run_guarded(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _loop(self, job: Job) -> None:
        """Repeat the job for ever. An error must not end the loop: all later runs would stay undone, unnoticed."""
        while True:
            await self._run_guarded(job)

    async def _run_guarded(self, job: Job) -> None:
        try:
            await job()
        except (Unavailable, QueryInterrupted):
            await asyncio.sleep(min(_ERROR_PAUSE_S, self._config.poll_interval_s))
        except Exception:  # the worker's boundary
            logger.exception("unexpected error in worker")
            await asyncio.sleep(min(_ERROR_PAUSE_S, self._config.poll_interval_s))

    async def _poll(self, slots: RunSlots) -> None:
        """Claim and start one run for which there is a slot. Without a run, wait until there may be one."""
        self._has_work.clear()  # before the query, so that a run that is queued during the query is not missed
        room = slots.find_room()
        run = None if room is None else await self._claim(room=room)
        if run is not None:
            slots.add(run)
            self._start_task(partial(self._process_in_slot, slots, run))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.poll_interval_s):
                await self._has_work.wait()

    async def _claim(self, run_id: str | None = None, room: queue.Room = queue.ANY_ROOM) -> queue.Claim | None:
        lease_s, database, nodes = self._config.lease_s, self.indexer.database, self.indexer.nodes
        if not nodes.lost:
            try:
                async with database.system_transaction() as session:
                    return await queue.claim_run(session, lease_s, run_id, room)
            except NodeDown:
                nodes.forget()
        lost_nodes = await nodes.find_lost()
        async with database.system_transaction() as session:
            return await queue.claim_reachable_run(session, lost_nodes, lease_s, run_id, room)

    async def _process_in_slot(self, slots: RunSlots, run: queue.Claim) -> None:
        try:
            await self._process(run)
        finally:
            slots.remove(run)
            self.notify()  # another run may have waited for the slot, or for the end of this run

    async def _process(self, run: queue.Claim) -> None:
        state, started = "failed", time.perf_counter()
        try:
            if run.attempts > queue.MAX_ATTEMPTS:
                await self._fail(run, "crashed", f"gave up after {queue.MAX_ATTEMPTS} attempts that did not finish")
            else:
                async with self._heartbeat(run):
                    state = await reindex_server(self.indexer, run)
        except asyncio.CancelledError:
            await self._requeue(run)
            raise
        except (queue.LeaseLost, NotFound):  # claimed by another worker, or deleted with its server
            state = "lost"
        except (Unavailable, QueryInterrupted):
            await self._release(run)
            raise
        except ServerUnreachable as error:
            state = await self._retry_or_fail(run, error)
        except ToolscoutError as error:
            await self._fail(run, error.code, error.message)
        except Exception:  # the worker's boundary: one bad run must not stop the others
            logger.exception("unexpected error in index run", extra={"run_id": run.id})
            await self._fail(run, "internal_error", "unexpected error: search the service's log for the id of this run")
        self.indexer.metrics.index_runs.labels(state).inc()
        self.indexer.metrics.index_seconds.labels(state).observe(time.perf_counter() - started)
        logger.info("index run ended", extra={"run_id": run.id, "state": state})
        if state == "succeeded":
            self.on_indexed()

    async def _retry_or_fail(self, run: queue.Claim, error: ServerUnreachable) -> str:
        if not error.retryable or run.attempts >= queue.MAX_ATTEMPTS:
            await self._fail(run, error.cause, error.message)
            return "failed"
        # jitter, so that servers behind one failing gateway are not all retried at the same moment
        delay_s = self._config.retry_s * 4 ** (run.attempts - 1) * random.uniform(0.75, 1.25)  # noqa: S311
        async with self.indexer.database.transaction(run.user_id) as session:
            await queue.retry_later(session, run, error.cause, error.message, delay_s)
        self._notify_after(delay_s)
        return "retried"

    @asynccontextmanager
    async def _heartbeat(self, run: queue.Claim) -> AsyncIterator[None]:
        """Renew the lease in the background."""
        renewal = asyncio.create_task(self._renew_lease(run))
        try:
            yield
        finally:
            # wait for its end: a late renewal would undo the release of the lease
            await _cancel([renewal])

    async def _renew_lease(self, run: queue.Claim) -> None:
        while True:
            await asyncio.sleep(run.lease_s / _HEARTBEATS_PER_LEASE)
            with suppress(Unavailable, QueryInterrupted):
                async with self.indexer.database.transaction(run.user_id) as session:
                    await queue.renew_lease(session, run)

    async def _fail(self, run: queue.Claim, cause: str, message: str) -> None:
        extra = {"run_id": run.id, "server_id": run.server_id, "cause": cause}
        logger.warning("index run failed", extra=extra)
        async with self.indexer.database.transaction(run.user_id) as session:
            await queue.fail(session, run, cause, message, queue.RunSummary())

    async def _release(self, run: queue.Claim) -> None:
        with suppress(Unavailable, QueryInterrupted):
            async with self.indexer.database.transaction(run.user_id) as session:
                await queue.release(session, run, self._config.retry_s)
        self._notify_after(self._config.retry_s)

    async def _requeue(self, run: queue.Claim) -> None:
        with suppress(Unavailable, QueryInterrupted):
            async with self.indexer.database.transaction(run.user_id) as session:
                await queue.requeue(session, run)

    async def _retry_pending(self) -> None:
        await asyncio.sleep(self._config.pending_retry_s)
        await self.enqueue_pending()

    async def enqueue_pending(self) -> int:
        """Queue servers with tools that have no vector, and return their number; none while the embedder is down."""
        async with self.indexer.database.system_transaction() as session:
            servers = await find_servers_with_pending_tools(session, self._config.pending_retry_s)
        if not servers or not await self._is_embedder_up():
            return 0
        await self._enqueue(servers, queue.SYSTEM, fetch_from_server=False)
        return len(servers)

    async def _is_embedder_up(self) -> bool:
        """Check before anything is queued, so that a long outage does not produce failing runs."""
        try:
            active, *_ = await self.indexer.models()
            await active.embedder.embed_queries(["ping"])
        except EmbeddingFailed:
            return False
        return True

    async def _maintain(self) -> None:
        """Recompute outdated visibility decisions and queue the servers that are due."""
        every_s = self._config.reindex_every_s
        await asyncio.sleep(min(_MAINTENANCE_INTERVAL_S, every_s / 2) if every_s else _MAINTENANCE_INTERVAL_S)
        await recompute_stale(self.indexer.database)
        if every_s:
            await self.enqueue_due()

    async def enqueue_due(self) -> int:
        """Queue servers that have not been listed for `reindex_every_s`, and return their number."""
        async with self.indexer.database.system_transaction() as session:
            servers = await find_servers_to_refresh(session, self._config.reindex_every_s)
        await self._enqueue(servers, queue.SCHEDULE)
        return len(servers)

    async def _enqueue(self, servers: Sequence[ServerKey], asked_by: str, *, fetch_from_server: bool = True) -> None:
        for user_id, server_id in servers:
            with suppress(NotFound):  # the server has just been deleted
                async with self.indexer.database.transaction(user_id) as session:
                    await queue.enqueue(
                        session, user_id, server_id, fetch_from_server=fetch_from_server, asked_by=asked_by
                    )
        self.notify()


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
