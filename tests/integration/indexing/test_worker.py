"""The worker's loops: they process queued runs, and an error in one run does not stop them."""

import asyncio

import pytest

from app.catalog.servers import get_endpoint
from app.indexing import queue
from app.indexing.worker import Job, Worker, WorkerConfig
from tests.support.clients import TestUser
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.worker_steps import (
    Hand,
    asked,
    finished,
    levels_of,
    rows,
    send,
    server_of,
    unheard,
    until,
    working,
)


async def add_pending(hand: Hand, user: TestUser, fake: FakeEmbeddingServer, name: str) -> str:
    """Add a server whose tool could not be embedded when it was pushed."""
    mode, fake.mode = fake.mode, "zeros"
    server_id = await user.add_server(name)
    await send(user, server_id, [unheard(f"tool_of_{name}")])
    await hand.perform()
    assert (await server_of(user, server_id))["pending_count"] == 1
    fake.mode = mode
    return server_id


async def test_a_run_claimed_just_before_the_worker_stops_is_put_back_into_the_queue(
    hand: Hand, alice: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await send(alice, await alice.add_server(), [unheard("a")])
    start_task, stopping = Worker._start_task, asyncio.Queue[asyncio.Task[None]]()

    def stop_before_start(worker: Worker, job: Job) -> None:
        stopping.put_nowait(asyncio.create_task(worker.stop()))
        start_task(worker, job)

    monkeypatch.setattr(Worker, "_start_task", stop_before_start)
    async with working(hand):
        await (await stopping.get())
    assert await hand.run_row(run["id"], "state", "attempts") == ("queued", 0)


async def test_a_run_queued_by_another_replica_is_found_by_polling(hand: Hand, alice: TestUser) -> None:
    async with working(hand):
        await asyncio.sleep(0.05)  # the worker has found the queue empty and waits
        run = await send(alice, await alice.add_server(), [unheard("a")])
        assert (await finished(alice, run["id"]))["state"] == "succeeded"


async def test_a_notified_worker_starts_at_once(hand: Hand, alice: TestUser) -> None:
    async with working(hand, poll_interval_s=60.0) as worker:
        await asyncio.sleep(0.05)
        run = await send(alice, await alice.add_server(), [unheard("a")])
        worker.notify()
        assert (await finished(alice, run["id"]))["state"] == "succeeded"


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        (b"not json", "invalid_input"),
        (b"{}", "internal_error"),
        (b'{"tools": 7}', "internal_error"),
        (b"[]", "internal_error"),
    ],
)
async def test_an_invalid_run_fails_with_its_cause_and_the_next_run_succeeds(
    hand: Hand, alice: TestUser, payload: bytes, cause: str
) -> None:
    bad, good = await alice.add_server("bad"), await alice.add_server("good")
    async with hand.container.database.transaction(alice.id) as session:
        broken = await queue.enqueue(session, alice.id, bad, payload, force=False)
    run = await send(alice, good, [unheard("a")])
    async with working(hand):
        failed = await finished(alice, broken.id)
        assert (await finished(alice, run["id"]))["state"] == "succeeded"
    assert failed["state"] == "failed"
    assert failed["error"]["cause"] == cause
    assert "Traceback" not in failed["error"]["message"]


async def test_a_run_whose_server_is_deleted_midway_does_not_stop_the_worker(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    deleted, other = await alice.add_server("deleted"), await alice.add_server("other")
    await send(alice, deleted, [unheard("a")])
    run = await send(alice, other, [unheard("b")])
    fake.mode = "hang"
    async with working(hand):
        await asked(fake)
        await alice.http.delete(f"/servers/{deleted}")
        fake.mode = "ok"
        fake.release()
        assert (await finished(alice, run["id"]))["state"] == "succeeded"
    assert set(await alice.tools()) == {"b"}


async def test_a_server_deleted_when_its_run_starts_causes_no_warning(
    hand: Hand, alice: TestUser, caplog: pytest.LogCaptureFixture
) -> None:
    deleted = await alice.add_server("deleted")
    run = await send(alice, deleted, [unheard("a")])
    claimed = await hand.take()
    await alice.http.delete(f"/servers/{deleted}")
    caplog.set_level("INFO", "toolscout.worker")
    worker = Worker(hand.indexer, WorkerConfig(slots=None, pending_retry_s=60, reindex_every_s=0))
    await worker._process(claimed)
    assert levels_of(caplog, run["id"]) == ["INFO"]


async def test_a_running_run_keeps_its_lease(hand: Hand, alice: TestUser, fake: FakeEmbeddingServer) -> None:
    run = await send(alice, await alice.add_server(), [unheard("a")])
    fake.mode = "hang"
    async with working(hand, lease_s=0.1):
        await asked(fake)
        await hand.expire_leases()

        async def is_leased_again() -> bool:
            [alive] = await hand.run_row(run["id"], "lease_until > now()")
            return bool(alive)

        await until(is_leased_again)
        fake.release()
        assert (await finished(alice, run["id"]))["state"] == "succeeded"


async def test_pending_tools_are_queued_when_the_embedder_recovers(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await add_pending(hand, alice, fake, "late")
    worker = Worker(hand.indexer, WorkerConfig(slots=None, pending_retry_s=0.001, reindex_every_s=0))
    fake.mode = "zeros"
    assert await worker.enqueue_pending() == 0
    fake.mode = "ok"
    assert await worker.enqueue_pending() == 1
    assert (await hand.perform()).server_id == server_id
    assert (await server_of(alice, server_id))["pending_count"] == 0
    assert all(tool["embedded"] for tool in (await alice.tools()).values())


async def test_a_queued_server_is_not_queued_again_for_its_pending_tools(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await add_pending(hand, alice, fake, "late")
    await send(alice, server_id, [unheard("a")])
    worker = Worker(hand.indexer, WorkerConfig(slots=None, pending_retry_s=0.001, reindex_every_s=0))
    assert await worker.enqueue_pending() == 0
    assert (await hand.take()).payload is not None


async def test_a_long_outage_of_the_embedder_produces_no_failing_runs(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await add_pending(hand, alice, fake, "late")
    fake.mode, fake.requests = "zeros", []
    async with working(hand, pending_retry_s=0.02):
        await asked(fake, times=5)
        assert len((await alice.http.get(f"/servers/{server_id}/runs")).json()["items"]) == 1


async def test_the_pause_doubles_after_each_failed_attempt(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    """A tool that the embedder always refuses must not be retried at the same rate for ever."""
    server_id = await add_pending(hand, alice, fake, "stubborn")
    worker = Worker(hand.indexer, WorkerConfig(slots=None, pending_retry_s=60, reindex_every_s=0))
    for too_soon_s, due_s in ((50, 61), (110, 121), (230, 241)):
        await set_last_attempt(hand, server_id, too_soon_s)
        assert await worker.enqueue_pending() == 0
        await set_last_attempt(hand, server_id, due_s)
        assert await worker.enqueue_pending() == 1
        fake.mode = "zeros"
        await hand.perform()
        fake.mode = "ok"
    await set_last_attempt(hand, server_id, 3_601)
    assert await worker.enqueue_pending() == 1


async def set_last_attempt(hand: Hand, server_id: str, seconds_ago: int) -> None:
    statement = "UPDATE mcp_servers SET updated_at = now() - make_interval(secs => %(s)s) WHERE id = %(id)s"
    await rows(hand.container, statement, s=seconds_ago, id=server_id)


async def test_a_server_deleted_before_it_is_queued_does_not_block_the_others(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    """The server is deleted after the pending servers are read and before they are queued."""
    deleted = await add_pending(hand, alice, fake, "deleted")
    late = await add_pending(hand, alice, fake, "late")
    fake.mode, fake.requests = "hang", []
    async with working(hand, pending_retry_s=0.05):
        await asked(fake)
        assert (await alice.http.delete(f"/servers/{deleted}")).status_code == 204
        fake.mode = "ok"
        fake.release()

        async def is_done() -> bool:
            return (await server_of(alice, late))["pending_count"] == 0  # type: ignore[no-any-return]

        await until(is_done)


async def announce(hand: Hand, worker: Worker, user: TestUser, server_id: str, times: int = 1) -> None:
    async with hand.container.database.transaction(user.id) as session:
        endpoint = await get_endpoint(session, hand.container.sealer, user.id, server_id)
    for _ in range(times):
        worker.on_tools_changed(endpoint)


async def runs_of(hand: Hand, server_id: str) -> list[tuple[str, str]]:
    statement = "SELECT asked_by, state FROM index_runs WHERE server_id = %(id)s ORDER BY created_at"
    return [(asked_by, state) for asked_by, state in await rows(hand.container, statement, id=server_id)]


async def test_announcements_in_quick_succession_cause_one_run(hand: Hand, alice: TestUser) -> None:
    server_id, other = await alice.add_server("talkative"), await alice.add_server("quiet")
    expected_run = (f"server:{server_id}", "succeeded")
    async with working(hand, debounce_s=0.1, debounce_interval_s=0.1) as worker:
        for times in (1, 2):
            await announce(hand, worker, alice, server_id, times=10)

            async def is_done(expected: list[tuple[str, str]] = [expected_run] * times) -> bool:
                return await runs_of(hand, server_id) == expected

            await until(is_done)
    assert await runs_of(hand, other) == []


async def test_an_announcement_of_a_deleted_server_is_ignored(
    hand: Hand, alice: TestUser, caplog: pytest.LogCaptureFixture
) -> None:
    gone, server_id = await alice.add_server("gone"), await alice.add_server("there")
    async with working(hand, debounce_s=0.05) as worker:
        for each in (gone, server_id):
            await announce(hand, worker, alice, each)
        await alice.http.delete(f"/servers/{gone}")

        async def is_done() -> bool:
            return [state for _, state in await runs_of(hand, server_id)] == ["succeeded"]

        await until(is_done)
    assert await runs_of(hand, gone) == []
    assert [record for record in caplog.records if record.name == "toolscout.worker" and record.exc_info] == []


async def test_a_stopped_worker_ignores_announcements(hand: Hand, alice: TestUser) -> None:
    server_id = await alice.add_server()
    async with working(hand, debounce_s=0.01) as worker:
        pass
    await announce(hand, worker, alice, server_id)
    await asyncio.sleep(0.05)
    assert await runs_of(hand, server_id) == []


async def test_without_a_worker_runs_stay_queued(hand: Hand, alice: TestUser) -> None:
    run = await send(alice, await alice.add_server(), [unheard("a")])
    worker = Worker(hand.indexer, WorkerConfig(slots=None, pending_retry_s=0.01, reindex_every_s=0))
    worker.start()
    worker.notify()
    await asyncio.sleep(0.1)
    await worker.stop()
    assert await hand.run_row(run["id"], "state", "attempts") == ("queued", 0)
    await hand.perform()
    assert await rows(hand.container, "SELECT state FROM index_runs") == [("succeeded",)]
