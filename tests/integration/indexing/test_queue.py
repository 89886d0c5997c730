"""The queue: an accepted run is executed once, by the worker that holds the lease."""

import asyncio
from typing import Any

import pytest

from app.container import Container
from app.db.pagination import PageRequest
from app.errors import NotFound
from app.indexing import queue
from app.indexing.reindex import reindex_server
from app.indexing.worker import Worker, WorkerConfig
from tests.integration.indexing.conftest import UNUSED_ADDRESS
from tests.support.clients import TestUser
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import tool
from tests.support.worker_steps import (
    Hand,
    asked,
    finished,
    holding,
    make_slots,
    numbered,
    rows,
    send,
    unheard,
    waiting,
)

pytestmark = pytest.mark.no_retry


async def run_states(container: Container, server_id: str) -> list[str]:
    statement = "SELECT state FROM index_runs WHERE server_id = %(id)s ORDER BY created_at"
    return [state for (state,) in await rows(container, statement, id=server_id)]


async def tool_names(user: TestUser) -> set[str]:
    return set(await user.tools())


async def test_a_push_replaces_the_list_of_a_queued_run(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    runs = await asyncio.gather(*(send(alice, server_id, [tool(f"v{number}")]) for number in range(100)))
    last = await send(alice, server_id, [tool("last")])
    assert {run["id"] for run in runs} == {last["id"]}
    assert await run_states(hand.container, server_id) == ["queued"]
    await hand.perform()
    assert await tool_names(alice) == {"last"}


async def test_pushes_during_a_run_share_one_queued_run(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [tool("first")])
    running = await hand.take()
    await asyncio.gather(*(send(alice, server_id, [tool(f"v{number}")]) for number in range(100)))
    last = await send(alice, server_id, [tool("last")])
    assert await run_states(hand.container, server_id) == ["running", "queued"]
    assert last["id"] != running.id
    await reindex_server(hand.indexer, running)
    assert await tool_names(alice) == {"first"}
    await hand.perform()
    assert await tool_names(alice) == {"last"}
    assert await run_states(hand.container, server_id) == ["succeeded", "succeeded"]


async def test_after_a_hundred_pushes_the_last_list_is_indexed(service: Container, carol: TestUser) -> None:
    server_id = await carol.add_server()
    seen: list[list[str]] = []

    async def watch() -> None:
        while True:
            seen.append(await run_states(service, server_id))
            await asyncio.sleep(0.005)

    watcher = asyncio.create_task(watch())
    runs = await asyncio.gather(*(send(carol, server_id, numbered(5, f"v{number}")) for number in range(100)))
    last = await send(carol, server_id, numbered(4, "the last"))
    ended = [await finished(carol, run_id) for run_id in {run["id"] for run in (*runs, last)}]
    watcher.cancel()
    await asyncio.wait({watcher})
    assert {run["state"] for run in ended} == {"succeeded"}
    assert {each["description"].rpartition(". ")[2] for each in (await carol.tools()).values()} == {"the last"}
    assert len(await carol.tools()) == 4
    assert all(states.count("queued") <= 1 and states.count("running") <= 1 for states in seen)


async def test_the_oldest_run_is_claimed_first_and_a_newer_list_keeps_its_position(
    hand: Hand, alice: TestUser, bob: TestUser
) -> None:
    first, second = await alice.add_server("first"), await bob.add_server("second")
    third = await alice.add_server("third")
    for user, server_id in ((alice, first), (bob, second), (alice, third), (alice, first)):
        await send(user, server_id, [tool(server_id)])
    claims = [await hand.take() for _ in range(3)]
    assert [claim.server_id for claim in claims] == [first, second, third]
    assert [claim.user_id for claim in claims] == [alice.id, bob.id, alice.id]
    assert await hand.claim() is None


async def test_the_user_with_the_fewest_runs_in_progress_comes_first(
    hand: Hand, alice: TestUser, bob: TestUser
) -> None:
    for number in range(3):
        await send(alice, await alice.add_server(f"server-{number}"), [tool("a")])
    await send(bob, await bob.add_server(), [tool("a")])
    assert [(await hand.take()).user_id for _ in range(4)] == [alice.id, bob.id, alice.id, alice.id]


async def test_runs_without_room_are_left_for_others(hand: Hand, alice: TestUser, bob: TestUser) -> None:
    await send(alice, await alice.add_server("pushed"), [tool("a")])
    await alice.add_server("listed", transport="streamable_http", url=f"http://{UNUSED_ADDRESS}/a")
    await bob.add_server("listed", transport="streamable_http", url=f"http://{UNUSED_ADDRESS}/b?c")
    host = UNUSED_ADDRESS
    for room, expected in [
        (queue.Room(pushes=False, listings=False), None),
        (queue.Room(pushes=False, full_hosts=[host]), None),
        (queue.Room(pushes=False, full_listing_users=[alice.id, bob.id]), None),
        (queue.Room(listings=False, full_push_users=[alice.id]), None),
        (queue.Room(full_listing_users=[alice.id], full_push_users=[alice.id]), (bob.id, host)),
        (queue.Room(full_hosts=[host], full_listing_users=[alice.id]), (alice.id, None)),
        (queue.Room(pushes=False, full_hosts=["another.example"]), (alice.id, host)),
    ]:
        async with hand.container.database.system_transaction() as session:
            claim = await queue.claim_run(session, 60.0, room=room)
        assert (None if claim is None else (claim.user_id, claim.host)) == expected


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://mcp.example", "mcp.example"),
        ("https://MCP.example:443/mcp", "mcp.example"),
        ("https://mcp.example:8443?a=b", "mcp.example:8443"),
        ("https://[2606:4700::1111]:4443/mcp", "[2606:4700::1111]:4443"),
    ],
)
async def test_a_claim_names_the_host_of_the_server(hand: Hand, alice: TestUser, url: str, host: str) -> None:
    await alice.add_server(transport="streamable_http", url=url)
    assert (await hand.take()).host == host


async def test_a_push_to_a_server_with_an_address_needs_no_server(hand: Hand, alice: TestUser) -> None:
    url = f"http://{UNUSED_ADDRESS}"
    server_id = await alice.add_server(transport="streamable_http", url=url, enabled=False)
    await send(alice, server_id, [tool("a")])
    assert (await hand.take()).host is None


async def test_a_queued_run_waits_only_for_the_running_run_of_its_server(hand: Hand, alice: TestUser) -> None:
    busy, free = await alice.add_server("busy"), await alice.add_server("free")
    await send(alice, busy, [tool("a")])
    running = await hand.take()
    await send(alice, busy, [tool("b")])
    await send(alice, free, [tool("c")])
    assert (await hand.take()).server_id == free
    assert await hand.claim() is None
    await reindex_server(hand.indexer, running)
    assert (await hand.take()).server_id == busy


async def test_concurrent_workers_claim_different_runs(hand: Hand, alice: TestUser) -> None:
    servers = [await alice.add_server(f"server-{number}") for number in range(8)]
    for server_id in servers:
        await send(alice, server_id, [tool("a")])
    claims = await asyncio.gather(*(hand.take() for _ in servers))
    assert {claim.server_id for claim in claims} == set(servers)


async def test_a_leased_run_cannot_be_claimed_again(hand: Hand, alice: TestUser) -> None:
    await send(alice, await alice.add_server(), [tool("a")])
    claimed = await hand.take()
    assert await hand.claim() is None
    await reindex_server(hand.indexer, claimed)
    assert await tool_names(alice) == {"a"}


async def test_a_run_with_an_expired_lease_is_claimed_with_a_higher_token(hand: Hand, alice: TestUser) -> None:
    await send(alice, await alice.add_server(), [tool("a")], force=True)
    first = await hand.take()
    await hand.expire_leases()
    second = await hand.take()
    assert (second.id, second.payload, second.force) == (first.id, first.payload, True)
    assert second.lease_token > first.lease_token
    assert (first.attempts, second.attempts) == (1, 2)


async def test_a_worker_that_lost_its_lease_writes_nothing_and_the_new_owner_does(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [tool("a")])
    old = await hand.take()
    await hand.expire_leases()
    new = await hand.take()
    before = await hand.run_row(new.id, "state", "done", "total", "lease_until", "lease_token", "error")
    with pytest.raises(queue.LeaseLost):
        await reindex_server(hand.indexer, old)
    async with hand.container.database.transaction(alice.id) as session:
        with pytest.raises(queue.LeaseLost):
            await queue.report_progress(session, old, 7, 9)
        with pytest.raises(queue.LeaseLost):
            await queue.fence(session, old)
        await queue.renew_lease(session, old)
        await queue.succeed(session, old, queue.RunSummary(added=1), 1)
        await queue.fail(session, old, "cause", "message", queue.RunSummary())
        await queue.release(session, old, 0)
        await queue.requeue(session, old)
    assert await hand.run_row(new.id, "state", "done", "total", "lease_until", "lease_token", "error") == before
    assert await tool_names(alice) == set()
    await reindex_server(hand.indexer, new)
    assert await tool_names(alice) == {"a"}
    assert await run_states(hand.container, server_id) == ["succeeded"]


async def test_a_stalled_worker_that_resumes_after_its_lease_writes_nothing(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [unheard("a")])
    fake.mode = "hang"
    stalled = asyncio.create_task(reindex_server(hand.indexer, await hand.take()))
    await asked(fake)
    fake.mode = "ok"
    await hand.expire_leases()
    await hand.perform()
    await send(alice, server_id, [tool("b")])
    await hand.perform()
    fake.release()
    with pytest.raises(queue.LeaseLost):
        await stalled
    assert await tool_names(alice) == {"b"}


async def test_the_owner_can_renew_its_lease(hand: Hand, alice: TestUser) -> None:
    await send(alice, await alice.add_server(), [tool("a")])
    claimed = await hand.take()
    await hand.expire_leases()
    async with hand.container.database.transaction(alice.id) as session:
        await queue.renew_lease(session, claimed)
    assert await hand.claim() is None
    await hand.expire_leases()
    async with hand.container.database.transaction(alice.id) as session:
        await queue.report_progress(session, claimed, 1, 2)
    assert await hand.claim() is None
    assert await hand.run_row(claimed.id, "done", "total") == (1, 2)


async def crash(hand: Hand, times: int) -> str:
    for _ in range(times):
        claimed = await hand.take()
        await hand.expire_leases()
    return claimed.id


@pytest.mark.parametrize(
    ("crashes", "state", "cause"),
    [(queue.MAX_ATTEMPTS - 1, "succeeded", None), (queue.MAX_ATTEMPTS, "failed", "crashed")],
)
async def test_a_run_that_crashes_its_worker_repeatedly_fails(
    hand: Hand, alice: TestUser, crashes: int, state: str, cause: str | None
) -> None:
    await send(alice, await alice.add_server(), [tool("a")])
    run_id = await crash(hand, crashes)
    worker = Worker(hand.indexer, WorkerConfig(slots=make_slots(), pending_retry_s=60, reindex_every_s=0))
    worker.start()
    try:
        run = await finished(alice, run_id)
    finally:
        await worker.stop()
    assert run["state"] == state
    assert (run["error"] and run["error"]["cause"]) == cause
    assert run["finished_at"] is not None
    assert await tool_names(alice) == ({"a"} if state == "succeeded" else set())


async def test_a_worker_that_stops_cleanly_requeues_its_run(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [unheard("a")])
    fake.mode = "hang"
    worker = Worker(hand.indexer, WorkerConfig(slots=make_slots(), pending_retry_s=60, reindex_every_s=0))
    worker.start()
    await asked(fake)
    assert await run_states(hand.container, server_id) == ["running"]
    await worker.stop()
    assert await run_states(hand.container, server_id) == ["queued"], "no worker processes it"
    fake.mode = "ok"
    again = await hand.take()
    assert (again.attempts, again.lease_token) == (1, 2)
    assert again.payload is not None
    await reindex_server(hand.indexer, again)
    assert await tool_names(alice) == {"a"}


async def test_a_requeued_run_is_processed_before_the_servers_next_run(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [tool("a")])
    claimed = await hand.take()
    later = await send(alice, server_id, [tool("b")])
    async with hand.container.database.transaction(alice.id) as session:
        await queue.requeue(session, claimed)
    assert (await hand.perform()).id == claimed.id
    assert (await hand.perform()).id == later["id"]
    assert await tool_names(alice) == {"b"}


async def test_a_requeue_waits_for_a_concurrent_enqueue(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [tool("a")])
    claimed, database = await hand.take(), hand.container.database

    async def requeue() -> None:
        async with database.transaction(alice.id) as session:
            await queue.requeue(session, claimed)

    async with holding(hand.container, "SELECT 1") as watcher:
        async with database.transaction(alice.id) as session:
            await queue.enqueue(session, alice.id, server_id)
            requeueing = asyncio.create_task(requeue())
            await waiting(watcher, 1)
        await requeueing
    assert sorted(await run_states(hand.container, server_id)) == ["queued", "running"]
    assert (await hand.perform()).id == claimed.id


async def test_the_pushed_list_is_stored_unchanged_until_the_run_ends(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    body = b'{ "tools" : [ {"name": "a", "description": "Gr\\u00fc\\u00dfe"} ] }'
    accepted = await alice.http.put(
        f"/servers/{server_id}/tools", content=body, headers={"Content-Type": "application/json"}
    )
    claimed = await hand.take()
    assert claimed.payload == body
    await reindex_server(hand.indexer, claimed)
    assert await hand.run_row(accepted.json()["id"], "state", "payload", "lease_until") == ("succeeded", None, None)


async def test_the_pushed_list_of_a_failed_run_is_deleted(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [tool("a")])
    await hand.perform()
    await send(alice, server_id, [])
    claimed = await hand.perform()
    assert await hand.run_row(claimed.id, "state", "payload", "lease_until") == ("failed", None, None)


@pytest.mark.parametrize("first", ["push", "reindex"])
async def test_a_merged_reindex_and_push_keep_the_list_and_the_force_flag(
    hand: Hand, alice: TestUser, first: str
) -> None:
    server_id = await alice.add_server()
    requests = [
        send(alice, server_id, [tool("a")]),
        alice.http.post(f"/servers/{server_id}/reindex", params={"force": True}),
    ]
    for request in requests if first == "push" else reversed(requests):
        await request
    claimed = await hand.take()
    assert claimed.force
    assert claimed.payload is not None
    assert b'"a"' in claimed.payload


@pytest.mark.parametrize(("forced", "state"), [(False, "failed"), (True, "succeeded")])
async def test_an_empty_list_needs_its_own_force_flag(hand: Hand, alice: TestUser, forced: bool, state: str) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [tool("a")])
    await hand.perform()
    await send(alice, server_id, [tool("b")], force=not forced)
    await send(alice, server_id, [], force=forced)
    claimed = await hand.perform()
    assert await hand.run_row(claimed.id, "state") == (state,)
    assert await tool_names(alice) == (set() if forced else {"a"})


async def test_only_the_newest_finished_runs_of_a_server_are_kept(
    hand: Hand, alice: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_FINISHED_RUNS", 3)
    busy, quiet = await alice.add_server("busy"), await alice.add_server("quiet")
    await send(alice, quiet, [tool("a")])
    await hand.perform()
    run_ids = []
    for number in range(5):
        await send(alice, busy, [tool(f"v{number}")])
        run_ids.append((await hand.perform()).id)
    kept = (await alice.http.get(f"/servers/{busy}/runs")).json()["items"]
    assert [run["id"] for run in kept] == run_ids[:1:-1]
    assert len((await alice.http.get(f"/servers/{quiet}/runs")).json()["items"]) == 1


async def test_a_run_whose_server_is_deleted_writes_nothing(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [unheard("a")])
    fake.mode = "hang"
    running = asyncio.create_task(reindex_server(hand.indexer, await hand.take()))
    await asked(fake)
    await alice.http.delete(f"/servers/{server_id}")
    fake.release()
    with pytest.raises(queue.LeaseLost):
        await running
    assert await tool_names(alice) == set()


async def test_a_deletion_does_not_deadlock_with_a_run_that_is_applied(hand: Hand, alice: TestUser) -> None:
    """Both lock the server first; with the run locked first, each would wait for the other."""
    server_id = await alice.add_server()
    await send(alice, server_id, [tool("a")])
    async with holding(hand.container, "SELECT FROM mcp_servers WHERE id = %s FOR UPDATE", server_id) as blocker:
        deleting = asyncio.create_task(alice.http.delete(f"/servers/{server_id}"))
        await waiting(blocker, 1)
        applying = asyncio.create_task(hand.perform())
        await waiting(blocker, 2)
    assert (await deleting).status_code == 204  # in a deadlock Postgres would cancel one of the two
    with pytest.raises(queue.LeaseLost):
        await applying
    assert await tool_names(alice) == set()


async def test_a_request_reuses_a_run_that_started_after_it_and_no_earlier_one(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()

    async def request(age_s: float) -> str:
        async with hand.container.database.transaction(alice.id) as session:
            return (await queue.request_reindex(session, alice.id, server_id, "user:asker", age_s)).id

    first = await request(0.0)
    assert (await hand.take()).id == first
    assert await request(10.0) == first
    later = await request(0.0)
    assert later != first
    async with hand.container.database.transaction(alice.id) as session:
        forced = await queue.enqueue(session, alice.id, server_id, force=True)
    assert forced.id == later


async def test_a_reindex_request_does_not_reuse_the_run_of_a_pushed_list(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    pushed = await send(alice, server_id, [tool("a")])
    await hand.take()
    async with hand.container.database.transaction(alice.id) as session:
        run = await queue.request_reindex(session, alice.id, server_id, "user:asker", 10.0)
    assert run.id != pushed["id"]


async def test_a_lease_has_the_requested_duration(hand: Hand, alice: TestUser) -> None:
    await send(alice, await alice.add_server(), [tool("a")])
    async with hand.container.database.system_transaction() as session:
        claimed = await queue.claim_run(session, 700.0)
    assert claimed is not None
    remaining = "extract(epoch FROM lease_until - now())::float"
    [seconds] = await hand.run_row(claimed.id, remaining)
    assert 600 < seconds <= 700
    await hand.expire_leases()
    async with hand.container.database.transaction(alice.id) as session:
        await queue.renew_lease(session, claimed)
    [seconds] = await hand.run_row(claimed.id, remaining)
    assert 600 < seconds <= 700


async def test_a_run_that_the_database_interrupted_is_retried_after_a_pause(hand: Hand, alice: TestUser) -> None:
    """Otherwise all attempts would be used up before the database has recovered."""
    await send(alice, await alice.add_server(), [tool("a")])
    claimed = await hand.take()
    async with hand.container.database.transaction(alice.id) as session:
        await queue.release(session, claimed, 30.0)
    assert await hand.claim() is None
    await hand.expire_leases()
    assert (await hand.take()).attempts == 2


async def test_runs_are_listed_newest_first_in_pages(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    run_ids = []
    for number in range(3):
        await send(alice, server_id, [tool(f"v{number}")])
        run_ids.append((await hand.perform()).id)
    listed: list[str] = []
    cursor: str | None = None
    async with hand.container.database.transaction(alice.id) as session:
        for _ in range(2):
            page = await queue.list_runs(session, alice.id, server_id, PageRequest(2, cursor))
            listed += [run.id for run in page.items]
            cursor = page.next_cursor
    assert listed == run_ids[::-1]
    assert cursor is None


async def test_a_run_is_visible_only_to_its_user(hand: Hand, alice: TestUser, bob: TestUser) -> None:
    run: dict[str, Any] = await send(alice, await alice.add_server(), [tool("a")])
    database = hand.container.database
    async with database.transaction(alice.id) as session:
        assert (await queue.get_run(session, alice.id, run["id"])).id == run["id"]
    async with database.transaction(bob.id) as session:
        with pytest.raises(NotFound):
            await queue.get_run(session, bob.id, run["id"])
    async with database.system_transaction() as session:
        assert await queue.get_run_owner(session, run["id"]) == alice.id
        with pytest.raises(NotFound):
            await queue.get_run_owner(session, "no-such-run")


async def test_a_merged_request_still_fetches_the_list_from_the_server(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server("both")
    database = hand.indexer.database
    async with database.transaction(alice.id) as session:
        pushed = await queue.enqueue(session, alice.id, server_id, b'{"tools": []}', asked_by="user:pusher")
    claimed = await hand.take()
    assert (claimed.id, claimed.fetch_from_server) == (pushed.id, False)
    async with database.transaction(alice.id) as session:
        requested = await queue.request_reindex(session, alice.id, server_id, "user:asker", 60)
        assert requested.id != pushed.id
        joined = await queue.enqueue(session, alice.id, server_id, b'{"tools": []}', asked_by="user:pusher")
        scheduled = await queue.enqueue(session, alice.id, server_id, asked_by=queue.SCHEDULE)
    assert {joined.id, scheduled.id} == {requested.id}
    async with database.transaction(alice.id) as session:
        await queue.succeed(session, claimed, queue.RunSummary(), 0)
    last = await hand.take()
    assert (last.id, last.fetch_from_server, last.asked_by) == (requested.id, True, "user:pusher")
