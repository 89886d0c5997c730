"""Collect log entries in memory and insert them in batches, so that no request waits.

Pending entries are lost if the process is killed. Beyond a fixed number, further ones are dropped while the database is
down.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import orjson

from app.db.engine import Database
from app.errors import QueryFailed, QueryInterrupted, Unavailable
from app.usage.periodic_flusher import PeriodicFlusher

logger = logging.getLogger("toolscout.usage")

_MAX_PENDING = 5_000
_ENTRIES_PER_STATEMENT = 500


class LogEntry(Protocol):
    """A frozen dataclass whose fields are named as the columns of its table, `at` among them."""

    @property
    def user_id(self) -> str: ...


Entry = TypeVar("Entry", bound=LogEntry)


def make_insert(table: str, columns: Mapping[str, str], owner: str = "true") -> str:
    """Return a statement that inserts entries of many users and returns the users that are done.

    Entries of users that were deleted, or that do not meet the condition `owner`, are left out, and so are entries that
    are older than the user: they belong to a deleted user of the same id. Users whose rows others
    have locked, for example for a change of rules, are skipped until the next flush: waiting here would make others
    wait for this transaction.
    """
    return f"""
        WITH owner AS MATERIALIZED (
            SELECT id, created_at FROM users
            WHERE id = ANY(%(user_ids)s) AND {owner} ORDER BY id FOR KEY SHARE SKIP LOCKED
        ),
        inserted AS (
            INSERT INTO {table} (user_id, {", ".join(columns)})
            SELECT owner.id, {", ".join(f"entry.{name}" for name in columns)}
            FROM owner JOIN jsonb_to_recordset(%(entries)s::jsonb)
                 AS entry (user_id text, {", ".join(f"{name} {kind}" for name, kind in columns.items())})
                 ON entry.user_id = owner.id AND entry.at >= owner.created_at
            ON CONFLICT DO NOTHING
        )
        SELECT id FROM owner
        UNION ALL
        SELECT without FROM unnest(%(user_ids)s) without
        WHERE NOT EXISTS (SELECT FROM users WHERE id = without AND {owner})
    """


class BatchWriter(Generic[Entry]):
    def __init__(self, database: Database, name: str, insert: str) -> None:
        """`insert` is a statement of `make_insert`; `name` says in the log what is written."""
        self._database = database
        self._name = name
        self._insert = insert
        self._pending: list[Entry] = []
        self._writing: list[Entry] = []
        """What the flush in progress has not written yet."""
        self._dropped = 0
        self._flushing = asyncio.Lock()
        self.flusher = PeriodicFlusher(name, self.flush, self.flush, lambda: {name: self.pending})

    @property
    def pending(self) -> int:
        return len(self._pending)

    def append(self, entry: Entry) -> None:
        if self.pending < _MAX_PENDING:
            self._pending.append(entry)
        else:
            self._dropped += 1

    def is_unwritten(self, user_id: str) -> bool:
        """Whether an entry of the user is pending, or being written."""
        return any(entry.user_id == user_id for entry in (*self._writing, *self._pending))

    async def discard_pending(self, user_id: str) -> None:
        """Drop a user's pending entries. A flush in progress ends first, so that the caller can delete its rows."""
        async with self._flushing:
            self._pending = [entry for entry in self._pending if entry.user_id != user_id]

    async def flush(self) -> None:
        """Write the pending entries. If the database is down or interrupts a statement, they stay pending; if it
        rejects them, they are dropped."""
        async with self._flushing:
            self._writing, self._pending = self._pending, []
            if self._dropped:
                logger.warning("%s dropped: too many are pending", self._name, extra={"entries": self._dropped})
                self._dropped = 0
            skipped: list[Entry] = []
            try:
                while self._writing:
                    batch = self._writing[:_ENTRIES_PER_STATEMENT]
                    skipped += await self._write(batch)
                    del self._writing[: len(batch)]
            except Unavailable:
                entries = len(self._writing)
                logger.warning("cannot write %s: the database is down", self._name, extra={"entries": entries})
            finally:
                unwritten, self._writing = [*skipped, *self._writing], []
                for entry in unwritten:
                    self.append(entry)

    async def _write(self, batch: Sequence[Entry]) -> list[Entry]:
        """Return the entries that are to be written later. If the statement fails, write each user's alone to spare
        the others."""
        user_ids = list({entry.user_id for entry in batch})
        try:
            async with self._database.system_transaction() as session:
                entries = orjson.dumps(batch, option=orjson.OPT_SERIALIZE_NUMPY).decode()
                parameters = {"user_ids": user_ids, "entries": entries}
                done = {user_id for (user_id,) in await session.rows(self._insert, parameters)}
        except QueryInterrupted:
            return list(batch)
        except QueryFailed:
            if len(user_ids) == 1:
                logger.warning("failed to write the %s of a user", self._name, exc_info=True)
                return []
            by_user = [[entry for entry in batch if entry.user_id == user_id] for user_id in user_ids]
            return [entry for entries in by_user for entry in await self._write(entries)]
        return [entry for entry in batch if entry.user_id not in done]
