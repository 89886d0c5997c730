"""Fair scheduling: no user's load decides how long other users wait.

`FairQueue` is for work that a thread takes in batches: every user in turn. `FairScheduler` is for requests: a user who
is alone may have several in progress; as soon as another user sends requests too, each has one, and further requests of
a user wait behind that user's own. A slot is for work that takes processor time: release it before waiting for the
network.
"""

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.observability.metrics import Metrics

MAX_SOLO = 4
"""Slots of a user who is alone. More of them answered no faster, and would delay the next user."""
MAX_SHARED = 1
"""Slots of each user while several send requests."""
ACTIVE_S = 5.0
"""A user counts as active for this long after a request."""

Item = TypeVar("Item")


@dataclass
class _UserItems(Generic[Item]):
    turn: float
    """The number of the batch that had an item of this user last; the lowest is the next."""
    items: deque[Item] = field(default_factory=deque)


class FairQueue(Generic[Item]):
    """The waiting items of several users. A batch has one item of each user, then a second one of each, and so on."""

    def __init__(self) -> None:
        self._users: dict[str, _UserItems[Item]] = {}
        self._batches = 0

    def __len__(self) -> int:
        return sum(len(user.items) for user in self._users.values())

    def add(self, user_id: str, item: Item) -> None:
        """Add an item behind the user's own.

        A user who had none comes before those who were part of the last batch, and behind those who were not.
        """
        self._users.setdefault(user_id, _UserItems(self._batches - 0.5)).items.append(item)

    def take(self, capacity: int, measure: Callable[[Item], int]) -> list[Item]:
        """Remove and return the next items: as many as fit the capacity by their measured sizes, but at least one.

        A user whose item does not fit is passed over, and comes first in the next batch.
        """
        self._batches += 1
        # Not before now: a user whose items were all in the last batch has had a turn, and must not look new.
        self._users = {user_id: user for user_id, user in self._users.items() if user.items}
        taken: list[Item] = []
        order = sorted(self._users.values(), key=lambda user: user.turn)
        while order and capacity > 0:
            served = []
            for user in order:
                size = measure(user.items[0])
                if taken and size > capacity:
                    continue
                taken.append(user.items.popleft())
                capacity -= size
                user.turn = self._batches
                if user.items:
                    served.append(user)
                if capacity <= 0:
                    break
            order = served
        return taken


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
