"""Callbacks that follow a transaction's commit."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import insert

from app.db.engine import Database
from app.db.migrate import migrate
from app.db.tables import users
from app.errors import DatabaseDown
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.factories import make_database


@pytest.fixture(scope="module")
async def url(postgres: EmbeddedPostgres) -> str:
    made = make_database(postgres)
    await asyncio.to_thread(migrate, made)
    return made


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = Database(url, pool_size=1)
    yield opened
    await opened.close()


async def user_exists(url: str, user_id: str) -> bool:
    """Read through another connection, as another replica would."""
    async with await psycopg.AsyncConnection.connect(url) as owner:
        return (await (await owner.execute("SELECT FROM users WHERE id = %s", [user_id])).fetchone()) is not None


async def test_callbacks_run_once_and_in_order_after_the_commit(database: Database, url: str) -> None:
    calls: list[str] = []
    async with database.system_transaction() as session:
        session.after_commit(calls.append, "first")
        await session.execute(insert(users).values(id="followed"))
        session.after_commit(calls.append, "second")
        assert calls == []
    assert calls == ["first", "second"]
    assert await user_exists(url, "followed")
    async with database.system_transaction():
        pass
    assert calls == ["first", "second"]


async def test_a_callback_sees_the_committed_write(database: Database, url: str) -> None:
    seen: list[int] = []

    def count_users() -> None:
        with psycopg.connect(url) as owner:
            seen.append(len(owner.execute("SELECT FROM users WHERE id = 'committed'").fetchall()))

    async with database.system_transaction() as session:
        await session.execute(insert(users).values(id="committed"))
        count_users()
        session.after_commit(count_users)
    assert seen == [0, 1]


async def test_callbacks_are_dropped_when_the_transaction_rolls_back(database: Database, url: str) -> None:
    calls: list[str] = []

    async def fail_in_the_block() -> None:
        async with database.system_transaction() as session:
            session.after_commit(calls.append, "block")
            raise ZeroDivisionError

    async def fail_at_the_commit() -> None:
        async with database.system_transaction() as session:
            session.after_commit(calls.append, "commit")
            [(pid,)] = await session.rows("SELECT pg_backend_pid()")
            async with await psycopg.AsyncConnection.connect(url) as owner:
                await owner.execute("SELECT pg_terminate_backend(%s, 30000)", [pid])

    with pytest.raises(ZeroDivisionError):
        await fail_in_the_block()
    with pytest.raises(DatabaseDown):
        await fail_at_the_commit()
    async with database.system_transaction() as session:
        session.after_commit(calls.append, "good")
    assert calls == ["good"]


async def test_a_callback_that_fails_is_logged_and_the_others_run(
    database: Database, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    async with database.system_transaction() as session:
        await session.execute(insert(users).values(id="stored"))
        session.after_commit(calls.append, "before")
        session.after_commit(fail)
        session.after_commit(calls.append, "after")
    assert calls == ["before", "after"]
    assert await user_exists(url, "stored")
    [entry] = [entry for entry in caplog.records if entry.name == "toolscout.db"]
    assert entry.getMessage() == "after-commit callback failed"
    assert entry.exc_info is not None
    assert entry.exc_info[0] is ZeroDivisionError


async def test_a_task_that_is_cancelled_after_its_commit_has_run_its_callbacks(database: Database, url: str) -> None:
    calls: list[str] = []

    async def write() -> None:
        async with database.system_transaction() as session:
            await session.execute(insert(users).values(id="cancelled"))
            session.after_commit(task.cancel)
            session.after_commit(calls.append, "ran")

    task = asyncio.create_task(write())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls == ["ran"]
    assert await user_exists(url, "cancelled")
