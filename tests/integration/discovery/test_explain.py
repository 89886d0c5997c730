"""`POST /discover/why`: a test for each reason, and for what is not disclosed."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.catalog.servers import record_failure
from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, make_database, make_settings, tool

Json = dict[str, Any]

FORECAST = tool("get_forecast", "Weather forecast for a city.", annotations={"readOnlyHint": True})
REFUND = tool("refund_payment", "Give a customer their money back.")
RAIN = "weather forecast: will it rain in the city?"


@pytest.fixture(scope="module")
async def service(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Container]:
    """A service that holds changed tools and does not search failing servers, so that every reason can occur."""
    settings = make_settings(tmp_path_factory.mktemp("why"), hold_changed_tools=True, find_failing_servers=False)
    async with open_container(settings, make_database(postgres)) as opened:
        yield opened


@pytest.fixture(scope="module")
async def operator(service: Container) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as http:
        yield http


@pytest.fixture
async def asker(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service) as made:
        yield made


@pytest.fixture
async def stranger(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service) as made:
        yield made


@pytest.fixture
async def weather(asker: TestUser) -> str:
    """Return the id of the server with the forecast; another server has another tool."""
    await asker.add_tools(REFUND, server="payments")
    return await asker.add_tools(FORECAST, server="weather")


async def get_reasons(user: TestUser, tool_name: str = "get_forecast", **fields: Any) -> list[Json]:
    answer = await user.http.post("/discover/why", json={"query": RAIN, "tool": tool_name, **fields})
    assert answer.status_code == 200, answer.text
    items: list[Json] = answer.json()["items"]
    assert all(each["included"] == (each["reason"] == "included") for each in items)
    return items


async def get_reason(user: TestUser, tool_name: str = "get_forecast", **fields: Any) -> Json:
    """Return the only reason, and check that it agrees with `/discover`."""
    [only] = await get_reasons(user, tool_name, **fields)
    answer = await user.discover(**{"query": RAIN, **fields})
    assert only["included"] == (only["tool_key"] in [hit["tool_key"] for hit in answer["tools"]])
    return only


async def get_code(user: TestUser, tool_name: str = "get_forecast", **fields: Any) -> str:
    code: str = (await get_reason(user, tool_name, **fields))["reason"]
    return code


async def put_rules(user: TestUser, *rules: Json) -> None:
    assert (await user.http.put("/rules", json={"rules": list(rules)})).status_code == 200


async def add_project(user: TestUser, **fields: Any) -> str:
    made = await user.http.post("/projects", json={"name": uuid.uuid4().hex, "server_ids": None, **fields})
    assert made.status_code == 201, made.text
    project_id: str = made.json()["id"]
    return project_id


async def patch(user: TestUser, path: str, **changes: Any) -> None:
    answer = await user.http.patch(path, json=changes)
    assert answer.status_code == 200, answer.text


async def get_key(user: TestUser, name: str = "get_forecast") -> str:
    key: str = (await user.tools())[name]["id"]
    return key


async def test_a_tool_of_the_answer_is_included_with_its_rank(asker: TestUser, weather: str) -> None:
    included = await get_reason(asker)
    assert included.pop("explanation")["cosine_rank"] == 1
    assert included.pop("confidence").pop("chance") > 0.5
    assert included == {
        "tool_key": await get_key(asker),
        "name": "get_forecast",
        "server_name": "weather",
        "included": True,
        "reason": "included",
        "message": "it is number 1 of the answer",
        "rule": None,
        "rank": 1,
    }
    both = await get_reason(asker, "refund_payment", similarity_threshold=0)
    assert (both["reason"], both["rank"]) == ("included", 2)


async def test_a_tool_is_found_by_key_by_name_or_by_server_and_name(asker: TestUser, weather: str) -> None:
    found = [await get_reason(asker, name) for name in (await get_key(asker), "get_forecast", "weather.get_forecast")]
    assert found[0] == found[1] == found[2]
    assert await get_code(asker, "payments.get_forecast") == "not_indexed"
    assert await get_code(asker, "GET_FORECAST") == "not_indexed"


async def test_two_tools_with_one_name_have_a_reason_each(asker: TestUser, weather: str) -> None:
    await asker.add_tools(FORECAST, server="second", enabled=False)
    two = await get_reasons(asker)
    assert {each["server_name"]: each["reason"] for each in two} == {
        "weather": "included",
        "second": "server_disabled",
    }
    assert await get_code(asker, "second.get_forecast") == "server_disabled"


async def test_an_unknown_tool_is_not_indexed(asker: TestUser, weather: str) -> None:
    nothing = await get_reason(asker, "no_such_tool")
    assert {nothing[name] for name in ("tool_key", "name", "server_name", "rule", "rank", "explanation")} == {None}
    assert nothing["reason"] == "not_indexed"
    await asker.push(weather, [tool("other")])
    assert await get_reason(asker) == nothing, "a tool that its server removed"


async def test_another_users_tool_gives_the_same_answer_as_an_unknown_tool(
    asker: TestUser, stranger: TestUser, weather: str
) -> None:
    foreign = [await get_key(asker), "get_forecast", "weather.get_forecast"]
    body = {"query": RAIN}
    answers = {
        (answer.status_code, answer.content)
        for name in (*foreign, str(uuid.uuid4()), "no_such_tool")
        for answer in [await stranger.http.post("/discover/why", json=body | {"tool": name})]
    }
    assert len(answers) == 1
    assert [await get_code(asker, name) for name in foreign] == ["included"] * 3


async def test_a_tool_of_a_disabled_server(asker: TestUser, weather: str) -> None:
    await patch(asker, f"/servers/{weather}", enabled=False)
    assert await get_code(asker) == "server_disabled"
    await patch(asker, f"/servers/{weather}", enabled=True)
    assert await get_code(asker) == "included"


async def test_a_tool_that_its_server_does_not_permit(asker: TestUser, weather: str) -> None:
    await patch(asker, f"/servers/{weather}", tool_permissions={"*": False})
    assert await get_code(asker) == "not_permitted"
    await patch(asker, f"/servers/{weather}", tool_permissions={"*": False, "get_forecast": True})
    assert await get_code(asker) == "included"


async def test_a_tool_that_the_user_disabled(asker: TestUser, weather: str) -> None:
    path = f"/tools/{await get_key(asker)}"
    await patch(asker, path, enabled=False)
    off = await get_reason(asker)
    assert (off["reason"], off["rule"]) == ("switched_off", None)
    assert "PATCH /tools/{id}" in off["message"]
    await patch(asker, path, enabled=None)
    assert await get_code(asker) == "included"


async def test_a_tool_that_a_rule_disables_names_the_rule(asker: TestUser, weather: str) -> None:
    tagging = {"pattern": ["*"], "tags": ["all"]}
    await put_rules(
        asker, tagging, {"pattern": ["refund_*"], "enabled": False}, {"pattern": ["get_*"], "enabled": False}
    )
    off = await get_reason(asker)
    assert (off["reason"], off["rule"], off["message"]) == ("disabled_by_rule", 3, "rule 3 disables it")
    assert (await get_reason(asker, "refund_payment"))["rule"] == 2
    await put_rules(asker, tagging, {"pattern": ["refund_*"], "enabled": True})
    off = await get_reason(asker)
    assert (off["reason"], off["rule"]) == ("disabled_by_rule", None)
    assert "no rule enables it" in off["message"]
    await put_rules(asker)
    assert await get_code(asker) == "included"


async def test_a_tool_with_a_changed_definition_is_held(asker: TestUser, weather: str) -> None:
    await asker.push(weather, [{**FORECAST, "title": "Another"}])
    held = await get_reason(asker)
    assert held["reason"] == "held"
    assert "POST /tools/{id}/approve" in held["message"]
    await asker.http.post(f"/tools/{await get_key(asker)}/approve")
    assert await get_code(asker) == "included"


async def test_a_tool_of_a_failing_server(service: Container, asker: TestUser, weather: str) -> None:
    async with service.database.transaction(asker.id) as session:
        await record_failure(session, asker.id, weather, "closed", "It broke.")
    assert await get_code(asker) == "server_failing"
    await asker.push(weather, [FORECAST])
    assert await get_code(asker) == "included"


async def test_a_tool_that_a_project_excludes(asker: TestUser, weather: str) -> None:
    payments = next(each["server_id"] for each in (await asker.tools()).values() if each["server_name"] == "payments")
    without = await add_project(asker, server_ids=[payments])
    assert await get_code(asker, project_id=without) == "outside_project"
    rules = [{"pattern": ["x"], "enabled": False}, {"pattern": ["get_*"], "enabled": False}]
    ruled = await add_project(asker, rules=rules)
    off = await get_reason(asker, project_id=ruled)
    assert (off["reason"], off["rule"]) == ("disabled_by_project_rule", 2)
    assert off["message"] == "rule 2 of the project disables it"
    outbound_allow = await add_project(asker, rules=[{"pattern": ["refund_*"], "enabled": True}])
    off = await get_reason(asker, project_id=outbound_allow)
    assert (off["reason"], off["rule"]) == ("disabled_by_project_rule", None)
    reading = await add_project(asker, read_only=True)
    assert await get_code(asker, "refund_payment", project_id=reading, similarity_threshold=0) == "not_read_only"
    for project_id in (reading, await add_project(asker, server_ids=[weather])):
        assert await get_code(asker, project_id=project_id) == "included"
    assert await get_code(asker) == "included"


async def test_an_explanation_is_not_counted_as_a_discovery(service: Container, asker: TestUser, weather: str) -> None:
    def count_discoveries() -> list[bytes]:
        lines = service.metrics.render().splitlines()
        return [line for line in lines if line.startswith(b"toolscout_discoveries_total")]

    projects = [await add_project(asker, optimization=optimization) for optimization in (None, "hybrid")]
    before = count_discoveries()
    for project_id in projects:
        await get_reasons(asker, project_id=project_id)
    assert count_discoveries() == before
    for project_id in projects:
        await asker.discover(RAIN, project_id=project_id)
    assert len([line for line in count_discoveries() if line not in before]) == 2


async def test_a_project_that_does_not_search(asker: TestUser, weather: str) -> None:
    assert await get_code(asker, project_id=await add_project(asker, optimization=None)) == "discovery_off"
    assert await get_code(asker, project_id=await add_project(asker, optimization="bm25")) == "included"


async def test_a_tool_that_the_requests_filters_exclude(asker: TestUser, weather: str) -> None:
    servers = await get_reason(asker, server_ids=["another"])
    assert (servers["reason"], "server_ids" in servers["message"]) == ("outside_filter", True)
    tags = await get_reason(asker, tags=["outdoors"])
    assert (tags["reason"], "tags" in tags["message"]) == ("outside_filter", True)
    await patch(asker, f"/tools/{await get_key(asker)}", tags=["outdoors"])
    assert await get_code(asker, tags=["outdoors"], server_ids=[weather]) == "included"
    project_id = await add_project(asker, rules=[{"pattern": ["get_*"], "tags": ["within"]}])
    assert await get_code(asker, tags=["within"], project_id=project_id) == "included"
    assert await get_code(asker, tags=["within"]) == "outside_filter"


async def test_visibility_is_checked_before_filters(asker: TestUser, weather: str) -> None:
    await patch(asker, f"/servers/{weather}", enabled=False)
    nowhere = await add_project(asker, server_ids=[])
    assert await get_code(asker, project_id=nowhere, server_ids=[], tags=["none"]) == "server_disabled"
    await patch(asker, f"/servers/{weather}", enabled=True)
    assert await get_code(asker, project_id=nowhere, server_ids=[], tags=["none"]) == "outside_project"


async def test_a_tool_below_the_threshold(asker: TestUser, weather: str) -> None:
    below = await get_reason(asker, "refund_payment", similarity_threshold=0.99)
    assert below["reason"] == "below_threshold"
    assert "below the threshold of 0.99" in below["message"]
    assert "too few of the message's words" in below["message"]
    assert below["explanation"]["cosine"] < 0.99
    by_meaning = await get_reason(asker, "refund_payment", similarity_threshold=0.99, strategy="semantic")
    assert (by_meaning["reason"], "words" in by_meaning["message"]) == ("below_threshold", False)
    assert await get_code(asker, "refund_payment", similarity_threshold=0) == "included"


async def test_a_tool_without_a_word_of_the_message_in_a_search_by_words(asker: TestUser, weather: str) -> None:
    below = await get_reason(asker, "refund_payment", strategy="bm25")
    assert (below["reason"], below["explanation"]["bm25"]) == ("below_threshold", 0)
    assert "none of the message's words" in below["message"]
    assert await get_code(asker, strategy="bm25") == "included"


@pytest.mark.parametrize("strategy", ["hybrid", "semantic", "bm25"])
async def test_an_outranked_tool_is_included_with_its_rank_as_the_limit(asker: TestUser, strategy: str) -> None:
    cities = ["Vienna", "Graz", "Linz", "Salzburg", "Innsbruck", "Bregenz", "Villach", "Wels", "Krems", "Steyr"]
    await asker.add_tools(
        *(tool(f"forecast_{n}", f"Weather {'forecast ' * n} for {city}.") for n, city in enumerate(cities))
    )
    fields: Json = {"similarity_threshold": 0, "strategy": strategy, "include_core_tools": False}
    order = [hit["tool"]["name"] for hit in (await asker.discover(RAIN, limit=50, **fields))["tools"]]
    assert len(order) == len(cities)
    for rank in (4, 7, 10):
        outranked = await get_reason(asker, order[rank - 1], limit=3, **fields)
        assert (outranked["reason"], outranked["rank"]) == ("outranked", rank)
        assert outranked["message"] == f"it ranks {rank}, and the limit is 3"
        assert outranked["explanation"] is not None
        assert (await get_reason(asker, order[rank - 1], limit=rank, **fields))["rank"] == rank
        assert await get_code(asker, order[rank - 1], limit=rank - 1, **fields) == "outranked"


async def test_the_rank_of_a_tool_far_down_is_exact(asker: TestUser) -> None:
    by_meaning = [tool(f"outlook_{n:02}", f"Rainfall, storms and sunshine, number {n}.") for n in range(36)]
    by_words = [tool(f"invoice_{n:02}", f"city {'forecast ' * (n % 5)} tax {n} weather") for n in range(36)]
    await asker.add_tools(*by_meaning, *by_words, REFUND)
    fields: Json = {"similarity_threshold": 0, "include_core_tools": False}
    order = [hit["tool"]["name"] for hit in (await asker.discover(RAIN, limit=50, **fields))["tools"]]
    ranked = [await get_reason(asker, name, limit=3, **fields) for name in order[24:48:4]]
    assert {each["reason"] for each in ranked} == {"outranked"}
    ranks = {each["name"]: each["rank"] for each in ranked if each["rank"] is not None and each["rank"] <= 50}
    assert max(ranks.values()) > 32
    for name, rank in ranks.items():
        assert (await get_reason(asker, name, limit=rank, **fields))["rank"] == rank
    beyond = await get_reason(asker, "refund_payment", limit=3, **fields)
    assert (beyond["reason"], beyond["rank"]) == ("outranked", 73)


async def test_a_tool_that_exceeds_max_tokens(asker: TestUser, weather: str) -> None:
    tokens = (await asker.tools())["get_forecast"]["tokens"]
    cramped = await get_reason(asker, max_tokens=tokens - 1)
    assert (cramped["reason"], cramped["rank"]) == ("no_room", 1)
    assert "max_tokens" in cramped["message"]
    assert await get_code(asker, max_tokens=tokens) == "included"


async def test_a_tool_that_the_kept_tools_leave_no_room_for(asker: TestUser) -> None:
    await asker.add_tools(*(tool(f"forecast_{n:02}", f"Weather forecast {n}.") for n in range(16)))
    core = [tool(f"native_{n}") for n in range(8)]
    assert (await asker.http.put("/core-tools", json={"tools": core})).status_code == 200
    search: Json = {"similarity_threshold": 0, "limit": 10}
    order = [hit["tool"]["name"] for hit in (await asker.discover(RAIN, **search))["tools"] if hit["source"] != "core"]
    keep = [tool["id"] for name, tool in (await asker.tools()).items() if name not in order]
    pushed_out = await get_reason(asker, order[5], keep=keep, **search)
    assert (pushed_out["reason"], pushed_out["rank"]) == ("no_room", 6)
    assert "TOOLSCOUT_MAX_TOOLS" in pushed_out["message"]
    assert await get_code(asker, order[4], keep=keep, **search) == "included"
    assert await get_code(asker, order[5], **search) == "included"


async def test_a_kept_tool_that_exceeds_max_tokens(asker: TestUser, weather: str) -> None:
    tools = await asker.tools()
    keep, tokens = [tools["refund_payment"]["id"]], tools["refund_payment"]["tokens"]
    cramped = await get_reason(asker, "refund_payment", keep=keep, max_tokens=tokens - 1)
    assert cramped["reason"] == "no_room"
    assert "max_tokens" in cramped["message"]
    assert await get_code(asker, "refund_payment", keep=keep, max_tokens=tokens) == "included"


async def test_only_the_limit_excludes_a_tool_while_discovery_is_disabled(
    asker: TestUser, weather: str, operator: httpx.AsyncClient
) -> None:
    await operator.patch(f"/users/{asker.id}", json={"discovery_enabled": False})
    late = await get_reason(asker, limit=1)
    assert (late["reason"], late["rank"]) == ("no_room", None)
    assert await get_code(asker, limit=2) == "included"
    assert await get_code(asker, "refund_payment", limit=1) == "included"
    await patch(asker, f"/servers/{weather}", enabled=False)
    assert await get_code(asker, limit=2) == "server_disabled"


async def test_a_key_of_a_project_learns_nothing_about_tools_outside_it(
    service: Container, asker: TestUser, weather: str, operator: httpx.AsyncClient
) -> None:
    project_id = await add_project(asker, server_ids=[weather])
    made = await operator.post("/keys", json={"kind": "user", "user_id": asker.id, "project_id": project_id})
    assert made.status_code == 201, made.text
    outside, inside = await get_key(asker, "refund_payment"), await get_key(asker)
    async with open_client(service, Authorization=f"Bearer {made.json()['key']}") as http:
        confined = TestUser(asker.id, made.json()["key"], http)
        [unknown] = await get_reasons(confined, str(uuid.uuid4()))
        for name in (outside, "refund_payment", "payments.refund_payment"):
            assert await get_reasons(confined, name) == [unknown]
        assert (await get_reason(confined, inside))["reason"] == "included"
        await patch(asker, f"/tools/{inside}", enabled=False)
        assert await get_reasons(confined, inside) == [unknown], "hidden tools inside it are not disclosed either"
    assert await get_code(asker, "refund_payment", project_id=project_id) == "outside_project"


async def test_an_invalid_request_is_rejected(asker: TestUser, weather: str) -> None:
    for wrong in ({"tool": "x"}, {"query": RAIN}, {"query": RAIN, "tool": ""}, {"query": RAIN, "tool": "x", "more": 1}):
        assert (await asker.http.post("/discover/why", json=wrong)).status_code == 422
    assert (await asker.http.post("/discover/why", json={"query": RAIN, "tool": "x"})).status_code == 200
    unknown = {"query": RAIN, "tool": "x", "project_id": str(uuid.uuid4())}
    assert (await asker.http.post("/discover/why", json=unknown)).status_code == 404
