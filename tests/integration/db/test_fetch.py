"""Reading in one round trip: several statements, limited to one user, in one implicit transaction."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from app.db.engine import Database
from app.db.pipeline import Statement
from app.db.scope import APP_ROLE
from app.errors import DatabaseDown, QueryFailed, QueryInterrupted
from tests.support.round_trips import counted_round_trips

SERVERS: Statement = ("SELECT user_id FROM mcp_servers ORDER BY user_id", None)
SCOPE: Statement = (
    "SELECT current_setting('app.user_id', true), current_setting('app.scope', true), current_user::text",
    None,
)
PREPARED: Statement = (
    "SELECT count(*)::int FROM pg_prepared_statements WHERE statement LIKE %(text)s",
    {"text": "%/*x*/%"},
)
OWN_PID: Statement = ("SELECT pg_backend_pid()", None)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """A pool with a single connection, so that all statements of a test share it."""
    database = Database(url, pool_size=1)
    await database.ping()
    yield database
    await database.close()


async def test_the_statements_of_a_fetch_take_one_round_trip(database: Database) -> None:
    statements = [SERVERS, ("SELECT %(number)s::int + 1", {"number": 41}), ("SELECT FROM users WHERE false", None)]
    for snapshot in (False, True):
        for _ in range(7):  # prepared at the first use, used from then on
            with counted_round_trips() as trips:
                assert await database.fetch("alice", statements, snapshot=snapshot) == [[("alice",)], [(42,)], []]
            assert trips.count == 1


async def test_a_transaction_with_one_statement_takes_three_round_trips(database: Database) -> None:
    """The helper counts what it should: begin, statement, commit."""
    with counted_round_trips() as trips:
        async with database.transaction("alice") as session:
            await session.rows("SELECT 1")
    assert trips.count == 3


async def test_a_fetch_reads_only_its_users_rows_without_a_predicate(database: Database) -> None:
    for user_id in ("alice", "bob", "alice"):
        assert await database.fetch(user_id, [SERVERS, SERVERS]) == [[(user_id,)]] * 2
        assert await database.fetch(user_id, [SERVERS], snapshot=True) == [[(user_id,)]]
    assert await database.fetch("nobody", [SERVERS]) == [[]]
    assert await database.system_fetch([SERVERS]) == [[("alice",), ("bob",)]]


async def test_the_scope_of_a_fetch_ends_with_it(database: Database) -> None:
    assert await database.fetch("alice", [SCOPE]) == [[("alice", "", APP_ROLE)]]
    assert await database.system_fetch([SCOPE]) == [[("", "system", APP_ROLE)]]
    assert await database.fetch("bob", [SCOPE]) == [[("bob", "", APP_ROLE)]]
    with pytest.raises(QueryFailed):
        await database.fetch("alice", [("SELECT no_such_column", None)])
    async with database.engine.connect() as bare:
        assert (await bare.exec_driver_sql(SERVERS[0])).all() == []
    async with database.transaction("bob") as session:
        assert await session.rows(*SERVERS) == [("bob",)]


@pytest.mark.parametrize("user_id", ["o'brien", "a\\b", "'); DROP TABLE users; --", "%s {} %(x)s", "größe", ""])
async def test_any_user_id_is_bound_unchanged(database: Database, user_id: str) -> None:
    assert await database.fetch(user_id, [("SELECT current_setting('app.user_id')", None)]) == [[(user_id,)]]


async def test_a_fetch_cannot_write(database: Database) -> None:
    """It is repeated if its connection is lost, and a write would be done twice."""
    rename: Statement = ("UPDATE mcp_servers SET name = 'renamed' RETURNING user_id", None)
    for snapshot in (False, True):
        with pytest.raises(QueryInterrupted):
            await database.fetch("alice", [SERVERS, rename], snapshot=snapshot)
    async with database.transaction("alice") as session:
        assert await session.rows(*rename) == [("alice",)]
        assert await session.rows("UPDATE mcp_servers SET name = 's' RETURNING name") == [("s",)]


async def test_a_snapshot_sees_one_state_and_plain_statements_see_later_commits(database: Database, url: str) -> None:
    lock: Statement = ("SELECT pg_advisory_xact_lock(7)", None)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:

        async def count_before_and_after_an_insert(*, snapshot: bool) -> tuple[int, int]:
            """Commit a row while the second statement waits for a lock."""
            await owner.execute("SELECT pg_advisory_lock(7)")
            reading = asyncio.create_task(database.fetch("alice", [SERVERS, lock, SERVERS], snapshot=snapshot))
            async with asyncio.timeout(30):
                while True:
                    waiting = await owner.execute("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
                    if await waiting.fetchone() is not None:
                        break
            await owner.execute(
                "INSERT INTO mcp_servers (user_id, id, name, transport) VALUES ('alice', 'late', 'late', 'push')"
            )
            await owner.execute("SELECT pg_advisory_unlock(7)")
            before, _, after = await reading
            await owner.execute("DELETE FROM mcp_servers WHERE id = 'late'")
            return len(before), len(after)

        assert await count_before_and_after_an_insert(snapshot=True) == (1, 1)
        assert await count_before_and_after_an_insert(snapshot=False) == (1, 2)


async def test_a_failed_statement_raises_the_first_error_and_spares_the_connection(database: Database) -> None:
    [[before]] = await database.fetch("alice", [OWN_PID])
    for snapshot in (False, True):
        statements = [SERVERS, ("SELECT 1 / 0", None), ("SELECT no_such_column", None), SERVERS]
        with pytest.raises(QueryFailed) as failure:
            await database.fetch("alice", statements, snapshot=snapshot)
        assert isinstance(failure.value.__cause__, psycopg.errors.DivisionByZero)
        assert await database.fetch("bob", [SERVERS, OWN_PID]) == [[("bob",)], [before]]


async def test_a_statement_is_prepared_once_for_each_connection(database: Database) -> None:
    for _ in range(3):
        await database.fetch("alice", [("SELECT 1 /*x*/", None)])
    [[(prepared,)]] = await database.fetch("alice", [PREPARED])
    assert prepared == 1


async def test_a_statement_that_was_not_reached_is_prepared_by_its_next_use(database: Database) -> None:
    for _ in range(2):
        with pytest.raises(QueryFailed):
            await database.fetch("alice", [("SELECT 1 / 0", None), ("SELECT 2 /*x*/", None)])
    assert await database.fetch("alice", [("SELECT 2 /*x*/", None)]) == [[(2,)]]
    assert await database.fetch("alice", [("SELECT 2 /*x*/", None), PREPARED]) == [[(2,)], [(1,)]]


async def test_prepared_statements_survive_an_error(database: Database) -> None:
    await database.fetch("alice", [("SELECT 3 /*x*/", None)])

    async def fail() -> None:
        async with database.transaction("alice") as session:
            await session.rows("SELECT 1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await database.fetch("alice", [("SELECT 3 /*x*/", None)]) == [[(3,)]]


async def test_more_statements_than_a_connection_remembers_work(database: Database) -> None:
    for number in range(250):
        assert await database.fetch("alice", [(f"SELECT {number}", None)]) == [[(number,)]]
    assert await database.fetch("alice", [("SELECT 0", None)]) == [[(0,)]]


async def test_a_cancelled_fetch_leaves_a_working_pool(database: Database) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await database.fetch("alice", [SERVERS, ("SELECT pg_sleep(30)", None)])
    assert await database.fetch("bob", [SERVERS]) == [[("bob",)]]


async def test_a_fetch_is_repeated_after_a_restart_of_postgres(database: Database, url: str) -> None:
    [[(pid,)]] = await database.fetch("alice", [OWN_PID])
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
        await owner.execute("SELECT pg_terminate_backend(%s, 30000)", [pid])
    assert await database.fetch("alice", [SERVERS]) == [[("alice",)]]
    [[(new_pid,)]] = await database.fetch("alice", [OWN_PID])
    assert new_pid != pid


async def test_a_missing_database_raises_database_down(url: str) -> None:
    missing = Database(url.replace("/test_", "/no_such_"), pool_size=1)
    with pytest.raises(DatabaseDown):
        await missing.fetch("alice", [SERVERS])
    await missing.close()
