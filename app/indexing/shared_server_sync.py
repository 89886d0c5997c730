"""Keeps the members' copies of shared servers up to date, in batches, in the background.

What is to be done is the difference between who may use a shared server and who has an up-to-date copy. It is computed
again for each batch, so that nothing is lost if the process ends between two. Each user is written in a transaction of
its own, which also queues the index run that copies the tools. At most `max_waiting` of these runs wait at a time, so
that other runs do not queue up behind thousands.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from app.audit.record import record_event
from app.catalog.server_copies import get_copy_id, remove_copy, write_copy
from app.catalog.shared_servers import (
    SharedServer,
    find_differences,
    find_orphans,
    get_shared_server,
    list_shared_ids,
)
from app.catalog.tools import update_tool_counts
from app.connections.models import ServerConnection
from app.crypto import Sealer
from app.db.leases import Lease
from app.errors import NotFound, ToolscoutError, Unavailable
from app.indexing import queue
from app.indexing.pass_loop import PassLoop
from app.indexing.reindex import Indexer

logger = logging.getLogger("toolscout.sharing")

_COUNT_WAITING = """
    SELECT count(*) FROM index_runs r JOIN mcp_servers s ON s.user_id = r.user_id AND s.id = r.server_id
    WHERE r.state IN ('queued', 'running') AND s.shared_id IS NOT NULL
"""
# Copies whose last run has failed, with a longer pause after each failure. Failures before the last success do not
# count, nor do those of the day before, so that a copy is not given up for ever.
_FIND_FAILED = """
    SELECT s.user_id, s.id FROM mcp_servers s
    CROSS JOIN LATERAL (
        SELECT r.state, r.finished_at FROM index_runs r WHERE r.user_id = s.user_id AND r.server_id = s.id
        ORDER BY r.created_at DESC LIMIT 1
    ) latest
    CROSS JOIN LATERAL (
        SELECT count(*) AS failures FROM index_runs f
        WHERE f.user_id = s.user_id AND f.server_id = s.id AND f.state = 'failed'
          AND f.finished_at > now() - interval '1 day'
          AND f.created_at > coalesce((
              SELECT max(r.created_at) FROM index_runs r
              WHERE r.user_id = s.user_id AND r.server_id = s.id AND r.state = 'succeeded'), '-infinity')
    ) since_success
    WHERE s.shared_id IS NOT NULL AND latest.state = 'failed' AND failures <= %(max_retries)s
      AND latest.finished_at < now() - make_interval(secs => %(pause_s)s * 2 ^ greatest(failures - 1, 0))
    ORDER BY s.user_id, s.id LIMIT %(limit)s
"""


@dataclass(frozen=True)
class SyncConfig:
    interval_s: float = 30.0
    """How often the differences are looked for without a notification."""
    lease_s: float = 30.0
    max_waiting: int = 20
    """How many index runs of copies wait or run at most."""
    pause_s: float = 0.1
    """How long to wait for runs to finish before the next batch."""
    retry_s: float = 30.0
    """How long after its first failure the index run of a copy is repeated; twice as long after each further one."""
    max_retries: int = 7
    """How often within a day."""


@dataclass(frozen=True)
class _Task:
    user_id: str
    shared_id: str
    shared: SharedServer | None
    """What the user's copy must follow; None if the user must not have one."""


class SharedServerSync:
    def __init__(self, indexer: Indexer, sealer: Sealer, config: SyncConfig | None = None) -> None:
        self._indexer = indexer
        self._sealer = sealer
        self._database = indexer.database
        self._config = config or SyncConfig()
        self._lease = Lease(indexer.database, "shared_servers", self._config.lease_s)
        self._removed_accounts: list[ServerConnection] = []
        self.loop = PassLoop("shared_servers", self.sync, interval_s=self._config.interval_s)

    async def sync(self) -> int:
        """Bring all copies up to date, unless another process is at it. Return how many were written or removed."""
        try:
            return await self._sync_batches()
        finally:
            await self._lease.release()

    async def _sync_batches(self) -> int:
        done, failed = 0, list[str]()
        while await self._lease.acquire():
            room = self._config.max_waiting - await self._count_waiting()
            if room <= 0:
                await asyncio.sleep(self._config.pause_s)
                continue
            tasks = await self._find_tasks(failed, room)
            if not tasks and not await self._retry_failed_runs(room):
                break
            for task in tasks:
                if await self._perform(task):
                    done += 1
                else:
                    failed.append(task.user_id)
            await self._revoke_tokens()
        return done

    async def _count_waiting(self) -> int:
        [[(waiting,)]] = await self._database.system_fetch([(_COUNT_WAITING, None)])
        return int(waiting)

    async def _find_tasks(self, skipped: Sequence[str], limit: int) -> list[_Task]:
        """Return the first differences; copies that must go come before those that are missing or outdated."""
        async with self._database.system_transaction() as session:
            orphans = await find_orphans(session, skipped, limit)
            tasks = [_Task(user_id, shared_id, None) for user_id, shared_id in orphans]
            for shared_id in await list_shared_ids(session):
                if len(tasks) >= limit:
                    break
                shared = await get_shared_server(session, shared_id)
                found = await find_differences(session, shared, skipped, limit - len(tasks))
                tasks += [_Task(user_id, shared_id, shared if is_member else None) for user_id, is_member in found]
        return tasks

    async def _perform(self, task: _Task) -> bool:
        """Return False if it failed: the others go on, and the next pass tries again."""
        try:
            if task.shared is None:
                await self._remove(task.user_id, task.shared_id)
            else:
                await self._write(task.user_id, task.shared)
        except NotFound:  # the user has just been deleted
            return True
        except Unavailable:
            raise
        except ToolscoutError:
            logger.exception("a shared server could not be copied", extra={"server_id": task.shared_id})
            return False
        return True

    async def _write(self, user_id: str, shared: SharedServer) -> None:
        async with self._database.exclusive_transaction(user_id) as session:
            copy = await write_copy(session, self._sealer, user_id, shared)
            if copy is None:
                return
            await record_event(session, user_id, queue.SYSTEM, "server.share", copy.id)
            await queue.enqueue(session, user_id, copy.id, fetch_from_server=False)

    async def _remove(self, user_id: str, shared_id: str) -> None:
        connector = self._indexer.connector
        async with self._database.exclusive_transaction(user_id) as session:
            account = await connector.read_to_revoke(session, user_id, get_copy_id(shared_id, user_id))
            copy_id = await remove_copy(session, user_id, shared_id)
            if copy_id is None:
                return
            if account is not None:
                session.after_commit(self._removed_accounts.append, account)
            await update_tool_counts(session, user_id, self._indexer.ann_above)
            await record_event(session, user_id, queue.SYSTEM, "server.unshare", copy_id)
            session.after_commit(self._indexer.mcp_pool.forget, user_id, copy_id)

    async def _retry_failed_runs(self, limit: int) -> int:
        """Queue copies again whose last run has failed, if it is time for that. Return how many."""
        parameters = {"pause_s": self._config.retry_s, "max_retries": self._config.max_retries, "limit": limit}
        [found] = await self._database.system_fetch([(_FIND_FAILED, parameters)])
        for user_id, copy_id in found:
            with suppress(NotFound):  # it has just been removed
                async with self._database.transaction(user_id) as session:
                    # as if it was asked for: it also restores the status that the failure has replaced
                    await queue.enqueue(session, user_id, copy_id)
        return len(found)

    async def _revoke_tokens(self) -> None:
        """Revoke the tokens of members whose copies the last batch has removed."""
        accounts, self._removed_accounts = self._removed_accounts, []
        await asyncio.gather(*(self._indexer.connector.revoke(account) for account in accounts))
