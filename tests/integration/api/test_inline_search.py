"""`POST /catalog/search`: the ranking of `/discover` over the tools in the request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from starlette.types import Message

from app.container import Container
from app.demo.seed import load_catalogue
from app.indexing.tool_vectors import ToolTexts
from app.schemas.inline_search import MAX_QUERIES, MAX_TOOLS
from tests.support.checks import assert_problem, rows_of
from tests.support.clients import TestUser, get_app, new_user
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import OpenService, tool
from tests.support.known_tools import document_of, pick_known_tools
from tests.support.worker_steps import read_user_scope, rows, until

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


def make_tool(key: str, description: str = "", server: str = "files", **fields: Any) -> Json:
    return {"toolKey": key, "toolName": key, "serverName": server, "description": description, **fields}


FORECAST = make_tool("get_forecast", "The weather forecast for a city: rain, wind and temperature.", "weather")
READ = make_tool("read_file", "Read a text file from the disk.")
REFUND = make_tool("refund_payment", "Give customers their money back after a payment.", "payments")
THREE = [FORECAST, READ, REFUND]
RAIN = "weather forecast: will it rain in the city?"


async def search(user: TestUser, *queries: str, tools: list[Json], **fields: Any) -> Json:
    answer = await user.http.post("/catalog/search", json={"query": list(queries), "tools": tools, **fields})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def keys(answer: Json) -> list[str]:
    return [result["toolKey"] for result in answer["results"]]


@pytest.fixture(scope="module")
async def demo_user(container: Container) -> AsyncIterator[TestUser]:
    """A user with the demo catalogue without titles, which inline tools do not have."""
    async with new_user(container) as user:
        for server in load_catalogue():
            tools = [{name: value for name, value in each.items() if name != "title"} for each in server["tools"]]
            await user.add_tools(*tools, server=server["name"])
        yield user


async def list_inline(user: TestUser) -> list[Json]:
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


async def test_inline_tools_rank_like_the_same_tools_in_the_catalogue(demo_user: TestUser) -> None:
    tools = await list_inline(demo_user)
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


async def test_known_tools_rank_alike_whether_they_are_stored_or_sent_along(user: TestUser) -> None:
    known = pick_known_tools(8)
    await user.add_tools(*(tool(each.name, each.description) for each in known), server="known")
    tools = await list_inline(user)
    found_first = set()
    for name, message in [(each.name, message) for each in known for message in each.examples]:
        discovered = await user.discover(message, limit=5)
        found = await search(user, message, tools=tools, max_results=5)
        assert keys(found) == [result["tool_key"] for result in discovered["tools"]], message
        scores = [result["score"] for result in discovered["tools"]]
        assert [result["relevance"] for result in found["results"]] == pytest.approx(scores, abs=5e-4), message
        assert found["no_match"] == discovered["no_match"]
        if not found["no_match"]:  # a vague example is no match, stored or not
            assert discovered["tools"][0]["tool"]["name"] == name, message
            found_first.add(name)
    assert found_first == {each.name for each in known}


async def test_a_known_tool_that_is_sent_along_has_the_vector_of_the_stored_one(
    user: TestUser, container: Container
) -> None:
    """The vector of a request that comes first is cached, and an index run takes it from there."""
    [known] = pick_known_tools(1)
    inline = make_tool(known.name, known.description, "shared", inputSchema={"type": "object", "properties": {}})
    await search(user, known.examples[0], tools=[inline])
    run = await user.push(await user.add_server("shared"), [tool(known.name, known.description)])
    assert (run["counts"]["added"], run["counts"]["embedded"]) == (1, 0)
    [(similarity,)] = await rows(
        container,
        """
        SELECT max(1 - (v.embedding <=> c.embedding)) FROM mcp_tool_embeddings v, embedding_cache c
        WHERE v.user_id = %(user)s AND c.model = v.model AND c.text_hash = %(hash)s
        """,
        user=user.id,
        hash=ToolTexts(
            document_of(known, "shared"), known.examples, await read_user_scope(container, user)
        ).vector_hash,
    )
    assert similarity == pytest.approx(1, abs=1e-3)


async def test_inline_tools_rank_alike_in_a_search_by_words(demo_user: TestUser, admin: httpx.AsyncClient) -> None:
    tools = await list_inline(demo_user)
    await admin.patch(f"/users/{demo_user.id}", json={"settings": {"strategy": "bm25", "limit": 3}})
    try:
        for message in MESSAGES[:5]:
            discovered = await demo_user.discover(message)
            found = await search(demo_user, message, tools=tools)
            assert discovered["strategy"] == "bm25"
            assert keys(found) == [each["tool_key"] for each in discovered["tools"]]
            assert 0 < len(keys(found)) <= 3
            assert "close in meaning" not in str(found)
    finally:  # the user is also that of another test
        reset = await admin.patch(f"/users/{demo_user.id}", json={"settings": {"strategy": None, "limit": None}})
        assert reset.json()["settings"] == {}


async def test_the_answer_has_the_documented_fields(user: TestUser) -> None:
    answer = await search(user, "give the customer the money back", tools=THREE, max_results=1)
    [result] = answer.pop("results")
    assert 0 < result.pop("relevance") <= 1
    assert result.pop("explanation").startswith(
        "matches “give”, “customer”, “money”, “back”, “refund”, “payment”; close in meaning (0."
    )
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


async def test_an_output_schema_and_annotations_are_passed_back(user: TestUser) -> None:
    schema = {"type": "object", "properties": {"rain\u200b": {"type": "number", "maximum": 10**30 + 1}}}
    described = FORECAST | {"outputSchema": schema, "annotations": {"readOnlyHint": True}}
    for _ in range(2):  # the second answer comes from the cache
        [found] = (await search(user, RAIN, tools=[described, READ], max_results=1))["results"]
        assert found["annotations"] == {"readOnlyHint": True}
        rain = {"type": "number", "maximum": 10**30 + 1}
        assert found["outputSchema"] == {"type": "object", "properties": {"rain": rain}}
        [bare] = (await search(user, RAIN, tools=[FORECAST, READ], max_results=1))["results"]
        assert found.keys() - bare.keys() == {"outputSchema", "annotations"}
        assert (bare["toolKey"], bare["relevance"]) == (found["toolKey"], found["relevance"])


async def test_max_results_may_be_written_in_camel_case(user: TestUser) -> None:
    rains = [make_tool(f"get_forecast_{n}", f"The weather forecast for city number {n}.", "weather") for n in range(8)]
    for name in ("max_results", "maxResults"):
        assert len(keys(await search(user, RAIN, tools=rains, **{name: 2}))) == 2
    body = {"query": [RAIN], "tools": rains, "max_results": 2, "maxResults": 2}
    problem = assert_problem(await user.http.post("/catalog/search", json=body), 422, "invalid_input")
    assert "give either `max_results` or `maxResults`, not both" in problem["detail"]
    body = {"query": [RAIN], "tools": rains, "maxResults": 0}
    assert_problem(await user.http.post("/catalog/search", json=body), 422, "invalid_input")


async def test_each_of_several_queries_keeps_its_best_tool(user: TestUser) -> None:
    rains = [make_tool(f"get_forecast_{n}", f"The weather forecast for city number {n}.", "weather") for n in range(8)]
    tools = [*rains, READ, REFUND]
    alone = await search(user, RAIN, tools=tools, max_results=3)
    assert all(key.startswith("get_forecast") for key in keys(alone))
    both = await search(user, RAIN, "read a text file from the disk", tools=tools, max_results=3)
    assert "read_file" in keys(both)
    assert len(keys(both)) == len(set(keys(both))) == 3
    relevance = [result["relevance"] for result in both["results"]]
    assert relevance == sorted(relevance, reverse=True)


async def test_the_context_completes_a_short_query(user: TestUser) -> None:
    tools = [
        make_tool("files_open", "Open something: a text file from the disk."),
        make_tool("issues_open", "Open something: an issue in the bug tracker."),
    ]
    for context, first in (("a bug in the tracker", "issues_open"), ("a text file on the disk", "files_open")):
        assert keys(await search(user, "open it", context=context, tools=tools))[0] == first


async def test_a_tool_that_the_query_names_comes_first(user: TestUser) -> None:
    found = await search(user, "forecast the weather with refund_payment", tools=THREE)
    assert keys(found)[0] == "refund_payment"
    assert found["results"][0]["relevance"] == 1
    assert found["results"][0]["explanation"].startswith("named in the query; matches “refund_payment”")


async def test_no_fitting_tool_is_no_match(user: TestUser) -> None:
    found = await search(user, "sing me a song about love", tools=THREE)
    assert (found["results"], found["no_match"], found["degraded"]) == ([], True, False)
    assert (await search(user, RAIN, tools=THREE))["no_match"] is False
    assert (await search(user, RAIN, tools=[]))["no_match"] is True


async def test_nothing_is_stored_for_the_user(user: TestUser, container: Container) -> None:
    before = await rows_of(container, user.id)
    await search(user, RAIN, tools=THREE)
    await container.usage_counters.flush()
    assert await rows_of(container, user.id) == before
    assert await user.tools() == {}
    assert (await user.discover(RAIN))["total_searched"] == 0


async def test_inline_tools_are_searched_while_the_users_discovery_is_disabled(
    user: TestUser, admin: httpx.AsyncClient
) -> None:
    before = await search(user, RAIN, tools=THREE)
    await admin.patch(f"/users/{user.id}", json={"discovery_enabled": False})
    assert (await user.discover(RAIN))["degraded_reason"] == "disabled"
    assert await search(user, RAIN, tools=THREE) == before
    assert keys(before)[0] == "get_forecast"


async def test_hidden_characters_are_removed(user: TestUser) -> None:
    tool = make_tool("get_forecast", "The weather \u202eforecast\u200b for a city.", "wea\u200bther")
    [result] = (await search(user, RAIN, tools=[tool]))["results"]
    assert (result["description"], result["serverName"]) == ("The weather forecast for a city.", "weather")


def make_deep_schema(levels: int) -> Json:
    schema: Json = {}
    for _ in range(levels):
        schema = {"a": schema}
    return schema


async def test_a_tool_beyond_the_limits_is_refused_alone(user: TestUser) -> None:
    bad = [
        make_tool("too deep", inputSchema=make_deep_schema(40)),
        make_tool("hidden\u200b"),
        make_tool("large", "x" * 300_000),
    ]
    found = await search(user, RAIN, tools=[*bad, FORECAST])
    assert keys(found) == ["get_forecast"]
    assert found["total_searched"] == 1
    assert [each["toolKey"] for each in found["refused"]] == [each["toolKey"] for each in bad]
    assert all(each["reason"] for each in found["refused"])


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"query": []}, "body.query"),
        ({"query": "rain"}, "body.query"),
        ({"query": [" "]}, "body.query.0: there is no text to search for"),
        ({"query": ["rain", "\u200b"]}, "body.query.1: there is no text to search for"),
        ({"query": ["rain"] * (MAX_QUERIES + 1)}, "body.query"),
        ({"tools": [READ, FORECAST, READ]}, "body.tools.2.toolKey: repeats"),
        ({"tools": [make_tool(f"tool_{n}") for n in range(MAX_TOOLS + 1)]}, "body.tools"),
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
async def test_an_invalid_request_is_rejected_with_the_reason(user: TestUser, change: Json, detail: str) -> None:
    body: Json = {"query": [RAIN], "tools": THREE}
    problem = assert_problem(await user.http.post("/catalog/search", json=body | change), 422)
    assert detail in problem["detail"]
    assert (await user.http.post("/catalog/search", json=body)).status_code == 200


async def test_two_thousand_tools_are_searched(user: TestUser) -> None:
    """The tools differ in their keys only, so that one text is embedded for all."""
    tools = [{**READ, "toolKey": f"read {n}"} for n in range(MAX_TOOLS - 1)]
    found = await search(user, RAIN, tools=[*tools, FORECAST], max_results=1)
    assert keys(found) == ["get_forecast"]
    assert found["total_searched"] == MAX_TOOLS


async def test_tools_beyond_the_embedding_budget_are_found_by_words_and_embedded_later(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    """The embedder hangs at the second batch, after it has embedded the query."""
    many = [make_tool(f"tool_{n}", f"Does thing number {n}.") for n in range(200)]
    settings = embedding_server.settings(catalog_embed_budget_s=4.0)
    async with open_service(**settings) as service, new_user(service) as user:
        embedding_server.mode, embedding_server.quick = "hang_later", 2
        first = await search(user, "weather forecast city", tools=[*many, FORECAST])
        assert (first["degraded"], first["degraded_reason"]) == (True, "embedding_budget")
        assert 0 < first["pending"] < 201
        assert keys(first)[0] == "get_forecast"
        embedding_server.mode = "ok"

        async def search_completely() -> dict[str, Any] | None:
            answer = await search(user, "weather forecast city", tools=[*many, FORECAST])
            return None if answer["pending"] else answer

        second = await until(search_completely)
        assert (second["degraded"], second["degraded_reason"]) == (False, None)
        assert keys(second)[0] == "get_forecast"


async def test_without_an_embedding_budget_it_is_a_search_by_words(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    settings = embedding_server.settings(catalog_embed_budget_s=0)
    async with open_service(**settings) as service, new_user(service) as user:
        found = await search(user, "a text, perhaps", tools=THREE)
        assert (found["degraded_reason"], found["pending"]) == ("embedding_budget", 3)
        assert keys(found) == ["read_file"]
        assert found["results"][0]["explanation"] == "matches “text”"


async def test_with_a_failing_embedder_it_is_a_search_by_words_until_it_recovers(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    async with open_service(**embedding_server.settings()) as service, new_user(service) as user:
        embedding_server.mode = "status"
        degraded = await search(user, "a text, perhaps", tools=THREE)
        assert (degraded["degraded"], degraded["degraded_reason"]) == (True, "embedder_status_500")
        assert keys(degraded) == ["read_file"]
        embedding_server.mode = "ok"
        recovered = await search(user, "read a text file", tools=THREE)
        assert (recovered["degraded"], recovered["degraded_reason"]) == (False, None)
        assert "close in meaning" in recovered["results"][0]["explanation"]


async def test_a_client_that_disconnects_ends_the_search(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    settings = embedding_server.settings(catalog_embed_budget_s=300.0)
    async with open_service(**settings) as service, new_user(service) as user:
        embedding_server.mode, embedding_server.quick = "hang_later", len(embedding_server.requests) + 1
        disconnect = asyncio.Event()
        body = orjson.dumps({"query": [RAIN], "tools": THREE})
        messages: list[Json] = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Json:
            if messages:
                return messages.pop()
            await disconnect.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        headers = {"authorization": f"Bearer {user.key}", "content-type": "application/json", "host": "localhost"}
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/catalog/search",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        asked = len(embedding_server.requests)
        searching = asyncio.create_task(get_app(service)(scope, receive, send))

        async def tools_are_being_embedded() -> bool:
            return len(embedding_server.requests) == asked + 2

        await until(tools_are_being_embedded)
        assert "toolscout_requests_in_flight 1.0" in service.metrics.render().decode()
        disconnect.set()
        await asyncio.wait_for(searching, 10)
        assert sent[0]["status"] == 499  # for the log: nobody reads it
        assert "toolscout_requests_in_flight 0.0" in service.metrics.render().decode()
        embedding_server.mode = "ok"
        embedding_server.release()
        assert keys(await search(user, RAIN, tools=THREE)) == ["get_forecast"]
