"""Counts in memory what every discovery and every call would otherwise have to wait for, and writes it down later.

Each process has one. What it gathered since its last write is lost if the process is killed: these are figures, and
what was done is in the audit.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from app.db.engine import Database
from app.errors import DatabaseDown, QueryFailed
from app.usage.flusher import PeriodicFlusher
from app.usage.histogram import SPANS, span_of
from app.usage.learning import update_priors
from app.usage.repository import USES, Batch, Use, add_counts

logger = logging.getLogger("toolscout.usage")

MOST_KEPT = 50_000
"""Counters, of tools and of minutes, that wait to be written. Beyond it no new ones begin: a database that is away for
hours must not fill the memory."""

_AFTER_FAILURE_S = 10.0
_WRITES_UNTIL_LEARNING = 30
_USERS_AT_ONCE = 100

_Key = TypeVar("_Key", bound=tuple[str, str | int])


def _in_parts(users: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(users), _USERS_AT_ONCE):
        yield users[start : start + _USERS_AT_ONCE]


def _uses(*uses: Use) -> tuple[int, ...]:
    return tuple(int(use in uses) for use in USES)


_DISCOVERED = _uses("discovered")
_CALLED = {None: _uses("called"), True: _uses("called", "succeeded"), False: _uses("called", "failed")}


@dataclass(frozen=True)
class DiscoverySample:
    """Of one discovery."""

    seconds: float
    degraded: bool
    no_match: bool
    cache_hit: bool
    tokens_all: int
    tokens_selected: int

    def counts(self) -> list[int]:
        latencies = [0] * SPANS
        latencies[span_of(self.seconds)] = 1
        told = int(self.degraded), int(self.no_match), int(self.cache_hit)
        return [1, *told, self.tokens_all, self.tokens_selected, *latencies]


class UsageCounters:
    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._uses: dict[tuple[str, str], Sequence[int]] = {}
        self._minutes: dict[tuple[str, int], Sequence[int]] = {}
        self._unlearnt: set[str] = set()
        self._lost = 0
        self._at_work = asyncio.Lock()
        """Writing passes over users who are locked, as those are who are being learnt from."""
        self._turns = 0
        self.flusher = PeriodicFlusher("usage", self._turn, self._last, lambda: {"counters": self.kept})

    def discovered(self, user_id: str, tool_ids: Iterable[str], figures: DiscoverySample) -> None:
        for tool_id in tool_ids:
            self._add(self._uses, (user_id, tool_id), _DISCOVERED)
        self._add(self._minutes, (user_id, int(self._clock()) // 60 * 60), figures.counts())

    def called(self, user_id: str, tool_id: str, *, succeeded: bool | None) -> None:
        """None where nobody knows how it ended."""
        self._add(self._uses, (user_id, tool_id), _CALLED[succeeded])
        if succeeded is not None:
            self.outcome_known(user_id)

    def outcome_known(self, user_id: str) -> None:
        """There is something to learn from."""
        if len(self._unlearnt) < MOST_KEPT:
            self._unlearnt.add(user_id)

    @property
    def kept(self) -> int:
        return len(self._uses) + len(self._minutes)

    def _add(self, into: dict[_Key, Sequence[int]], key: _Key, counts: Sequence[int]) -> None:
        known = into.get(key)
        if known is not None:
            into[key] = [old + new for old, new in zip(known, counts, strict=True)]
        elif self.kept < MOST_KEPT:
            into[key] = counts
        else:
            self._lost += 1

    async def _turn(self) -> None:
        self._turns += 1
        if not await self.write():
            await asyncio.sleep(_AFTER_FAILURE_S)
        if self._turns % _WRITES_UNTIL_LEARNING == 0:
            await self.learn()

    async def _last(self) -> None:
        await self.write()
        await self.learn()

    async def write(self) -> bool:
        """Whether all of it is written; what is not is kept for the next time."""
        async with self._at_work:
            unwritten = self._taken()
            try:
                for users in _in_parts(list(unwritten)):
                    for user_id in await self._written({user_id: unwritten[user_id] for user_id in users}):
                        del unwritten[user_id]
                return not unwritten
            except DatabaseDown:
                logger.warning("usage cannot be written down just now", extra={"users": len(unwritten)})
                return False
            finally:
                self._give_back(unwritten)

    async def _written(self, batches: dict[str, Batch]) -> list[str]:
        """The users who are done with. Where one of them spoils the statement, each is written alone."""
        try:
            async with self._database.system_transaction() as session:
                return await add_counts(session, batches)
        except QueryFailed:
            if len(batches) == 1:
                logger.warning("a user's usage could not be written down", exc_info=True)
                return []
        return [done for one in batches.items() for done in await self._written(dict([one]))]

    def _taken(self) -> dict[str, Batch]:
        """By user."""
        uses, self._uses = self._uses, {}
        minutes, self._minutes = self._minutes, {}
        if self._lost:
            logger.warning("usage was not counted: too much waits to be written", extra={"counters": self._lost})
            self._lost = 0
        batches = {user_id: Batch({}, {}) for user_id, _ in (*uses, *minutes)}
        for (user_id, tool_id), counts in uses.items():
            batches[user_id].uses[tool_id] = counts
        for (user_id, minute), counts in minutes.items():
            batches[user_id].minutes[minute] = counts
        return batches

    def _give_back(self, batches: dict[str, Batch]) -> None:
        for user_id, batch in batches.items():
            for tool_id, counts in batch.uses.items():
                self._add(self._uses, (user_id, tool_id), counts)
            for minute, counts in batch.minutes.items():
                self._add(self._minutes, (user_id, minute), counts)

    async def learn(self) -> None:
        """For each user of whom an outcome has become known since the last time."""
        async with self._at_work:
            try:
                for user_id in list(self._unlearnt):
                    await self._learn_of(user_id)
            except (DatabaseDown, QueryFailed):
                logger.warning("what became of tools could not be learnt from", exc_info=True)

    async def _learn_of(self, user_id: str) -> None:
        self._unlearnt.discard(user_id)  # first: what becomes known meanwhile is for the next time
        try:
            async with self._database.transaction(user_id) as session:
                await update_priors(session, user_id)
        except BaseException:
            self._unlearnt.add(user_id)
            raise
