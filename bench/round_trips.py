"""Counts how often something waits for an answer of Postgres."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq


@dataclass
class RoundTrips:
    count: int = 0


_counting: ContextVar[RoundTrips | None] = ContextVar("counting", default=None)


@contextmanager
def counted_round_trips() -> Iterator[RoundTrips]:
    """Count the round trips of the block, and of the tasks that it starts, while `traced_connections` is open.

    libpq itself writes down the messages that it exchanges with Postgres. Each Query and each Sync is answered by one
    ReadyForQuery, however many statements it ends; a Flush asks for an answer, too. Background tasks of the service,
    which were started before, are not counted, and neither is the opening of a connection.
    """
    trips = RoundTrips()
    token = _counting.set(trips)
    try:
        yield trips
    finally:
        _counting.reset(token)


@contextmanager
def traced_connections() -> Iterator[None]:
    """Let all connections of this process count what they exchange inside of `counted_round_trips`."""
    wait = psycopg.AsyncConnection.wait

    async def counted_wait(self: Any, gen: Any, *arguments: Any, **options: Any) -> Any:
        if (counting := _counting.get()) is None:
            return await wait(self, gen, *arguments, **options)
        with tempfile.NamedTemporaryFile() as trace:
            self.pgconn.trace(os.dup(trace.fileno()))
            self.pgconn.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
            try:
                return await wait(self, gen, *arguments, **options)
            finally:
                self.pgconn.untrace()
                counting.count += _count(trace.name)

    psycopg.AsyncConnection.wait = counted_wait  # type: ignore[method-assign]
    try:
        yield
    finally:
        psycopg.AsyncConnection.wait = wait  # type: ignore[method-assign]


def _count(path: str) -> int:
    messages = [line.split("\t") for line in Path(path).read_text(errors="replace").splitlines()]
    kinds = [message[2].split()[0] for message in messages if len(message) > 2]
    return kinds.count("ReadyForQuery") + kinds.count("Flush")
