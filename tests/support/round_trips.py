"""Counts how often a piece of a test waits for an answer of Postgres."""

from collections.abc import Iterator
from contextlib import contextmanager

from bench import round_trips
from bench.round_trips import RoundTrips


@contextmanager
def counted_round_trips() -> Iterator[RoundTrips]:
    with round_trips.traced_connections(), round_trips.counted_round_trips() as trips:
        yield trips
