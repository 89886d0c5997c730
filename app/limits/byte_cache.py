"""A cache that is bounded by the memory that its entries take, with a share of it for each user."""

import dataclasses
import math
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np

Key = TypeVar("Key")
Value = TypeVar("Value")

ENTRY_BYTES = 500
"""What an entry takes beside its value: the key, its places in the dictionaries, and the counters."""

_FIELD_BYTES = 16
"""The place of a field in an object."""

MAX_SHARE = 0.5
"""How much of a cache the entries of one user may take, so that others keep theirs."""


def measure_bytes(value: Any) -> int:
    """Return the memory of a value and of all that it refers to. What is referred to twice counts twice."""
    if isinstance(value, np.ndarray):
        return value.nbytes + sys.getsizeof(np.empty(0))
    if value is None or isinstance(value, bool | Enum):
        return 0
    size = sys.getsizeof(value)
    if isinstance(value, Mapping):
        return size + sum(measure_bytes(key) + measure_bytes(each) for key, each in value.items())
    if isinstance(value, list | tuple | AbstractSet):
        return size + sum(map(measure_bytes, value))
    if dataclasses.is_dataclass(value):  # `vars` would create a dictionary, which takes memory of its own
        return size + sum(_FIELD_BYTES + measure_bytes(getattr(value, each.name)) for each in dataclasses.fields(value))
    return size + measure_bytes(vars(value)) if hasattr(value, "__dict__") else size


@dataclass(frozen=True)
class _Entry(Generic[Value]):
    owner: str
    value: Value
    size: int
    expires_at: float


class ByteCache(Generic[Key, Value]):
    """Evicts the least recently used entries: those of a user beyond the user's share, then any."""

    def __init__(
        self,
        max_bytes: int,
        *,
        get_owner: Callable[[Key], str],
        measure: Callable[[Value], int] = measure_bytes,
        ttl_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`get_owner` returns the user whose entry a key is. `measure` returns the memory of a value."""
        self._max_bytes = max_bytes
        self._get_owner = get_owner
        self._measure = measure
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        """The least recently used first."""
        self._by_owner: dict[str, OrderedDict[Key, None]] = {}
        """The keys of each user's entries, in the same order."""
        self._bytes_by_owner: dict[str, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_at <= self._clock():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        self._by_owner[entry.owner].move_to_end(key)
        return entry.value

    def __setitem__(self, key: Key, value: Value) -> None:
        """Store a value, unless it is larger than the share of a user."""
        if key in self._entries:
            self._remove(key)
        owner, size = self._get_owner(key), ENTRY_BYTES + self._measure(value)
        share = self._max_bytes * MAX_SHARE
        if size > share:
            return
        while self._bytes_by_owner.get(owner, 0) + size > share:
            self._remove(next(iter(self._by_owner[owner])))
        while self.bytes + size > self._max_bytes:
            self._remove(next(iter(self._entries)))
        self._entries[key] = _Entry(owner, value, size, self._clock() + self._ttl_s)
        self._by_owner.setdefault(owner, OrderedDict())[key] = None
        self._bytes_by_owner[owner] = self._bytes_by_owner.get(owner, 0) + size
        self.bytes += size

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key)
        self.bytes -= entry.size
        self._bytes_by_owner[entry.owner] -= entry.size
        del self._by_owner[entry.owner][key]
        if not self._by_owner[entry.owner]:
            del self._by_owner[entry.owner], self._bytes_by_owner[entry.owner]
