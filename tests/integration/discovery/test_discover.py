"""`POST /discover`, as chat backends call it."""

from typing import Any

import httpx
import pytest

from app.catalog.definitions import DefinitionCache, DefinitionSet
from app.discovery.request import DEFAULT_LIMIT
from tests.support.clients import TestUser, new_user
from tests.support.factories import OpenService, tool

FORECAST = tool("get_forecast", "Weather forecast for a city over the next days: rain, wind, temperature.")
REFUND = tool("refund_payment", "Give a customer their money back for a payment.")
SEARCH_REPOSITORIES = tool("search_repositories", "Search code repositories by topic, language or text.")
RAIN = "will it rain in Vienna tomorrow?"
ASK_USER = tool("ask_user", "Ask the user a question.")


def names(answer: dict[str, Any]) -> list[str]:
    return [found["tool"]["name"] for found in answer["tools"]]


async def test_the_right_tool_comes_first(user: TestUser) -> None:
    await user.add_tools(FORECAST, REFUND, SEARCH_REPOSITORIES)
    answer = await user.discover(RAIN)
    assert answer["tools"][0]["tool"]["name"] == "get_forecast"
    assert answer["tools"][0]["source"] == "semantic"
    assert answer["strategy"] == "hybrid"
    assert answer["degraded"] is False
    assert answer["total_searched"] == 3


async def test_the_answer_has_the_documented_fields(user: TestUser) -> None:
    await user.add_tools(FORECAST, server="weather")
    answer = await user.discover(RAIN)
    assert answer.keys() == {
        "discovery_id",
        "tools",
        "definitions",
        "total_searched",
        "search_duration_ms",
        "embedding_generated",
        "strategy",
        "degraded",
        "degraded_reason",
        "confidence",
        "no_match",
        "no_match_reason",
        "omitted",
        "tokens",
        "toolset_hash",
        "toolset_hash_before",
        "added",
        "removed",
        "changes",
    }
    [found] = answer["tools"]
    assert found["tool"] == FORECAST
    assert found["server_name"] == "weather"
    assert found["tool_key"] == (await user.tools())["get_forecast"]["id"]
    assert 0 < found["similarity"] <= 1
    assert 0 < found["score"] <= 1
    assert found["tokens"] > 10
    assert answer["definitions"] == [FORECAST]


ICON = {"src": "https://example.com/rain.png", "sizes": ["48x48"]}
LARGE_ICON = {"src": f"data:image/png;base64,{'A' * 5_000}"}
UI = {"ui": {"resourceUri": "ui://weather/forecast.html", "visibility": ["model"]}}


@pytest.mark.parametrize("settings", [{}, {"snapshot_mb": 0}], ids=["snapshot", "database"])
async def test_the_mcp_format_has_the_icons_and_the_meta_of_a_tool(
    open_service: OpenService, settings: dict[str, Any]
) -> None:
    for_hosts = {"icons": [LARGE_ICON, ICON], "_meta": {**UI, "toolscout/error": {"code": "x"}}}
    async with open_service(**settings) as service, new_user(service) as user:
        await user.add_tools({**FORECAST, **for_hosts})
        await user.http.put("/core-tools", json={"tools": [{**ASK_USER, **for_hosts}]})
        answer = await user.discover(RAIN)
        passed_on = {"icons": [ICON], "_meta": UI}
        assert answer["definitions"] == [{**ASK_USER, **passed_on}, {**FORECAST, **passed_on}]
        assert [found["tool"] for found in answer["tools"]] == answer["definitions"]
        for api_format in ("openai", "openai_responses", "anthropic"):
            other = await user.discover(RAIN, format=api_format)
            assert "rain.png" not in str(other["definitions"])
            assert "ui://" not in str(other["definitions"])
            assert other["tokens"] == answer["tokens"]


async def test_a_long_meta_is_left_out_and_the_tool_is_found(user: TestUser) -> None:
    await user.add_tools({**FORECAST, "_meta": {"example/long": "x" * 20_000}}, {**REFUND, "_meta": {"example/x": 1}})
    answer = await user.discover(RAIN, similarity_threshold=0)
    assert {found["tool"]["name"]: found["tool"].get("_meta") for found in answer["tools"]} == {
        "get_forecast": None,
        "refund_payment": {"example/x": 1},
    }


async def test_a_repeated_question_is_not_embedded_again(user: TestUser) -> None:
    await user.add_tools(FORECAST)
    assert (await user.discover(RAIN))["embedding_generated"] is True
    assert (await user.discover(RAIN))["embedding_generated"] is False


@pytest.mark.parametrize("strategy", ["hybrid", "semantic", "bm25"])
async def test_each_strategy_finds_the_tool_and_is_named_in_the_answer(user: TestUser, strategy: str) -> None:
    await user.add_tools(FORECAST, REFUND)
    answer = await user.discover("weather forecast with rain", strategy=strategy)
    assert names(answer)[0] == "get_forecast"
    assert answer["strategy"] == strategy
    assert answer["tools"][0]["source"] == ("lexical" if strategy == "bm25" else "semantic")
    assert (answer["tools"][0]["similarity"] is None) is (strategy == "bm25")


async def test_a_users_settings_are_its_defaults(user: TestUser, admin: httpx.AsyncClient) -> None:
    await user.add_tools(FORECAST, REFUND, SEARCH_REPOSITORIES)
    settings = {"strategy": "semantic", "limit": 1, "similarity_threshold": 0.0}
    assert (await admin.patch(f"/users/{user.id}", json={"settings": settings})).status_code == 200
    answer = await user.discover(RAIN)
    assert (answer["strategy"], len(answer["tools"])) == ("semantic", 1)
    assert len((await user.discover(RAIN, limit=3))["tools"]) == 3


async def test_no_tool_above_the_threshold_is_no_match_with_core_tools_alone(user: TestUser) -> None:
    await user.add_tools(REFUND)
    await user.http.put("/core-tools", json={"tools": [ASK_USER]})
    answer = await user.discover("qwertz", similarity_threshold=1.0)
    assert answer["no_match"] is True
    assert [found["source"] for found in answer["tools"]] == ["core"]
    assert (await user.discover("refund a payment"))["no_match"] is False


async def test_a_threshold_of_zero_lets_every_tool_pass(user: TestUser) -> None:
    await user.add_tools(FORECAST, REFUND, SEARCH_REPOSITORIES)
    assert len((await user.discover("qwertz", similarity_threshold=0))["tools"]) == 3


async def test_core_tools_are_included_unless_the_request_excludes_them(user: TestUser) -> None:
    await user.add_tools(FORECAST)
    await user.http.put("/core-tools", json={"tools": [ASK_USER]})
    assert names(await user.discover(RAIN)) == ["ask_user", "get_forecast"]
    assert names(await user.discover(RAIN, include_core_tools=False)) == ["get_forecast"]


async def test_an_answer_has_all_core_tools_and_up_to_the_limit_of_found_tools(user: TestUser) -> None:
    await user.add_tools(*(tool(f"weather_{i}", "Tells the weather.") for i in range(30)))
    await user.http.put("/core-tools", json={"tools": [tool(f"core_{i}") for i in range(12)]})
    for limit in (2, 8, 20):
        answer = await user.discover("weather", limit=limit, fill=True)
        assert [found["source"] for found in answer["tools"]] == ["core"] * 12 + ["semantic"] * limit
        assert answer["omitted"] is None


async def test_kept_tools_leave_room_for_five_new_ones_and_the_others_are_omitted(user: TestUser) -> None:
    await user.add_tools(*(tool(f"weather_{i}", "Tells the weather.") for i in range(30)))
    keep = [each["id"] for each in (await user.tools()).values()][-9:]
    search = {"limit": 10, "similarity_threshold": 0}
    answer = await user.discover("weather", keep=keep, **search)
    assert [found["source"] for found in answer["tools"]] == ["kept"] * 9 + ["semantic"] * 5
    assert answer["omitted"]["reason"] == "max_tools"
    found = {each["tool_key"] for each in (await user.discover("weather", **search))["tools"]}
    assert answer["omitted"]["count"] == len(found - set(keep)) - 5
    assert (await user.discover("weather", keep=keep[:5], limit=5))["omitted"] is None


async def test_an_answer_has_at_most_max_tools_unless_a_limit_is_set(open_service: OpenService) -> None:
    async with open_service(max_tools=3) as service, new_user(service) as user:
        await user.add_tools(*(tool(f"weather_{i}", "Tells the weather.") for i in range(12)))
        await user.http.put("/core-tools", json={"tools": [tool(f"core_{i}") for i in range(5)]})
        answer = await user.discover("weather", fill=True)
        assert [found["source"] for found in answer["tools"]] == ["core"] * 5 + ["semantic"] * 3
        assert answer["omitted"] == {"count": DEFAULT_LIMIT - 3, "reason": "max_tools"}
        longer = await user.discover("weather", limit=6, fill=True)
        assert [found["source"] for found in longer["tools"]] == ["core"] * 5 + ["semantic"] * 6
        assert longer["omitted"] is None


async def test_core_tools_larger_than_max_tokens_leave_no_room_and_the_answer_says_so(user: TestUser) -> None:
    await user.add_tools(FORECAST)
    await user.http.put("/core-tools", json={"tools": [tool(f"core_{i}", "Does much. " * 20) for i in range(3)]})
    full = await user.discover(RAIN)
    assert (len(full["tools"]), full["omitted"]) == (4, None)
    tight = await user.discover(RAIN, max_tokens=1)
    assert [found["source"] for found in tight["tools"]] == ["core"] * 3
    assert tight["omitted"] == {"count": 1, "reason": "max_tokens"}
    assert tight["no_match"] is False
    enough = await user.discover(RAIN, max_tokens=full["tokens"]["selected"])
    assert (names(enough), enough["omitted"]) == (names(full), None)


async def test_max_tokens_limits_the_definitions(user: TestUser) -> None:
    await user.add_tools(*(tool(f"weather_{i}", "Tells the weather. " * 10) for i in range(8)))
    full = await user.discover("weather", fill=True)
    assert (len(full["tools"]), full["omitted"]) == (8, None)
    half = full["tokens"]["selected"] // 2
    answer = await user.discover("weather", fill=True, max_tokens=half)
    assert 0 < answer["tokens"]["selected"] <= half
    assert names(answer) == names(full)[: len(answer["tools"])]
    assert answer["omitted"] == {"count": 8 - len(answer["tools"]), "reason": "max_tokens"}
    empty = await user.discover("weather", fill=True, max_tokens=1)
    assert (empty["tools"], empty["no_match"], empty["omitted"]) == ([], False, {"count": 8, "reason": "max_tokens"})


async def test_selected_and_saved_tokens_are_counted(user: TestUser) -> None:
    await user.add_tools(FORECAST, *(tool(f"other_{i}", f"Something else {i}. " * 20) for i in range(20)))
    answer = await user.discover(RAIN, limit=1)
    tokens = answer["tokens"]
    assert tokens["selected"] == sum(found["tokens"] for found in answer["tools"])
    assert tokens["all"] == sum(each["tokens"] for each in (await user.tools()).values())
    assert tokens["saved_percent"] == round(100 * (1 - tokens["selected"] / tokens["all"]), 1)


async def test_tags_filter_and_are_reported_as_matched(user: TestUser) -> None:
    await user.add_tools(FORECAST, server="weather", tags=["outdoor", "planning"])
    await user.add_tools(REFUND, server="payments", tags=["money"])
    answer = await user.discover(RAIN, tags=["outdoor", "planning"])
    assert names(answer) == ["get_forecast"]
    assert answer["tools"][0]["matched_tags"] == ["outdoor", "planning"]
    assert answer["total_searched"] == 1
    assert (await user.discover(RAIN, tags=["unheard"]))["total_searched"] == 0


async def test_server_ids_restrict_the_search_and_an_empty_list_means_none(user: TestUser) -> None:
    weather = await user.add_tools(FORECAST, server="weather")
    payments = await user.add_tools(REFUND, server="payments")
    search = {"similarity_threshold": 0}
    assert names(await user.discover(RAIN, server_ids=[weather], **search)) == ["get_forecast"]
    assert names(await user.discover(RAIN, server_ids=[payments, "unknown"], **search)) == ["refund_payment"]
    assert names(await user.discover(RAIN, server_ids=[], **search)) == []


async def test_an_exact_tool_name_comes_first(user: TestUser) -> None:
    await user.add_tools(FORECAST, REFUND, SEARCH_REPOSITORIES)
    answer = await user.discover("it rains and rains in the forecast, but run refund_payment")
    assert names(answer)[0] == "refund_payment"
    assert answer["tools"][0]["score"] == 1.0


async def test_kept_tools_come_first_in_their_old_order(user: TestUser) -> None:
    await user.add_tools(FORECAST, REFUND, SEARCH_REPOSITORIES)
    keys = {name: each["id"] for name, each in (await user.tools()).items()}
    keep = [keys["refund_payment"], keys["search_repositories"], "not-there-any-more"]
    answer = await user.discover(RAIN, keep=keep)
    assert names(answer) == ["refund_payment", "search_repositories", "get_forecast"]
    assert [found["source"] for found in answer["tools"]] == ["kept", "kept", "semantic"]


async def test_messages_are_searched_by_the_users_last_turn(user: TestUser) -> None:
    await user.add_tools(FORECAST, REFUND)
    messages = [
        {"role": "user", "content": "refund the customer"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": [{"type": "text", "text": RAIN}]},
    ]
    answer = (await user.http.post("/discover", json={"messages": messages})).json()
    assert names(answer)[0] == "get_forecast"


@pytest.mark.parametrize("api_format", ["mcp", "openai", "openai_responses", "anthropic"])
async def test_definitions_are_in_the_order_of_the_tools_in_every_format(user: TestUser, api_format: str) -> None:
    await user.add_tools(FORECAST, tool("weather: now/later", "Weather of now."), server="weather")
    await user.add_tools(FORECAST, server="other weather")
    answer = await user.discover("weather forecast", format=api_format, similarity_threshold=0)
    aliases = [each.get("function", each)["name"] for each in answer["definitions"]]
    assert aliases == [found["alias"] for found in answer["tools"]]
    assert len(set(aliases)) == 3


async def test_explain_adds_the_evidence(user: TestUser) -> None:
    await user.add_tools(FORECAST)
    [found] = (await user.discover("weather forecast", explain=True))["tools"]
    assert found["explanation"]["cosine"] == pytest.approx(found["similarity"], abs=1e-3)
    assert found["explanation"]["bm25"] > 0
    assert found["explanation"]["named_in_message"] is False
    assert "explanation" not in (await user.discover("weather forecast"))["tools"][0]


async def test_a_project_that_does_not_exist_is_not_found(user: TestUser) -> None:
    answer = await user.http.post("/discover", json={"query": RAIN, "project_id": "nothing"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_user_without_tools_gets_an_empty_answer(user: TestUser) -> None:
    answer = await user.discover(RAIN)
    assert answer["tools"] == []
    assert answer["no_match"] is True
    assert answer["tokens"] == {"selected": 0, "all": 0, "saved_percent": 0.0}


async def test_camel_case_names_are_the_same_fields(user: TestUser) -> None:
    weather = await user.add_tools(FORECAST, server="weather")
    await user.add_tools(REFUND, server="payments")
    await user.http.put("/core-tools", json={"tools": [ASK_USER]})
    fields = {"similarityThreshold": 0, "includeCoreTools": False, "serverIds": [weather], "maxTokens": 10_000}
    answer = await user.discover(RAIN, **fields)
    assert (names(answer), answer["total_searched"]) == (["get_forecast"], 1)
    everything = await user.discover(RAIN, similarityThreshold=0)
    assert names(everything) == ["ask_user", "get_forecast", "refund_payment"]
    unknown = await user.http.post("/discover", json={"query": RAIN, "projectId": "nothing"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    why = await user.http.post("/discover/why", json={"query": RAIN, "tool": "refund_payment", "serverIds": [weather]})
    assert [item["reason"] for item in why.json()["items"]] == ["outside_filter"]


@pytest.mark.parametrize(
    ("fields", "location", "message"),
    [
        ({"serverIds": [], "server_ids": []}, "server_ids", "give either `server_ids` or `serverIds`, not both"),
        ({"similarityThreshold": 2}, "similarity_threshold", "less than or equal to 1"),
        ({"serverIDs": []}, "serverIDs", ""),
        ({"userId": "alice"}, "userId", "the user is named in the header `X-User-Id`, not in the body"),
        ({"user_id": "alice"}, "user_id", "the user is named in the header `X-User-Id`, not in the body"),
    ],
)
@pytest.mark.parametrize("path", ["/discover", "/discover/why"])
async def test_a_wrong_field_in_camel_case_is_refused_by_name(
    user: TestUser, path: str, fields: dict[str, Any], location: str, message: str
) -> None:
    valid = {"query": RAIN, "tool": "x"} if path == "/discover/why" else {"query": RAIN}
    refused = await user.http.post(path, json={**valid, **fields})
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["loc"] == ["body", location]
    assert message in error["msg"]
    assert (await user.http.post(path, json=valid)).status_code == 200


async def test_the_schema_names_the_fields_in_snake_case(client: httpx.AsyncClient) -> None:
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("DiscoverBody", "WhyBody"):
        assert {"server_ids", "similarity_threshold", "max_tokens"} <= schemas[name]["properties"].keys()
        assert "serverIds" not in schemas[name]["properties"]
        assert schemas[name]["additionalProperties"] is False


async def test_an_answer_never_mixes_the_tools_before_and_after_a_change(
    open_service: OpenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalogue changes between the search and the reading of the definitions, which are separate statements."""
    before = [tool("show_file", "show a file, old"), tool("show_old_file", "show a file, old")]
    after = [tool("show_file", "show a file, new"), tool("show_new_file", "show a file, new")]
    async with open_service(snapshot_mb=0) as container, new_user(container) as user:
        server_id = await user.add_tools(*before)
        changes = 0

        async def change_first(cache: DefinitionCache, *args: Any, **options: Any) -> DefinitionSet:
            nonlocal changes
            changes += 1
            if changes == 1:
                await user.push(server_id, after)
            return await get_many(cache, *args, **options)

        get_many = DefinitionCache.get_many
        monkeypatch.setattr(DefinitionCache, "get_many", change_first)
        found = [each["tool"] for each in (await user.discover("show a file", fill=True))["tools"]]
    assert {(each["name"], each["description"]) for each in found} == {
        ("show_file", "show a file, new"),
        ("show_new_file", "show a file, new"),
    }
    assert changes == 2
