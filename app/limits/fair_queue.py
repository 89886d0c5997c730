"""Whose turn it is. A user alone keeps the process busy; as soon as another asks, too, each has one request at work.

How much somebody sends at once must not decide how long the others wait: what one user has in line waits for that user
alone. A turn is for work that takes the processor, and never held while something far away is waited for.
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
"""Requests at work at once. More of them were not answered faster, and would be in the way of the next to ask."""
MAX_SHARED = 1
COMPANY_S = 5.0
"""So long after its last request a user still counts as one who asks."""


@dataclass
class _Queue:
    working: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class FairScheduler:
    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: defaultdict[str, _Queue] = defaultdict(_Queue)
        self._newest: tuple[str, float] = "", -math.inf
        self._newest_of_another = -math.inf
        metrics.requests_waiting.set_function(lambda: sum(len(line.waiting) for line in self._lines.values()))

    @asynccontextmanager
    async def turn(self, user_id: str) -> AsyncIterator[None]:
        self._note(user_id)
        line = self._lines[user_id]
        ticket = asyncio.get_running_loop().create_future()
        line.waiting.append(ticket)
        self._call(user_id, line)
        try:
            await ticket
            yield
        finally:
            # of one who gave up while waiting, it was never called
            line.working -= ticket.done() and not ticket.cancelled()
            self._call(user_id, line)

    def _note(self, user_id: str) -> None:
        last, at = self._newest
        if last != user_id:
            self._newest_of_another = at
        self._newest = user_id, self._clock()

    def _call(self, user_id: str, line: _Queue) -> None:
        at_once = self._at_once(user_id)
        while line.waiting and line.working < at_once:
            ticket = line.waiting.popleft()
            if not ticket.cancelled():
                ticket.set_result(None)
                line.working += 1
        if not line.waiting and not line.working and self._lines.get(user_id) is line:
            del self._lines[user_id]

    def _at_once(self, user_id: str) -> int:
        last, at = self._newest
        seen = self._newest_of_another if last == user_id else at
        return MAX_SHARED if self._clock() - seen < COMPANY_S else MAX_SOLO
