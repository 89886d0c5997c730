"""Collect log entries in memory and insert them in batches, so that no request waits.

Pending entries are lost if the process is killed. Beyond a fixed number, further ones are dropped while the database is
down.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

import orjson

from app.db.engine import Database
from app.errors import QueryFailed, QueryInterrupted, Unavailable
from app.usage.owners import ANY_USER, lock_owners
from app.usage.periodic_flusher import PeriodicFlusher

logger = logging.getLogger("toolscout.usage")

_MAX_PENDING = 5_000
_ENTRIES_PER_STATEMENT = 500


class LogEntry(Protocol):
    """A frozen dataclass whose fields are named as the columns of its table."""

    @property
    def user_id(self) -> str: ...

    @property
    def at(self) -> datetime: ...


Entry = TypeVar("Entry", bound=LogEntry)


@dataclass(frozen=True)
class LogTable:
    name: str
    columns: Mapping[str, str]
    """The type of each column but `user_id`."""
    owner: str = ANY_USER
    """A condition on `users`: nothing is written for a user who does not meet it."""

    @property
    def insert(self) -> str:
        """The statement that inserts entries of several users."""
        return f"""
            INSERT INTO {self.name} (user_id, {", ".join(self.columns)})
            SELECT entry.user_id, {", ".join(f"entry.{name}" for name in self.columns)}
            FROM jsonb_to_recordset(%(entries)s::jsonb)
                 AS entry (user_id text, {", ".join(f"{name} {kind}" for name, kind in self.columns.items())})
            ON CONFLICT DO NOTHING
        """


class BatchWriter(Generic[Entry]):
    """Entries of users that were deleted are left out, and so are entries that are older than the user: they belong to
    a deleted user of the same id. Entries of users whose rows are locked are written with the next flush."""

    def __init__(self, database: Database, name: str, table: LogTable) -> None:
        """`name` says in the log what is written."""
        self._database = database
        self._name = name
        self._table = table
        self._insert = table.insert
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
        user_ids = {entry.user_id for entry in batch}
        try:
            async with self._database.system_transaction() as session:
                owners = await lock_owners(session, user_ids, self._table.owner)
                created_at = owners.locked
                new = [each for each in batch if each.user_id in created_at and each.at >= created_at[each.user_id]]
                if new:
                    entries = orjson.dumps(new, option=orjson.OPT_SERIALIZE_NUMPY).decode()
                    await session.rows(self._insert, {"entries": entries})
                done = set(owners.done)
        except QueryInterrupted:
            return list(batch)
        except QueryFailed:
            if len(user_ids) == 1:
                logger.warning("failed to write the %s of a user", self._name, exc_info=True)
                return []
            by_user = [[entry for entry in batch if entry.user_id == user_id] for user_id in user_ids]
            return [entry for entries in by_user for entry in await self._write(entries)]
        return [entry for entry in batch if entry.user_id not in done]
