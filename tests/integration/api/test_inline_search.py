"""`POST /catalog/search`: the ranking of `/discover` over tools that come with the request."""

from typing import Any

import httpx
import pytest

from app.api.inline_search import MAX_QUERIES, MAX_TOOLS
from app.container import Container
from app.demo.seed import load_catalogue
from tests.conftest import OpenService, TestUser, new_user
from tests.support.checks import assert_problem, rows_of
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.worker_steps import until

Json = dict[str, Any]

MESSAGES = [
    "do I need an umbrella in Salzburg this weekend?",
    "open a bug about the login page",
    "send an e-mail to Ann",
    "find the customer's last invoice and refund it",
    "read notes.txt and mail it to Bob, then put a meeting into my calendar",
    "what did Mara write in the channel yesterday?",
    "list_events",
    "hello there, how are you?",
    "translate this into French",
    "delete everything in the archive folder",
    "which issues are assigned to me?",
    "total revenue by month",
]


def sent(key: str, description: str = "", server: str = "files", **fields: Any) -> Json:
    return {"toolKey": key, "toolName": key, "serverName": server, "description": description, **fields}


FORECAST = sent("get_forecast", "The weather forecast for a city: rain, wind and temperature.", "weather")
READ = sent("read_file", "Read a text file from the disk.")
REFUND = sent("refund_payment", "Give customers their money back after a payment.", "payments")
THREE = [FORECAST, READ, REFUND]
RAIN = "weather forecast: will it rain in the city?"


async def search(user: TestUser, *queries: str, tools: list[Json], **fields: Any) -> Json:
    answer = await user.http.post("/catalog/search", json={"query": list(queries), "tools": tools, **fields})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def keys(answer: Json) -> list[str]:
    return [result["toolKey"] for result in answer["results"]]


@pytest.fixture
async def demo_user(user: TestUser) -> TestUser:
    """Without titles, which sent tools do not have."""
    for server in load_catalogue():
        tools = [{name: value for name, value in each.items() if name != "title"} for each in server["tools"]]
        await user.add_tools(*tools, server=server["name"])
    return user


async def as_sent(user: TestUser) -> list[Json]:
    listed = (await user.http.get("/tools", params={"limit": 200})).json()["items"]
    return [
        {
            "toolKey": each["id"],
            "toolName": each["name"],
            "serverName": each["server_name"],
            "description": each["description"],
            "inputSchema": each["input_schema"],
        }
        for each in listed
    ]


async def test_sent_tools_rank_as_the_same_tools_do_when_they_are_indexed(demo_user: TestUser) -> None:
    tools = await as_sent(demo_user)
    answered = 0
    for message in MESSAGES:
        discovered = await demo_user.discover(message, limit=10)
        found = await search(demo_user, message, tools=tools, max_results=10)
        assert keys(found) == [each["tool_key"] for each in discovered["tools"]], message
        scores = [each["score"] for each in discovered["tools"]]
        assert [each["relevance"] for each in found["results"]] == pytest.approx(scores, abs=5e-4), message
        assert found["no_match"] == discovered["no_match"]
        answered += not found["no_match"]
    assert 0 < answered < len(MESSAGES)


async def test_by_words_they_rank_alike_too(demo_user: TestUser, admin: httpx.AsyncClient) -> None:
    await admin.patch(f"/users/{demo_user.id}", json={"settings": {"strategy": "bm25", "limit": 3}})
    for message in MESSAGES[:5]:
        discovered = await demo_user.discover(message)
        found = await search(demo_user, message, tools=await as_sent(demo_user))
        assert discovered["strategy"] == "bm25"
        assert keys(found) == [each["tool_key"] for each in discovered["tools"]]
        assert 0 < len(keys(found)) <= 3
        assert "close in meaning" not in str(found)


async def test_what_comes_out_is_what_was_promised(user: TestUser) -> None:
    answer = await search(user, "give the customer the money back", tools=THREE, max_results=1)
    [result] = answer.pop("results")
    assert 0 < result.pop("relevance") <= 1
    assert result.pop("explanation").startswith("matches “give”, “customer”, “money”, “back”; close in meaning (0.")
    assert result == {
        "toolKey": "refund_payment",
        "toolName": "refund_payment",
        "serverName": "payments",
        "description": REFUND["description"],
    }
    assert answer == {
        "total_searched": 3,
        "degraded": False,
        "degraded_reason": None,
        "pending": 0,
        "no_match": False,
        "refused": [],
    }


async def test_each_of_several_queries_keeps_its_best_tool(user: TestUser) -> None:
    rains = [sent(f"get_forecast_{n}", f"The weather forecast for city number {n}.", "weather") for n in range(8)]
    tools = [*rains, READ, REFUND]
    alone = await search(user, RAIN, tools=tools, max_results=3)
    assert all(key.startswith("get_forecast") for key in keys(alone))
    both = await search(user, RAIN, "read a text file from the disk", tools=tools, max_results=3)
    assert "read_file" in keys(both)
    assert len(keys(both)) == len(set(keys(both))) == 3
    relevance = [result["relevance"] for result in both["results"]]
    assert relevance == sorted(relevance, reverse=True)


async def test_the_context_says_what_a_short_query_is_about(user: TestUser) -> None:
    tools = [
        sent("files_open", "Open something: a text file from the disk."),
        sent("issues_open", "Open something: an issue in the bug tracker."),
    ]
    for context, first in (("a bug in the tracker", "issues_open"), ("a text file on the disk", "files_open")):
        assert keys(await search(user, "open it", context=context, tools=tools))[0] == first


async def test_a_tool_that_the_query_names_comes_first_and_says_so(user: TestUser) -> None:
    found = await search(user, "forecast the weather with refund_payment", tools=THREE)
    assert keys(found)[0] == "refund_payment"
    assert found["results"][0]["relevance"] == 1
    assert found["results"][0]["explanation"].startswith("named in the query; matches “refund_payment”")


async def test_where_nothing_fits_there_is_no_match(user: TestUser) -> None:
    found = await search(user, "sing me a song about love", tools=THREE)
    assert (found["results"], found["no_match"], found["degraded"]) == ([], True, False)
    assert (await search(user, RAIN, tools=THREE))["no_match"] is False
    assert (await search(user, RAIN, tools=[]))["no_match"] is True


async def test_nothing_of_it_is_stored_for_the_user(user: TestUser, container: Container) -> None:
    before = await rows_of(container, user.id)
    await search(user, RAIN, tools=THREE)
    await container.usage_counters.write()
    assert await rows_of(container, user.id) == before
    assert await user.tools() == {}
    assert (await user.discover(RAIN))["total_searched"] == 0


async def test_the_switch_of_a_users_own_catalogue_is_not_about_these_tools(
    user: TestUser, admin: httpx.AsyncClient
) -> None:
    before = await search(user, RAIN, tools=THREE)
    await admin.patch(f"/users/{user.id}", json={"discovery_enabled": False})
    assert (await user.discover(RAIN))["degraded_reason"] == "disabled"
    assert await search(user, RAIN, tools=THREE) == before
    assert keys(before)[0] == "get_forecast"


async def test_hidden_characters_reach_no_answer(user: TestUser) -> None:
    spoiled = sent("get_forecast", "The weather \u202eforecast\u200b for a city.", "wea\u200bther")
    [result] = (await search(user, RAIN, tools=[spoiled]))["results"]
    assert (result["description"], result["serverName"]) == ("The weather forecast for a city.", "weather")


def deep(levels: int) -> Json:
    schema: Json = {}
    for _ in range(levels):
        schema = {"a": schema}
    return schema


async def test_a_tool_beyond_the_limits_is_refused_alone(user: TestUser) -> None:
    bad = [sent("too deep", inputSchema=deep(40)), sent("hidden\u200b"), sent("large", "x" * 300_000)]
    found = await search(user, RAIN, tools=[*bad, FORECAST])
    assert keys(found) == ["get_forecast"]
    assert found["total_searched"] == 1
    assert [each["toolKey"] for each in found["refused"]] == [each["toolKey"] for each in bad]
    assert all(each["reason"] for each in found["refused"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": []}, "body.query"),
        ({"query": "rain"}, "body.query"),
        ({"query": [" "]}, "no text to search for"),
        ({"query": ["rain", ""]}, "no text to search for"),
        ({"query": ["rain"] * (MAX_QUERIES + 1)}, "body.query"),
        ({"tools": [READ, FORECAST, READ]}, "number 3 of `tools`"),
        ({"tools": [sent(f"tool_{n}") for n in range(MAX_TOOLS + 1)]}, "body.tools"),
        ({"tools": [{**READ, "toolKey": ""}]}, "toolKey"),
        ({"tools": [{**READ, "tool_key": "x"}]}, "tool_key"),
        ({"tools": [{"toolKey": "x", "toolName": "x"}]}, "serverName"),
        ({"tools": [{**READ, "inputSchema": []}]}, "inputSchema"),
        ({"max_results": 0}, "max_results"),
        ({"max_results": 51}, "max_results"),
        ({"limit": 3}, "limit"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_cannot_be_searched_is_refused_with_the_reason(user: TestUser, change: Json, words: str) -> None:
    body: Json = {"query": [RAIN], "tools": THREE}
    problem = assert_problem(await user.http.post("/catalog/search", json=body | change), 422)
    assert words in problem["detail"]
    assert (await user.http.post("/catalog/search", json=body)).status_code == 200


async def test_two_thousand_tools_are_searched(user: TestUser) -> None:
    """Of one text each but for their keys, so that one is embedded for all."""
    tools = [{**READ, "toolKey": f"read {n}"} for n in range(MAX_TOOLS - 1)]
    found = await search(user, RAIN, tools=[*tools, FORECAST], max_results=1)
    assert keys(found) == ["get_forecast"]
    assert found["total_searched"] == MAX_TOOLS


async def test_what_there_is_no_time_to_embed_is_found_by_words_and_known_later(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    """The embedder hangs with the second batch, once the query has its vector."""
    many = [sent(f"tool_{n}", f"Does thing number {n}.") for n in range(200)]
    settings = embedding_server.settings(catalog_embed_budget_s=4.0)
    async with open_service(**settings) as service, new_user(service) as user:
        embedding_server.mode, embedding_server.quick = "hang_later", 2
        first = await search(user, "weather forecast city", tools=[*many, FORECAST])
        assert (first["degraded"], first["degraded_reason"]) == (True, "embedding_budget")
        assert 0 < first["pending"] < 201
        assert keys(first)[0] == "get_forecast"
        embedding_server.mode = "ok"

        async def known() -> dict[str, Any] | None:
            answer = await search(user, "weather forecast city", tools=[*many, FORECAST])
            return None if answer["pending"] else answer

        second = await until(known)
        assert (second["degraded"], second["degraded_reason"]) == (False, None)
        assert keys(second)[0] == "get_forecast"


async def test_with_no_time_at_all_it_is_a_search_by_words(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    settings = embedding_server.settings(catalog_embed_budget_s=0)
    async with open_service(**settings) as service, new_user(service) as user:
        found = await search(user, "a text, perhaps", tools=THREE)
        assert (found["degraded_reason"], found["pending"]) == ("embedding_budget", 3)
        assert keys(found) == ["read_file"]
        assert found["results"][0]["explanation"] == "matches “text”"


async def test_without_the_embedder_it_is_a_search_by_words_that_heals(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    async with open_service(**embedding_server.settings()) as service, new_user(service) as user:
        embedding_server.mode = "status"
        degraded = await search(user, "a text, perhaps", tools=THREE)
        assert (degraded["degraded"], degraded["degraded_reason"]) == (True, "embedder_status_500")
        assert keys(degraded) == ["read_file"]
        embedding_server.mode = "ok"
        healed = await search(user, "read a text file", tools=THREE)
        assert (healed["degraded"], healed["degraded_reason"]) == (False, None)
        assert "close in meaning" in healed["results"][0]["explanation"]
