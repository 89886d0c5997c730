"""The service behind pgbouncer in transaction mode, with a single connection to Postgres that all requests share.

The tests run with prepared statements, too, where the installed pgbouncer keeps them.
"""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from pydantic import SecretStr

from app.container import Container, open_container
from app.db import read_replica
from app.db.engine import Database
from app.db.notifications import Channel, Notifications, notify
from app.db.pipeline import Statement, name_statements_uniquely
from app.db.scope import APP_ROLE
from app.doctor import CheckResult, check_installation
from app.errors import ConfigurationError, DatabaseDown, QueryInterrupted
from app.local_postgres.postgres import EmbeddedPostgres
from app.settings import Pooler
from tests.support.barriers import PredicateRemover, predicates_removed
from tests.support.clients import TestUser, new_user
from tests.support.factories import make_database, make_empty_database, make_settings, tool
from tests.support.fake_citus import change_fake_citus, install_fake_citus
from tests.support.pgbouncer import PgBouncer, list_poolers, options_for, running_pgbouncer
from tests.support.streaming_replica import StreamingReplica

pytestmark = [pytest.mark.needs_pgbouncer, pytest.mark.no_retry]

ROUNDS = 25
USERS: Statement = ("SELECT id FROM users ORDER BY id", None)
OWNERS: Statement = ("SELECT DISTINCT user_id FROM mcp_tools ORDER BY user_id", None)
# what a session could leave behind for the next client of the same connection
LEFT_BEHIND = """
    SELECT current_user::text, current_setting('plan_cache_mode'), coalesce(current_setting('app.user_id', true), ''),
           (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_locks
            WHERE locktype = 'advisory' AND pid = pg_backend_pid()), (SELECT count(*) FROM pg_listening_channels())
"""
NOTHING = ("postgres", "auto", "", 0, 0, 0)


@pytest.fixture(scope="module", params=list_poolers())
def pooler(request: pytest.FixtureRequest) -> Pooler:
    """How the service uses pgbouncer: each way that the installed version can serve."""
    found: Pooler = request.param
    return found


@pytest.fixture(scope="module")
def pgbouncer(postgres: EmbeddedPostgres, pooler: Pooler) -> Iterator[PgBouncer]:
    with running_pgbouncer(postgres.url, **options_for(pooler)) as running:
        yield running


@pytest.fixture(scope="module")
def plain_pgbouncer(postgres: EmbeddedPostgres) -> Iterator[PgBouncer]:
    """It keeps no prepared statements."""
    with running_pgbouncer(postgres.url) as running:
        yield running


@pytest.fixture(scope="module")
def url(postgres: EmbeddedPostgres) -> str:
    """The URL that leads around pgbouncer."""
    return make_database(postgres)


@pytest.fixture(scope="module")
async def service(
    pgbouncer: PgBouncer, pooler: Pooler, url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Container]:
    # a search in memory would ask Postgres for nothing
    settings = make_settings(tmp_path_factory.mktemp("data"), snapshot_mb=0, **pgbouncer.settings(url, pooler))
    async with open_container(settings, url) as container:
        yield container


class Owner:
    """A user with a tool whose name nobody else knows."""

    def __init__(self, user: TestUser) -> None:
        self._user = user
        self.id = user.id
        self.mark = user.id.replace("-", "_")

    async def add_tool(self) -> None:
        await self._user.add_tools(tool(f"{self.mark}_read", f"Reads the files of {self.mark}."), server=self.mark)

    async def read(self) -> str:
        """Return what the service tells this user, with and without a transaction of several round trips."""
        question = {"query": "read the files", "limit": 50, "similarity_threshold": 0}
        answers = [
            await self._user.http.get("/tools"),
            await self._user.http.get("/servers"),
            await self._user.http.post("/discover", json=question),
        ]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert all(self.mark in answer.text for answer in answers)
        return "".join(answer.text for answer in answers)


@pytest.fixture
async def owners(service: Container) -> AsyncIterator[list[Owner]]:
    async with AsyncExitStack() as stack:
        found = [Owner(await stack.enter_async_context(new_user(service))) for _ in range(2)]
        await asyncio.gather(*(each.add_tool() for each in found))
        yield found


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


@pytest.mark.parametrize("removed", ["nothing", "predicates"])
async def test_two_users_on_one_server_connection_see_nothing_of_each_other(
    service: Container, owners: list[Owner], pgbouncer: PgBouncer, url: str, removed: Literal["nothing", "predicates"]
) -> None:
    remover = PredicateRemover()
    with predicates_removed(service, remover) if removed == "predicates" else nullcontext():
        texts = await asyncio.gather(*(owners[number % 2].read() for number in range(ROUNDS)))
        [first], [second] = await asyncio.gather(*(service.database.fetch(each.id, [OWNERS]) for each in owners))
    assert (remover.count > ROUNDS) is (removed == "predicates")
    assert [first, second] == [[(each.id,)] for each in owners]
    for number, text in enumerate(texts):
        assert owners[1 - number % 2].mark not in text
    # all of it went through one connection, which several clients used in turn
    shown = {kind: pgbouncer.command(f"SHOW {kind}") for kind in ("SERVERS", "CLIENTS")}
    used = {kind: [row for row in rows if row["database"] == name_of(url)] for kind, rows in shown.items()}
    assert len(used["SERVERS"]) == 1
    assert len(used["CLIENTS"]) > 1


async def test_a_role_that_is_set_for_a_session_lets_others_in(
    owners: list[Owner], pgbouncer: PgBouncer, url: str
) -> None:
    """What the service does not do: the rig shows what would happen."""
    pooled = pgbouncer.url_of(url)
    async with (
        await psycopg.AsyncConnection.connect(pooled, autocommit=True) as mine,
        await psycopg.AsyncConnection.connect(pooled, autocommit=True) as theirs,
    ):
        for connection, owner in zip((mine, theirs), owners, strict=True):
            await connection.execute(f"SET ROLE {APP_ROLE}; SET app.user_id = '{owner.id}'".encode())
        seen = await (await mine.execute(OWNERS[0].encode())).fetchall()
        assert seen == [(owners[1].id,)]
        await mine.execute("RESET ALL; RESET ROLE")
        assert {owner.id for owner in owners} <= {
            name for (name,) in await (await theirs.execute(OWNERS[0].encode())).fetchall()
        }


async def read_left_behind(pooled_url: str) -> Any:
    async with await psycopg.AsyncConnection.connect(pooled_url, autocommit=True) as client:
        return await (await client.execute(LEFT_BEHIND)).fetchone()


def without_kept_statements(left_behind: Any, pooler: Pooler) -> Any:
    """Leave out the statements that pgbouncer itself keeps, under names of its own."""
    return (*left_behind[:3], 0, *left_behind[4:]) if pooler == "transaction_prepared" else left_behind


async def test_the_service_leaves_nothing_behind_for_the_next_client(
    owners: list[Owner], pgbouncer: PgBouncer, pooler: Pooler, url: str
) -> None:
    for owner in owners:
        await owner.read()
    assert without_kept_statements(await read_left_behind(pgbouncer.url_of(url)), pooler) == NOTHING
    async with await psycopg.AsyncConnection.connect(pgbouncer.url_of(url), autocommit=True) as client:
        await client.execute("SET plan_cache_mode = force_custom_plan; SELECT pg_advisory_lock(1)")
    left_behind = without_kept_statements(await read_left_behind(pgbouncer.url_of(url)), pooler)
    assert left_behind == ("postgres", "force_custom_plan", "", 0, 1, 0)
    pgbouncer.command("RECONNECT")


SETTINGS: Statement = (
    "SELECT current_user::text, current_setting('app.user_id'), current_setting('statement_timeout'), "
    "current_setting('jit'), current_setting('work_mem'), current_setting('plan_cache_mode')",
    None,
)


@pytest.mark.parametrize(("is_distributed", "plans"), [(False, "force_generic_plan"), (True, "auto")])
async def test_each_transaction_has_the_settings_of_the_service(
    postgres: EmbeddedPostgres, pgbouncer: PgBouncer, pooler: Pooler, *, is_distributed: bool, plans: str
) -> None:
    url = make_database(postgres)
    if is_distributed:
        install_fake_citus(url)
        change_fake_citus(url, "INSERT INTO pg_catalog.pg_dist_partition VALUES ('users'::regclass, '')")
    expected = [(APP_ROLE, "alice", "30s", "off", "32MB", plans)]
    database = Database(pgbouncer.url_of(url), 1, pooler=pooler)
    async with database.transaction("alice") as session:
        assert session.is_distributed is is_distributed
        assert await session.rows(*SETTINGS) == expected
    assert await database.fetch("alice", [SETTINGS]) == [expected]
    await database.close()
    assert without_kept_statements(await read_left_behind(pgbouncer.url_of(url)), pooler) == NOTHING


async def test_notifications_arrive_around_the_pooler_and_not_through_it(
    service: Container, pgbouncer: PgBouncer, url: str
) -> None:
    heard: dict[str, asyncio.Event] = {}
    listeners = {"direct": Notifications(url), "pooled": Notifications(pgbouncer.url_of(url))}
    for name, listener in listeners.items():
        listener.start()
        await listener.wait_until_listening()
        heard[name] = asyncio.Event()
        listener.subscribe(Channel.MODELS, heard[name].set)
    async with service.database.system_transaction() as session:
        await notify(session, Channel.MODELS)
    async with asyncio.timeout(30):
        await heard["direct"].wait()
    await service.database.ping()  # what Postgres has sent to pgbouncer before this answer
    assert not heard["pooled"].is_set()
    for listener in listeners.values():
        await listener.stop()
    pgbouncer.command("RECONNECT")


@asynccontextmanager
async def sleepers_terminated(url: str) -> AsyncIterator[None]:
    """Terminate every connection on which `pg_sleep` runs."""
    terminate = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE '%pg_sleep%'
    """
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as superuser:

        async def repeat() -> None:
            while True:
                await superuser.execute(terminate)
                await asyncio.sleep(0.05)

        repeating = asyncio.create_task(repeat())
        yield
        repeating.cancel()
        await asyncio.gather(repeating, return_exceptions=True)


async def test_a_lost_server_connection_counts_as_a_database_that_is_down(service: Container, url: str) -> None:
    """pgbouncer passes on what Postgres says last, closes the connection, and answers no Sync."""
    sleep: Statement = ("SELECT pg_sleep(60)", None)
    async with sleepers_terminated(url):
        with pytest.raises(DatabaseDown):
            await service.database.fetch("alice", [sleep, OWNERS])
        for pipelined in (True, False):
            with pytest.raises(DatabaseDown):
                async with service.database.transaction("alice") as session:
                    await (session.pipeline([sleep, OWNERS]) if pipelined else session.rows(*sleep))
    assert await service.database.system_fetch([("SELECT 1", None)]) == [[(1,)]]


class Cancelled:
    """Users who take turns on a pool of connections, and whose requests are cancelled at any moment."""

    LANES = 8
    SHARE = 0.4

    def __init__(self, database: Database, users: Sequence[str]) -> None:
        self._database = database
        self._users = users
        self._random = random.Random(1)
        self.outcomes = Counter[str]()

    async def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._run_lane(number, end) for number in range(self.LANES)))

    async def _run_lane(self, number: int, end: float) -> None:
        while time.monotonic() < end:
            number += 1
            task = asyncio.create_task(self._read(self._users[number % len(self._users)], in_fetch=number % 2 == 0))
            if self._random.random() < self.SHARE:
                await asyncio.sleep(self._random.random() * 0.02)
                task.cancel()
            [result] = await asyncio.gather(task, return_exceptions=True)
            self.outcomes[result if isinstance(result, str) else type(result).__name__] += 1

    async def _read(self, user_id: str, *, in_fetch: bool) -> str:
        role: Statement = ("SELECT current_user::text, current_setting('app.user_id')", None)
        sleep: Statement = ("SELECT pg_sleep(0.003)", None)
        if in_fetch:
            rows, _, scope = await self._database.fetch(user_id, [USERS, sleep, role])
        else:
            async with self._database.transaction(user_id) as session:
                rows = await session.rows(*USERS)
                await session.rows(*sleep)
                scope = await session.rows(*role)
        return "own" if rows == [(user_id,)] and scope == [(APP_ROLE, user_id)] else "foreign"


@pytest.mark.parametrize("connections", [1, 2])
async def test_requests_that_are_cancelled_leave_nothing_behind_for_other_users(
    postgres: EmbeddedPostgres, pooler: Pooler, connections: int
) -> None:
    url = make_database(postgres)
    users = [f"user-{number}" for number in range(4)]
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
        for user_id in users:
            await owner.execute("INSERT INTO users (id) VALUES (%s)", [user_id])
    with running_pgbouncer(postgres.url, default_pool_size=connections, **options_for(pooler)) as shared:
        database = Database(shared.url_of(url), 4, pooler=pooler)
        load = Cancelled(database, users)
        await load.run(seconds=3)
        assert database._pool._shares.in_use == 0
        assert database.warning is None
        await database.close()
    # a late request to cancel a statement may hit the next one
    assert set(load.outcomes) <= {"own", "CancelledError", "QueryInterrupted"}
    assert min(load.outcomes["own"], load.outcomes["CancelledError"]) > 10


class Misconfigured:
    """A pool that takes a pooler with two connections in transaction mode for Postgres itself."""

    def __init__(self, url: str, setting: str) -> None:
        self.database = Database(url, pool_size=4, setting=setting)
        self.failed = 0

    async def read_owners(self, user_id: str) -> list[Any]:
        """Return whose rows the user has seen, in both kinds of transactions."""
        seen: list[Any] = []
        for read in (self._fetch, self._begin):
            try:
                seen += await read(user_id)
            except QueryInterrupted:
                self.failed += 1
        return seen

    async def _fetch(self, user_id: str) -> list[Any]:
        return (await self.database.fetch(user_id, [OWNERS]))[0]

    async def _begin(self, user_id: str) -> list[Any]:
        async with self.database.transaction(user_id) as session:
            return (await session.pipeline([OWNERS]))[0]


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("DATABASE_URL", "set TOOLSCOUT_DATABASE_POOLER=transaction"),
        (read_replica.SETTING, "let it lead to Postgres itself, or to a pooler in session mode"),
    ],
)
async def test_a_pooler_that_the_settings_do_not_name_shows_no_foreign_rows_and_is_named_in_the_error(
    postgres: EmbeddedPostgres,
    owners: list[Owner],
    url: str,
    caplog: pytest.LogCaptureFixture,
    setting: str,
    advice: str,
) -> None:
    with running_pgbouncer(postgres.url, default_pool_size=2) as two_connections:
        pool = Misconfigured(two_connections.url_of(url), setting)
        users = [owners[number % 2].id for number in range(60)]
        seen = await asyncio.gather(*(pool.read_owners(user_id) for user_id in users))
        await pool.database.close()
    for user_id, rows in zip(users, seen, strict=True):
        assert set(rows) <= {(user_id,)}
    assert any(seen)
    assert pool.failed > 0
    assert pool.database.warning == (
        f"prepared statements are lost: {setting} leads to a pooler that does not keep them; {advice}"
    )
    assert pool.database.warning in caplog.messages


async def prepare_and_read(client: psycopg.AsyncConnection[Any], text: str) -> Any:
    [found] = await (await client.execute(f"SELECT '{text}'".encode(), prepare=True)).fetchall()
    return found


@pytest.mark.parametrize("unique", [False, True])
async def test_only_a_unique_name_never_runs_the_statement_of_another_client(
    plain_pgbouncer: PgBouncer, empty_database: str, *, unique: bool
) -> None:
    async with AsyncExitStack() as stack:
        pooled = plain_pgbouncer.url_of(empty_database)
        mine, theirs = [
            await stack.enter_async_context(await psycopg.AsyncConnection.connect(pooled, autocommit=True))
            for _ in range(2)
        ]
        for client in (mine, theirs) if unique else ():
            name_statements_uniquely(client)
        assert await prepare_and_read(mine, "mine") == ("mine",)
        plain_pgbouncer.command("RECONNECT")  # as after its server_lifetime
        assert await prepare_and_read(theirs, "theirs") == ("theirs",)
        if not unique:
            assert await prepare_and_read(mine, "mine") == ("theirs",)
            return
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            await prepare_and_read(mine, "mine")


@asynccontextmanager
async def opened(folder: Path, direct_url: str, **changes: Any) -> AsyncIterator[Container]:
    async with open_container(make_settings(folder, **changes), direct_url, working=False) as container:
        yield container


def describe_doctor(results: Sequence[CheckResult], subject: str) -> tuple[bool, bool, str]:
    [found] = [result for result in results if result.subject == subject]
    return found.ok, found.is_warning, found.message


@pytest.mark.parametrize("around", [False, True])
async def test_the_service_does_not_start_on_shared_connections_that_it_does_not_expect(
    plain_pgbouncer: PgBouncer, url: str, tmp_path: Path, *, around: bool
) -> None:
    """As DATABASE_URL without the setting, or as the URL that should lead around the pooler."""
    pooled_url = plain_pgbouncer.url_of(url)
    changes = plain_pgbouncer.settings(url) if around else {"database_url": SecretStr(pooled_url)}
    changes |= {"listen_database_url": SecretStr(pooled_url)}
    advice = "DATABASE_POOLER=transaction, and TOOLSCOUT_LISTEN_DATABASE_URL to a URL that leads to Postgres itself"
    if around:
        advice = "TOOLSCOUT_LISTEN_DATABASE_URL leads to a pooler .*: let it lead to Postgres itself"
    with pytest.raises(ConfigurationError, match=advice):
        async with opened(tmp_path, pooled_url, **changes):
            pass
    ok, _, message = describe_doctor(await check_installation(make_settings(tmp_path, **changes)), "database")
    assert not ok
    assert re.search(advice, message)
    assert await read_left_behind(pooled_url) == NOTHING


async def test_a_pooler_in_session_mode_needs_no_setting(postgres: EmbeddedPostgres, url: str, tmp_path: Path) -> None:
    with running_pgbouncer(postgres.url, pool_mode="session", default_pool_size=20) as pgbouncer:
        pooled_url = pgbouncer.url_of(url)
        async with opened(tmp_path, pooled_url, database_url=SecretStr(pooled_url)) as service:
            assert (await service.database.system_fetch([("SELECT 1", None)])) == [[(1,)]]
            assert service.warnings == ()


async def test_the_doctor_compares_the_pooler_with_the_settings(
    service: Container, pgbouncer: PgBouncer, pooler: Pooler, url: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    async def check(direct_url: str = url, **changes: Any) -> tuple[bool, bool, str]:
        settings = make_settings(tmp_path, **(pgbouncer.settings(direct_url, pooler) | changes))
        return describe_doctor(await check_installation(settings), "pooler")

    assert service.warnings == ()
    assert (await check())[:2] == (True, False)
    ok, is_warning, message = await check(database_url=SecretStr(url))
    assert (ok, is_warning) == (True, True)
    assert "leads to Postgres itself" in message
    ok, _, message = await check(database_url=SecretStr(pgbouncer.url_of(make_database(postgres))))
    assert not ok
    assert "must lead to the same database" in message
    ok, _, message = await check(database_url=SecretStr("postgresql://postgres@127.0.0.1:1/toolscout"))
    assert not ok
    assert "cannot connect to the database through its pooler" in message


async def test_another_database_around_the_pooler_is_not_migrated(
    pgbouncer: PgBouncer, pooler: Pooler, url: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    empty = make_empty_database(postgres)
    pooled = SecretStr(pgbouncer.url_of(url))
    settings = make_settings(tmp_path, **(pgbouncer.settings(empty, pooler) | {"database_url": pooled}))
    with pytest.raises(ConfigurationError, match="must lead to the same database"):
        async with open_container(settings, empty):
            pass
    ok, _, message = describe_doctor(await check_installation(settings), "pooler")
    assert not ok
    assert "must lead to the same database" in message
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT to_regclass('users')").fetchone() == (None,)


async def test_the_doctor_refuses_a_pooler_in_front_of_the_read_replica(
    streaming_replica: StreamingReplica, tmp_path: Path
) -> None:
    url = make_database(streaming_replica.primary)
    await asyncio.to_thread(streaming_replica.wait_until_caught_up)

    async def check(read_url: str) -> tuple[bool, bool, str]:
        settings = make_settings(tmp_path, database_url=SecretStr(url), read_database_url=SecretStr(read_url))
        return describe_doctor(await check_installation(settings), "replica")

    assert (await check(streaming_replica.url(url)))[0]
    with running_pgbouncer(streaming_replica.postgres.url) as shared:
        ok, _, message = await check(shared.url_of(url))
        assert not ok
        assert "TOOLSCOUT_READ_DATABASE_URL leads to a pooler in transaction mode" in message
        assert await read_left_behind(shared.url_of(url)) == NOTHING
    with running_pgbouncer(streaming_replica.postgres.url, pool_mode="session", default_pool_size=20) as session_mode:
        assert (await check(session_mode.url_of(url)))[0]


async def test_prepared_statements_are_used_where_the_pooler_keeps_them_and_refused_elsewhere(
    postgres: EmbeddedPostgres, url: str, tmp_path: Path
) -> None:
    """Which of the two can be shown depends on the version of pgbouncer that is installed."""
    is_supported = "transaction_prepared" in list_poolers()
    options = options_for("transaction_prepared") if is_supported else {}
    with running_pgbouncer(postgres.url, default_pool_size=2, **options) as pgbouncer:
        changes = pgbouncer.settings(url, "transaction_prepared")
        if not is_supported:
            with pytest.raises(ConfigurationError, match="does not keep prepared statements"):
                async with opened(tmp_path, url, **changes):
                    pass
            return
        async with opened(tmp_path, url, **changes) as service:
            prepared = "SELECT count(*)::int FROM pg_prepared_statements"
            # more than psycopg keeps, so that it also closes some
            for _ in range(2):
                for first in range(0, 120, 10):
                    numbers = range(first, first + 10)
                    fetches = [service.database.fetch("alice", [(f"SELECT {each}", None)]) for each in numbers]
                    assert await asyncio.gather(*fetches) == [[[(each,)]] for each in numbers]
            [[(count,)]] = await service.database.system_fetch([(prepared, None)])
            assert count > 10
            assert service.warnings == ()
