"""The cache that is bounded by bytes."""

import math
import tracemalloc
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pytest

from app.limits.byte_cache import ENTRY_BYTES, ByteCache, measure_bytes

SIZE = ENTRY_BYTES + 500


def make_cache(entries: int, ttl_s: float = math.inf) -> tuple[ByteCache[tuple[str, int], str], list[float]]:
    """Return a cache that holds so many entries, and its clock."""
    now = [0.0]
    cache: ByteCache[tuple[str, int], str] = ByteCache(
        entries * SIZE, get_owner=itemgetter(0), measure=lambda _value: 500, ttl_s=ttl_s, clock=lambda: now[0]
    )
    return cache, now


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache, _ = make_cache(4)
    for user in ("alice", "bob", "carol", "dora"):
        cache[user, 0] = user
    assert cache.get(("alice", 0)) == "alice"
    cache["eve", 0] = "eve"
    assert [cache.get((user, 0)) for user in ("alice", "bob", "carol")] == ["alice", None, "carol"]
    assert cache.bytes == 4 * SIZE


def test_a_user_takes_no_more_than_half_and_evicts_own_entries_first() -> None:
    cache, _ = make_cache(8)
    for number in range(4):
        cache["bob", number] = "b"
    for number in range(100):
        cache["alice", number] = "a"
    assert [cache.get(("bob", number)) for number in range(4)] == ["b"] * 4
    assert [cache.get(("alice", number)) is not None for number in range(94, 100)] == [False, False, *[True] * 4]


def test_a_replaced_entry_counts_once() -> None:
    cache, _ = make_cache(4)
    for value in ("old", "new"):
        cache["alice", 0] = value
    assert (cache.get(("alice", 0)), cache.bytes, len(cache)) == ("new", SIZE, 1)


def test_entries_expire() -> None:
    cache, now = make_cache(4, ttl_s=10)
    cache["alice", 0] = "a"
    now[0] = 9.9
    assert cache.get(("alice", 0)) == "a"
    now[0] = 10.0
    assert cache.get(("alice", 0)) is None
    assert cache.bytes == 0


def test_a_value_that_is_too_large_is_not_stored_and_replaces_nothing_else() -> None:
    cache: ByteCache[tuple[str, int], bytes] = ByteCache(10_000, get_owner=itemgetter(0))
    cache["alice", 0] = b"small"
    cache["alice", 1] = bytes(10_000)
    assert (cache.get(("alice", 0)), cache.get(("alice", 1))) == (b"small", None)


def test_a_cache_of_no_bytes_stores_nothing() -> None:
    cache, _ = make_cache(0)
    cache["alice", 0] = "a"
    assert cache.get(("alice", 0)) is None


@dataclass(frozen=True)
class Sample:
    texts: tuple[str, ...]
    counts: dict[str, list[int]]
    vector: object


@pytest.mark.parametrize("scale", [1, 50])
def test_measured_bytes_are_those_that_are_allocated(scale: int) -> None:
    def make(number: int) -> Sample:
        texts = tuple(f"{number} text {n} " * 20 for n in range(scale))
        counts = {f"{number} key {n}": [number + 1_000 + n, number + 2_000 + n] for n in range(scale)}
        return Sample(texts, counts, np.zeros(100 * scale, np.float32))

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        samples = [make(number) for number in range(1_000, 1_050)]
        allocated = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.9 * allocated < sum(map(measure_bytes, samples)) < 1.4 * allocated
