"""A share of the connections for each user: an attack of one user keeps nobody else waiting."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

import pytest

from app.db.engine import Database
from app.db.fair_shares import FairShares, Lane, Owner
from app.db.migrate import migrate
from app.errors import DatabaseDown, QueryInterrupted
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import new_user
from tests.support.factories import OpenService, make_database, tool
from tests.support.worker_steps import holding, waiting

POOL_SIZE = 10
PARALLEL_WRITES = 40


@pytest.fixture(scope="module")
async def url(postgres: EmbeddedPostgres) -> str:
    url = make_database(postgres)
    await asyncio.to_thread(migrate, url)
    return url


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = Database(url, POOL_SIZE)
    yield database
    await database.close()


@dataclass
class Watch:
    """Which owners had to wait for a connection, and how many connections an owner had at most."""

    waited: set[Owner]
    most_held: dict[Owner, int]


@contextmanager
def watched_shares(database: Database) -> Iterator[Watch]:
    watch, shares = Watch(set(), {}), database._pool._shares
    try_acquire, serve = FairShares.try_acquire, FairShares._serve_waiting

    def note_held() -> None:
        for owner, held in shares._held.items():
            watch.most_held[owner] = max(watch.most_held.get(owner, 0), held)

    def try_acquire_watched(self: FairShares, owner: Owner) -> bool:
        is_acquired = try_acquire(self, owner)
        if self is shares:
            note_held()
            if not is_acquired:
                watch.waited.add(owner)
        return is_acquired

    def serve_watched(self: FairShares) -> None:
        serve(self)
        if self is shares:
            note_held()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FairShares, "try_acquire", try_acquire_watched)
        patch.setattr(FairShares, "_serve_waiting", serve_watched)
        yield watch


async def test_parallel_writes_of_one_user_hold_one_connection_and_nobody_else_waits(open_service: OpenService) -> None:
    async with (
        open_service(database_pool_size=POOL_SIZE) as service,
        new_user(service) as attacker,
        new_user(service) as victim,
    ):
        await attacker.add_tools(*(tool(f"tool_{number}") for number in range(30)))
        await victim.add_tools(tool("list_files", "Lists the files of a folder."))
        async with holding(service, "SELECT FROM users WHERE id = %s FOR UPDATE", attacker.id) as blocker:
            with watched_shares(service.database) as watch:
                rules = {"rules": [{"pattern": ["tool_1*"], "enabled": False}]}
                writes = [asyncio.create_task(attacker.http.put("/rules", json=rules)) for _ in range(PARALLEL_WRITES)]
                await waiting(blocker, 1)
                while service.database._pool._shares.waiting:  # noqa: ASYNC110 the attacker's own requests
                    await asyncio.sleep(0.01)
                watch.waited.clear()
                for _ in range(5):  # while all writes of the attacker are stuck
                    assert (await victim.discover("list the files"))["tools"]
                    assert (await victim.http.get("/tools")).status_code == 200
                    assert (await attacker.http.get("/tools")).status_code == 200
                assert watch.waited <= {Lane.SYSTEM}, "the service writes down what it counts"
                await blocker.rollback()
                assert {(await write).status_code for write in writes} == {200}
    assert watch.most_held[attacker.id] <= 2, "one write, and one request that reads"
    assert victim.id not in watch.waited


async def test_a_user_who_holds_many_connections_leaves_some_to_others(database: Database) -> None:
    async with AsyncExitStack() as attack:
        with watched_shares(database) as watch:
            tasks = [asyncio.create_task(hold(database, "attacker", attack)) for _ in range(PARALLEL_WRITES)]
            await asyncio.sleep(0)
            held = sum([await is_done(task) for task in tasks[: POOL_SIZE // 2]])
            assert held == POOL_SIZE // 2
            assert database._pool._shares.count_held("attacker") == POOL_SIZE // 2
            for user_id in ("victim", "another"):
                async with database.transaction(user_id) as session:
                    assert await session.rows("SELECT 1") == [(1,)]
                assert await database.fetch(user_id, [("SELECT 1", None)]) == [[(1,)]]
            await database.ping()
            assert await database.system_fetch([("SELECT 1", None)], urgent=True) == [[(1,)]]
            assert watch.waited == {"attacker"}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert database._pool._shares.in_use == 0


async def test_one_who_waits_too_long_gets_database_down(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as attack:
        for _ in range(POOL_SIZE // 2):
            await hold(database, "attacker", attack)
        with monkeypatch.context() as patch:
            patch.setattr(database._pool, "_wait_s", 0.05)
            with pytest.raises(DatabaseDown):
                await database.fetch("attacker", [("SELECT 1", None)])
            assert await database.fetch("victim", [("SELECT 1", None)]) == [[(1,)]]
    assert await database.fetch("attacker", [("SELECT 1", None)]) == [[(1,)]]


async def test_exclusive_transactions_of_a_user_run_one_after_the_other(database: Database) -> None:
    running, most = 0, 0

    async def work(user_id: str) -> None:
        nonlocal running, most
        async with database.exclusive_transaction(user_id) as session:
            running += 1
            most = max(most, running)
            await session.rows("SELECT 1")
            running -= 1

    await asyncio.gather(*(work("alice") for _ in range(10)))
    assert most == 1
    async with database.exclusive_transaction("alice"):
        await work("bob")
    assert not database._writing, "no lock is kept for users who do not write"


async def test_an_exclusive_transaction_that_waits_too_long_can_be_tried_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write() -> None:
        async with database.exclusive_transaction("alice"):
            pass

    async with database.exclusive_transaction("alice"):
        with monkeypatch.context() as patch:
            patch.setattr("app.db.engine.STATEMENT_TIMEOUT_S", 0.05)
            with pytest.raises(QueryInterrupted):
                await write()
    await write()


async def hold(database: Database, user_id: str, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(database.transaction(user_id))


async def is_done(task: "asyncio.Task[None]") -> bool:
    await task
    return True
