"""A shared server is listed and embedded once, and its changes reach the members' copies in batches."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import httpx
import pytest

from app.container import Container, open_container
from app.db.leases import Lease
from app.errors import Forbidden
from app.indexing import store
from app.indexing.shared_server_sync import SharedServerSync, SyncConfig
from app.indexing.worker import Worker, WorkerConfig
from app.management.tools import approve_tools
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.shared_servers import list_shared, push_shared, settle, share
from tests.support.worker_steps import has_no_runs, rows, until

READ = tool("read_page", "Reads a page of the handbook.")
WRITE = tool("write_page", "Writes a page of the handbook.")


@pytest.fixture
async def stopped_sync(service: Container, admin: httpx.AsyncClient) -> AsyncIterator[SharedServerSync]:
    """The service's own task, which does not run during the test; it does when `admin` cleans up."""
    await service.shared_server_sync.loop.stop()
    yield service.shared_server_sync
    service.shared_server_sync.loop.start()
    await settle(service)


async def add_members(container: Container, count: int) -> list[str]:
    prefix = uuid.uuid4().hex[:8]
    user_ids = [f"m-{prefix}-{number:03}" for number in range(count)]
    await rows(container, "INSERT INTO users (id) SELECT unnest(%(ids)s::text[])", ids=user_ids)
    return user_ids


async def remove_members(container: Container, user_ids: list[str]) -> None:
    await rows(container, "DELETE FROM users WHERE id = ANY(%(ids)s)", ids=user_ids)


async def count_copies(container: Container, shared_id: str) -> int:
    [(count,)] = await rows(container, "SELECT count(*) FROM mcp_servers WHERE shared_id = %(id)s", id=shared_id)
    return int(count)


async def test_tools_are_listed_and_embedded_once_for_all_members(
    service: Container,
    admin: httpx.AsyncClient,
    member: TestUser,
    stranger: TestUser,
    mcp: FakeMcpServer,
    embedder: FakeEmbeddingServer,
) -> None:
    mcp.tools = [READ, WRITE]
    embedder.requests = []
    listings = mcp.listings
    await share(admin, "wiki", transport=mcp.transport, url=mcp.url, everyone=True)
    await settle(service)
    assert set(await member.tools()) == set(await stranger.tools()) == {"read_page", "write_page"}
    assert all(each["embedded"] for each in (await member.tools()).values())
    texts = [text for request in embedder.requests for text in request if "handbook" in text]
    assert (mcp.listings - listings, len(texts)) == (1, 2)


async def test_a_member_with_tags_of_its_own_has_texts_of_its_own(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser, embedder: FakeEmbeddingServer
) -> None:
    shared = await share(admin, "wiki", everyone=True)
    await push_shared(admin, shared, tool("read_letter", "Reads a letter of the alphabet."))
    await settle(service)
    for user in (member, stranger):
        embedder.requests = []
        tool_id = (await user.tools())["read_letter"]["id"]
        assert (await user.http.patch(f"/tools/{tool_id}", json={"tags": ["mine"]})).status_code == 200
        await settle(service)
        # embedded again for the second user, too: otherwise the time would tell that somebody has the same tag
        assert len([text for request in embedder.requests for text in request if "alphabet" in text]) == 1


async def test_a_change_of_the_tools_reaches_members_and_bumps_their_versions(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser
) -> None:
    shared = await share(admin, "wiki", user_ids=[member.id])
    await push_shared(admin, shared, READ)
    await settle(service)
    versions = "SELECT id, catalog_version FROM users WHERE id = ANY(%(ids)s)"
    before = dict(await rows(service, versions, ids=[member.id, stranger.id]))
    await push_shared(admin, shared, tool("read_page", "Reads one page aloud."), WRITE)
    await settle(service)
    tools = await member.tools()
    assert set(tools) == {"read_page", "write_page"}
    assert tools["read_page"]["description"] == "Reads one page aloud."
    history = (await member.http.get(f"/tools/{tools['read_page']['id']}/history")).json()["items"]
    assert [change["fields"] for change in history] == [["description"]]
    after = dict(await rows(service, versions, ids=[member.id, stranger.id]))
    assert after[member.id] > before[member.id]
    assert after[stranger.id] == before[stranger.id]


async def test_an_empty_list_that_was_accepted_at_the_source_empties_the_copies(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    shared = await share(admin, "wiki", user_ids=[member.id])
    await push_shared(admin, shared, READ)
    await settle(service)
    assert set(await member.tools()) == {"read_page"}
    path = f"/servers/{shared['id']}/tools"
    assert (await admin.put(path, json={"tools": []}, params={"wait": True, "force": True})).status_code == 200
    await settle(service)
    assert await member.tools() == {}


async def test_name_tags_permissions_and_switch_follow_the_source(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    shared = await share(admin, "wiki", user_ids=[member.id])
    await push_shared(admin, shared, READ, WRITE)
    await settle(service)
    rules = [{"pattern": ["write_*"], "server": "wiki", "tags": ["dangerous"]}]
    assert (await member.http.put("/rules", json={"rules": rules})).status_code == 200
    changes = {"name": "handbook", "tags": ["docs"], "tool_permissions": {"read_page": False}}
    assert (await admin.patch(f"/shared-servers/{shared['id']}", json=changes)).status_code == 200
    await settle(service)
    tools = await member.tools()
    assert set(await list_shared(member)) == {"handbook"}
    assert set(tools["write_page"]["tags"]) == {"docs", "dangerous"}
    assert (tools["read_page"]["visible"], tools["write_page"]["visible"]) == (False, True)
    await admin.patch(f"/shared-servers/{shared['id']}", json={"enabled": False})
    await settle(service)
    assert not any(each["visible"] for each in (await member.tools()).values())


async def test_rules_switches_and_projects_of_a_member_apply_and_survive_changes(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser
) -> None:
    shared = await share(admin, "wiki", everyone=True)
    await push_shared(admin, shared, READ, WRITE)
    await settle(service)
    copy_id = (await list_shared(member))["wiki"]["id"]
    rules = [{"pattern": ["write_*"], "enabled": False}]
    project = {"name": "reading", "server_ids": [copy_id], "rules": rules}
    project_id = (await member.http.post("/projects", json=project)).json()["id"]
    read_id = (await member.tools())["read_page"]["id"]
    assert (await member.http.patch(f"/tools/{read_id}", json={"enabled": False})).status_code == 200
    await push_shared(admin, shared, READ, WRITE, tool("print_page", "Prints a page of the handbook."))
    await settle(service)
    in_project = await member.discover("page of the handbook", strategy="bm25", project_id=project_id)
    everywhere = await member.discover("page of the handbook", strategy="bm25")
    others = await stranger.discover("page of the handbook", strategy="bm25")
    assert {each["tool"]["name"] for each in in_project["tools"]} == {"print_page"}
    assert {each["tool"]["name"] for each in everywhere["tools"]} == {"print_page", "write_page"}
    assert {each["tool"]["name"] for each in others["tools"]} == {"print_page", "write_page", "read_page"}


async def test_an_administrator_approves_a_changed_tool_for_all_members(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    shared = await share(admin, "wiki", user_ids=[member.id])
    await push_shared(admin, shared, READ)
    await settle(service)
    await push_shared(admin, shared, tool("read_page", "Reads and forwards a page."))
    await settle(service)
    copied = (await member.tools())["read_page"]
    assert copied["state"] == "changed"
    assert_problem(await member.http.post(f"/tools/{copied['id']}/approve"), 403, "forbidden")
    seen = {copied["id"]: copied["definition_hash"]}
    with pytest.raises(Forbidden):
        await approve_tools(service.database, member.id, seen, actor="test")
    assert (await member.tools())["read_page"]["state"] == "changed"
    [source] = (await admin.get("/tools", params={"server_id": shared["id"]})).json()["items"]
    assert (await admin.post(f"/tools/{source['id']}/approve")).status_code == 200
    await settle(service)
    assert (await member.tools())["read_page"]["state"] == "approved"


@pytest.mark.usefixtures("stopped_sync")
async def test_copies_are_made_in_batches_while_few_runs_wait(
    service: Container, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_ids = await add_members(service, 45)
    shared = await share(admin, "wiki", user_ids=user_ids)
    await push_shared(admin, shared, READ)
    sync = SharedServerSync(service.indexer, service.sealer, SyncConfig(max_waiting=5))
    seen: list[int] = []
    count_waiting = sync._count_waiting

    async def record_waiting() -> int:
        seen.append(await count_waiting())
        return seen[-1]

    monkeypatch.setattr(sync, "_count_waiting", record_waiting)
    assert await sync.sync() == 45
    await until(lambda: has_no_runs(service))
    assert max(seen) <= 5
    counted = (await admin.get(f"/shared-servers/{shared['id']}")).json()["members"]
    assert counted == {"total": 45, "ready": 45}
    await remove_members(service, user_ids)


@pytest.mark.usefixtures("stopped_sync")
async def test_a_process_that_ends_between_two_batches_is_continued_by_another(
    service: Container, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_ids = await add_members(service, 12)
    shared = await share(admin, "wiki", user_ids=user_ids)
    dying = SharedServerSync(service.indexer, service.sealer, SyncConfig(max_waiting=4, lease_s=600))
    perform, performed = dying._perform, 0

    async def perform_and_die(task: object) -> bool:
        nonlocal performed
        performed += 1
        if performed > 5:
            raise asyncio.CancelledError
        return await perform(task)  # type: ignore[arg-type]

    async def keep(_: object) -> None:
        """A process that is killed releases nothing."""

    monkeypatch.setattr(dying, "_perform", perform_and_die)
    with monkeypatch.context() as killed:
        killed.setattr(Lease, "release", keep)
        with pytest.raises(asyncio.CancelledError):
            await dying.sync()
    assert await count_copies(service, shared["id"]) == 5
    successor = SharedServerSync(service.indexer, service.sealer)
    assert await successor.sync() == 0, "the lease of the other process has not expired"
    await rows(service, "UPDATE task_leases SET lease_until = now() - interval '1 second'")
    assert await successor.sync() == 7
    assert await count_copies(service, shared["id"]) == 12
    await until(lambda: has_no_runs(service))
    await remove_members(service, user_ids)


@pytest.mark.usefixtures("stopped_sync")
async def test_two_replicas_write_each_copy_once(service: Container, admin: httpx.AsyncClient) -> None:
    user_ids = await add_members(service, 30)
    shared = await share(admin, "wiki", user_ids=user_ids)
    replicas = [SharedServerSync(service.indexer, service.sealer) for _ in range(2)]
    written = await asyncio.gather(*(replica.sync() for replica in replicas))
    assert sorted(written) == [0, 30]
    events = "SELECT count(*) FROM audit_events WHERE action = 'server.share' AND user_id = ANY(%(ids)s)"
    assert await rows(service, events, ids=user_ids) == [(30,)]
    assert await count_copies(service, shared["id"]) == 30
    await until(lambda: has_no_runs(service))
    await remove_members(service, user_ids)


@pytest.mark.usefixtures("stopped_sync")
async def test_another_process_hears_of_a_new_shared_server(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    """The process that serves the request does not copy; the one that copies hears of it through Postgres."""
    url = service.database.engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
    async with open_container(service.settings, url, serving=False) as other:
        await share(admin, "wiki", user_ids=[member.id])

        async def has_copy() -> bool:
            return "wiki" in await list_shared(member)

        await until(has_copy)
        await settle(other)


async def test_a_refresh_lists_the_source_and_no_copy(
    service: Container, admin: httpx.AsyncClient, member: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [READ]
    shared = await share(admin, "wiki", transport=mcp.transport, url=mcp.url, user_ids=[member.id])
    await settle(service)
    await rows(service, "UPDATE index_runs SET created_at = now() - interval '1 day'")
    listings = mcp.listings
    mcp.tools = [READ, WRITE]
    worker = Worker(service.indexer, WorkerConfig(slots=None, pending_retry_s=60, reindex_every_s=3600))
    assert await worker.enqueue_due() == 1
    await settle(service)
    assert set(await member.tools()) == {"read_page", "write_page"}
    assert mcp.listings - listings == 1
    assert shared["id"] != (await list_shared(member))["wiki"]["id"]


async def test_a_user_deleted_during_a_pass_does_not_stop_it(
    service: Container, admin: httpx.AsyncClient, stopped_sync: SharedServerSync
) -> None:
    async with new_user(service) as leaving, new_user(service) as staying:
        shared = await share(admin, "wiki", user_ids=[leaving.id, staying.id])
        sync = stopped_sync
        tasks = await sync._find_tasks((), 10)
        assert (await admin.delete(f"/users/{leaving.id}")).status_code == 204
        assert [await sync._perform(task) for task in tasks] == [True, True]
        assert await count_copies(service, shared["id"]) == 1


async def age_failures(container: Container, user_id: str, seconds: int) -> None:
    """Let the failed runs of the user have ended earlier."""
    earlier = "UPDATE index_runs SET finished_at = now() - make_interval(secs => %(age)s) WHERE state = 'failed'"
    await rows(container, f"{earlier} AND user_id = %(id)s", age=seconds, id=user_id)


async def test_a_run_of_a_copy_that_failed_is_repeated_with_longer_and_longer_pauses(
    service: Container,
    admin: httpx.AsyncClient,
    member: TestUser,
    stopped_sync: SharedServerSync,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def count_runs() -> int:
        await until(lambda: has_no_runs(service))
        [(count,)] = await rows(service, "SELECT count(*) FROM index_runs WHERE user_id = %(id)s", id=member.id)
        return int(count)

    async def fail(*_arguments: object) -> None:
        raise RuntimeError("no room on the disk")

    shared = await share(admin, "wiki", user_ids=[member.id])
    await push_shared(admin, shared, READ)
    with monkeypatch.context() as broken:
        broken.setattr(store, "write_approvals", fail)
        for pause_s, runs in ((0, 1), (29, 1), (31, 2), (59, 2), (61, 3)):
            await age_failures(service, member.id, pause_s)
            await stopped_sync.sync()
            assert await count_runs() == runs
        assert (await admin.get(f"/shared-servers/{shared['id']}")).json()["members"] == {"total": 1, "ready": 0}
        assert (await list_shared(member))["wiki"]["last_error"]
    await age_failures(service, member.id, 3600)
    limited = SharedServerSync(service.indexer, service.sealer, SyncConfig(max_retries=2))
    await limited.sync()
    assert await count_runs() == 3, "three failures are more than two retries"
    await stopped_sync.sync()
    assert await count_runs() == 4
    assert (await admin.get(f"/shared-servers/{shared['id']}")).json()["members"] == {"total": 1, "ready": 1}
    assert set(await member.tools()) == {"read_page"}
    assert (await list_shared(member))["wiki"]["last_error"] is None
    await age_failures(service, member.id, 3600)
    await stopped_sync.sync()
    assert await count_runs() == 4, "it has succeeded since"


async def test_a_run_of_a_copy_whose_source_is_gone_ends_at_once(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stopped_sync: SharedServerSync
) -> None:
    """Runs that stay in progress would keep the task from removing the copies."""
    shared = await share(admin, "wiki", user_ids=[member.id])
    await stopped_sync.sync()
    copy_id = (await list_shared(member))["wiki"]["id"]
    assert (await member.reindex(copy_id))["state"] == "succeeded"
    assert (await admin.delete(f"/shared-servers/{shared['id']}")).status_code == 204
    run = await member.reindex(copy_id)
    assert (run["state"], "no longer shared" in run["error"]["message"]) == ("failed", True)
    await SharedServerSync(service.indexer, service.sealer, SyncConfig(max_waiting=1)).sync()
    assert await list_shared(member) == {}
