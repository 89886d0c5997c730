"""Count discoveries and tool calls in memory and flush the counts later, so that no request waits for it.

Each process has one instance. Counts since the last flush are lost if the process is killed: they are statistics only,
and the audit log records what was done.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from app.db.engine import Database
from app.errors import DatabaseDown, QueryFailed
from app.usage import priors
from app.usage.histogram import BUCKETS, bucket_index
from app.usage.periodic_flusher import PeriodicFlusher
from app.usage.repository import USAGE_KINDS, UsageBatch, UsageKind, add_counts

logger = logging.getLogger("toolscout.usage")

MAX_PENDING = 50_000
"""Pending counters, of tools and of minutes. Beyond this no new one starts: a database that is down for hours must not
fill the memory."""

_RETRY_S = 10.0
_FLUSHES_PER_PRIOR_UPDATE = 30
_USERS_PER_STATEMENT = 100

_Key = TypeVar("_Key", bound=tuple[str, str | int])


def _usage_counts(*kinds: UsageKind) -> tuple[int, ...]:
    return tuple(int(kind in kinds) for kind in USAGE_KINDS)


_DISCOVERED = _usage_counts("discovered")
_CALLED = {
    None: _usage_counts("called"),
    True: _usage_counts("called", "succeeded"),
    False: _usage_counts("called", "failed"),
}


@dataclass(frozen=True)
class DiscoverySample:
    """The measurements of one discovery."""

    seconds: float
    degraded: bool
    no_match: bool
    cache_hit: bool
    tokens_all: int
    tokens_selected: int
    not_english: bool = False

    def counts(self) -> list[int]:
        latencies = [0] * BUCKETS
        latencies[bucket_index(self.seconds)] = 1
        flags = int(self.degraded), int(self.no_match), int(self.cache_hit)
        return [1, *flags, self.tokens_all, self.tokens_selected, int(self.not_english), *latencies]


class UsageCounters:
    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._uses: dict[tuple[str, str], Sequence[int]] = {}
        self._minutes: dict[tuple[str, int], Sequence[int]] = {}
        self._stale_priors: set[str] = set()
        self._dropped = 0
        self._writing = asyncio.Lock()
        """A flush skips users whose rows are locked, and an update of priors locks them: one at a time."""
        self._flushes = 0
        self.flusher = PeriodicFlusher(
            "usage", self._flush_periodic, self._flush_final, lambda: {"counters": self.pending}
        )

    def record_discovery(self, user_id: str, tool_ids: Iterable[str], sample: DiscoverySample) -> None:
        for tool_id in tool_ids:
            self._add(self._uses, (user_id, tool_id), _DISCOVERED)
        self._add(self._minutes, (user_id, int(self._clock()) // 60 * 60), sample.counts())

    def record_call(self, user_id: str, tool_id: str, *, succeeded: bool | None) -> None:
        """`succeeded` is None if the outcome is unknown."""
        self._add(self._uses, (user_id, tool_id), _CALLED[succeeded])
        if succeeded is not None:
            self.mark_priors_stale(user_id)

    def mark_priors_stale(self, user_id: str) -> None:
        """Note that the user has a new outcome, so that the next update recomputes the priors."""
        if len(self._stale_priors) < MAX_PENDING:
            self._stale_priors.add(user_id)

    @property
    def pending(self) -> int:
        return len(self._uses) + len(self._minutes)

    def _add(self, counters: dict[_Key, Sequence[int]], key: _Key, counts: Sequence[int]) -> None:
        known = counters.get(key)
        if known is not None:
            counters[key] = [old + new for old, new in zip(known, counts, strict=True)]
        elif self.pending < MAX_PENDING:
            counters[key] = counts
        else:
            self._dropped += 1

    async def _flush_periodic(self) -> None:
        self._flushes += 1
        if not await self.flush():
            await asyncio.sleep(_RETRY_S)
        if self._flushes % _FLUSHES_PER_PRIOR_UPDATE == 0:
            await self.update_priors()

    async def _flush_final(self) -> None:
        await self.flush()
        await self.update_priors()

    async def flush(self) -> bool:
        """Write the pending counts. Return whether all are written; the rest stays pending."""
        async with self._writing:
            unwritten = self._take_pending()
            try:
                users = list(unwritten)
                for start in range(0, len(users), _USERS_PER_STATEMENT):
                    batches = {user_id: unwritten[user_id] for user_id in users[start : start + _USERS_PER_STATEMENT]}
                    for user_id in await self._write(batches):
                        del unwritten[user_id]
                return not unwritten
            except DatabaseDown:
                logger.warning("cannot write usage counts: the database is down", extra={"users": len(unwritten)})
                return False
            finally:
                self._put_back(unwritten)

    async def _write(self, batches: dict[str, UsageBatch]) -> list[str]:
        """Return the users that are done. If the statement fails, write each user alone to spare the others."""
        try:
            async with self._database.system_transaction() as session:
                return await add_counts(session, batches)
        except QueryFailed:
            if len(batches) == 1:
                logger.warning("failed to write the usage counts of a user", exc_info=True)
                return []
        return [done for user_id, batch in batches.items() for done in await self._write({user_id: batch})]

    def _take_pending(self) -> dict[str, UsageBatch]:
        """Remove the pending counts and return them by user."""
        uses, self._uses = self._uses, {}
        minutes, self._minutes = self._minutes, {}
        if self._dropped:
            logger.warning("usage counts dropped: too many are pending", extra={"counters": self._dropped})
            self._dropped = 0
        batches = {user_id: UsageBatch({}, {}) for user_id, _ in (*uses, *minutes)}
        for (user_id, tool_id), counts in uses.items():
            batches[user_id].uses[tool_id] = counts
        for (user_id, minute), counts in minutes.items():
            batches[user_id].minutes[minute] = counts
        return batches

    def _put_back(self, batches: dict[str, UsageBatch]) -> None:
        for user_id, batch in batches.items():
            for tool_id, counts in batch.uses.items():
                self._add(self._uses, (user_id, tool_id), counts)
            for minute, counts in batch.minutes.items():
                self._add(self._minutes, (user_id, minute), counts)

    async def update_priors(self) -> None:
        """Recompute the priors of each user with a new outcome."""
        async with self._writing:
            try:
                for user_id in list(self._stale_priors):
                    await self._update_priors_of_user(user_id)
            except (DatabaseDown, QueryFailed):
                logger.warning("failed to update usage priors", exc_info=True)

    async def _update_priors_of_user(self, user_id: str) -> None:
        self._stale_priors.discard(user_id)  # first: an outcome that arrives meanwhile is for the next update
        try:
            async with self._database.transaction(user_id) as session:
                await priors.update_priors(session, user_id)
        except BaseException:
            self._stale_priors.add(user_id)
            raise
