"""Learn from outcomes: remember the message of a successful use as an example of its tool.

- A discovery leaves the vector of its message and the tools of its answer (`discovery_vectors.py`).
- A call that succeeded belongs to the discovery that its caller names, or to the newest one within `CALL_WINDOW` whose
  answer has the tool.
- Feedback names its discovery: `succeeded` is an example for the tool, `irrelevant` one against it. `called` says too
  little, and `failed` says nothing about whether the tool was the right one.

A message counts once for each tool, however often the tool is called and reported.

Calls are collected in memory and learnt from about every second, so that no call waits. Those of the last second are
lost if the process is killed, and so is feedback that another replica gets before the vector is written.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from app.db.engine import Database, Session
from app.errors import QueryFailed, Unavailable
from app.usage.discovery_vectors import (
    DiscoveryVector,
    DiscoveryVectorLog,
    claim_vector,
    find_newest_discovery,
)
from app.usage.examples import learn_example
from app.usage.periodic_flusher import PeriodicFlusher

logger = logging.getLogger("toolscout.usage")

CALL_WINDOW = timedelta(minutes=15)
_MAX_PENDING = 5_000

# In the same mode and as early as for feedback, so that the two cannot deadlock.
_LOCK_USER = "SELECT 1 FROM users WHERE id = %(user_id)s FOR NO KEY UPDATE"

_FOR, _AGAINST = "for", "against"


@dataclass(frozen=True)
class _Call:
    user_id: str
    tool_id: str
    at: datetime
    discovery_id: str | None


class Learner:
    def __init__(self, database: Database, *, enabled: bool = True) -> None:
        self._database = database
        self.enabled = enabled
        self._vectors = DiscoveryVectorLog(database)
        self._calls: list[_Call] = []
        self._flushing = asyncio.Lock()
        self.flusher = PeriodicFlusher("examples", self.flush, self.flush, lambda: {"calls": len(self._calls)})

    def record_discovery(
        self, user_id: str, discovery_id: str, model: str, vector: npt.NDArray[np.float32], tool_ids: Sequence[str]
    ) -> None:
        if self.enabled:
            half = vector.astype(np.float16)
            self._vectors.append(DiscoveryVector(user_id, discovery_id, datetime.now(UTC), model, half, tool_ids))

    def record_call(self, user_id: str, tool_id: str, discovery_id: str | None = None) -> None:
        """Note that a call of the tool succeeded. `discovery_id` is the discovery that led to it, if it is known."""
        if self.enabled and len(self._calls) < _MAX_PENDING:
            self._calls.append(_Call(user_id, tool_id, datetime.now(UTC), discovery_id))

    async def write_vectors(self, user_id: str) -> None:
        """Write the user's pending vectors now, or wait until a flush in progress has: feedback may follow at once."""
        if self._vectors.is_unwritten(user_id):
            await self._vectors.flush()

    async def learn_from_feedback(
        self, session: Session, user_id: str, discovery_id: str, tool_id: str, outcomes: Collection[str]
    ) -> None:
        """Learn from the new outcomes of a discovery's tool. The caller holds the lock of the user's row."""
        if self.enabled and "succeeded" in outcomes:
            await _learn(session, user_id, discovery_id, tool_id, is_relevant=True)
        if self.enabled and "irrelevant" in outcomes:
            await _learn(session, user_id, discovery_id, tool_id, is_relevant=False)

    async def discard_pending(self, user_id: str) -> None:
        """Drop what is pending for the user, so that the caller can delete what is stored."""
        async with self._flushing:
            self._calls = [call for call in self._calls if call.user_id != user_id]
            await self._vectors.discard_pending(user_id)

    async def flush(self) -> None:
        """Write the pending vectors, then learn from the pending calls. If the database is down, they stay pending."""
        async with self._flushing:
            await self._vectors.flush()
            while self._calls:
                try:
                    await self._learn_from_call(self._calls[0])
                except Unavailable:
                    logger.warning("cannot learn from calls: the database is down", extra={"calls": len(self._calls)})
                    return
                except QueryFailed:
                    logger.warning("failed to learn from a call", exc_info=True)
                self._calls.pop(0)

    async def _learn_from_call(self, call: _Call) -> None:
        user_id = call.user_id
        async with self._database.transaction(user_id) as session:
            await session.rows(_LOCK_USER, {"user_id": user_id})
            since = call.at - CALL_WINDOW
            discovery_id = call.discovery_id or await find_newest_discovery(
                session, user_id, call.tool_id, since, call.at
            )
            if discovery_id is not None:
                await _learn(session, user_id, discovery_id, call.tool_id, is_relevant=True)


async def _learn(session: Session, user_id: str, discovery_id: str, tool_id: str, *, is_relevant: bool) -> None:
    mark = f"{_FOR if is_relevant else _AGAINST} {tool_id}"
    message = await claim_vector(session, user_id, discovery_id, mark)
    if message is not None:
        await learn_example(session, user_id, message.model, tool_id, message.vector, is_relevant=is_relevant)
