"""Counts in memory reach the database exactly once, whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import psycopg
import pytest

from app.container import Container
from app.db.engine import Database
from app.db.migrate import migrate
from app.local_postgres.postgres import EmbeddedPostgres
from app.usage import counters as counters_module
from app.usage import periodic_flusher
from app.usage.counters import UsageCounters
from app.usage.histogram import bucket_index
from app.usage.repository import expired_rows
from tests.support.clients import TestUser, new_user
from tests.support.factories import OpenService, make_database, tool
from tests.support.outage import close_database
from tests.support.usage import FAST, figures, uses
from tests.support.worker_steps import holding, until, waiting

Log = pytest.LogCaptureFixture


@pytest.fixture
def usage_counters(container: Container) -> UsageCounters:
    """Counters without a background task."""
    return UsageCounters(container.database)


async def test_counts_are_written_and_summed(
    usage_counters: UsageCounters, container: Container, user: TestUser
) -> None:
    usage_counters.record_discovery(user.id, ["a", "b"], FAST)
    usage_counters.record_discovery(user.id, ["a"], replace(FAST, no_match=True))
    assert await uses(container.database, user.id) == {}
    assert await usage_counters.flush()
    assert usage_counters.pending == 0
    usage_counters.record_discovery(user.id, ["a"], replace(FAST, degraded=True, cache_hit=False, not_english=True))
    usage_counters.record_call(user.id, "a", succeeded=True)
    usage_counters.record_call(user.id, "a", succeeded=False)
    usage_counters.record_call(user.id, "b", succeeded=None)
    assert await usage_counters.flush()
    assert await uses(container.database, user.id) == {
        "a": {"discovered": 3, "called": 2, "succeeded": 1, "failed": 1},
        "b": {"discovered": 1, "called": 1},
    }
    totals = [sum(column) for column in zip(*await figures(container.database, user.id), strict=True)]
    assert totals == [3, 1, 1, 2, 3_000, 300, 1]


async def test_each_minute_has_a_row_with_its_latencies(container: Container, user: TestUser) -> None:
    now = 1_000_000_000.0
    usage_counters = UsageCounters(container.database, lambda: now)
    for seconds in (0.0045, 0.0045, 0.2):
        usage_counters.record_discovery(user.id, [], replace(FAST, seconds=seconds))
    await usage_counters.flush()
    usage_counters.record_discovery(user.id, [], replace(FAST, seconds=0.2))
    now += 60
    usage_counters.record_discovery(user.id, [], replace(FAST, seconds=99))
    await usage_counters.flush()
    statement = "SELECT extract(epoch FROM at)::bigint, latencies FROM discovery_stats ORDER BY at"
    async with container.database.transaction(user.id) as session:
        rows = [(minute, {n: c for n, c in enumerate(counts) if c}) for minute, counts in await session.rows(statement)]
    first = int(now) // 60 * 60 - 60
    assert rows == [(first, {bucket_index(0.0045): 2, bucket_index(0.2): 2}), (first + 60, {bucket_index(99): 1})]


async def test_concurrent_processes_lose_no_counts(container: Container, user: TestUser) -> None:
    tools = [f"tool-{n}" for n in range(200)]
    processes = [UsageCounters(container.database) for _ in range(4)]
    for number, each in enumerate(processes):
        each.record_discovery(user.id, tools if number % 2 else reversed(tools), FAST)
    assert all(await asyncio.gather(*(each.flush() for each in processes)))
    assert await uses(container.database, user.id) == {name: {"discovered": 4} for name in tools}


async def test_the_service_counts_its_discoveries(container: Container, user: TestUser) -> None:
    await user.add_tools(tool("read_file", "Reads a file."))
    tool_id = (await user.tools())["read_file"]["id"]
    await user.discover("read a file", similarity_threshold=0)
    await user.discover("read a file", similarity_threshold=0, keep=[tool_id])

    async def is_written() -> bool:
        return bool(await figures(container.database, user.id))

    await until(is_written)
    await container.usage_counters.flush()
    # A kept tool was counted when it was found.
    assert await uses(container.database, user.id) == {tool_id: {"discovered": 1}}
    totals = [sum(column) for column in zip(*await figures(container.database, user.id), strict=True)]
    assert totals[:4] == [2, 0, 0, 1]
    assert 0 < totals[5] <= totals[4]


async def test_a_service_that_stops_writes_pending_counts(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as user:
        url = service.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        service.usage_counters.record_discovery(user.id, ["a"], FAST)
    with psycopg.connect(url) as owner:
        assert owner.execute("SELECT user_id, tool_id, discovered FROM tool_usage").fetchall() == [(user.id, "a", 1)]


async def test_counts_of_a_deleted_user_are_discarded(
    usage_counters: UsageCounters, container: Container, admin: httpx.AsyncClient, user: TestUser, other_user: TestUser
) -> None:
    for each in (user, other_user):
        usage_counters.record_discovery(each.id, ["a"], FAST)
        usage_counters.record_call(each.id, "a", succeeded=True)
    assert (await admin.delete(f"/users/{user.id}")).status_code == 204
    assert await usage_counters.flush()
    await usage_counters.update_priors()
    assert usage_counters.pending == 0
    assert await uses(container.database, user.id) == {}
    assert await figures(container.database, user.id) == []
    assert await uses(container.database, other_user.id) == {"a": {"discovered": 1, "called": 1, "succeeded": 1}}


async def test_a_user_whose_counts_are_rejected_does_not_block_others(
    usage_counters: UsageCounters, container: Container, user: TestUser, other_user: TestUser, caplog: Log
) -> None:
    usage_counters.record_discovery(user.id, ["a"], replace(FAST, tokens_all=2**63))  # too large for the column
    usage_counters.record_discovery(other_user.id, ["a"], FAST)
    assert not await usage_counters.flush()
    assert await uses(container.database, other_user.id) == {"a": {"discovered": 1}}
    assert await uses(container.database, user.id) == {}
    assert usage_counters.pending == 2
    assert "failed to write the usage counts of a user" in caplog.text


async def test_the_number_of_counters_is_bounded_and_existing_ones_keep_counting(
    usage_counters: UsageCounters, container: Container, user: TestUser, monkeypatch: pytest.MonkeyPatch, caplog: Log
) -> None:
    monkeypatch.setattr(counters_module, "MAX_PENDING", 3)
    for _ in range(2):
        usage_counters.record_discovery(user.id, ["a", "b"], FAST)
        usage_counters.record_discovery(user.id, ["c", "a"], FAST)
    assert usage_counters.pending == 3
    await usage_counters.flush()
    assert await uses(container.database, user.id) == {"a": {"discovered": 4}, "b": {"discovered": 2}}
    [warning] = [record for record in caplog.records if "usage counts dropped" in record.message]
    assert vars(warning)["counters"] == 2
    usage_counters.record_discovery(user.id, ["c"], FAST)
    await usage_counters.flush()
    assert (await uses(container.database, user.id))["c"] == {"discovered": 1}


@pytest.fixture(scope="module")
async def closable_database(postgres: EmbeddedPostgres) -> AsyncIterator[Database]:
    """A database that a test can close, with the user `somebody`."""
    url = make_database(postgres)
    migrate(url)
    database = Database(url, 2)
    async with database.system_transaction() as session:
        await session.rows("INSERT INTO users (id) VALUES ('somebody')")
    yield database
    await database.close()


async def test_counts_made_while_the_database_is_down_are_written_later_and_once(
    postgres: EmbeddedPostgres, closable_database: Database, caplog: Log
) -> None:
    usage_counters = UsageCounters(closable_database)
    usage_counters.record_discovery("somebody", ["a"], FAST)
    usage_counters.record_call("somebody", "a", succeeded=True)
    async with close_database(postgres, closable_database):
        assert not await usage_counters.flush()
        await usage_counters.update_priors()
        usage_counters.record_discovery("somebody", ["a", "b"], FAST)
        assert not await usage_counters.flush()
    assert "cannot write usage counts" in caplog.text
    assert "failed to update usage priors" in caplog.text
    assert await usage_counters.flush()
    assert await usage_counters.flush()
    assert await uses(closable_database, "somebody") == {
        "a": {"discovered": 2, "called": 1, "succeeded": 1},
        "b": {"discovered": 1},
    }
    assert sum(row[0] for row in await figures(closable_database, "somebody")) == 2


async def test_a_locked_user_is_written_later_without_delaying_others(
    usage_counters: UsageCounters, container: Container, user: TestUser, other_user: TestUser
) -> None:
    for each in (user, other_user):
        usage_counters.record_discovery(each.id, ["a"], FAST)
    async with container.database.transaction(user.id) as session:
        await session.rows("SELECT FROM users WHERE id = %(id)s FOR UPDATE", {"id": user.id})
        assert not await usage_counters.flush()
    assert await uses(container.database, other_user.id) == {"a": {"discovered": 1}}
    assert await uses(container.database, user.id) == {}
    assert await usage_counters.flush()
    assert await uses(container.database, user.id) == {"a": {"discovered": 1}}


async def test_a_user_whose_priors_are_being_updated_is_not_skipped(
    usage_counters: UsageCounters, container: Container, user: TestUser
) -> None:
    usage_counters.record_call(user.id, "a", succeeded=True)
    async with holding(container, "SELECT FROM users WHERE id = %s FOR UPDATE", user.id) as blocker:
        updating = asyncio.create_task(usage_counters.update_priors())
        await waiting(blocker, 1)
        writing = asyncio.create_task(usage_counters.flush())
        await asyncio.wait({writing}, timeout=0.2)
    await updating
    assert await writing
    assert await uses(container.database, user.id) == {"a": {"called": 1, "succeeded": 1}}


async def test_an_interrupted_flush_is_repeated_later(
    container: Container, user: TestUser, monkeypatch: pytest.MonkeyPatch, caplog: Log
) -> None:
    """A service may be stopped during a flush, and the database may be too slow for the final one."""
    monkeypatch.setattr(periodic_flusher, "_FLUSH_EVERY_S", 0)
    monkeypatch.setattr(periodic_flusher, "_FINAL_FLUSH_S", 0.05)
    usage_counters = UsageCounters(container.database)
    usage_counters.record_discovery(user.id, ["a"], FAST)
    await usage_counters.flush()
    usage_counters.record_discovery(user.id, ["a"], FAST)
    async with container.database.transaction(user.id) as session:
        await session.rows("SELECT FROM tool_usage WHERE user_id = %(id)s FOR UPDATE", {"id": user.id})
        usage_counters.flusher.start()

        async def has_started() -> bool:
            return usage_counters.pending == 0

        await until(has_started)
        await usage_counters.flusher.stop()
        assert usage_counters.pending == 2
    [warning] = [record for record in caplog.records if record.message == "final flush of usage timed out"]
    assert vars(warning)["counters"] == 2
    assert await uses(container.database, user.id) == {"a": {"discovered": 1}}
    monkeypatch.undo()
    await usage_counters.flusher.stop()
    assert await uses(container.database, user.id) == {"a": {"discovered": 2}}


INSERT_OLD_ROWS = (
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


async def test_old_rows_and_counts_of_deleted_tools_are_deleted(
    usage_counters: UsageCounters, container: Container, user: TestUser
) -> None:
    await user.add_tools(tool("stays"), server="stays")
    deleted = await user.add_tools(tool("goes"), server="goes")
    ids = {name: each["id"] for name, each in (await user.tools()).items()}
    await user.http.delete(f"/servers/{deleted}")
    usage_counters.record_discovery(user.id, ids.values(), FAST)
    await usage_counters.flush()
    async with container.database.transaction(user.id) as session:
        for days in (29, 31):
            for insertion in INSERT_OLD_ROWS:
                await session.rows(insertion, {"user_id": user.id, "ago": f"{days} days"})
    for statement in expired_rows():
        async with container.database.system_transaction() as session:
            await session.execute(statement)
    assert (await uses(container.database, user.id)).keys() == {ids["stays"]}
    assert [row[0] for row in await figures(container.database, user.id)] == [7, 1]
    async with container.database.transaction(user.id) as session:
        assert await session.rows("SELECT discovery_id FROM tool_feedback") == [("29 days",)]
