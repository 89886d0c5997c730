"""The batch writer: which entries are not written yet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import orjson

from app.db.engine import Database
from app.errors import DatabaseDown
from app.usage.batch_writer import BatchWriter, LogTable

TABLE = LogTable("entries", {"at": "timestamptz"})


@dataclass(frozen=True)
class Entry:
    user_id: str
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class SlowDatabase:
    """Each transaction ends when the test says so."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    down: bool = False
    written: list[str] = field(default_factory=list)
    users_created_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    @asynccontextmanager
    async def system_transaction(self) -> AsyncIterator["SlowDatabase"]:
        self.begun.set()
        await self.released.wait()
        if self.down:
            raise DatabaseDown("down")
        yield self

    async def pipeline(self, statements: list[tuple[str, dict[str, Any]]]) -> list[list[tuple[str, datetime]]]:
        return [[(parameters["user_id"], self.users_created_at)] for _, parameters in statements]

    async def rows(self, _statement: str, parameters: dict[str, Any]) -> list[tuple[str]]:
        self.written += [entry["user_id"] for entry in orjson.loads(parameters["entries"])]
        return []


async def test_an_entry_is_unwritten_until_the_flush_that_writes_it_has_ended() -> None:
    database = SlowDatabase()
    writer = BatchWriter[Entry](cast("Database", database), "entries", TABLE)
    writer.append(Entry("ada"))
    assert writer.is_unwritten("ada")
    flush = asyncio.create_task(writer.flush())
    await database.begun.wait()
    assert writer.is_unwritten("ada")
    assert not writer.is_unwritten("bob")
    waiting = asyncio.create_task(writer.flush())
    database.released.set()
    await waiting
    assert database.written == ["ada"]
    assert not writer.is_unwritten("ada")
    await flush


async def test_an_entry_stays_pending_if_the_database_is_down_or_the_flush_is_cancelled() -> None:
    database = SlowDatabase(down=True)
    writer = BatchWriter[Entry](cast("Database", database), "entries", TABLE)
    writer.append(Entry("ada"))
    flush = asyncio.create_task(writer.flush())
    await database.begun.wait()
    flush.cancel()
    await asyncio.gather(flush, return_exceptions=True)
    assert (writer.pending, writer.is_unwritten("ada")) == (1, True)
    database.released.set()
    await writer.flush()
    assert (writer.pending, writer.is_unwritten("ada")) == (1, True)
    database.down = False
    await writer.flush()
    assert (writer.pending, writer.is_unwritten("ada"), database.written) == (0, False, ["ada"])


async def test_an_entry_that_is_older_than_its_user_is_left_out() -> None:
    database = SlowDatabase(users_created_at=datetime(2026, 1, 3, tzinfo=UTC))
    database.released.set()
    writer = BatchWriter[Entry](cast("Database", database), "entries", TABLE)
    writer.append(Entry("ada"))
    writer.append(Entry("ada", datetime(2026, 1, 4, tzinfo=UTC)))
    await writer.flush()
    assert (writer.pending, database.written) == (0, ["ada"])
