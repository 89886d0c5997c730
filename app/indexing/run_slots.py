"""Counts the index runs in progress in this process, and says which ones it has room for.

Runs that list a server wait for the network, perhaps for a server that never answers. So they have slots of their own,
of which one user and one host can take only a part. Runs that need no server (pushed lists, stored tools) have others,
and never wait behind listings. A run without a slot stays in the queue, for this process or another.
"""

from collections import Counter
from dataclasses import dataclass, field

from app.indexing.queue import Claim, Room


@dataclass(frozen=True)
class SlotLimits:
    """How many runs this process has in progress at most."""

    pushes: int
    """Runs that need no server."""
    pushes_per_user: int
    listings: int
    """Runs that list a server."""
    listings_per_user: int
    listings_per_host: int


@dataclass
class _Slots:
    total: int
    per_user: int
    per_host: int | None = None
    by_user: Counter[str] = field(default_factory=Counter)
    by_host: Counter[str] = field(default_factory=Counter)

    @property
    def has_room(self) -> bool:
        return self.by_user.total() < self.total

    def list_full_users(self) -> list[str]:
        return [user_id for user_id, count in self.by_user.items() if count >= self.per_user]

    def list_full_hosts(self) -> list[str]:
        return [host for host, count in self.by_host.items() if self.per_host is not None and count >= self.per_host]

    def add(self, user_id: str, host: str, count: int) -> None:
        for counter, key in ((self.by_user, user_id), (self.by_host, host)):
            counter[key] += count
            if not counter[key]:
                del counter[key]  # or the counters would grow with every user and host


class RunSlots:
    def __init__(self, limits: SlotLimits) -> None:
        self._pushes = _Slots(limits.pushes, limits.pushes_per_user)
        self._listings = _Slots(limits.listings, limits.listings_per_user, limits.listings_per_host)

    def find_room(self) -> Room | None:
        """Return the runs that may be claimed now, or None if all slots are taken."""
        if not (self._pushes.has_room or self._listings.has_room):
            return None
        return Room(
            pushes=self._pushes.has_room,
            listings=self._listings.has_room,
            full_push_users=self._pushes.list_full_users(),
            full_listing_users=self._listings.list_full_users(),
            full_hosts=self._listings.list_full_hosts(),
        )

    def add(self, run: Claim) -> None:
        """Occupy a slot for the run."""
        self._count(run, 1)

    def remove(self, run: Claim) -> None:
        self._count(run, -1)

    def _count(self, run: Claim, count: int) -> None:
        slots = self._pushes if run.host is None else self._listings
        slots.add(run.user_id, run.host or "", count)
