"""Counts how often a piece of a test waits for an answer of Postgres."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from bench import round_trips
from bench.round_trips import RoundTrips


@contextmanager
def counted_round_trips() -> Iterator[RoundTrips]:
    with round_trips.traced_connections(), round_trips.counted_round_trips() as trips:
        yield trips


async def count_least_round_trips(send: Callable[[], Awaitable[object]]) -> int:
    """Return the least of several attempts.

    A connection that has prepared many statements, as those of a service that tests share, sometimes closes one first,
    which takes a further round trip.
    """
    counts = []
    for _ in range(4):
        with counted_round_trips() as trips:
            await send()
        counts.append(trips.count)
    return min(counts)
