"""The fallback chain: each level keeps the visibility filter, is named in the answer, and recovers by itself."""

import asyncio
import os
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from app.container import Container, open_container
from app.limits.circuit_breaker import CircuitBreaker
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.broken_search import broken_search
from tests.support.clients import TestUser, new_user, open_client
from tests.support.embedding_server import FakeEmbeddingServer, Mode, running_embedding_server
from tests.support.factories import ADMIN_KEY, OpenService, make_database, make_settings, tool
from tests.support.worker_steps import asked, until
from tests.support.worker_steps import waiting as locked_out

FORECAST = tool("get_forecast", "Weather forecast for a city over the next days.")
REFUND = tool("refund_payment", "Give a customer their money back.")
HIDDEN = tool("weather_alarm", "Weather alarm for a city.")

REASONS: list[tuple[Mode, int, str]] = [
    ("status", 500, "embedder_status_500"),
    ("status", 429, "embedder_status_429"),
    ("wrong_dimension", 0, "embedder_wrong_dimension"),
    ("nan", 0, "embedder_not_finite"),
    ("zeros", 0, "embedder_no_direction"),
    ("short", 0, "embedder_wrong_count"),
    ("not_json", 0, "embedder_malformed"),
    ("wrong_shape", 0, "embedder_malformed"),
]


@pytest.fixture(scope="module")
def shared_fake() -> Iterator[FakeEmbeddingServer]:
    with running_embedding_server() as server:
        yield server


@pytest.fixture
def fake(shared_fake: FakeEmbeddingServer) -> Iterator[FakeEmbeddingServer]:
    shared_fake.mode, shared_fake.requests = "ok", []
    yield shared_fake
    shared_fake.mode = "ok"
    shared_fake.release()


@pytest.fixture(scope="module")
async def service(
    postgres: EmbeddedPostgres, shared_fake: FakeEmbeddingServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Container]:
    # without snapshots, so that every search needs the database
    settings = make_settings(tmp_path_factory.mktemp("fallback"), snapshot_mb=0, **shared_fake.settings())
    async with open_container(settings, make_database(postgres)) as opened:
        yield opened


async def add_tools(user: TestUser) -> str:
    """Add two visible tools and a disabled one, and return the server's id."""
    server_id = await user.add_tools(FORECAST, REFUND, HIDDEN)
    hidden = (await user.tools())["weather_alarm"]["id"]
    assert (await user.http.patch(f"/tools/{hidden}", json={"enabled": False})).status_code == 200
    return server_id


@pytest.fixture(scope="module")
async def shared_user(service: Container) -> AsyncIterator[TestUser]:
    async with open_user(service) as user:
        yield user


@pytest.fixture
async def user(shared_user: TestUser, fake: FakeEmbeddingServer) -> TestUser:
    """One user for all tests, so that their queries must differ: embeddings of queries are cached."""
    await search_by_meaning(shared_user, f"weather forecast {uuid.uuid4()}")
    fake.requests.clear()
    return shared_user


@asynccontextmanager
async def open_user(container: Container) -> AsyncIterator[TestUser]:
    async with new_user(container) as user:
        await add_tools(user)
        yield user


def names(answer: dict[str, Any]) -> list[str]:
    return [each["tool"]["name"] for each in answer["tools"]]


def sources(answer: dict[str, Any]) -> set[str]:
    return {each["source"] for each in answer["tools"]}


async def search_by_meaning(user: TestUser, query: str) -> dict[str, Any]:
    """Return the answer as soon as it is not degraded."""

    async def discover() -> dict[str, Any] | None:
        answer = await user.discover(query, similarity_threshold=0.1)
        return None if answer["degraded"] else answer

    answer = await until(discover)
    assert answer["degraded_reason"] is None
    assert answer["strategy"] == "hybrid"
    assert ("get_forecast", "semantic") in [(each["tool"]["name"], each["source"]) for each in answer["tools"]]
    assert "weather_alarm" not in names(answer)
    return answer


def check_by_words(answer: dict[str, Any], *reasons: str) -> None:
    assert answer["degraded"] is True
    assert answer["degraded_reason"] in reasons
    assert answer["strategy"] == "bm25"
    assert answer["embedding_generated"] is False
    assert names(answer) == ["get_forecast"]
    assert sources(answer) == {"lexical"}
    assert answer["total_searched"] == 2


async def test_a_healthy_search_is_not_degraded(user: TestUser, fake: FakeEmbeddingServer) -> None:
    answer = await search_by_meaning(user, "weather forecast today")
    assert answer["embedding_generated"] is True
    assert fake.requests == [["weather forecast today"]]


@pytest.mark.parametrize(("mode", "status", "reason"), REASONS, ids=str)
async def test_a_failing_embedder_degrades_the_search_to_words(
    user: TestUser, fake: FakeEmbeddingServer, mode: Mode, status: int, reason: str
) -> None:
    fake.mode, fake.status = mode, status
    for city in ("Vienna", "Graz", "Linz"):
        answer = await user.discover(f"weather_alarm and weather forecast for {city} with {reason} {mode}")
        check_by_words(answer, reason)
    assert len(fake.requests) == 3
    fake.mode = "ok"
    await search_by_meaning(user, f"weather forecast for Wels after {reason} {mode}")


async def test_no_request_waits_for_the_embedder_beyond_its_budget(
    open_service: OpenService, fake: FakeEmbeddingServer
) -> None:
    """The embedder hangs for as long as a request waits for it."""
    async with open_service(**fake.settings(query_embed_budget_ms=1_000)) as service, open_user(service) as user:
        fake.mode = "hang"
        fake.requests.clear()
        for city in ("Vienna", "Graz", "Linz"):
            check_by_words(await user.discover(f"weather forecast for {city}"), "embedder_timeout")
        await asked(fake, 3)
        assert len(fake.requests) == 3
        fake.mode = "ok"
        await search_by_meaning(user, "weather forecast for Wels")


async def test_an_unreachable_embedder_degrades_the_search_to_words(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    url = make_database(postgres)
    with running_embedding_server() as server:
        settings = make_settings(tmp_path, **server.settings())
        async with open_container(settings, url) as service, open_user(service) as user:
            user_id = user.id
    async with (
        open_container(settings, url) as service,
        open_client(service, **{"Authorization": f"Bearer {ADMIN_KEY}", "X-User-Id": user_id}) as http,
    ):
        user = TestUser(user_id, ADMIN_KEY, http)
        for city in ("Vienna", "Graz"):
            check_by_words(await user.discover(f"weather forecast for {city}"), "embedder_unreachable")
        with running_embedding_server(server.port):
            await search_by_meaning(user, "weather forecast for Wels")


@pytest.mark.parametrize("strategy", ["hybrid", "semantic"])
async def test_each_strategy_that_needs_an_embedding_falls_back_to_words(
    user: TestUser, fake: FakeEmbeddingServer, strategy: str
) -> None:
    assert (await user.discover(f"weather forecast, {strategy}", strategy=strategy))["strategy"] == strategy
    fake.mode = "zeros"
    check_by_words(await user.discover(f"weather forecast, {strategy}!", strategy=strategy), "embedder_no_direction")


async def test_a_requested_search_by_words_is_not_degraded_and_needs_no_embedder(
    user: TestUser, fake: FakeEmbeddingServer
) -> None:
    fake.mode = "zeros"
    answer = await user.discover("weather forecast", strategy="bm25")
    assert (answer["degraded"], answer["strategy"], names(answer)) == (False, "bm25", ["get_forecast"])
    assert fake.requests == []


async def test_a_degraded_answer_is_counted_by_its_reason(
    service: Container, user: TestUser, fake: FakeEmbeddingServer
) -> None:
    def is_counted() -> bool:
        return b'toolscout_fallbacks_total{reason="embedder_status_418"} 1.0' in service.metrics.render()

    assert not is_counted()
    fake.mode, fake.status = "status", 418
    check_by_words(await user.discover("weather forecast for tea"), "embedder_status_418")
    assert is_counted()


async def test_after_five_failures_the_circuit_breaker_opens(
    open_service: OpenService, fake: FakeEmbeddingServer
) -> None:
    async with open_service(**fake.settings(breaker_retry_s=60)) as service, open_user(service) as user:
        fake.mode, fake.status = "status", 500
        fake.requests.clear()
        answers = [await user.discover(f"weather forecast {number}") for number in range(8)]
        reasons = [answer["degraded_reason"] for answer in answers]
        assert reasons == ["embedder_status_500"] * 5 + ["embedder_breaker_open"] * 3
        fake.mode = "ok"
        check_by_words(await user.discover("weather forecast"), "embedder_breaker_open")
        assert len(fake.requests) == 5
        assert b"toolscout_embedder_breaker_open 1.0" in service.metrics.render()


async def test_readyz_warns_from_when_the_circuit_breaker_opens_until_a_query_succeeds(
    open_service: OpenService, fake: FakeEmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("app.embeddings.factory.CircuitBreaker", partial(CircuitBreaker, clock=lambda: seconds[0]))
    settings = fake.settings(breaker_failures=2, breaker_retry_s=60)
    async with open_service(**settings) as service, open_user(service) as user:

        async def fetch_warnings() -> list[str]:
            ready = await user.http.get("/readyz")
            assert ready.status_code == 200
            warnings: list[str] = ready.json()["warnings"]
            return warnings

        fake.mode, fake.status = "status", 500
        await user.discover("weather forecast")
        assert await fetch_warnings() == []
        await user.discover("weather forecast again")
        [warning] = await fetch_warnings()
        assert warning == "the embedder of openai:fake-words fails (status_500): messages are searched by words alone"
        seconds[0] = 61.0
        assert await fetch_warnings() == [warning]
        fake.mode = "ok"
        await search_by_meaning(user, "weather forecast at last")
        assert await fetch_warnings() == []


async def test_after_the_pause_one_request_probes_the_embedder(
    open_service: OpenService, fake: FakeEmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("app.embeddings.factory.CircuitBreaker", partial(CircuitBreaker, clock=lambda: seconds[0]))
    settings = fake.settings(breaker_failures=1, breaker_retry_s=60)
    async with open_service(**settings) as service, open_user(service) as user:
        fake.mode = "zeros"
        check_by_words(await user.discover("weather forecast"), "embedder_no_direction")
        check_by_words(await user.discover("weather forecast too soon"), "embedder_breaker_open")
        seconds[0] = 61.0
        fake.mode = "hang"
        fake.requests.clear()
        probe = asyncio.create_task(user.discover("weather forecast for all"))
        await asked(fake)
        for number in range(5):
            check_by_words(await user.discover(f"weather forecast {number}"), "embedder_breaker_open")
        fake.mode = "ok"
        fake.release()
        assert (await probe)["degraded"] is False
        assert len(fake.requests) == 1
        await search_by_meaning(user, "weather forecast at last")


async def test_a_cached_query_is_searched_by_meaning_while_the_embedder_is_down(
    user: TestUser, fake: FakeEmbeddingServer
) -> None:
    before = await search_by_meaning(user, "weather forecast by night")
    fake.mode = "zeros"
    again = await search_by_meaning(user, "weather forecast by night")
    assert again["embedding_generated"] is False
    assert again["toolset_hash"] == before["toolset_hash"]
    check_by_words(await user.discover("weather forecast by day"), "embedder_no_direction")


async def test_identical_queries_in_flight_are_embedded_once(user: TestUser, fake: FakeEmbeddingServer) -> None:
    fake.mode = "hang"
    requests = [asyncio.create_task(user.discover("weather forecast at once")) for _ in range(10)]
    await asked(fake)
    fake.release()
    answers = await asyncio.gather(*requests)
    assert fake.requests == [["weather forecast at once"]]
    assert {answer["degraded"] for answer in answers} == {False}
    assert len({answer["toolset_hash"] for answer in answers}) == 1


async def test_cached_queries_are_not_shared_between_users(
    service: Container, user: TestUser, fake: FakeEmbeddingServer
) -> None:
    """The response time would reveal what another user has asked."""
    async with new_user(service) as other:
        for each, requests in ((user, 1), (user, 1), (other, 2), (other, 2)):
            answer = await each.discover("weather forecast for two")
            assert answer["degraded"] is False
            assert len(fake.requests) == requests


async def test_a_failing_search_returns_all_visible_tools(service: Container, fake: FakeEmbeddingServer) -> None:
    async with open_user(service) as user:
        await user.add_tools(tool("zip_files"), tool("copy_files"), server="archive", tags=["disk"])
        pinned = (await user.tools())["zip_files"]["id"]
        await user.http.patch(f"/tools/{pinned}", json={"pinned": True})
        service.usage_counters.record_call(user.id, (await user.tools())["refund_payment"]["id"], succeeded=None)
        await service.usage_counters.flush()
        core = await user.http.put("/core-tools", json={"tools": [tool("browse")]})
        assert core.status_code == 200
        await search_by_meaning(user, "weather forecast")

        async with broken_search(service):
            answer = await user.discover("weather forecast for Vienna")
        assert (answer["degraded"], answer["degraded_reason"]) == (True, "search_failed")
        assert names(answer) == ["browse", "zip_files", "refund_payment", "copy_files", "get_forecast"]
        assert [each["source"] for each in answer["tools"]] == ["core", *["fallback"] * 4]
        assert answer["total_searched"] == 4
        assert answer["no_match"] is False
        assert all(each["score"] is None for each in answer["tools"])
        await search_by_meaning(user, "weather forecast for Graz")


async def test_the_fallback_applies_the_filters_of_the_request(service: Container, fake: FakeEmbeddingServer) -> None:
    async with open_user(service) as user, new_user(service) as stranger:
        archive = await user.add_tools(tool("zip_files"), tool("copy_files"), server="archive", tags=["disk"])
        foreign = await stranger.add_tools(tool("foreign"))
        filters: list[tuple[dict[str, Any], list[str]]] = [
            ({"server_ids": [archive]}, ["copy_files", "zip_files"]),
            ({"server_ids": [foreign]}, []),
            ({"server_ids": []}, []),
            ({"tags": ["disk"]}, ["copy_files", "zip_files"]),
            ({"limit": 1}, ["copy_files"]),
            ({"limit": 50}, ["copy_files", "zip_files", "get_forecast", "refund_payment"]),
        ]
        async with broken_search(service):
            for fields, expected in filters:
                answer = await user.discover("weather", **fields)
                assert names(answer) == expected, fields
                assert answer["degraded_reason"] == "search_failed"
            assert names(await stranger.discover("weather")) == ["foreign"]


async def test_kept_tools_come_first_in_the_fallback(
    service: Container, user: TestUser, fake: FakeEmbeddingServer
) -> None:
    tools = await user.tools()
    keep = [tools[name]["id"] for name in ("weather_alarm", "refund_payment")]
    async with broken_search(service):
        answer = await user.discover("weather", keep=keep)
    assert [(each["tool"]["name"], each["source"]) for each in answer["tools"]] == [
        ("refund_payment", "kept"),
        ("get_forecast", "fallback"),
    ]


async def test_the_fallback_has_all_core_tools_and_says_what_was_left_out(
    service: Container, fake: FakeEmbeddingServer
) -> None:
    async with open_user(service) as user:
        core = await user.http.put("/core-tools", json={"tools": [tool(f"core_{n}") for n in range(11)]})
        assert core.status_code == 200
        question = {"query": "weather", "tool": "get_forecast", "max_tokens": 1}
        async with broken_search(service):
            whole = await user.discover("weather")
            tight = await user.discover("weather", max_tokens=1)
            why = await user.http.post("/discover/why", json=question)
    assert (len(whole["tools"]), whole["omitted"]) == (13, None)
    assert (sources(tight), tight["omitted"]) == ({"core"}, {"count": 2, "reason": "max_tokens"})
    [reason] = why.json()["items"]
    assert reason["reason"] == "no_room"
    assert "max_tokens" in reason["message"]


async def test_disabled_discovery_returns_all_visible_tools(
    service: Container, user: TestUser, fake: FakeEmbeddingServer
) -> None:
    async def switch(*, enabled: bool) -> None:
        async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as admin:
            changed = await admin.patch(f"/users/{user.id}", json={"discovery_enabled": enabled})
            assert changed.status_code == 200

    await switch(enabled=False)
    answer = await user.discover("weather forecast or not")
    assert (answer["degraded"], answer["degraded_reason"]) == (True, "disabled")
    assert names(answer) == ["get_forecast", "refund_payment"]
    assert sources(answer) == {"fallback"}
    assert fake.requests == []
    await switch(enabled=True)
    await search_by_meaning(user, "weather forecast or not")


@pytest.fixture(scope="module")
def stoppable_postgres() -> Iterator[EmbeddedPostgres]:
    """A Postgres that a test may stop."""
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder) / "data")
        server.start()
        yield server
        server.stop()


@asynccontextmanager
async def stopped(postgres: EmbeddedPostgres) -> AsyncIterator[None]:
    await asyncio.to_thread(postgres.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(postgres.start)


def suspend_until_done(pid: int, task: asyncio.Task[Any]) -> None:
    """Suspend a process of Postgres until the task is done.

    Otherwise it might end first when Postgres stops, and leave its lock to the request that waits for it.
    """
    os.kill(pid, signal.SIGSTOP)
    task.add_done_callback(lambda _: os.kill(pid, signal.SIGCONT))


def check_unavailable(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (503, "unavailable")
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert "psycopg" not in answer.text


async def test_without_a_database_the_service_answers_503_and_recovers_by_itself(
    stoppable_postgres: EmbeddedPostgres, fake: FakeEmbeddingServer, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, **fake.settings())
    async with open_container(settings, make_database(stoppable_postgres)) as service, open_user(service) as user:
        await search_by_meaning(user, "weather forecast")
        async with stopped(stoppable_postgres):
            for _ in range(3):
                check_unavailable(await user.http.post("/discover", json={"query": "weather forecast"}))
                check_unavailable(await user.http.get("/servers"))
                check_unavailable(await user.http.get("/readyz"))
                assert (await user.http.get("/healthz")).status_code == 200
        await search_by_meaning(user, "weather forecast again")
        assert (await user.http.get("/readyz")).status_code == 200
        assert len((await user.http.get("/servers")).json()["items"]) == 1
        await user.add_tools(tool("after_the_outage"), server="later")
        assert names(await user.discover("after_the_outage"))[0] == "after_the_outage"


@pytest.mark.parametrize(("method", "path"), [("POST", "/discover"), ("GET", "/tools")])
async def test_a_request_that_waits_while_the_database_stops_gets_503(
    stoppable_postgres: EmbeddedPostgres, fake: FakeEmbeddingServer, tmp_path: Path, method: str, path: str
) -> None:
    url = make_database(stoppable_postgres)
    body = {"query": "weather"} if method == "POST" else None
    async with open_container(make_settings(tmp_path, **fake.settings()), url) as service, open_user(service) as user:
        blocker = await psycopg.AsyncConnection.connect(url)
        await blocker.execute("LOCK TABLE mcp_tool_embeddings IN ACCESS EXCLUSIVE MODE")
        waiting = asyncio.create_task(user.http.request(method, path, json=body))
        await locked_out(blocker, 1)
        suspend_until_done(blocker.info.backend_pid, waiting)
        async with stopped(stoppable_postgres):
            check_unavailable(await waiting)
            await blocker.close()
        assert (await user.http.request(method, path, json=body)).status_code == 200


async def test_a_user_outside_of_the_rollout_gets_all_visible_tools(open_service: OpenService) -> None:
    async with (
        open_service(rollout_percent=0) as service,
        new_user(service) as user,
        open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as admin,
    ):
        await add_tools(user)

        async def reason_after(chosen: bool | None) -> str | None:
            changed = await admin.patch(f"/users/{user.id}", json={"discovery_enabled": chosen})
            answer = await user.discover("weather forecast")
            assert changed.json()["discovery_enabled"] == (answer["degraded_reason"] is None)
            reason: str | None = answer["degraded_reason"]
            return reason

        assert (await user.discover("weather forecast"))["degraded_reason"] == "disabled"
        assert await reason_after(True) is None
        assert await reason_after(None) == "disabled"


async def test_discovery_can_be_switched_off_for_everyone(open_service: OpenService) -> None:
    async with (
        open_service(discovery=False) as service,
        new_user(service) as user,
        open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as admin,
    ):
        await add_tools(user)
        changed = await admin.patch(f"/users/{user.id}", json={"discovery_enabled": True})
        assert (changed.json()["discovery_enabled"], changed.json()["discovery_decided_by"]) == (False, "global")
        assert (await user.discover("weather forecast"))["degraded_reason"] == "disabled"
