"""What is counted in memory arrives in the database: once, later, whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import psycopg
import pytest

from app.container import Container
from app.db.engine import Database
from app.db.migrate import migrate
from app.local_postgres.postgres import EmbeddedPostgres
from app.usage import counters as tally_module
from app.usage import flusher
from app.usage.counters import UsageCounters
from app.usage.histogram import span_of
from app.usage.repository import expired_rows
from tests.conftest import OpenService, TestUser, make_database, new_user, tool
from tests.support.usage import FAST, figures, uses
from tests.support.worker_steps import holding, until, waiting

Log = pytest.LogCaptureFixture


@pytest.fixture
def usage_counters(container: Container) -> UsageCounters:
    """One that writes when told to."""
    return UsageCounters(container.database)


async def test_counts_are_written_and_add_up(
    usage_counters: UsageCounters, container: Container, user: TestUser
) -> None:
    usage_counters.discovered(user.id, ["a", "b"], FAST)
    usage_counters.discovered(user.id, ["a"], replace(FAST, no_match=True))
    assert await uses(container.database, user.id) == {}
    assert await usage_counters.write()
    assert usage_counters.kept == 0
    usage_counters.discovered(user.id, ["a"], replace(FAST, degraded=True, cache_hit=False))
    usage_counters.called(user.id, "a", succeeded=True)
    usage_counters.called(user.id, "a", succeeded=False)
    usage_counters.called(user.id, "b", succeeded=None)
    assert await usage_counters.write()
    assert await uses(container.database, user.id) == {
        "a": {"discovered": 3, "called": 2, "succeeded": 1, "failed": 1},
        "b": {"discovered": 1, "called": 1},
    }
    summed = [sum(column) for column in zip(*await figures(container.database, user.id), strict=True)]
    assert summed == [3, 1, 1, 2, 3_000, 300]


async def test_each_minute_has_a_row_with_its_latencies(container: Container, user: TestUser) -> None:
    now = 1_000_000_000.0
    usage_counters = UsageCounters(container.database, lambda: now)
    for seconds in (0.0045, 0.0045, 0.2):
        usage_counters.discovered(user.id, [], replace(FAST, seconds=seconds))
    await usage_counters.write()
    usage_counters.discovered(user.id, [], replace(FAST, seconds=0.2))
    now += 60
    usage_counters.discovered(user.id, [], replace(FAST, seconds=99))
    await usage_counters.write()
    statement = "SELECT extract(epoch FROM at)::bigint, latencies FROM discovery_stats ORDER BY at"
    async with container.database.transaction(user.id) as session:
        rows = [(minute, {n: c for n, c in enumerate(counts) if c}) for minute, counts in await session.rows(statement)]
    first = int(now) // 60 * 60 - 60
    assert rows == [(first, {span_of(0.0045): 2, span_of(0.2): 2}), (first + 60, {span_of(99): 1})]


async def test_processes_that_write_the_same_rows_at_once_lose_nothing(container: Container, user: TestUser) -> None:
    tools = [f"tool-{n}" for n in range(200)]
    tallies = [UsageCounters(container.database) for _ in range(4)]
    for turn, each in enumerate(tallies):
        each.discovered(user.id, tools if turn % 2 else reversed(tools), FAST)
    assert all(await asyncio.gather(*(each.write() for each in tallies)))
    assert await uses(container.database, user.id) == {name: {"discovered": 4} for name in tools}


async def test_the_service_counts_its_discoveries_by_itself(container: Container, user: TestUser) -> None:
    await user.add_tools(tool("read_file", "Reads a file."))
    tool_id = (await user.tools())["read_file"]["id"]
    await user.discover("read a file", similarity_threshold=0)
    await user.discover("read a file", similarity_threshold=0, keep=[tool_id])

    async def written() -> bool:
        return bool(await figures(container.database, user.id))

    await until(written)
    await container.usage_counters.write()
    # what was kept was found before
    assert await uses(container.database, user.id) == {tool_id: {"discovered": 1}}
    summed = [sum(column) for column in zip(*await figures(container.database, user.id), strict=True)]
    assert summed[:4] == [2, 0, 0, 1]
    assert 0 < summed[5] <= summed[4]


async def test_a_service_that_ends_writes_what_is_left(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as user:
        url = service.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        service.usage_counters.discovered(user.id, ["a"], FAST)
    with psycopg.connect(url) as owner:
        assert owner.execute("SELECT user_id, tool_id, discovered FROM tool_usage").fetchall() == [(user.id, "a", 1)]


async def test_of_a_user_who_has_gone_nothing_is_written(
    usage_counters: UsageCounters, container: Container, admin: httpx.AsyncClient, user: TestUser, other_user: TestUser
) -> None:
    for somebody in (user, other_user):
        usage_counters.discovered(somebody.id, ["a"], FAST)
        usage_counters.called(somebody.id, "a", succeeded=True)
    assert (await admin.delete(f"/users/{user.id}")).status_code == 204
    assert await usage_counters.write()
    await usage_counters.learn()
    assert usage_counters.kept == 0
    assert await uses(container.database, user.id) == {}
    assert await figures(container.database, user.id) == []
    assert await uses(container.database, other_user.id) == {"a": {"discovered": 1, "called": 1, "succeeded": 1}}


async def test_what_one_user_cannot_have_written_keeps_nothing_of_others(
    usage_counters: UsageCounters, container: Container, user: TestUser, other_user: TestUser, caplog: Log
) -> None:
    usage_counters.discovered(user.id, ["a"], replace(FAST, tokens_all=2**63))  # more than a column holds
    usage_counters.discovered(other_user.id, ["a"], FAST)
    assert not await usage_counters.write()
    assert await uses(container.database, other_user.id) == {"a": {"discovered": 1}}
    assert await uses(container.database, user.id) == {}
    assert usage_counters.kept == 2
    assert "could not be written down" in caplog.text


async def test_memory_has_a_bound_and_what_is_counted_already_goes_on(
    usage_counters: UsageCounters, container: Container, user: TestUser, monkeypatch: pytest.MonkeyPatch, caplog: Log
) -> None:
    monkeypatch.setattr(tally_module, "MOST_KEPT", 3)
    for _ in range(2):
        usage_counters.discovered(user.id, ["a", "b"], FAST)
        usage_counters.discovered(user.id, ["c", "a"], FAST)
    assert usage_counters.kept == 3
    await usage_counters.write()
    assert await uses(container.database, user.id) == {"a": {"discovered": 4}, "b": {"discovered": 2}}
    [warning] = [record for record in caplog.records if "not counted" in record.message]
    assert vars(warning)["counters"] == 2
    usage_counters.discovered(user.id, ["c"], FAST)
    await usage_counters.write()
    assert (await uses(container.database, user.id))["c"] == {"discovered": 1}


@pytest.fixture(scope="module")
async def mortal(postgres: EmbeddedPostgres) -> AsyncIterator[tuple[str, Database]]:
    """A database that can be shut, with the user `somebody`."""
    url = make_database(postgres)
    migrate(url)
    database = Database(url, 2)
    async with database.system_transaction() as session:
        await session.rows("INSERT INTO users (id) VALUES ('somebody')")
    yield url, database
    await database.close()


@contextmanager
def shut(postgres: EmbeddedPostgres, url: str) -> Iterator[None]:
    """Every connection breaks, and no new one is let in."""
    name = url.split("?", maxsplit=1)[0].rsplit("/", 1)[1]
    with psycopg.connect(postgres.url, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        yield
        owner.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())


async def test_a_database_that_is_down_gets_everything_later_and_once(
    postgres: EmbeddedPostgres, mortal: tuple[str, Database], caplog: Log
) -> None:
    url, database = mortal
    usage_counters = UsageCounters(database)
    usage_counters.discovered("somebody", ["a"], FAST)
    usage_counters.called("somebody", "a", succeeded=True)
    with shut(postgres, url):
        assert not await usage_counters.write()
        await usage_counters.learn()
        usage_counters.discovered("somebody", ["a", "b"], FAST)
        assert not await usage_counters.write()
    assert "cannot be written down just now" in caplog.text
    assert "could not be learnt from" in caplog.text
    assert await usage_counters.write()
    assert await usage_counters.write()
    assert await uses(database, "somebody") == {
        "a": {"discovered": 2, "called": 1, "succeeded": 1},
        "b": {"discovered": 1},
    }
    assert sum(row[0] for row in await figures(database, "somebody")) == 2


async def test_a_user_who_is_locked_is_written_later_and_keeps_nobody_waiting(
    usage_counters: UsageCounters, container: Container, user: TestUser, other_user: TestUser
) -> None:
    for somebody in (user, other_user):
        usage_counters.discovered(somebody.id, ["a"], FAST)
    async with container.database.transaction(user.id) as session:
        await session.rows("SELECT FROM users WHERE id = %(id)s FOR UPDATE", {"id": user.id})
        assert not await usage_counters.write()
    assert await uses(container.database, other_user.id) == {"a": {"discovered": 1}}
    assert await uses(container.database, user.id) == {}
    assert await usage_counters.write()
    assert await uses(container.database, user.id) == {"a": {"discovered": 1}}


async def test_a_user_who_is_just_being_learnt_from_is_not_passed_over(
    usage_counters: UsageCounters, container: Container, user: TestUser
) -> None:
    usage_counters.called(user.id, "a", succeeded=True)
    async with holding(container, "SELECT FROM users WHERE id = %s FOR UPDATE", user.id) as blocker:
        learning = asyncio.create_task(usage_counters.learn())
        await waiting(blocker, 1)
        writing = asyncio.create_task(usage_counters.write())
        await asyncio.wait({writing}, timeout=0.2)
    await learning
    assert await writing
    assert await uses(container.database, user.id) == {"a": {"called": 1, "succeeded": 1}}


async def test_a_write_that_is_broken_off_is_made_up_for_later(
    container: Container, user: TestUser, monkeypatch: pytest.MonkeyPatch, caplog: Log
) -> None:
    """A service may be told to end in the midst of a write, and its database may take too long for a last one."""
    monkeypatch.setattr(flusher, "_WRITE_EVERY_S", 0)
    monkeypatch.setattr(flusher, "_LAST_WRITE_S", 0.05)
    usage_counters = UsageCounters(container.database)
    usage_counters.discovered(user.id, ["a"], FAST)
    await usage_counters.write()
    usage_counters.discovered(user.id, ["a"], FAST)
    async with container.database.transaction(user.id) as session:
        await session.rows("SELECT FROM tool_usage WHERE user_id = %(id)s FOR UPDATE", {"id": user.id})
        usage_counters.flusher.start()

        async def has_begun() -> bool:
            return usage_counters.kept == 0

        await until(has_begun)
        await usage_counters.flusher.stop()
        assert usage_counters.kept == 2
    [warning] = [record for record in caplog.records if record.message == "usage could not be written down in time"]
    assert vars(warning)["counters"] == 2
    assert await uses(container.database, user.id) == {"a": {"discovered": 1}}
    monkeypatch.undo()
    await usage_counters.flusher.stop()
    assert await uses(container.database, user.id) == {"a": {"discovered": 2}}


LONG_AGO = (
    """
    INSERT INTO tool_feedback (user_id, discovery_id, tool_id, outcome, at)
    VALUES (%(user_id)s, %(ago)s::text, 'x', 'called', now() - %(ago)s::text::interval)
    """,
    """
    INSERT INTO discovery_stats
    SELECT user_id, now() - %(ago)s::text::interval, 7, 0, 0, 0, 0, 0, latencies
    FROM discovery_stats WHERE user_id = %(user_id)s AND discoveries = 1
    """,
)


async def test_what_is_old_is_forgotten_and_counters_of_tools_that_are_gone(
    usage_counters: UsageCounters, container: Container, user: TestUser
) -> None:
    await user.add_tools(tool("stays"), server="stays")
    gone = await user.add_tools(tool("goes"), server="goes")
    ids = {name: each["id"] for name, each in (await user.tools()).items()}
    await user.http.delete(f"/servers/{gone}")
    usage_counters.discovered(user.id, ids.values(), FAST)
    await usage_counters.write()
    async with container.database.transaction(user.id) as session:
        for days in (29, 31):
            for written in LONG_AGO:
                await session.rows(written, {"user_id": user.id, "ago": f"{days} days"})
    for statement in expired_rows():
        async with container.database.system_transaction() as session:
            await session.execute(statement)
    assert (await uses(container.database, user.id)).keys() == {ids["stays"]}
    assert [row[0] for row in await figures(container.database, user.id)] == [7, 1]
    async with container.database.transaction(user.id) as session:
        assert await session.rows("SELECT discovery_id FROM tool_feedback") == [("29 days",)]
