"""Public lists are fetched once for all users of a URL. Private ones, and those of users with credentials, are not."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from app.container import Container, open_container
from app.db.retention import delete_in_batches
from app.indexing import public_listings
from app.indexing.public_listings import expired_rows, fetch_once, get_listing_key, invalidate
from app.indexing.worker import Worker, WorkerConfig
from app.local_postgres.postgres import EmbeddedPostgres
from app.mcp_types import Endpoint, ToolList
from tests.integration.indexing.conftest import open_user
from tests.support.clients import TestUser, get_app
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import make_database, make_settings, outbound_allow, tool
from tests.support.mcp_server import FakeMcpServer, Fault, running_mcp_server, status
from tests.support.worker_steps import rows, until

HOUR_MS = 3_600_000
TOOLS: list[dict[str, Any]] = [tool("get_forecast", "Weather forecast"), tool("get_alarm", "Weather alarm")]


@pytest.fixture(scope="module")
def shared_upstream() -> Iterator[FakeMcpServer]:
    with running_mcp_server() as running:
        yield running


@pytest.fixture(scope="module")
async def sharing_service(
    postgres: EmbeddedPostgres,
    shared_fake: FakeEmbeddingServer,
    shared_upstream: FakeMcpServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Container]:
    settings = make_settings(
        tmp_path_factory.mktemp("sharing"), outbound_allow=outbound_allow(shared_upstream), **shared_fake.settings()
    )
    async with open_container(settings, make_database(postgres)) as opened:
        yield opened


@pytest.fixture
async def upstream(shared_upstream: FakeMcpServer, sharing_service: Container) -> AsyncIterator[FakeMcpServer]:
    """A server whose list is public for an hour."""
    shared_upstream.tools, shared_upstream.page_size, shared_upstream.page_scopes = TOOLS, None, {}
    shared_upstream.ttl_ms, shared_upstream.cache_scope = HOUR_MS, "public"
    shared_upstream.fault = None
    await rows(sharing_service, "DELETE FROM public_listings RETURNING key")
    shared_upstream.requests.clear()
    yield shared_upstream
    shared_upstream.stalled.clear()


@pytest.fixture
async def users(sharing_service: Container, fake: FakeEmbeddingServer) -> AsyncIterator[list[TestUser]]:
    transport = httpx.ASGITransport(get_app(sharing_service), raise_app_exceptions=False)
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_user(transport, sharing_service)) for _ in range(3)]


async def connect(user: TestUser, upstream: FakeMcpServer, **fields: Any) -> str:
    """Register the server, and wait until its first run has succeeded."""
    body = {"transport": upstream.transport, "url": upstream.url, **fields}
    server_id = await user.add_server("weather", **body)
    await wait_for_runs(user, server_id, 1)
    return server_id


async def wait_for_runs(user: TestUser, server_id: str, count: int) -> None:
    async def have_ended() -> bool:
        runs = (await user.http.get(f"/servers/{server_id}/runs")).json()["items"]
        assert all(run["state"] != "failed" for run in runs), runs
        return len(runs) >= count and all(run["state"] == "succeeded" for run in runs)

    await until(have_ended)


def make_scheduler(service: Container) -> Worker:
    """Return a worker that only queues the servers that are due; that of the service processes them."""
    return Worker(service.indexer, WorkerConfig(slots=None, pending_retry_s=60.0, reindex_every_s=6 * 3600.0))


async def reindex(user: TestUser, server_id: str, **query: Any) -> dict[str, Any]:
    answer = await user.http.post(f"/servers/{server_id}/reindex", params={"wait": True, **query})
    run: dict[str, Any] = answer.json()
    return run


async def test_twenty_users_of_a_public_list_cost_one_listing(
    sharing_service: Container, upstream: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    transport = httpx.ASGITransport(get_app(sharing_service), raise_app_exceptions=False)
    async with AsyncExitStack() as stack:
        users = [await stack.enter_async_context(open_user(transport, sharing_service)) for _ in range(20)]
        await asyncio.gather(*(connect(user, upstream) for user in users))
        for user in users:
            assert (await user.tools()).keys() == {"get_forecast", "get_alarm"}
            [server] = (await user.http.get("/servers")).json()["items"]
            assert (server["status"], server["tool_count"]) == ("connected", 2)
        assert upstream.listings == 1


async def test_a_private_list_is_fetched_for_each_user(users: list[TestUser], upstream: FakeMcpServer) -> None:
    upstream.cache_scope = "private"
    for user in users:
        await connect(user, upstream)
    assert upstream.listings == 3


async def test_a_list_that_is_stale_at_once_is_not_shared(users: list[TestUser], upstream: FakeMcpServer) -> None:
    upstream.ttl_ms = 0
    for user in users:
        await connect(user, upstream)
    assert upstream.listings == 3


async def test_an_older_server_cannot_declare_a_list_public(
    users: list[TestUser], upstream: FakeMcpServer, sharing_service: Container
) -> None:
    pool = sharing_service.mcp_pool
    endpoint = Endpoint(users[0].id, "trial", "weather", 1, "streamable_http", upstream.url)
    listed = await pool.fetch_tool_list(endpoint)
    assert (listed.ttl_s, listed.is_public) == (3600.0, True)
    upstream.era = "legacy"
    upstream.stop()
    upstream.start()
    try:
        pool.forget(users[0].id, "trial")
        listed = await pool.fetch_tool_list(endpoint)
        assert (len(listed.tools), listed.ttl_s, listed.is_public) == (2, None, False)
    finally:
        pool.forget(users[0].id, "trial")
        upstream.era = "modern"
        upstream.stop()
        upstream.start()


async def test_users_with_credentials_neither_get_nor_give_a_shared_list(
    users: list[TestUser], upstream: FakeMcpServer
) -> None:
    first, second, third = users
    await connect(first, upstream, headers={"Authorization": "Bearer one"})
    await connect(second, upstream)
    assert upstream.listings == 2  # the second user did not get what the first one is shown
    upstream.tools = [*TOOLS, tool("secret_report")]
    await connect(third, upstream, headers={"Authorization": "Bearer three"})
    assert upstream.listings == 3
    assert "secret_report" in await third.tools()
    assert "secret_report" not in await second.tools()


async def test_another_url_or_transport_has_a_list_of_its_own() -> None:
    def make_key(transport: Any = "streamable_http", url: str = "https://a.example/mcp", **fields: Any) -> bytes | None:
        return get_listing_key(Endpoint("ann", "s", "weather", 1, transport, url, **fields))

    assert make_key() == make_key()
    assert len({make_key(), make_key(url="https://a.example/mcp?x"), make_key("sse"), None}) == 4
    assert make_key(headers={"X-Key": "k"}) is None
    assert make_key(credential_version=1) is None
    assert make_key("stdio") is None


@pytest.mark.parametrize(
    ("pages", "is_public", "ttl_s"),
    [
        ({1: (HOUR_MS, "public"), 2: (60_000, "public")}, True, 60.0),
        ({1: (HOUR_MS, "public"), 2: (HOUR_MS, "private")}, False, 3600.0),
        ({1: (HOUR_MS, "public"), 2: (0, "public")}, True, None),
    ],
)
async def test_a_list_of_several_pages_is_as_public_and_as_fresh_as_its_least_page(
    users: list[TestUser],
    upstream: FakeMcpServer,
    sharing_service: Container,
    pages: dict[int, tuple[int, str]],
    is_public: bool,
    ttl_s: float | None,
) -> None:
    upstream.page_size, upstream.page_scopes = 1, pages
    endpoint = Endpoint(users[0].id, "trial", "weather", 1, "streamable_http", upstream.url)
    listed = await sharing_service.mcp_pool.fetch_tool_list(endpoint)
    sharing_service.mcp_pool.forget(users[0].id, "trial")
    assert (len(listed.tools), listed.is_public, listed.ttl_s) == (2, is_public, ttl_s)


async def test_a_person_who_reindexes_gets_the_servers_own_list_and_renews_the_shared_one(
    users: list[TestUser], upstream: FakeMcpServer
) -> None:
    first, second, third = users
    server_id = await connect(first, upstream)
    await connect(second, upstream)
    upstream.tools = [*TOOLS, tool("get_tide")]
    assert (await reindex(first, server_id))["counts"]["added"] == 1
    assert upstream.listings == 2
    await connect(third, upstream)
    assert "get_tide" in await third.tools()
    assert upstream.listings == 2
    await reindex(first, server_id, force=True)
    assert upstream.listings == 3


async def test_an_expired_list_is_fetched_once_by_the_schedule(
    users: list[TestUser], upstream: FakeMcpServer, sharing_service: Container
) -> None:
    ids = [await connect(user, upstream) for user in users]
    assert upstream.listings == 1
    scheduler = make_scheduler(sharing_service)
    assert await scheduler.enqueue_due() == 0
    upstream.tools = TOOLS[:1]
    past = "now() - interval '1 second'"
    await rows(sharing_service, f"UPDATE public_listings SET expires_at = {past} RETURNING key")
    await rows(sharing_service, f"UPDATE mcp_servers SET list_again_at = {past} RETURNING id")
    assert await scheduler.enqueue_due() == 0  # there was a run within the last minute
    await rows(sharing_service, "UPDATE index_runs SET created_at = now() - interval '2 minutes' RETURNING id")
    assert await scheduler.enqueue_due() == 3
    for user, server_id in zip(users, ids, strict=True):
        await wait_for_runs(user, server_id, 2)
        assert (await user.tools()).keys() == {"get_forecast"}
    assert upstream.listings == 2


async def test_a_servers_ttl_moves_its_next_listing_within_bounds(
    users: list[TestUser], upstream: FakeMcpServer, sharing_service: Container
) -> None:
    upstream.cache_scope = "private"
    server_id = await connect(users[0], upstream)

    async def seconds_left() -> float | None:
        statement = "SELECT extract(epoch FROM list_again_at - now()) FROM mcp_servers WHERE id = %(id)s"
        [(left,)] = await rows(sharing_service, statement, id=server_id)
        return None if left is None else float(left)

    for ttl_ms, seconds in ((HOUR_MS, 3600), (1, 60), (100 * HOUR_MS, 86_400)):
        upstream.ttl_ms = ttl_ms
        await reindex(users[0], server_id)
        assert await seconds_left() == pytest.approx(seconds, abs=30)
    upstream.ttl_ms = 0
    await reindex(users[0], server_id)
    assert await seconds_left() is None


async def test_a_failing_server_follows_the_general_schedule(
    users: list[TestUser], upstream: FakeMcpServer, sharing_service: Container
) -> None:
    server_id = await connect(users[0], upstream)
    upstream.fault = Fault(status(404))
    run = await reindex(users[0], server_id)
    assert run["state"] == "failed"
    due = "UPDATE mcp_servers SET list_again_at = now() - interval '1 hour' RETURNING id"
    await rows(sharing_service, due)
    await rows(sharing_service, "UPDATE index_runs SET created_at = now() - interval '1 hour' RETURNING id")
    assert await make_scheduler(sharing_service).enqueue_due() == 0


async def test_an_announced_change_ends_the_shared_list(
    users: list[TestUser], upstream: FakeMcpServer, sharing_service: Container
) -> None:
    first, second, third = users
    first_id = await connect(first, upstream)
    await connect(second, upstream)

    async def is_listening() -> bool:
        return upstream.streams > 0

    await until(is_listening)
    upstream.tools = [*TOOLS, tool("get_tide")]
    upstream.announce_change()
    await wait_for_runs(first, first_id, 2)
    assert "get_tide" in await first.tools()
    assert upstream.listings == 2
    await connect(third, upstream)
    assert "get_tide" in await third.tools()
    assert upstream.listings == 2


ENDPOINT = Endpoint("ann", "s", "weather", 1, "streamable_http", "https://once.example/mcp")


class Upstream:
    """Stands in for the server, where a test decides when it answers."""

    def __init__(self, listed: ToolList) -> None:
        self.listed = listed
        self.fetches = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def fetch(self) -> ToolList:
        self.fetches += 1
        await self.gate.wait()
        return self.listed


@pytest.fixture
async def once(sharing_service: Container) -> Upstream:
    await rows(sharing_service, "DELETE FROM public_listings RETURNING key")
    return Upstream(ToolList(TOOLS, 3600.0, is_public=True))


async def get(service: Container, upstream: Upstream, *, fresh: bool = False) -> tuple[ToolList, bool]:
    return await fetch_once(service.database, ENDPOINT, upstream.fetch, fresh=fresh)


async def test_others_wait_for_the_one_that_fetches(sharing_service: Container, once: Upstream) -> None:
    once.gate.clear()
    waiting = [asyncio.create_task(get(sharing_service, once)) for _ in range(5)]

    async def has_begun() -> bool:
        return once.fetches > 0

    await until(has_begun)
    once.gate.set()
    answers = await asyncio.gather(*waiting)
    assert once.fetches == 1
    assert [is_shared for _, is_shared in answers].count(True) == 4
    assert all(listed.tools == TOOLS for listed, _ in answers)


async def test_after_a_crash_of_the_fetcher_another_one_takes_over(sharing_service: Container, once: Upstream) -> None:
    key = get_listing_key(ENDPOINT)
    lease = (
        "INSERT INTO public_listings (key, lease_token, lease_until) "
        "VALUES (%(key)s, 'crashed', now() + interval '1 hour') RETURNING key"
    )
    await rows(sharing_service, lease, key=key)
    waiting = asyncio.create_task(get(sharing_service, once))
    await asyncio.wait({waiting}, timeout=0.3)
    assert once.fetches == 0
    await rows(sharing_service, "UPDATE public_listings SET lease_until = now() RETURNING key")
    assert await waiting == (once.listed, False)
    assert (await get(sharing_service, once))[1]
    assert once.fetches == 1


async def test_a_run_that_has_waited_long_enough_fetches_itself(
    sharing_service: Container, once: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_listings, "WAIT_S", 0.05)
    once.gate.clear()
    patient = asyncio.create_task(get(sharing_service, once))

    async def has_begun(count: int) -> bool:
        return once.fetches == count

    await until(lambda: has_begun(1))
    impatient = asyncio.create_task(get(sharing_service, once))
    await until(lambda: has_begun(2))
    once.gate.set()
    assert [is_shared for _, is_shared in await asyncio.gather(patient, impatient)] == [False, False]


async def test_a_failure_is_nobody_elses_and_ends_the_lease(sharing_service: Container, once: Upstream) -> None:
    async def fail() -> ToolList:
        raise RuntimeError("broken")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            await fetch_once(sharing_service.database, ENDPOINT, fail, fresh=False)
    assert await get(sharing_service, once) == (once.listed, False)


async def test_a_cancelled_fetch_ends_the_lease(sharing_service: Container, once: Upstream) -> None:
    once.gate.clear()
    fetching = asyncio.create_task(get(sharing_service, once))

    async def has_begun() -> bool:
        return once.fetches == 1

    await until(has_begun)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    once.gate.set()
    assert await get(sharing_service, once) == (once.listed, False)


async def test_a_change_that_is_announced_during_a_fetch_is_not_missed(
    sharing_service: Container, once: Upstream
) -> None:
    once.gate.clear()
    fetching = asyncio.create_task(get(sharing_service, once))

    async def has_begun() -> bool:
        return once.fetches == 1

    await until(has_begun)
    await invalidate(sharing_service.database, ENDPOINT, 0.0)
    once.gate.set()
    await fetching
    assert not (await get(sharing_service, once))[1]
    # the announcement that another user received before that fetch does not end the new list
    await invalidate(sharing_service.database, ENDPOINT, 3600.0)
    assert (await get(sharing_service, once))[1]


async def test_a_huge_list_is_not_shared(
    sharing_service: Container, once: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    once.listed = ToolList([tool("big", "x" * public_listings.MAX_BYTES)], 3600.0, is_public=True)
    for _ in range(2):
        assert await get(sharing_service, once) == (once.listed, False)
    assert await rows(sharing_service, "SELECT tools, size FROM public_listings") == [(None, 0)]
    once.listed = ToolList(TOOLS, 3600.0, is_public=True)
    monkeypatch.setattr(public_listings, "MAX_TOTAL_BYTES", 10)
    await get(sharing_service, once, fresh=True)
    assert await rows(sharing_service, "SELECT tools, size FROM public_listings") == [(None, 0)]
    monkeypatch.undo()
    await get(sharing_service, once, fresh=True)
    assert (await get(sharing_service, once))[1]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), b"bytes"])
async def test_a_list_that_json_cannot_hold_is_not_shared(
    sharing_service: Container, once: Upstream, odd: object
) -> None:
    once.listed = ToolList([tool("odd", inputSchema={"type": "object", "default": odd})], 3600.0, is_public=True)
    assert [(await get(sharing_service, once))[1] for _ in range(2)] == [False, False]


async def test_a_shared_list_is_exactly_what_the_server_sent(sharing_service: Container, once: Upstream) -> None:
    schema = {"type": "object", "default": [2**80, 0.1, "\ud800", "\0", "ä", None, True]}
    once.listed = ToolList([tool("odd", inputSchema=schema)], 3600.0, is_public=True)
    await get(sharing_service, once)
    listed, is_shared = await get(sharing_service, once)
    assert (listed.tools, is_shared) == (once.listed.tools, True)
    assert 3000 < (listed.ttl_s or 0) <= 3600


async def test_expired_lists_are_deleted(sharing_service: Container, once: Upstream) -> None:
    await get(sharing_service, once)
    [deletion] = expired_rows()
    assert await delete_in_batches(sharing_service.database, deletion) == 0
    await rows(sharing_service, "UPDATE public_listings SET expires_at = now() - interval '1 second' RETURNING key")
    assert await delete_in_batches(sharing_service.database, deletion) == 1


async def test_a_users_transaction_does_not_see_the_shared_lists(sharing_service: Container, once: Upstream) -> None:
    await get(sharing_service, once)
    assert len(await rows(sharing_service, "SELECT key FROM public_listings")) == 1
    async with sharing_service.database.transaction("ann") as session:
        assert await session.rows("SELECT key FROM public_listings") == []


async def test_the_address_must_be_allowed_for_a_shared_list_too(
    users: list[TestUser], upstream: FakeMcpServer, sharing_service: Container
) -> None:
    server_id = await connect(users[0], upstream)
    guard = sharing_service.mcp_pool.guard
    guard.allow([])
    try:
        await rows(sharing_service, "UPDATE index_runs SET created_at = now() - interval '1 day' RETURNING id")
        await rows(sharing_service, "UPDATE mcp_servers SET list_again_at = now() RETURNING id")
        assert await make_scheduler(sharing_service).enqueue_due() == 1

        async def has_failed() -> bool:
            runs = (await users[0].http.get(f"/servers/{server_id}/runs")).json()["items"]
            return any(run["state"] == "failed" for run in runs)

        await until(has_failed)
    finally:
        guard.allow(sharing_service.settings.outbound_hosts)
    assert upstream.listings == 1
