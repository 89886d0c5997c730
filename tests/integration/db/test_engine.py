"""Transactions: bound to one user, all or nothing, and none the worse for whatever happened before."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import insert, select

from app.db.engine import APP_ROLE, Database
from app.db.migrate import migrate
from app.db.tables import mcp_servers, users
from app.errors import DatabaseDown, QueryFailed
from app.local_postgres.postgres import EmbeddedPostgres
from tests.conftest import make_database

SERVERS = "SELECT user_id FROM mcp_servers ORDER BY user_id"


@pytest.fixture(scope="module")
async def url(postgres: EmbeddedPostgres) -> str:
    """Two users, with one server each."""
    made = make_database(postgres)
    await asyncio.to_thread(migrate, made)
    database = Database(made, pool_size=1)
    async with database.system_transaction() as session:
        for user_id in ("alice", "bob"):
            await session.execute(insert(users).values(id=user_id))
            await session.execute(insert(mcp_servers).values(user_id=user_id, id=user_id, name="s", transport="push"))
    await database.close()
    return made


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """With a single connection, so that each transaction comes after another on it."""
    made = Database(url, pool_size=1)
    yield made
    await made.close()


async def names(database: Database) -> list[str]:
    async with database.system_transaction() as session:
        return [name for (name,) in await session.rows("SELECT id FROM users ORDER BY id")]


async def test_the_app_never_works_as_the_owner(database: Database) -> None:
    async with database.transaction("alice") as session:
        [(current, superuser)] = await session.rows("SELECT current_user::text, current_setting('is_superuser')")
    assert (current, superuser) == (APP_ROLE, "off")


async def test_a_transaction_sees_its_own_users_rows_though_no_predicate_asks_for_them(database: Database) -> None:
    for user_id in ("alice", "bob", "alice"):
        async with database.transaction(user_id) as session:
            assert await session.rows(SERVERS) == [(user_id,)]
    async with database.transaction("nobody") as session:
        assert await session.rows(SERVERS) == []
    async with database.system_transaction() as session:
        assert await session.rows(SERVERS) == [("alice",), ("bob",)]


async def test_a_transaction_writes_its_own_users_rows_alone(database: Database) -> None:
    async with database.transaction("alice") as session:
        changed = await session.rows("UPDATE mcp_servers SET description = 'mine' RETURNING user_id")
    assert changed == [("alice",)]
    with pytest.raises(QueryFailed) as refusal:
        async with database.transaction("alice") as session:
            await session.execute(insert(mcp_servers).values(user_id="bob", id="x", name="x", transport="push"))
    assert "row-level security" in str(refusal.value.__cause__)


async def test_nothing_of_a_scope_is_left_for_the_next_transaction(database: Database) -> None:
    scope = "SELECT current_setting('app.user_id', true), current_setting('app.scope', true)"
    async with database.transaction("alice") as session:
        assert await session.rows(scope) in ([("alice", None)], [("alice", "")])
    async with database.system_transaction() as session:
        assert await session.rows(scope) == [("", "system")]
    async with database.transaction("bob") as session:
        assert await session.rows(scope) == [("bob", "")]


@pytest.mark.parametrize("user_id", ["o'brien", "a\\b", "'); DROP TABLE users; --", "%s {} %(x)s", "größe", ""])
async def test_any_users_id_is_bound_as_it_is(database: Database, user_id: str) -> None:
    async with database.transaction(user_id) as session:
        assert await session.rows("SELECT current_setting('app.user_id')") == [(user_id,)]
    assert "alice" in await names(database)


async def test_what_was_written_is_there_after_the_block_and_gone_after_an_error(database: Database) -> None:
    async def insert_and_fail() -> None:
        async with database.system_transaction() as session:
            await session.execute(insert(users).values(id="undone"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await insert_and_fail()
    assert "undone" not in await names(database)
    async with database.system_transaction() as session:
        await session.execute(insert(users).values(id="done"))
    assert "done" in await names(database)


async def test_a_statement_that_fails_is_told_from_a_database_that_is_down(database: Database) -> None:
    with pytest.raises(QueryFailed):
        async with database.transaction("alice") as session:
            await session.rows("SELECT no_such_column")
    async with database.transaction("alice") as session:
        assert await session.rows(SERVERS) == [("alice",)]


async def test_a_request_that_is_cancelled_leaves_a_working_connection(database: Database) -> None:
    with pytest.raises(TimeoutError):
        async with database.transaction("alice") as session, asyncio.timeout(0.1):
            await session.rows("SELECT pg_sleep(10)")
    async with database.transaction("bob") as session:
        assert await session.rows(SERVERS) == [("bob",)]


async def terminate_all(url: str) -> int:
    """Ends every connection to the database, as a restart of Postgres does, but those that this is done with: one from
    the last time may still be ending."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, application_name="owner") as owner:
        cursor = await owner.execute(
            "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name <> 'owner' AND backend_type = 'client backend'"
        )
        return len(await cursor.fetchall())


@pytest.fixture
async def wide(url: str) -> AsyncIterator[Database]:
    """With a few connections, all of them made, and nobody to tidy up after it."""
    await terminate_all(url)
    made = Database(url, pool_size=3)
    await hold_all(made)
    gc.disable()
    yield made
    with warnings.catch_warnings():  # what was lost must not be blamed on the tests that follow
        warnings.simplefilter("ignore", ResourceWarning)
        await made.close()
        gc.collect()
    gc.enable()


async def hold_all(database: Database) -> list[str]:
    """Long enough that each of them needs a connection of its own."""

    async def hold() -> str:
        async with database.transaction("alice") as session:
            [(name, _)] = await session.rows("SELECT user_id, pg_sleep(0.1) FROM mcp_servers")
            return str(name)

    return await asyncio.gather(*(hold() for _ in range(3)))


async def test_connections_from_before_a_restart_are_replaced_unnoticed(wide: Database, url: str) -> None:
    assert await terminate_all(url) == 3
    assert await hold_all(wide) == ["alice"] * 3


async def test_a_restart_leaves_no_open_connection_beside_the_pool(wide: Database, url: str) -> None:
    await terminate_all(url)
    for _ in range(2):
        await hold_all(wide)
    assert await terminate_all(url) == 3


async def test_a_transaction_whose_connection_breaks_says_that_the_database_is_down(
    database: Database, url: str
) -> None:
    async def read(*, through_the_driver: bool) -> None:
        async with database.transaction("alice") as session:
            await terminate_all(url)
            await (session.rows(SERVERS) if through_the_driver else session.scalar(select(users.c.id)))

    for through_the_driver in (True, False):
        with pytest.raises(DatabaseDown):
            await read(through_the_driver=through_the_driver)
    await database.ping()


async def test_a_database_that_is_not_there_is_down(url: str) -> None:
    missing = Database(url.replace("/test_", "/no_such_"), pool_size=1)
    with pytest.raises(DatabaseDown) as down:
        await missing.ping()
    assert down.value.headers["Retry-After"] == "1"
    await missing.close()


async def test_an_error_carries_none_of_the_users_texts(database: Database) -> None:
    foreign = insert(mcp_servers).values(user_id="bob", id="x", name="canary", transport="push")
    with pytest.raises(QueryFailed) as error:
        async with database.transaction("alice") as session:
            await session.execute(foreign)
    assert "canary" not in f"{error.value} {error.value.__cause__}"
