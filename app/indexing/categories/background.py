"""Puts tools into categories in the background, for one user after another, in one process at a time.

What is to be done is stored: users whose catalogue has another version than their categories. Nothing is lost if the
process ends, and a user whose catalogue has not changed costs nothing.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from app.db.engine import Database
from app.db.leases import acquire_lease, release_lease
from app.errors import QueryInterrupted, Unavailable
from app.indexing.categories.maker import make_categories
from app.indexing.categories.store import list_due_users
from app.observability.metrics import Metrics

logger = logging.getLogger("toolscout.categories")

_LEASE = "categories"
_USERS_AT_ONCE = 50


@dataclass(frozen=True)
class CategorizerConfig:
    interval_s: float = 30.0
    """How often due users are looked for without a notification."""
    debounce_s: float = 2.0
    """How long after a notification, so that the runs of several servers lead to one pass."""
    patience_s: float = 120.0
    """How long a user's categories wait for index runs that have not finished, and how long the tools of a finished
    run wait for other runs."""
    lease_s: float = 60.0
    pause_factor: float = 5.0
    """The pause after a pass is this many times as long as the pass, so that a catalogue that changes all the time
    costs a sixth of a core at most."""


class Categorizer:
    def __init__(
        self,
        database: Database,
        get_model: Callable[[], str],
        metrics: Metrics,
        config: CategorizerConfig | None = None,
    ) -> None:
        """`get_model` returns the id of the active embedding model."""
        self._database = database
        self._get_model = get_model
        self._metrics = metrics
        self._config = config or CategorizerConfig()
        self._holder = str(uuid.uuid4())
        self._has_work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    def notify(self) -> None:
        """Look for due users soon: an index run has finished."""
        self._has_work.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.interval_s):
                    await self._has_work.wait()
            await asyncio.sleep(self._config.debounce_s)
            self._has_work.clear()  # before the query, so that a change during the pass leads to another one
            started = time.monotonic()
            try:
                await self.run_pass()
            except (Unavailable, QueryInterrupted):
                logger.warning("categories could not be made, trying again later")
            except Exception:  # the task's boundary: an error must not end the loop
                logger.exception("unexpected error while categories were made")
            await asyncio.sleep(self._config.pause_factor * (time.monotonic() - started))

    async def run_pass(self) -> int:
        """Bring all categories up to date, unless another process is at it. Return how many users' have changed.

        A user who is still due afterwards waits for the next pass.
        """
        if not await self._acquire_lease():
            return 0
        try:
            return await self._make_all()
        finally:
            with suppress(Unavailable, QueryInterrupted):  # it expires
                await self._release_lease()

    async def _make_all(self) -> int:
        changed, patience_s = 0, self._config.patience_s
        users = await list_due_users(self._database, self._get_model(), "", _USERS_AT_ONCE, patience_s)
        while users:
            for user_id in users:
                changed += await self._make(user_id)
                if not await self._acquire_lease():
                    return changed
            users = await list_due_users(self._database, self._get_model(), users[-1], _USERS_AT_ONCE, patience_s)
        return changed

    async def _make(self, user_id: str) -> bool:
        """Return whether the user's categories have changed. A failure does not stop the others, unless there is no
        database."""
        outcome, started = "failed", time.perf_counter()
        try:
            is_changed = await make_categories(self._database, user_id, self._get_model())
            outcome = "changed" if is_changed else "unchanged"
        except Unavailable:
            raise
        except Exception:  # the boundary of a user's work, which is tried again in the next pass
            logger.exception("the categories of a user could not be made")
        finally:
            self._metrics.categorizations.labels(outcome).inc()
            self._metrics.categorization_seconds.observe(time.perf_counter() - started)
        return outcome == "changed"

    async def _acquire_lease(self) -> bool:
        async with self._database.system_transaction() as session:
            return await acquire_lease(session, _LEASE, self._holder, self._config.lease_s)

    async def _release_lease(self) -> None:
        async with self._database.system_transaction() as session:
            await release_lease(session, _LEASE, self._holder)
