"""Puts tools into categories in the background, for one user after another, in one process at a time.

What is to be done is stored: users whose catalogue has another version than their categories. Nothing is lost if the
process ends, and a user whose catalogue has not changed costs nothing.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.db.engine import Database
from app.db.leases import Lease
from app.errors import Unavailable
from app.indexing.categories.maker import make_categories
from app.indexing.categories.store import list_due_users
from app.indexing.pass_loop import PassLoop
from app.observability.metrics import Metrics

logger = logging.getLogger("toolscout.categories")

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
        config = config or CategorizerConfig()
        self._patience_s = config.patience_s
        self.lease = Lease(database, "categories", config.lease_s)
        self.loop = PassLoop(
            "categories",
            self.run_pass,
            interval_s=config.interval_s,
            debounce_s=config.debounce_s,
            pause_factor=config.pause_factor,
        )

    async def run_pass(self) -> int:
        """Bring all categories up to date, unless another process is at it. Return how many users' have changed.

        A user who is still due afterwards waits for the next pass.
        """
        if not await self.lease.acquire():
            return 0
        try:
            return await self._make_all()
        finally:
            await self.lease.release()

    async def _make_all(self) -> int:
        changed, patience_s = 0, self._patience_s
        users = await list_due_users(self._database, self._get_model(), "", _USERS_AT_ONCE, patience_s)
        while users:
            for user_id in users:
                changed += await self._make(user_id)
                if not await self.lease.acquire():
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
