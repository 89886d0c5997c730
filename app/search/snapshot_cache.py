"""Which snapshots are held in memory.

- A scope is loaded when it is used for the second time at the same version of the catalogue: a user who asks once, or
  whose catalogue changes with every request, costs no load. Meanwhile Postgres answers.
- All snapshots together take at most `max_bytes`. The least recently used give way. The snapshots of one user take at
  most `_MAX_SHARE` of that, and a scope that would take more by itself is never loaded.
"""

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import Literal

from app.auth.users import User
from app.catalog.visibility import Scope
from app.db.engine import Database
from app.errors import QueryFailed, ToolscoutError
from app.observability.metrics import Metrics
from app.search.learned import LearnedCache
from app.search.snapshots import Snapshot, read_snapshot

logger = logging.getLogger("toolscout.search")

_MAX_SHARE = 0.75
_MIN_TOOL_BYTES = 1_000
"""Less than any tool takes."""
_MAX_NOTED = 10_000
_LOADS_AT_ONCE = 2

_Key = tuple[str, str, str | None]
"""User, model and project."""
_Fact = Literal["used", "too large"]


def _make_key(scope: Scope) -> _Key:
    return scope.user_id, scope.model, scope.project_id


class SnapshotCache:
    """Owns all snapshots of this process. Only the event loop uses it, so that it needs no lock."""

    def __init__(self, database: Database, learned: LearnedCache, metrics: Metrics, max_bytes: int) -> None:
        """`max_bytes` 0: hold none."""
        self._database = database
        self._learned = learned
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._max_user_bytes = int(max_bytes * _MAX_SHARE)
        self._snapshots: OrderedDict[_Key, Snapshot] = OrderedDict()
        """The least recently used first."""
        self._noted: OrderedDict[_Key, tuple[int, _Fact]] = OrderedDict()
        """What is known of scopes without a snapshot, at a version of the catalogue."""
        self._loads: dict[_Key, asyncio.Task[None]] = {}
        self._loading = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._bytes = 0
        metrics.snapshot_bytes.set_function(lambda: self._bytes)

    async def get(self, user: User, scope: Scope) -> Snapshot | None:
        """Return the snapshot of the scope without its filters, or None if there is none of the current version."""
        key = _make_key(scope)
        snapshot = self._snapshots.get(key)
        if snapshot is None or snapshot.version < user.catalog_version:
            return None
        self._snapshots.move_to_end(key)
        self._metrics.snapshot_hits.inc()
        return await self._update_learned(key, snapshot, user, scope)

    def note_miss(self, user: User, scope: Scope) -> None:
        """Note that Postgres answers a request for the scope. If it is the second at this version, load a snapshot."""
        key, version = _make_key(scope), user.catalog_version
        self._metrics.snapshot_misses.inc()
        self._drop(key)  # it is outdated
        if not self._max_bytes or user.tool_count * _MIN_TOOL_BYTES > self._max_user_bytes or key in self._loads:
            return
        if self._noted.get(key) == (version, "used"):
            self._loads[key] = task = asyncio.create_task(self._load(key, user, scope.without_filters()))
            task.add_done_callback(lambda _: self._loads.pop(key, None))
        elif self._noted.get(key) != (version, "too large"):
            self._note(key, version, "used")

    async def wait_loaded(self) -> None:
        """Wait for the loads in progress."""
        await asyncio.gather(*self._loads.values(), return_exceptions=True)

    async def aclose(self) -> None:
        for task in list(self._loads.values()):
            task.cancel()
        await self.wait_loaded()

    async def _update_learned(self, key: _Key, snapshot: Snapshot, user: User, scope: Scope) -> Snapshot:
        """Apply what was learnt since the snapshot was last used."""
        learned = self._learned.get(scope, user.catalog_version, user.examples_version)
        if learned is None:
            reader = self._database.reader(scope.user_id, at_least=scope.get_versions(user))
            try:
                learned = await self._learned.read(reader, scope)
            except QueryFailed:
                logger.warning("failed to read what was learnt: the search goes on without it", exc_info=True)
                return snapshot
        if learned is not snapshot.learned:
            snapshot = snapshot.with_learned(learned)
            if key in self._snapshots and self._snapshots[key].version == snapshot.version:
                self._snapshots[key] = snapshot
        return snapshot

    def _note(self, key: _Key, version: int, fact: _Fact) -> None:
        self._noted[key] = version, fact
        self._noted.move_to_end(key)
        if len(self._noted) > _MAX_NOTED:
            self._noted.popitem(last=False)

    async def _load(self, key: _Key, user: User, scope: Scope) -> None:
        outcome = "failed"
        load = partial(read_snapshot, scope=scope, max_bytes=self._max_user_bytes)
        try:
            async with self._loading:
                at_least = scope.get_versions(user)
                snapshot = await self._database.read_snapshot(user.id, load, at_least=at_least, background=True)
            outcome = "too_large" if snapshot is None else "loaded"
        except ToolscoutError:
            logger.warning("failed to load a snapshot: Postgres goes on answering", exc_info=True)
            return
        finally:
            self._metrics.snapshot_loads.labels(outcome).inc()
        if snapshot is None:
            self._note(key, user.catalog_version, "too large")
        else:
            self._store(key, snapshot)

    def _store(self, key: _Key, snapshot: Snapshot) -> None:
        self._drop(key)
        self._noted.pop(key, None)
        self._snapshots[key] = snapshot
        self._bytes += snapshot.memory_bytes
        own = [each for each in self._snapshots if each[0] == key[0]]
        while sum(self._snapshots[each].memory_bytes for each in own) > self._max_user_bytes:
            self._evict(own.pop(0))
        while self._bytes > self._max_bytes:
            self._evict(next(iter(self._snapshots)))

    def _evict(self, key: _Key) -> None:
        self._drop(key)
        self._metrics.snapshot_evictions.inc()

    def _drop(self, key: _Key) -> None:
        if (snapshot := self._snapshots.pop(key, None)) is not None:
            self._bytes -= snapshot.memory_bytes
