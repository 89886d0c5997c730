"""Snapshots in memory: when they are loaded, dropped and used, and that they hold one user's tools alone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.auth.users import User
from app.catalog.visibility import Scope
from app.container import Container, open_container
from app.discovery.changes import GivenTool
from app.discovery.discover import discover
from app.discovery.request import DiscoveryRequest
from app.search.query import parse_query
from app.search.snapshot_cache import SnapshotCache
from app.search.snapshots import Snapshot, read_snapshot
from tests.support.broken_search import broken_search
from tests.support.clients import TestUser, get_app, new_user, open_client
from tests.support.factories import ADMIN_KEY, make_settings, resolve_nothing, tool
from tests.support.sql_statements import recorded_statements

MIB = 2**20
TOOLS = [tool(f"{verb}_{thing}", f"{verb} a {thing}") for verb in ("show", "delete") for thing in ("file", "page")]


@pytest.fixture
async def ada(container: Container) -> AsyncIterator[TestUser]:
    async with new_user(container) as user:
        await user.add_tools(*TOOLS)
        yield user


def open_cache(container: Container, max_bytes: int = 10 * MIB) -> SnapshotCache:
    return SnapshotCache(container.database, container.searcher.learned_cache, container.metrics, max_bytes)


async def read_user(container: Container, user: TestUser) -> User:
    return (await container.authenticator.authenticate(user.key, None)).require_user()


def make_scope(container: Container, user: TestUser) -> Scope:
    return Scope(user.id, container.model.id)


async def use(cache: SnapshotCache, container: Container, user: TestUser) -> Snapshot | None:
    """Use a scope as a discovery does, and wait for a load that it starts."""
    row, scope = await read_user(container, user), make_scope(container, user)
    snapshot = await cache.get(row, scope)
    if snapshot is None:
        cache.note_miss(row, scope)
        await cache.wait_loaded()
    return snapshot


async def load(cache: SnapshotCache, container: Container, user: TestUser) -> Snapshot:
    await use(cache, container, user)
    await use(cache, container, user)
    snapshot = await use(cache, container, user)
    assert snapshot is not None
    return snapshot


async def test_a_scope_is_loaded_at_its_second_use(container: Container, ada: TestUser) -> None:
    cache = open_cache(container)
    assert [await use(cache, container, ada) for _ in range(2)] == [None, None]
    snapshot = await use(cache, container, ada)
    assert snapshot is not None
    assert sorted(snapshot.index.names.tool_names) == sorted(each["name"] for each in TOOLS)


async def test_a_user_who_is_created_again_finds_nothing_of_its_predecessor(container: Container) -> None:
    async with new_user(container) as user, open_client(container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        await user.add_tools(*TOOLS)
        for _ in range(2):
            await user.discover("show a page")
        await container.discoverer.snapshots.wait_loaded()
        before = await container.discoverer.snapshots.get(await read_user(container, user), make_scope(container, user))
        assert before is not None
        assert (await admin.delete(f"/users/{user.id}")).status_code == 204
        again = await admin.post("/discover", json={"query": "show a page"}, headers={"X-User-Id": user.id})
    assert (again.json()["tools"], again.json()["no_match_reason"]) == ([], "no_tools")


async def test_a_change_of_the_catalogue_ends_a_snapshot_at_once(container: Container, ada: TestUser) -> None:
    cache = open_cache(container)
    before = await load(cache, container, ada)
    await ada.add_tools(tool("another"), server="more")
    assert await use(cache, container, ada) is None
    assert await use(cache, container, ada) is None
    after = await use(cache, container, ada)
    assert after is not None
    assert (before.searched, after.searched) == (len(TOOLS), len(TOOLS) + 1)


async def test_learning_changes_a_snapshot_without_loading_the_tools_again(container: Container, ada: TestUser) -> None:
    cache = open_cache(container)
    before = await load(cache, container, ada)
    answer = await ada.discover("show the file", fill=True)
    body = {
        "discovery_id": answer["discovery_id"],
        "tool_key": answer["tools"][0]["tool_key"],
        "outcome": "succeeded",
    }
    assert (await ada.http.post("/feedback", json=body)).status_code == 204
    with recorded_statements() as statements:
        after = await use(cache, container, ada)
    assert after is not None
    assert (before.learned.examples, after.learned.examples is not None) == (None, True)
    assert after.index.vectors is before.index.vectors
    assert not [statement for statement in statements if "input_schema" in statement]


async def test_without_memory_there_are_no_snapshots(container: Container, ada: TestUser) -> None:
    cache = open_cache(container, 0)
    assert [await use(cache, container, ada) for _ in range(4)] == [None] * 4


async def test_the_least_recently_used_snapshots_give_way(container: Container, ada: TestUser) -> None:
    size = (await load(open_cache(container), container, ada)).memory_bytes
    async with new_user(container) as bob, new_user(container) as eve:
        for user in (bob, eve):
            await user.add_tools(*TOOLS)
        cache = open_cache(container, int(2.5 * size))
        await load(cache, container, ada)
        await load(cache, container, bob)
        assert await use(cache, container, ada) is not None
        await load(cache, container, eve)
        assert cache._bytes <= 2.5 * size
        kept = [user for user in (ada, bob, eve) if make_key(container, user) in cache._snapshots]
        assert kept == [ada, eve]


def make_key(container: Container, user: TestUser) -> tuple[str, str, None]:
    return user.id, container.model.id, None


async def test_a_scope_that_is_too_large_is_not_loaded_again_and_again(container: Container, ada: TestUser) -> None:
    size = (await load(open_cache(container), container, ada)).memory_bytes
    cache = open_cache(container, size)  # one user may take three quarters of it
    loads = container.metrics.snapshot_loads.labels("too_large")._value
    before = loads.get()
    assert [await use(cache, container, ada) for _ in range(5)] == [None] * 5
    assert loads.get() == before + 1
    await ada.add_tools(tool("another"), server="more")
    assert [await use(cache, container, ada) for _ in range(2)] == [None] * 2
    assert loads.get() == before + 2


async def test_the_measured_size_is_about_what_a_snapshot_holds(container: Container, ada: TestUser) -> None:
    long = "a long description " * 5_000
    small = await load(open_cache(container), container, ada)
    await ada.add_tools(tool("long", long), server="long")
    large = await load(open_cache(container), container, ada)
    assert large.memory_bytes - small.memory_bytes > len(long)


async def test_a_load_for_another_user_returns_nothing(container: Container, ada: TestUser) -> None:
    """Row-level security applies to the load, even if the statement names another user."""
    scope = make_scope(container, ada)
    async with new_user(container) as bob, container.database.snapshot(bob.id) as session:
        assert await read_snapshot(session, scope, 10 * MIB) is None
    async with container.database.snapshot(ada.id) as session:
        own = await read_snapshot(session, scope, 10 * MIB)
    assert own is not None
    assert own.searched == len(TOOLS)


async def test_a_failed_load_leaves_the_search_to_postgres(container: Container, ada: TestUser) -> None:
    cache = open_cache(container)
    assert await use(cache, container, ada) is None
    async with broken_search(container):
        assert await use(cache, container, ada) is None
    assert await use(cache, container, ada) is None
    assert await use(cache, container, ada) is not None


async def test_a_discovery_with_a_snapshot_runs_no_statement(container: Container, ada: TestUser) -> None:

    request = DiscoveryRequest(parse_query("show the file"), keep=[GivenTool("files.delete_page")], describe=True)
    caller = await container.authenticator.authenticate(ada.key, None)
    first = await discover(container.discoverer, caller, request)
    await discover(container.discoverer, caller, request)
    await container.discoverer.snapshots.wait_loaded()
    with recorded_statements() as statements:
        answer = await discover(container.discoverer, caller, request)
    assert statements == []
    assert [each.definition.name for each in answer.tools] == [each.definition.name for each in first.tools]
    assert answer.tools[0].definition.name == "delete_page"


async def test_a_change_through_one_replica_is_seen_by_the_next_request_of_another(
    container: Container, ada: TestUser, tmp_path: Path
) -> None:
    url = container.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with (
        open_container(make_settings(tmp_path), url, resolve_nothing, working=False) as replica,
        open_client(replica, Authorization=f"Bearer {ada.key}") as there,
    ):
        assert get_app(replica) is not get_app(container)
        body = {"query": "show the file", "fill": True, "similarity_threshold": 0}
        for _ in range(3):
            names = [each["tool"]["name"] for each in (await there.post("/discover", json=body)).json()["tools"]]
            await replica.discoverer.snapshots.wait_loaded()
        assert "show_file" in names
        hits = replica.metrics.snapshot_hits._value.get()
        assert hits > 0
        key = (await ada.tools())["show_file"]["id"]
        assert (await ada.http.patch(f"/tools/{key}", json={"enabled": False})).status_code == 200
        names = [each["tool"]["name"] for each in (await there.post("/discover", json=body)).json()["tools"]]
        assert "show_file" not in names
        assert "show_page" in names
