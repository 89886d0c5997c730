"""Share a fixed number of connections fairly, so that no user's load decides how long others wait for one.

- A user holds at most its share, and never all: there is room for the next user.
- Those who wait are served in turn, one connection for each.
- Authentication is served first, and room is reserved for it: it takes one short round trip, and everybody needs it.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from enum import Enum


class Lane(Enum):
    """Work that belongs to no user."""

    AUTHENTICATION = "authentication"
    SYSTEM = "system"


Owner = str | Lane
"""A user's id, or a lane."""


class FairShares:
    def __init__(self, size: int) -> None:
        self._size = size
        self._common = max(1, size - 1)
        """For all but authentication, which has the rest to itself."""
        self._held: Counter[Owner] = Counter()
        self._waiting: OrderedDict[Owner, deque[asyncio.Future[None]]] = OrderedDict()
        """Each owner's requests in order; the owner that is served next comes first."""

    @property
    def in_use(self) -> int:
        return self._held.total()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def count_held(self, owner: Owner) -> int:
        return self._held[owner]

    def try_acquire(self, owner: Owner) -> bool:
        """Take a connection if the owner may have one at once."""
        if owner in self._waiting or not self._has_room(owner, self._compute_share(owner)):
            return False
        self._held[owner] += 1
        return True

    async def acquire(self, owner: Owner) -> None:
        """Wait until the owner may use one more connection."""
        if self.try_acquire(owner):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(owner, turn)
            else:  # it was this request's turn in the same moment
                self.release(owner)
            raise

    def release(self, owner: Owner) -> None:
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._serve_waiting()

    def _leave(self, owner: Owner, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(owner, ())
        if turn in turns:
            self._waiting[owner].remove(turn)
            if not turns:
                del self._waiting[owner]
        self._serve_waiting()  # with fewer owners the shares are larger

    def _serve_waiting(self) -> None:
        while (owner := self._choose_next()) is not None:
            turns = self._waiting[owner]
            turn = turns.popleft()
            if not turn.cancelled():
                turn.set_result(None)
                self._held[owner] += 1
            if turns:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]

    def _choose_next(self) -> Owner | None:
        if not self._waiting or self.in_use >= self._size:
            return None
        if Lane.AUTHENTICATION in self._waiting and self._has_room(Lane.AUTHENTICATION, 0):
            return Lane.AUTHENTICATION
        share = self._compute_share()
        return next((owner for owner in self._waiting if self._has_room(owner, share)), None)

    def _has_room(self, owner: Owner, share: int) -> bool:
        if self.in_use >= self._size:
            return False
        if owner is Lane.AUTHENTICATION:
            return self._held[owner] < max(1, self._size // 2)
        in_common = self.in_use - self._held[Lane.AUTHENTICATION]
        return in_common < self._common and self._held[owner] < share

    def _compute_share(self, *more: Owner) -> int:
        """Return the part of each if all who hold or want a connection, and one more, got the same; rounded up."""
        active = {*self._held, *self._waiting, *more} - {Lane.AUTHENTICATION}
        return -(-self._common // (len(active) + 1))
