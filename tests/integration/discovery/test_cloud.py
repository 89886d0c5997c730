"""Projects that are searched through the cloud: what is sent, what comes back, and what happens without it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from app.cloud.wire import MAX_TOOLS
from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user
from tests.support.cloud_server import FakeCloud, Mode, running_cloud
from tests.support.factories import OpenService, make_database, make_settings, tool
from tests.support.mcp_client import call_meta_tool
from tests.support.worker_steps import rows, until

Json = dict[str, Any]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
FORECAST = tool("get_forecast", "Weather forecast for a city", inputSchema=CITY, annotations={"title": "x"})
ALARM = tool("weather_alarm", "Weather alarm for a city")
REFUND = tool("refund_payment", "Give a customer their money back")
HIDDEN = tool("weather_archive", "Weather archive for a city")
RAIN = "weather forecast please"
KEY = "a-key-for-the-cloud"


@pytest.fixture(scope="module")
def shared_cloud() -> Iterator[FakeCloud]:
    with running_cloud() as running:
        yield running


@pytest.fixture
def cloud(shared_cloud: FakeCloud) -> Iterator[FakeCloud]:
    find = shared_cloud.find
    shared_cloud.mode, shared_cloud.status, shared_cloud.requests = "ok", 503, []
    yield shared_cloud
    shared_cloud.mode, shared_cloud.find = "ok", find
    shared_cloud.release()


@pytest.fixture(scope="module")
async def service(
    postgres: EmbeddedPostgres, shared_cloud: FakeCloud, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Container]:
    settings = make_settings(tmp_path_factory.mktemp("cloud"), **shared_cloud.settings(cloud_key=SecretStr(KEY)))
    async with open_container(settings, make_database(postgres)) as opened:
        yield opened


@pytest.fixture
async def asker(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service) as made:
        yield made


@pytest.fixture
async def project(asker: TestUser) -> str:
    """Return the id of a project with three visible tools and a disabled one."""
    await asker.add_tools(FORECAST, ALARM, HIDDEN, server="weather", tags=["outdoors"])
    await asker.add_tools(REFUND, server="payments")
    hidden = (await asker.tools())["weather_archive"]["id"]
    assert (await asker.http.patch(f"/tools/{hidden}", json={"enabled": False})).status_code == 200
    return await create_project(asker)


async def create_project(user: TestUser, **fields: Any) -> str:
    body = {"name": "searched by the cloud", "optimization": "cloud", **fields}
    created = await user.http.post("/projects", json=body)
    assert created.status_code == 201, created.text
    assert created.json()["optimization"] == body["optimization"]
    project_id: str = created.json()["id"]
    return project_id


def names(answer: Json) -> list[str]:
    return [each["tool"]["name"] for each in answer["tools"]]


def check_fallback(answer: Json, reason: str) -> None:
    assert (answer["strategy"], answer["degraded"], answer["degraded_reason"]) == ("bm25", True, reason)
    assert names(answer)[0] == "get_forecast"
    assert {each["source"] for each in answer["tools"]} == {"lexical"}
    assert "weather_archive" not in names(answer)


async def test_the_cloud_ranks_the_visible_tools(asker: TestUser, project: str, cloud: FakeCloud) -> None:
    answer = await asker.discover(RAIN, project_id=project)
    assert names(answer) == ["get_forecast", "weather_alarm"]
    assert (answer["strategy"], answer["degraded"], answer["degraded_reason"]) == ("cloud", False, None)
    assert (answer["confidence"], answer["no_match"], answer["embedding_generated"]) == ("high", False, False)
    assert answer["total_searched"] == 3
    assert answer["tokens"]["all"] > answer["tokens"]["selected"] > 0
    first = answer["tools"][0]
    assert (first["score"], first["similarity"], first["source"]) == (0.6667, None, "semantic")
    assert first["tool"]["inputSchema"] == CITY
    assert "explanation" not in first


async def test_only_the_query_and_the_visible_tools_are_sent(
    asker: TestUser, project: str, cloud: FakeCloud, service: Container
) -> None:
    await asker.http.put("/core-tools", json={"tools": [tool("ask_user", "Ask the user")]})
    await asker.discover("weather forecast for /home/ann/cities.txt", project_id=project, limit=4)
    [(body, headers)] = [each for each in cloud.requests if each[0]["tools"]]
    tools = await asker.tools()
    assert body == {
        "query": ["weather forecast for the text file"],
        "max_results": 4,
        "tools": [
            {
                "toolKey": tools[name]["id"],
                "toolName": name,
                "serverName": server,
                "description": tools[name]["description"],
                "inputSchema": tools[name]["input_schema"],
            }
            for server, name in (
                ("payments", "refund_payment"),
                ("weather", "get_forecast"),
                ("weather", "weather_alarm"),
            )
        ],
    }
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers.keys() <= {
        "host",
        "authorization",
        "content-type",
        "content-length",
        "accept",
        "accept-encoding",
        "user-agent",
        "connection",
    }
    assert asker.id not in str((body, headers))


async def test_a_conversation_is_sent_as_context(asker: TestUser, project: str, cloud: FakeCloud) -> None:
    messages = [
        {"role": "user", "content": "what is the weather in Oslo?"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "and the forecast for tomorrow?"},
    ]
    answer = await asker.http.post("/discover", json={"messages": messages, "project_id": project})
    assert answer.json()["strategy"] == "cloud"
    [body] = cloud.searches
    assert body["query"] == ["and the forecast for tomorrow?"]
    assert "weather in Oslo" in body["context"]


@pytest.mark.parametrize("strategy", ["hybrid", "semantic", "bm25"])
async def test_a_strategy_in_the_request_overrides_the_cloud(
    asker: TestUser, project: str, cloud: FakeCloud, strategy: str
) -> None:
    answer = await asker.discover(RAIN, project_id=project, strategy=strategy)
    assert (answer["strategy"], answer["degraded"]) == (strategy, False)
    assert cloud.searches == []


async def test_other_projects_and_requests_without_a_project_do_not_ask_the_cloud(
    asker: TestUser, project: str, cloud: FakeCloud
) -> None:
    words = await create_project(asker, name="words", optimization="bm25")
    for fields, strategy in (({}, "hybrid"), ({"project_id": words}, "bm25")):
        assert (await asker.discover(RAIN, **fields))["strategy"] == strategy
    assert cloud.searches == []


async def test_filters_keep_and_core_tools_work_as_elsewhere(asker: TestUser, project: str, cloud: FakeCloud) -> None:
    await asker.http.put("/core-tools", json={"tools": [tool("ask_user", "Ask the user")]})
    tools = await asker.tools()
    keep = [tools["refund_payment"]["id"], tools["weather_archive"]["id"]]
    answer = await asker.discover(RAIN, project_id=project, keep=keep, limit=1)
    sources = {each["tool"]["name"]: each["source"] for each in answer["tools"]}
    assert sources == {"refund_payment": "kept", "ask_user": "core", "get_forecast": "semantic"}
    tagged = await asker.discover(RAIN, project_id=project, tags=["outdoors", "other"], include_core_tools=False)
    assert [each["matched_tags"] for each in tagged["tools"]] == [["outdoors"]] * 2
    assert len(cloud.searches[-1]["tools"]) == tagged["total_searched"] == 2
    assert names(await asker.discover(RAIN, project_id=project, server_ids=[], include_core_tools=False)) == []
    assert len(cloud.searches) == 2, "nothing is visible, so that there is nothing to search"


async def test_nothing_found_is_no_match_and_a_weak_match_is_low_confidence(
    asker: TestUser, project: str, cloud: FakeCloud
) -> None:
    answer = await asker.discover("sing something", project_id=project)
    assert (answer["confidence"], answer["no_match"], answer["tools"]) == ("none", True, [])
    assert (answer["strategy"], answer["degraded"]) == ("cloud", False)
    weak = await asker.discover("sing something about weather", project_id=project)
    assert (weak["confidence"], weak["no_match"]) == ("low", False)
    assert "get_forecast" in names(weak)


FAILURES: list[tuple[Mode, int, bytes, str]] = [
    ("status", 503, b"", "cloud_status_503"),
    ("status", 429, b"", "cloud_status_429"),
    ("status", 401, b"", "cloud_status_401"),
    ("status", 204, b"", "cloud_status_204"),
    ("redirect", 0, b"", "cloud_status_307"),
    ("raw", 0, b"<html>", "cloud_invalid_answer"),
    ("raw", 0, b'{"results": [{"toolKey": "a", "relevance": 7}]}', "cloud_invalid_answer"),
    ("endless", 0, b"", "cloud_too_large"),
    ("cut", 0, b"", "cloud_unreachable"),
]


@pytest.mark.parametrize(("mode", "status", "content", "reason"), FAILURES, ids=str)
async def test_a_failing_cloud_degrades_the_search_to_words_and_heals(
    asker: TestUser,
    project: str,
    cloud: FakeCloud,
    service: Container,
    mode: Mode,
    status: int,
    content: bytes,
    reason: str,
) -> None:
    cloud.mode, cloud.status, cloud.content = mode, status, content
    check_fallback(await asker.discover(RAIN, project_id=project), reason)
    assert len(cloud.searches) == 1, "a redirect is not followed, and nothing is repeated"
    [warning] = (await asker.http.get("/readyz")).json()["warnings"]
    assert f"the cloud (TOOLSCOUT_CLOUD_URL) cannot be used ({reason.removeprefix('cloud_')})" in warning
    assert cloud.url not in warning
    cloud.mode = "ok"
    assert (await asker.discover(RAIN, project_id=project))["strategy"] == "cloud"
    assert (await asker.http.get("/readyz")).json()["warnings"] == []


@pytest.mark.parametrize("mode", ["hang", "drip"])
async def test_the_time_out_is_for_the_whole_answer(open_service: OpenService, cloud: FakeCloud, mode: Mode) -> None:
    async with open_service(**cloud.settings(cloud_timeout_s=0.3)) as service, new_user(service) as user:
        await user.add_tools(FORECAST)
        project = await create_project(user)
        cloud.mode = mode
        answer = await user.discover(RAIN, project_id=project)
        check_fallback(answer, "cloud_timeout")
        assert answer["search_duration_ms"] >= 300


async def test_a_cloud_that_is_not_there_degrades_the_search(open_service: OpenService) -> None:
    with running_cloud() as gone:
        settings = gone.settings()
    async with open_service(**settings) as service, new_user(service) as user:
        await user.add_tools(FORECAST)
        check_fallback(await user.discover(RAIN, project_id=await create_project(user)), "cloud_unreachable")
        ready = await user.http.get("/readyz")
        assert ready.status_code == 200
        assert "unreachable" in str(ready.json()["warnings"])


async def test_the_circuit_breaker_spares_a_failing_cloud_and_closes_again(
    open_service: OpenService, cloud: FakeCloud
) -> None:
    settings = cloud.settings(breaker_failures=2, breaker_retry_s=0.3)
    async with open_service(**settings) as service, new_user(service) as user:
        await user.add_tools(FORECAST)
        project = await create_project(user)
        cloud.mode = "status"

        async def is_open() -> bool:
            answer = await user.discover(RAIN, project_id=project)
            return bool(answer["degraded_reason"] == "cloud_breaker_open")

        await until(is_open)
        assert len(cloud.searches) <= 2
        cloud.mode = "ok"

        async def is_closed() -> bool:
            return bool((await user.discover(RAIN, project_id=project))["strategy"] == "cloud")

        await until(is_closed)
        assert service.metrics.cloud_breaker_open._value.get() == 0


async def test_a_tool_that_is_hidden_while_the_cloud_searches_is_not_in_the_answer(
    asker: TestUser, project: str, cloud: FakeCloud
) -> None:
    tools = await asker.tools()
    for keep in ([], [tools["get_forecast"]["id"]]):
        cloud.mode, cloud.requests = "hang", []
        asked = asyncio.create_task(asker.discover(RAIN, project_id=project, keep=keep))

        async def is_asked() -> bool:
            return bool(cloud.searches)

        await until(is_asked)
        await asker.http.patch(f"/tools/{tools['get_forecast']['id']}", json={"enabled": False})
        cloud.mode = "ok"
        cloud.release()
        answer = await asked
        assert names(answer) == ["weather_alarm"]
        assert (answer["strategy"], answer["total_searched"]) == ("cloud", 2)
        await asker.http.patch(f"/tools/{tools['get_forecast']['id']}", json={"enabled": True})
    assert names(await asker.discover(RAIN, project_id=project)) == ["get_forecast", "weather_alarm"]


async def test_no_database_connection_is_held_while_waiting_for_the_cloud(
    open_service: OpenService, cloud: FakeCloud
) -> None:
    async with open_service(**cloud.settings(database_pool_size=1)) as service, new_user(service) as user:
        await user.add_tools(FORECAST)
        project = await create_project(user)
        cloud.mode = "hang"
        asked = [asyncio.create_task(user.discover(RAIN, project_id=project)) for _ in range(3)]

        async def all_wait() -> bool:
            return len(cloud.searches) == len(asked)

        await until(all_wait)
        assert (await user.discover(RAIN))["strategy"] == "hybrid"
        cloud.mode = "ok"
        cloud.release()
        assert [each["strategy"] for each in await asyncio.gather(*asked)] == ["cloud"] * 3


async def test_of_more_tools_than_the_cloud_takes_those_with_the_messages_words_are_sent(
    asker: TestUser, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_TOOLS == 2_000
    for module in ("app.cloud.wire", "app.discovery.cloud_search", "app.discovery.explain"):
        monkeypatch.setattr(f"{module}.MAX_TOOLS", 3)
    others = [tool(f"a_tool_{n}", f"Does thing number {n}") for n in range(5)]
    await asker.add_tools(*others, FORECAST, ALARM, server="many")
    project = await create_project(asker)
    answer = await asker.discover(RAIN, project_id=project)
    assert [sent["toolName"] for sent in cloud.searches[0]["tools"]] == ["get_forecast", "weather_alarm", "a_tool_0"]
    assert (answer["total_searched"], names(answer)) == (7, ["get_forecast", "weather_alarm"])
    [reason] = await explain(asker, project, "a_tool_4")
    assert reason["reason"] == "not_sent"


async def explain(user: TestUser, project: str, name: str, **fields: Any) -> list[Json]:
    body = {"query": RAIN, "tool": name, "project_id": project, **fields}
    answer = await user.http.post("/discover/why", json=body)
    assert answer.status_code == 200, answer.text
    items: list[Json] = answer.json()["items"]
    return items


async def test_why_says_what_the_cloud_said_or_that_it_could_not_be_asked(
    asker: TestUser, project: str, cloud: FakeCloud
) -> None:
    async def get_reason(name: str, **fields: Any) -> tuple[str, str]:
        [reason] = await explain(asker, project, name, **fields)
        return reason["reason"], reason["message"]

    code, message = await get_reason("get_forecast")
    assert code == "included"
    assert message.startswith("it is number 1 of the answer: the cloud gave it a relevance of 0.67 (cloud says ")
    code, message = await get_reason("refund_payment")
    assert (code, message) == ("not_chosen", "the cloud returned 2 other tools, and the limit is 8")
    assert (await get_reason("weather_alarm", query="sing"))[0] == "no_match"
    assert (await get_reason("weather_alarm", max_tokens=1))[0] == "no_room"
    assert (await get_reason("weather_archive"))[0] == "switched_off"
    cloud.mode = "status"
    code, message = await get_reason("refund_payment")
    assert code == "below_threshold"
    assert message.endswith("; the cloud could not be used (cloud_status_503), so the search is by words alone")
    assert (await get_reason("get_forecast"))[0] == "included"


async def test_an_explained_answer_says_what_the_cloud_said(asker: TestUser, project: str, cloud: FakeCloud) -> None:
    answer = await asker.discover(RAIN, project_id=project, explain=True)
    assert [each["explanation"] for each in answer["tools"]] == [
        {"cloud": f"cloud says {each['tool_key']}"} for each in answer["tools"]
    ]


async def test_mcp_clients_search_through_the_cloud(asker: TestUser, project: str, cloud: FakeCloud) -> None:
    path, arguments = f"/projects/{project}/mcp", {"query": [RAIN, "money back"]}
    found = (await call_meta_tool(asker.http, "tool_discovery", arguments, path))["structuredContent"]["results"]
    assert {each["toolName"] for each in found} == {"get_forecast", "weather_alarm", "refund_payment"}
    assert all(each["explanation"] == f"cloud says {each['toolKey']}" for each in found)
    cloud.mode = "status"
    degraded = (await call_meta_tool(asker.http, "tool_discovery", arguments, path))["structuredContent"]
    assert "Search is degraded (cloud_status_503)" in degraded["hint"]
    assert degraded["results"][0]["explanation"].startswith("matches “")


async def test_an_evaluation_measures_the_cloud(asker: TestUser, project: str, cloud: FakeCloud) -> None:
    body = {"items": [{"message": RAIN, "tools": ["weather.get_forecast"]}], "project_id": project}
    answer = await asker.http.post("/eval", json=body)
    assert answer.status_code == 200, answer.text
    assert len(cloud.searches) == 1


async def test_the_logs_name_the_cloud_or_why_it_was_not_used(
    asker: TestUser, project: str, cloud: FakeCloud, service: Container
) -> None:
    await rows(service, """UPDATE users SET settings = '{"selection_log": true}' WHERE id = %(id)s""", id=asker.id)
    await asker.discover(RAIN, project_id=project)
    cloud.mode = "status"
    await asker.discover(RAIN, project_id=project)
    for path in ("/selections", "/decisions"):

        async def read_logged(path: str = path) -> list[tuple[str, str | None]] | None:
            answer = await asker.http.get(path)
            assert answer.status_code == 200, answer.text
            logged = [(each["strategy"], each["degraded_reason"]) for each in answer.json()["items"]]
            return logged if len(logged) == 2 else None

        assert set(await until(read_logged)) == {("cloud", None), ("bm25", "cloud_status_503")}


async def test_tools_of_a_request_are_not_sent_on(asker: TestUser, project: str, cloud: FakeCloud) -> None:
    """A service whose cloud is itself would ask itself forever."""
    tools = [{"toolKey": "a", "toolName": "get_forecast", "serverName": "s", "description": "Weather forecast."}]
    answer = await asker.http.post("/catalog/search", json={"query": [RAIN], "tools": tools})
    assert [each["toolKey"] for each in answer.json()["results"]] == ["a"]
    assert cloud.searches == []


async def test_a_user_whose_discovery_is_off_gets_all_tools(
    asker: TestUser, project: str, cloud: FakeCloud, service: Container
) -> None:
    await rows(service, "UPDATE users SET discovery_enabled = false WHERE id = %(id)s", id=asker.id)
    answer = await asker.discover(RAIN, project_id=project)
    assert (answer["degraded_reason"], len(answer["tools"])) == ("disabled", 3)
    assert cloud.searches == []


async def test_without_a_cloud_such_projects_cannot_be_made_and_existing_ones_are_searched_by_words(
    user: TestUser, container: Container
) -> None:
    await user.add_tools(FORECAST, REFUND)
    refused = await user.http.post("/projects", json={"name": "p", "optimization": "cloud"})
    assert "TOOLSCOUT_CLOUD_URL" in assert_problem(refused, 422, "invalid_input")["detail"]
    project = await create_project(user, optimization="hybrid")
    path = f"/projects/{project}"
    refused = await user.http.patch(path, json={"optimization": "cloud"})
    assert "TOOLSCOUT_CLOUD_URL" in assert_problem(refused, 422, "invalid_input")["detail"]
    await rows(container, "UPDATE projects SET optimization = 'cloud' WHERE id = %(id)s", id=project)
    check_fallback(await user.discover(RAIN, project_id=project), "cloud_not_configured")
    kept = await user.http.patch(path, json={"optimization": "cloud", "limit": 3})
    assert (kept.status_code, kept.json()["limit"]) == (200, 3)
    assert (await user.http.patch(path, json={"optimization": "hybrid"})).json()["optimization"] == "hybrid"


async def test_fallbacks_are_counted_under_fixed_reasons(
    asker: TestUser, project: str, cloud: FakeCloud, service: Container
) -> None:
    def read(name: str, **labels: str) -> float:
        return service.metrics._registry.get_sample_value(name, labels) or 0

    before = read("toolscout_discoveries_total", strategy="cloud", rung="whole")
    await asker.discover(RAIN, project_id=project)
    assert read("toolscout_discoveries_total", strategy="cloud", rung="whole") == before + 1
    degraded = read("toolscout_discoveries_total", strategy="bm25", rung="words")
    known = read("toolscout_fallbacks_total", reason="cloud_status_5xx")
    cloud.mode = "status"
    for cloud.status in (500, 599):
        await asker.discover(RAIN, project_id=project)
    assert read("toolscout_fallbacks_total", reason="cloud_status_5xx") == known + 2
    assert read("toolscout_discoveries_total", strategy="bm25", rung="words") == degraded + 2
    assert read("toolscout_cloud_seconds_count", outcome="failed") >= 2
