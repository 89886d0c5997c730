"""Caches the resources and prompts that users' servers list, for seconds and for each user."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import NamedTuple

from app.limits.byte_cache import ByteCache
from app.mcp_client.content import ContentKind
from app.text.strict_json import Json

_MAX_BYTES = 32 * 1024 * 1024


class ContentKey(NamedTuple):
    """Another configuration of the server, or another token of the user, is another key.

    A copy of a shared server that is deleted and created again, maybe for another user with the same id, has the same
    id and begins with the same versions: the time of its creation tells the copies apart.
    """

    user_id: str
    server_id: str
    created_at: datetime
    config_version: int
    credential_version: int
    kind: ContentKind


@dataclass(frozen=True)
class _Entry:
    items: Sequence[Json]
    expires_at: float
    size: int


class ContentCache:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: ByteCache[ContentKey, _Entry] = ByteCache(
            _MAX_BYTES, get_owner=itemgetter(0), measure=attrgetter("size")
        )

    def get(self, key: ContentKey) -> Sequence[Json] | None:
        entry = self._entries.get(key)
        return None if entry is None or entry.expires_at <= self._clock() else entry.items

    def store(self, key: ContentKey, items: Sequence[Json], ttl_s: float, size: int = 0) -> None:
        """`size` is the memory of the items. Measuring it takes long, so that a thread has done it."""
        self._entries[key] = _Entry(items, self._clock() + ttl_s, size)
