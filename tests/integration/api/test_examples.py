"""Examples of what a tool is for: written in words, learnt from use, listed and forgotten."""

from typing import Any

import pytest

from app.container import Container
from app.usage import examples
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import OpenService, tool
from tests.support.seed_vectors import owner_connection

TOOLS = [
    tool("kb_ops_17", "Proxy for backend 17."),
    tool("create_ticket", "Open a ticket for the support team."),
    tool("get_forecast", "Weather forecast for a city."),
]
VACATION = ["how many days off do I have left", "what is my vacation balance"]
NONE = {"messages": [], "learned": 0, "learned_against": 0}


@pytest.fixture
async def keys(user: TestUser) -> dict[str, str]:
    await user.add_tools(*TOOLS)
    return {name: each["id"] for name, each in (await user.tools()).items()}


async def put(user: TestUser, key: str, messages: list[Any]) -> dict[str, Any]:
    answer = await user.http.put(f"/tools/{key}/examples", json={"messages": messages})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def read(user: TestUser, key: str) -> dict[str, Any]:
    body: dict[str, Any] = (await user.http.get(f"/tools/{key}/examples")).json()
    return body


async def report(user: TestUser, query: str, key: str, outcome: str = "succeeded") -> None:
    discovery_id = (await user.discover(query))["discovery_id"]
    body = {"discovery_id": discovery_id, "tool_key": key, "outcome": outcome}
    assert (await user.http.post("/feedback", json=body)).status_code == 204


async def test_messages_in_words_bring_their_tool_first(user: TestUser, keys: dict[str, str]) -> None:
    question = "how much vacation is left for me"
    before = [each["tool_key"] for each in (await user.discover(question))["tools"]]
    assert before[:1] != [keys["kb_ops_17"]]
    assert await put(user, "files.kb_ops_17", VACATION) == NONE | {"messages": VACATION}
    assert (await user.discover(question))["tools"][0]["tool_key"] == keys["kb_ops_17"]
    assert await read(user, keys["kb_ops_17"]) == NONE | {"messages": VACATION}


async def test_put_replaces_the_words_and_leaves_what_was_learned(user: TestUser, keys: dict[str, str]) -> None:
    key = keys["kb_ops_17"]
    await report(user, "list my absences", key)
    await report(user, "is the train late", key, "irrelevant")
    await put(user, key, VACATION)
    replaced = await put(user, key, ["  absences\u200b of mine ", "absences of mine"])
    assert replaced == {"messages": ["absences of mine"], "learned": 1, "learned_against": 1}
    assert await put(user, key, []) == {"messages": [], "learned": 1, "learned_against": 1}


async def test_examples_of_a_tool_are_forgotten_by_source(user: TestUser, keys: dict[str, str]) -> None:
    key, other = keys["kb_ops_17"], keys["create_ticket"]
    for each in (key, other):
        await report(user, "list my absences", each)
        await put(user, each, VACATION)
    url = f"/tools/{key}/examples"
    assert (await user.http.delete(url, params={"source": "use"})).status_code == 204
    assert await read(user, key) == NONE | {"messages": VACATION}
    assert (await user.http.delete(url)).status_code == 204
    assert await read(user, key) == NONE
    assert await read(user, other) == {"messages": VACATION, "learned": 1, "learned_against": 0}


async def test_all_examples_of_a_user_are_forgotten_with_the_vectors_of_recent_messages(
    container: Container, user: TestUser, keys: dict[str, str]
) -> None:
    async with new_user(container) as other:
        await other.add_tools(*TOOLS)
        other_key = (await other.tools())["kb_ops_17"]["id"]
        await report(other, "list my absences", other_key)
        await put(user, keys["kb_ops_17"], VACATION)
        discovery_id = (await user.discover("list my absences"))["discovery_id"]
        await report(user, "show my absences", keys["kb_ops_17"])
        assert (await user.http.delete("/examples", params={"source": "use"})).status_code == 204
        assert await read(user, keys["kb_ops_17"]) == NONE | {"messages": VACATION}
        body = {"discovery_id": discovery_id, "tool_key": keys["kb_ops_17"], "outcome": "succeeded"}
        assert (await user.http.post("/feedback", json=body)).status_code == 204
        assert (await user.http.delete("/examples", params={"source": "person"})).status_code == 204
        assert await read(user, keys["kb_ops_17"]) == NONE
        assert (await read(other, other_key))["learned"] == 1


async def test_changes_of_examples_are_audited_without_their_words(user: TestUser, keys: dict[str, str]) -> None:
    key = keys["kb_ops_17"]
    await put(user, key, VACATION)
    await user.http.delete(f"/tools/{key}/examples")
    await user.http.delete("/examples")
    events = (await user.http.get("/audit")).json()["items"]
    recorded = [(event["action"], event["target"]) for event in events]
    assert {("tool.examples", key), ("tool.forget", key), ("examples.delete", None)} <= set(recorded)
    assert VACATION[0] not in str(events)


@pytest.mark.parametrize(
    "messages",
    [["x" * 501], [f"message {number}" for number in range(21)], ["  "], ["\u200b"], [1], "text", None],
    ids=["too long", "too many", "blank", "hidden", "number", "no list", "null"],
)
async def test_messages_that_cannot_be_examples_are_rejected(
    user: TestUser, keys: dict[str, str], messages: Any
) -> None:
    answer = await user.http.put(f"/tools/{keys['kb_ops_17']}/examples", json={"messages": messages})
    assert_problem(answer, 422, "invalid_input")
    assert await read(user, keys["kb_ops_17"]) == NONE


async def test_a_field_that_is_meant_is_named(user: TestUser, keys: dict[str, str]) -> None:
    answer = await user.http.put(f"/tools/{keys['kb_ops_17']}/examples", json={"examples": []})
    assert answer.status_code == 422
    assert "messages" in answer.text


async def test_a_user_has_a_limited_number_of_messages(
    user: TestUser, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "MAX_MESSAGES_PER_USER", 3)
    await put(user, keys["kb_ops_17"], VACATION)
    answer = await user.http.put(f"/tools/{keys['create_ticket']}/examples", json={"messages": VACATION})
    assert_problem(answer, 422, "invalid_input")
    assert "delete some of them first" in answer.json()["detail"]
    await put(user, keys["kb_ops_17"], [*VACATION, "a third one"])


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_an_unknown_tool_is_not_found(user: TestUser, method: str) -> None:
    body = {"messages": ["anything"]} if method == "PUT" else None
    answer = await user.http.request(method, "/tools/00000000-0000-4000-8000-000000000000/examples", json=body)
    assert_problem(answer, 404, "not_found")


async def test_nothing_changes_while_the_embedder_is_down(
    open_service: OpenService, embedding_server: FakeEmbeddingServer
) -> None:
    async with open_service(**embedding_server.settings()) as service, new_user(service) as user:
        await user.add_tools(*TOOLS)
        key = (await user.tools())["kb_ops_17"]["id"]
        await put(user, key, VACATION)
        embedding_server.mode = "status"
        answer = await user.http.put(f"/tools/{key}/examples", json={"messages": ["another one"]})
        assert answer.status_code == 503
        assert await read(user, key) == NONE | {"messages": VACATION}


async def test_no_text_of_a_message_is_stored_by_learning(
    container: Container, user: TestUser, keys: dict[str, str]
) -> None:
    canary = "zyzzogeton"
    await report(user, f"where is my {canary}", keys["kb_ops_17"])
    await report(user, f"who has seen the {canary}", keys["create_ticket"], "irrelevant")
    await container.learner.flush()
    with owner_connection(container) as connection:
        tables = [
            str(name)
            for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        ]
        assert {"tool_examples", "discovery_vectors"} <= set(tables)
        found = [
            table
            for table in tables
            if connection.execute(
                f"SELECT FROM {table} t WHERE t::text LIKE %s LIMIT 1".encode(), (f"%{canary}%",)
            ).fetchall()
        ]
        stored = connection.execute("SELECT count(*) FROM tool_examples WHERE user_id = %s", (user.id,)).fetchone()
    assert found == []
    assert stored == (2,)
