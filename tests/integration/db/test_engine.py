"""Transactions: limited to one user, atomic, and unaffected by what happened before on the same connection."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import insert, select

from app.db.engine import Database
from app.db.scope import APP_ROLE
from app.db.tables import mcp_servers, users
from app.errors import DatabaseDown, QueryFailed

SERVERS = "SELECT user_id FROM mcp_servers ORDER BY user_id"


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """A pool with a single connection, so that all transactions of a test share it."""
    database = Database(url, pool_size=1)
    yield database
    await database.close()


async def user_ids(database: Database) -> list[str]:
    async with database.system_transaction() as session:
        return [name for (name,) in await session.rows("SELECT id FROM users ORDER BY id")]


async def test_the_app_never_runs_as_the_owner(database: Database) -> None:
    async with database.transaction("alice") as session:
        [(current, superuser)] = await session.rows("SELECT current_user::text, current_setting('is_superuser')")
    assert (current, superuser) == (APP_ROLE, "off")


async def test_a_transaction_reads_only_its_users_rows_without_a_predicate(database: Database) -> None:
    for user_id in ("alice", "bob", "alice"):
        async with database.transaction(user_id) as session:
            assert await session.rows(SERVERS) == [(user_id,)]
    async with database.transaction("nobody") as session:
        assert await session.rows(SERVERS) == []
    async with database.system_transaction() as session:
        assert await session.rows(SERVERS) == [("alice",), ("bob",)]


async def test_a_transaction_writes_only_its_users_rows(database: Database) -> None:
    async with database.transaction("alice") as session:
        changed = await session.rows("UPDATE mcp_servers SET description = 'mine' RETURNING user_id")
    assert changed == [("alice",)]
    with pytest.raises(QueryFailed) as refusal:
        async with database.transaction("alice") as session:
            await session.execute(insert(mcp_servers).values(user_id="bob", id="x", name="x", transport="push"))
    assert "row-level security" in str(refusal.value.__cause__)


async def test_the_scope_of_a_transaction_does_not_leak_into_the_next_one(database: Database) -> None:
    scope = "SELECT current_setting('app.user_id', true), current_setting('app.scope', true)"
    async with database.transaction("alice") as session:
        assert await session.rows(scope) in ([("alice", None)], [("alice", "")])
    async with database.system_transaction() as session:
        assert await session.rows(scope) == [("", "system")]
    async with database.transaction("bob") as session:
        assert await session.rows(scope) == [("bob", "")]


@pytest.mark.parametrize("user_id", ["o'brien", "a\\b", "'); DROP TABLE users; --", "%s {} %(x)s", "größe", ""])
async def test_any_user_id_is_bound_unchanged(database: Database, user_id: str) -> None:
    async with database.transaction(user_id) as session:
        assert await session.rows("SELECT current_setting('app.user_id')") == [(user_id,)]
    assert "alice" in await user_ids(database)


async def test_a_transaction_commits_at_its_end_and_rolls_back_after_an_error(database: Database) -> None:
    async def insert_and_fail() -> None:
        async with database.system_transaction() as session:
            await session.execute(insert(users).values(id="rolled back"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await insert_and_fail()
    assert "rolled back" not in await user_ids(database)
    async with database.system_transaction() as session:
        await session.execute(insert(users).values(id="committed"))
    assert "committed" in await user_ids(database)


async def test_a_failed_statement_is_not_reported_as_a_database_that_is_down(database: Database) -> None:
    with pytest.raises(QueryFailed):
        async with database.transaction("alice") as session:
            await session.rows("SELECT no_such_column")
    async with database.transaction("alice") as session:
        assert await session.rows(SERVERS) == [("alice",)]


async def test_a_cancelled_request_leaves_a_working_connection(database: Database) -> None:
    with pytest.raises(TimeoutError):
        async with database.transaction("alice") as session, asyncio.timeout(0.1):
            await session.rows("SELECT pg_sleep(10)")
    async with database.transaction("bob") as session:
        assert await session.rows(SERVERS) == [("bob",)]


async def terminate_all(url: str) -> int:
    """Terminate all connections to the database, as a restart of Postgres does, and return their number.

    Connections of this function are left out: the one of the previous call may still be closing.
    """
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, application_name="owner") as owner:
        cursor = await owner.execute(
            "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name <> 'owner' AND backend_type = 'client backend'"
        )
        return len(await cursor.fetchall())


@pytest.fixture
async def busy_database(url: str) -> AsyncIterator[Database]:
    """A pool of three open connections, without garbage collection that would close lost ones."""
    await terminate_all(url)
    database = Database(url, pool_size=3)
    await use_all_connections(database)
    gc.disable()
    yield database
    with warnings.catch_warnings():  # lost connections must not fail later tests
        warnings.simplefilter("ignore", ResourceWarning)
        await database.close()
        gc.collect()
    gc.enable()


async def use_all_connections(database: Database) -> tuple[str, str, str]:
    """Read as two users and as the system at once, long enough that each needs its own connection."""
    statement = "SELECT user_id, pg_sleep(0.1) FROM mcp_servers ORDER BY user_id LIMIT 1"

    async def read_slowly(user_id: str) -> str:
        async with database.transaction(user_id) as session:
            [(name, _)] = await session.rows(statement)
            return str(name)

    async def read_urgently() -> str:
        [[(name, _)]] = await database.system_fetch([(statement, None)], urgent=True)
        return str(name)

    first, second, urgent = await asyncio.gather(read_slowly("alice"), read_slowly("bob"), read_urgently())
    return first, second, urgent


async def test_connections_from_before_a_restart_are_replaced_without_an_error(
    busy_database: Database, url: str
) -> None:
    assert await terminate_all(url) == 3
    assert await use_all_connections(busy_database) == ("alice", "bob", "alice")


async def test_a_restart_leaks_no_connection(busy_database: Database, url: str) -> None:
    await terminate_all(url)
    for _ in range(2):
        await use_all_connections(busy_database)
    assert await terminate_all(url) == 3


async def test_a_transaction_that_loses_its_connection_raises_database_down(database: Database, url: str) -> None:
    async def read(*, use_driver: bool) -> None:
        async with database.transaction("alice") as session:
            await terminate_all(url)
            await (session.rows(SERVERS) if use_driver else session.scalar(select(users.c.id)))

    for use_driver in (True, False):
        with pytest.raises(DatabaseDown):
            await read(use_driver=use_driver)
    await database.ping()


async def test_a_missing_database_raises_database_down(url: str) -> None:
    missing = Database(url.replace("/test_", "/no_such_"), pool_size=1)
    with pytest.raises(DatabaseDown) as down:
        await missing.ping()
    assert down.value.headers["Retry-After"] == "1"
    await missing.close()


async def test_an_error_contains_no_user_data(database: Database) -> None:
    foreign = insert(mcp_servers).values(user_id="bob", id="x", name="canary", transport="push")
    with pytest.raises(QueryFailed) as error:
        async with database.transaction("alice") as session:
            await session.execute(foreign)
    assert "canary" not in f"{error.value} {error.value.__cause__}"


@pytest.mark.parametrize(("own", "idle_s"), [("", "15"), ("&keepalives_idle=70", "70")])
async def test_a_connection_whose_server_has_vanished_is_noticed(url: str, own: str, idle_s: str) -> None:
    database = Database(f"{url}{own}", pool_size=1)
    async with database.system_transaction() as session:
        parameters = session._driver.info.get_parameters()
    assert (parameters["keepalives_idle"], parameters["tcp_user_timeout"]) == (idle_s, "30000")
    await database.close()
