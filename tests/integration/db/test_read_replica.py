"""Reads on a real streaming replica: only what it has reached, only while it is a replica, and never a failed read."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from app.db import pool, read_replica
from app.db.engine import Database, Session, Versions
from app.db.read_replica import ReadReplica
from app.db.scope import APP_ROLE
from app.db.server_facts import find_problem
from app.errors import DatabaseDown, NotFound, QueryFailed
from app.local_postgres.postgres import EmbeddedPostgres
from app.observability.metrics import Metrics
from tests.support.factories import make_database
from tests.support.fake_citus import install_fake_citus
from tests.support.mcp_pool import wait_until, within
from tests.support.round_trips import counted_round_trips
from tests.support.streaming_replica import StreamingReplica, run_sql, running_replica

pytestmark = pytest.mark.no_retry

MODEL = "a-model"
IS_REPLICA = ("SELECT pg_is_in_recovery()", None)
NAME = ("SELECT name FROM users", None)
"""Without a predicate: row-level security alone decides."""
OUTCOMES = ("served", "behind", "busy", "failed", "unavailable")
DEADLINE_S = 1.0
"""For answers of the replica: short, and longer than a pause of a busy machine."""


@dataclass
class Pair:
    rig: StreamingReplica
    url: str
    primary: Database
    replica: ReadReplica
    metrics: Metrics

    async def set_name(self, user_id: str, name: str) -> Versions:
        """Change the user, with a new version of the catalogue. Return what a request would then ask for."""
        async with self.primary.transaction(user_id) as session:
            change = "UPDATE users SET name = %(name)s, catalog_version = catalog_version + 1 RETURNING catalog_version"
            [(version,)] = await session.rows(change, {"name": name})
        return Versions(version, 0, MODEL)

    async def read(self, at_least: Versions | None, user_id: str = "alice") -> tuple[bool, str]:
        """Return whether the replica has answered, and the user's name."""
        [[(is_replica,)], [(name,)]] = await self.primary.fetch(user_id, [IS_REPLICA, NAME], at_least=at_least)
        return is_replica, name

    async def read_in_work(self, at_least: Versions, work: Callable[[Session], Awaitable[Any]] | None = None) -> Any:
        async def look(session: Session) -> tuple[bool, str]:
            [(is_replica,)], [(name,)] = await session.rows(*IS_REPLICA), await session.rows(*NAME)
            return is_replica, name

        return await self.primary.read_snapshot("alice", work or look, at_least=at_least)

    def count(self, outcome: str) -> float:
        return float(self.metrics.read_replica_reads.labels(outcome)._value.get())

    async def wait_until_used(self) -> None:
        await wait_until(lambda: self.replica.is_in_use)

    async def catch_up(self) -> None:
        await asyncio.to_thread(self.rig.wait_until_caught_up)


@pytest.fixture(scope="module")
def shared_url(_running_replica: StreamingReplica) -> str:
    """A database of the primary with an active model."""
    url = make_database(_running_replica.primary)
    run_sql(
        url,
        f"INSERT INTO embedding_models (id, provider, name, dimension, active) "
        f"VALUES ('{MODEL}', 'local', 'a', 3, true), ('next', 'local', 'b', 3, false)",
    )
    return url


@pytest.fixture
async def url(streaming_replica: StreamingReplica, shared_url: str) -> str:
    """The database with two users, on both servers."""
    with psycopg.connect(shared_url) as connection:
        connection.execute("DELETE FROM users")
        connection.execute("INSERT INTO users (id, name) VALUES ('alice', 'first'), ('bob', 'other')")
    await asyncio.to_thread(streaming_replica.wait_until_caught_up)
    return shared_url


@asynccontextmanager
async def opened(rig: StreamingReplica, url: str, read_url: str, pool_size: int = 3) -> AsyncIterator[Pair]:
    metrics = Metrics()
    primary = Database(url, pool_size=3)
    replica = ReadReplica(primary, Database(read_url, pool_size, pool_wait_s=read_replica.POOL_WAIT_S), metrics)
    primary.use_replica(replica)
    replica.start()
    yield Pair(rig, url, primary, replica, metrics)
    await replica.stop()
    await primary.close()


@pytest.fixture(autouse=True)
def _quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_replica, "_RETRY_S", 0.1)
    monkeypatch.setattr(read_replica, "_WATCH_S", 1.0)
    monkeypatch.setattr(read_replica, "_ANSWER_S", DEADLINE_S)


@pytest.fixture
async def pair(streaming_replica: StreamingReplica, url: str) -> AsyncIterator[Pair]:
    async with opened(streaming_replica, url, streaming_replica.url(url)) as pair:
        await pair.wait_until_used()
        yield pair


async def test_a_read_that_names_versions_is_answered_by_the_replica(pair: Pair) -> None:
    versions = await pair.set_name("alice", "second")
    assert await pair.read(None) == (False, "second"), "without versions the primary answers"
    await pair.catch_up()
    assert await pair.read(versions) == (True, "second")
    assert await pair.read_in_work(versions) == (True, "second")
    assert await pair.primary.reader("alice", at_least=versions).rows(*IS_REPLICA) == [(True,)]
    assert pair.count("served") == 3
    assert pair.replica.warning is None


async def test_a_read_of_the_replica_takes_one_round_trip(pair: Pair) -> None:
    versions = await pair.set_name("alice", "second")
    await pair.catch_up()
    for _ in range(3):
        with counted_round_trips() as trips:
            assert await pair.read(versions) == (True, "second")
        assert trips.count == 1


async def test_a_replica_that_is_behind_costs_one_round_trip_and_then_none_for_a_while(pair: Pair) -> None:
    with pair.rig.paused():
        versions = await pair.set_name("alice", "second")
        with counted_round_trips() as trips:
            assert await pair.read(versions) == (False, "second")
        assert trips.count == 2
        for _ in range(3):
            with counted_round_trips() as trips:
                assert await pair.read(versions) == (False, "second")
            assert trips.count == 1
        assert pair.count("behind") == 4
        assert await pair.read(Versions(0, 0, MODEL), "bob") == (True, "other"), "it is not behind for others"
    await pair.catch_up()
    await wait_until_served(pair, versions)
    assert await pair.read_in_work(versions) == (True, "second")


async def expect_warning(pair: Pair, words: str) -> None:
    await wait_until(lambda: pair.replica.warning)
    assert words in str(pair.replica.warning)


async def wait_until_served(pair: Pair, versions: Versions) -> None:
    async with asyncio.timeout(60):
        while not (await pair.read(versions))[0]:  # noqa: ASYNC110 another process changes it
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("versions", "is_served"),
    [
        (Versions(0, 0, MODEL), True),
        (Versions(10**9, 0, MODEL), False),
        (Versions(0, 1, MODEL), False),
        (Versions(0, 0, "next"), False),
        (Versions(0, 0, "unknown"), False),
    ],
    ids=["reached", "older catalogue", "older examples", "model that is not active", "unknown model"],
)
async def test_only_a_state_that_has_reached_all_versions_is_served(
    pair: Pair, versions: Versions, is_served: bool
) -> None:
    assert await pair.read(versions) == (is_served, "first")
    pair.replica._behind.clear()
    assert await pair.read_in_work(versions) == (is_served, "first")
    assert pair.count("behind") == (0 if is_served else 2)


async def test_without_the_comparison_of_versions_old_rows_would_be_served(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadReplica, "_require", lambda *_: None)
    with pair.rig.paused():
        versions = await pair.set_name("alice", "second")
        assert await pair.read(versions) == (True, "first")
        assert await pair.read_in_work(versions) == (True, "first")


async def test_a_user_who_is_not_on_the_replica_yet_is_served_by_the_primary(pair: Pair) -> None:
    with pair.rig.paused():
        async with pair.primary.system_transaction() as session:
            await session.rows("INSERT INTO users (id, name) VALUES ('carol', 'new')")
        assert await pair.read(Versions(0, 0, MODEL), "carol") == (False, "new")
    await pair.catch_up()
    pair.replica._behind.clear()
    assert await pair.read(Versions(0, 0, MODEL), "carol") == (True, "new")


async def test_the_replica_is_read_as_the_app_role_and_only_the_users_rows(pair: Pair) -> None:
    versions, seen = Versions(0, 0, MODEL), ("SELECT current_user::text, pg_is_in_recovery()", None)
    for user_id, name in (("alice", "first"), ("bob", "other"), ("alice", "first")):
        assert await pair.primary.fetch(user_id, [NAME, seen], at_least=versions) == [[(name,)], [(APP_ROLE, True)]]
    assert await pair.read_in_work(versions, lambda session: session.rows(*NAME)) == [("first",)]


async def test_a_statement_that_fails_on_the_replica_is_answered_by_the_primary(pair: Pair) -> None:
    """And not tried there again for this user for a while: it fails on a replica without pgvector's library, say."""
    versions = Versions(0, 0, MODEL)
    fails_there = ("SELECT 1 / CASE WHEN pg_is_in_recovery() THEN 0 ELSE 1 END", None)
    assert await pair.primary.fetch("alice", [fails_there], at_least=versions) == [[(1,)]]
    assert await pair.read(versions) == (False, "first")
    assert await pair.read(versions, "bob") == (True, "other")
    assert (pair.count("failed"), pair.count("served")) == (2, 1)
    with pytest.raises(QueryFailed):
        await pair.primary.fetch("bob", [("SELECT no_such_column", None)], at_least=versions)


async def test_what_the_caller_raises_about_its_rows_is_no_failure_of_the_replica(pair: Pair) -> None:
    async def find_nothing(_session: Session) -> None:
        raise NotFound("no such thing")

    with pytest.raises(NotFound):
        await pair.read_in_work(Versions(0, 0, MODEL), find_nothing)
    assert pair.replica.is_in_use
    assert await pair.read(Versions(0, 0, MODEL)) == (True, "first")


async def test_an_error_of_the_callers_own_takes_the_replica_from_nobody_else(pair: Pair) -> None:
    async def fail_there(session: Session) -> bool:
        [(is_replica,)] = await session.rows(*IS_REPLICA)
        return {False: True}[is_replica]

    assert await pair.read_in_work(Versions(0, 0, MODEL), fail_there)
    assert pair.replica.is_in_use
    assert await pair.read(Versions(0, 0, MODEL), "bob") == (True, "other")
    assert await pair.read(Versions(0, 0, MODEL)) == (False, "first"), "not tried there again for a while"


async def test_an_unexpected_error_of_the_comparison_is_a_warning(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError

    with monkeypatch.context() as broken:
        broken.setattr(read_replica, "find_problem", fail)
        await expect_warning(pair, "an unexpected error")
        assert await pair.read(Versions(0, 0, MODEL)) == (False, "first")
    await pair.wait_until_used()
    assert pair.replica.warning is None


async def test_a_read_that_a_recovery_conflict_cancels_is_repeated_on_the_primary(pair: Pair) -> None:
    run_sql(pair.rig.postgres.url, "ALTER SYSTEM SET max_standby_streaming_delay = 0")
    run_sql(pair.rig.postgres.url, "SELECT pg_reload_conf()")
    run_sql(pair.url, "CREATE TABLE churn AS SELECT generate_series(1, 1000) AS number")
    run_sql(pair.url, "GRANT SELECT ON churn TO toolscout_app")
    await pair.catch_up()

    async def count(session: Session) -> tuple[bool, int]:
        [(is_replica, rows)] = await session.rows("SELECT pg_is_in_recovery(), count(*) FROM churn")
        if is_replica:
            run_sql(pair.url, "DELETE FROM churn")
            run_sql(pair.url, "VACUUM churn")
            await session.rows("SELECT pg_sleep(30)")
        return is_replica, rows

    assert await pair.read_in_work(Versions(0, 0, MODEL), count) == (False, 0)
    assert pair.count("failed") == 1


async def test_requests_do_not_wait_for_a_busy_replica_which_stays_in_use(
    streaming_replica: StreamingReplica, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its only connection is in use. So it cannot be compared either, which says nothing about the server."""
    versions = Versions(0, 0, MODEL)
    monkeypatch.setattr(read_replica, "_WATCH_S", 3600.0)
    async with opened(streaming_replica, url, streaming_replica.url(url), pool_size=1) as pair:
        await pair.wait_until_used()
        entered, leave = asyncio.Event(), asyncio.Event()

        async def stay(_session: Session) -> str:
            entered.set()
            await leave.wait()
            return "done"

        staying = asyncio.create_task(pair.primary.read_snapshot("bob", stay, at_least=versions, background=True))
        await entered.wait()
        assert await pair.read(versions) == (False, "first")
        await pair.replica._check()
        assert pair.replica.is_in_use
        assert pair.replica.warning is None
        leave.set()
        assert await staying == "done"
        assert await pair.read(versions) == (True, "first")
        assert [pair.count(outcome) for outcome in OUTCOMES] == [2, 0, 1, 0, 0]


async def test_a_killed_replica_is_left_alone_until_it_is_back(pair: Pair) -> None:
    versions = Versions(0, 0, MODEL)
    assert await pair.read(versions) == (True, "first")
    pair.rig.kill()
    for _ in range(3):
        assert await pair.read(versions) == (False, "first")
    await wait_until(lambda: pair.replica.warning)
    assert pair.replica.warning == (
        "the read replica (TOOLSCOUT_READ_DATABASE_URL) is not used: it does not answer as it should"
    )
    with counted_round_trips() as trips:
        assert await pair.read(versions) == (False, "first")
    assert trips.count == 1
    assert pair.metrics.read_replica_in_use._value.get() == 0
    await asyncio.to_thread(pair.rig.start)
    await pair.wait_until_used()
    assert await pair.read(versions) == (True, "first")
    assert pair.metrics.read_replica_in_use._value.get() == 1


async def test_a_stalled_replica_delays_a_read_once_and_no_read_for_longer_than_the_deadline(pair: Pair) -> None:
    versions, entered = Versions(0, 0, MODEL), asyncio.Event()

    async def load(session: Session) -> tuple[bool, int]:
        [(is_replica,)] = await session.rows(*IS_REPLICA)
        entered.set()
        return is_replica, len(await session.rows("SELECT pg_sleep(%(s)s)", {"s": 5 if is_replica else 0}))

    loading = asyncio.create_task(pair.primary.read_snapshot("bob", load, at_least=versions, background=True))
    await entered.wait()
    with pair.rig.stalled():
        started = time.monotonic()
        with within(DEADLINE_S):
            assert await pair.read(versions) == (False, "first")
        assert time.monotonic() - started >= DEADLINE_S
        await wait_until(lambda: pair.replica.warning)
        assert await loading == (False, 1), "a read in the background stops, too"
        with within(DEADLINE_S):  # 20 waits would take longer
            for _ in range(20):
                assert await pair.read(versions) == (False, "first")
    await wait_until_served(pair, versions)


async def test_a_read_that_is_given_up_holds_its_connection_for_a_limited_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two statements nothing is cancelled at the server: the connection would wait for its ROLLBACK."""
    monkeypatch.setattr(pool, "_ROLL_BACK_S", 0.1)
    entered, database = asyncio.Event(), pair.replica._server

    async def stay(session: Session) -> None:
        await session.rows(*NAME)
        entered.set()
        await asyncio.Event().wait()

    reading = asyncio.create_task(pair.primary.read_snapshot("bob", stay, at_least=Versions(0, 0, MODEL)))
    await entered.wait()
    with pair.rig.stalled():
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await wait_until(lambda: not pair.replica._abandoned)
        assert database._pool._shares.in_use == len(database._pool._in_use) == 0
    assert await database.system_fetch([("SELECT 1", None)]) == [[(1,)]]


async def test_the_service_stops_while_the_replica_is_stalled(pair: Pair) -> None:
    versions, entered, given_up = Versions(0, 0, MODEL), asyncio.Event(), set[asyncio.Task[Any]]()

    async def stay(session: Session) -> None:
        await session.rows(*NAME)
        entered.set()
        await session.rows("SELECT pg_sleep(60)")

    reading = asyncio.create_task(pair.primary.read_snapshot("bob", stay, at_least=versions))
    await entered.wait()
    with pair.rig.stalled():
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        given_up |= pair.replica._abandoned
        await pair.replica.stop()
        assert given_up
        assert all(task.done() and task.cancelling() == 1 for task in given_up), "the driver is interrupted once"
        assert pair.replica._server._pool._shares.in_use == 0


async def test_a_replica_that_answers_too_slowly_one_user_is_used_for_the_others(pair: Pair) -> None:
    versions, slow = Versions(0, 0, MODEL), ("SELECT CASE WHEN pg_is_in_recovery() THEN pg_sleep(5) END", None)
    await pair.primary.fetch("alice", [slow], at_least=versions)
    await pair.wait_until_used()
    assert await pair.read(versions, "bob") == (True, "other")
    assert await pair.read(versions, "alice") == (False, "first")
    await wait_until(lambda: not pair.replica._abandoned)


async def test_a_promoted_replica_is_not_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions(0, 0, MODEL)
    pair.rig.promote()
    run_sql(pair.rig.url(pair.url), "UPDATE users SET name = 'of its own', catalog_version = catalog_version + 1000")
    assert await pair.read(versions) == (False, "first")
    await expect_warning(pair, "it was promoted, and takes writes of its own")
    assert await pair.read_in_work(versions) == (False, "first")
    with monkeypatch.context() as unchecked:
        unchecked.setattr(ReadReplica, "_require", lambda *_: None)
        unchecked.setattr(read_replica, "find_problem", lambda _primary, _replica: None)
        await pair.wait_until_used()
        assert await pair.read(versions) == (False, "of its own"), "without the checks it would be read"
    pair.rig.rebuild()
    await wait_until_served(pair, versions)
    assert await pair.read(versions) == (True, "first")


async def test_the_primary_itself_is_no_replica(streaming_replica: StreamingReplica, url: str) -> None:
    async with opened(streaming_replica, url, url) as pair:
        await expect_warning(pair, "it is the server of DATABASE_URL itself")
        assert await pair.read(Versions(0, 0, MODEL)) == (False, "first")
        assert pair.count("unavailable") == 1


async def test_a_replica_of_another_database_is_not_read(
    streaming_replica: StreamingReplica, url: str, postgres: EmbeddedPostgres
) -> None:
    sibling = make_database(streaming_replica.primary)
    streaming_replica.wait_until_caught_up()
    for other in (streaming_replica.url(sibling), make_database(postgres)):
        async with opened(streaming_replica, url, other) as pair:
            await expect_warning(pair, "another database")
            assert await pair.read(Versions(0, 0, MODEL)) == (False, "first")


async def record_comparisons(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """From now on, compare only for a reason. Return how many reads had been served before each comparison."""
    compared: list[float] = []

    def compare(*facts: Any) -> str | None:
        compared.append(pair.count("served"))
        return find_problem(*facts)

    monkeypatch.setattr(read_replica, "find_problem", compare)
    monkeypatch.setattr(read_replica, "_WATCH_S", 3600.0)
    assert pair.replica._watching is not None
    pair.replica._watching.cancel()
    pair.replica.start()
    await wait_until(lambda: compared and pair.replica.is_in_use)
    compared.clear()
    return compared


async def lose_an_idle_connection(pair: Pair) -> None:
    end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
    run_sql(pair.url, f"{end} AND pid <> pg_backend_pid()")
    assert await pair.read(None) == (False, "first")


async def lose_a_connection(pair: Pair, *, at_commit: bool) -> None:
    async with pair.primary.transaction("alice") as session:
        [(pid,)] = await session.rows("SELECT pg_backend_pid()")
        run_sql(pair.url, f"SELECT pg_terminate_backend({pid}, 10000)")
        if not at_commit:
            await session.rows("SELECT 1")


async def lose_a_connection_in_a_transaction(pair: Pair) -> None:
    pair.primary.expire_connections()
    with pytest.raises(DatabaseDown):
        await lose_a_connection(pair, at_commit=False)


async def lose_a_connection_at_commit(pair: Pair) -> None:
    pair.primary.expire_connections()
    with pytest.raises(DatabaseDown):
        await lose_a_connection(pair, at_commit=True)


async def be_refused_a_connection(pair: Pair) -> None:
    pair.primary.expire_connections()
    name = pair.primary.engine.url.database
    run_sql(pair.rig.primary.url, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    try:
        with pytest.raises(DatabaseDown):
            await pair.read(None)
    finally:
        run_sql(pair.rig.primary.url, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@pytest.mark.parametrize(
    "lose",
    [
        lose_an_idle_connection,
        lose_a_connection_in_a_transaction,
        lose_a_connection_at_commit,
        be_refused_a_connection,
    ],
)
async def test_after_a_lost_connection_to_the_primary_the_replica_is_compared_before_it_is_used(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Pair], Awaitable[None]]
) -> None:
    """Another server may be the primary now, and the replica not follow it."""
    compared = await record_comparisons(pair, monkeypatch)
    await lose(pair)
    is_replica, _ = await pair.read(Versions(0, 0, MODEL))
    assert compared or not is_replica
    await wait_until(lambda: compared)
    await pair.wait_until_used()
    assert await pair.read(Versions(0, 0, MODEL)) == (True, "first")
    assert compared[0] == 0, "not used before"


async def test_a_primary_without_a_free_connection_says_nothing_about_the_replica(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.primary._pool, "_wait_s", 0.05)
    async with pair.primary.transaction("alice"), pair.primary.transaction("bob"):
        with pytest.raises(DatabaseDown):
            await pair.read(None)
        assert await pair.read(Versions(0, 0, MODEL)) == (True, "first")


def get_socket(url: str) -> Path:
    where = conninfo_to_dict(url)
    return Path(str(where["host"])) / f".s.PGSQL.{where['port']}"


class MovingAddress:
    """A URL that leads to one server, and after `move` to another one."""

    def __init__(self, folder: Path, url: str) -> None:
        self._link = folder / get_socket(url).name
        self._link.symlink_to(get_socket(url))
        self.url = url.replace(quote(str(get_socket(url).parent)), quote(str(folder)))

    def move(self, url: str) -> None:
        self._link.unlink()
        self._link.symlink_to(get_socket(url))


@pytest.fixture
def moving_address(streaming_replica: StreamingReplica, url: str) -> Iterator[MovingAddress]:
    with TemporaryDirectory() as folder:  # a socket's path must be short
        yield MovingAddress(Path(folder), streaming_replica.url(url))


async def test_a_server_that_was_not_compared_is_not_read_though_its_url_is_that_of_the_replica(
    streaming_replica: StreamingReplica,
    url: str,
    moving_address: MovingAddress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = Versions(0, 0, MODEL)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def stay(_session: Session) -> None:
        entered.set()
        await leave.wait()

    with running_replica(streaming_replica.primary, tmp_path / "second") as second:
        async with opened(streaming_replica, url, moving_address.url) as pair:
            await pair.wait_until_used()
            compared = await record_comparisons(pair, monkeypatch)
            assert await pair.read(versions) == (True, "first")
            moving_address.move(second.url(url))
            # the connection of the first server is in use: the next one leads to the second server
            staying = asyncio.create_task(pair.primary.read_snapshot("bob", stay, at_least=versions, background=True))
            await entered.wait()
            assert await pair.read(versions) == (False, "first")
            await wait_until(lambda: compared)
            leave.set()
            await staying
            await pair.wait_until_used()
            assert await pair.read(versions) == (True, "first"), "it is a replica, too"
            assert compared == [1], "not used before"


async def test_a_distributed_database_has_no_read_replica(streaming_replica: StreamingReplica) -> None:
    url = make_database(streaming_replica.primary)
    run_sql(url, "INSERT INTO users (id, name) VALUES ('alice', 'first')")
    install_fake_citus(url)
    run_sql(url, "INSERT INTO pg_catalog.pg_dist_partition VALUES ('users', 'h')")
    async with opened(streaming_replica, url, streaming_replica.url(url)) as pair:
        await expect_warning(pair, "is distributed over several nodes")
        assert await pair.read(Versions(0, 0, MODEL)) == (False, "first")


async def test_if_the_primary_is_away_the_replica_does_not_answer_for_it(pair: Pair) -> None:
    """The versions that a request needs come from the primary. It answers reads again once both have been compared."""
    name = pair.primary.engine.url.database
    admin = pair.rig.primary.url
    run_sql(admin, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    run_sql(admin, f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'")
    with pytest.raises(DatabaseDown):
        await pair.read(None)
    await wait_until(lambda: pair.replica.warning)
    run_sql(admin, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    await pair.wait_until_used()
    await wait_until(lambda: pair.replica.warning is None)
