"""Fair scheduling: no user's load decides how long other users wait.

A user who is alone may have several requests in progress. As soon as another user sends requests too, each has one,
and further requests of a user wait behind that user's own. A slot is for work that takes processor time: release it
before waiting for the network.
"""

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.observability.metrics import Metrics

MAX_SOLO = 4
"""Slots of a user who is alone. More of them answered no faster, and would delay the next user."""
MAX_SHARED = 1
"""Slots of each user while several send requests."""
ACTIVE_S = 5.0
"""A user counts as active for this long after a request."""


@dataclass
class _Queue:
    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class FairScheduler:
    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)
        self._last_request: tuple[str, float] = "", -math.inf
        """The user of the newest request, and its time."""
        self._last_of_another = -math.inf
        """The time of the newest request of any other user than that."""
        metrics.requests_waiting.set_function(lambda: sum(len(queue.waiting) for queue in self._queues.values()))

    @asynccontextmanager
    async def slot(self, user_id: str) -> AsyncIterator[None]:
        """Wait for a slot of this user, and hold it for the duration of the block."""
        self._note_request(user_id)
        queue = self._queues[user_id]
        ticket = asyncio.get_running_loop().create_future()
        queue.waiting.append(ticket)
        self._admit(user_id, queue)
        try:
            await ticket
            yield
        finally:
            # a request that was cancelled while it waited had no slot
            queue.running -= ticket.done() and not ticket.cancelled()
            self._admit(user_id, queue)

    def _note_request(self, user_id: str) -> None:
        last_user, at = self._last_request
        if last_user != user_id:
            self._last_of_another = at
        self._last_request = user_id, self._clock()

    def _admit(self, user_id: str, queue: _Queue) -> None:
        """Give free slots to the user's waiting requests, and drop the queue when nothing is left in it."""
        slots = self._count_slots(user_id)
        while queue.waiting and queue.running < slots:
            ticket = queue.waiting.popleft()
            if not ticket.cancelled():
                ticket.set_result(None)
                queue.running += 1
        if not queue.waiting and not queue.running and self._queues.get(user_id) is queue:
            del self._queues[user_id]

    def _count_slots(self, user_id: str) -> int:
        last_user, at = self._last_request
        other_seen_at = self._last_of_another if last_user == user_id else at
        return MAX_SHARED if self._clock() - other_seen_at < ACTIVE_S else MAX_SOLO
