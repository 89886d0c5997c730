"""`keep` with a `conversation_id`: Toolscout remembers which tools a conversation has."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from app.container import Container
from app.conversations import repository
from app.conversations.repository import ConversationKey, expired_rows
from app.conversations.state import ConversationState
from app.db.retention import delete_in_batches
from app.discovery.conversations import Conversations
from app.discovery.discover import discover
from app.discovery.models import Discovery
from app.discovery.request import ConversationTurn, DiscoveryRequest
from app.errors import QueryFailed
from app.search.query import parse_query
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import OpenService, outbound_allow, tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.round_trips import count_least_round_trips

Json = dict[str, Any]

TOPICS = {
    "get_forecast": ("Weather forecast for a city: rain, wind, temperature.", "will it rain in Vienna tomorrow?"),
    "refund_payment": ("Give a customer their money back for a payment.", "give the customer the money back"),
    "search_repositories": ("Search code repositories by topic or language.", "search repositories for parsers"),
    "translate_text": ("Translate a text into another language.", "translate this text into French"),
    "book_flight": ("Book a flight between two airports.", "book a flight to Lisbon"),
    "play_song": ("Play a song or an album of music.", "play a song by Nina Simone"),
}
TOOLS = [tool(name, description) for name, (description, _) in TOPICS.items()]
RAIN, MONEY, CODE, FRENCH, FLIGHT, SONG = (message for _, message in TOPICS.values())


@pytest.fixture
async def chatter(user: TestUser) -> TestUser:
    await user.add_tools(*TOOLS)
    return user


async def ask(user: TestUser, query: str, turn: int | None = None, chat: str = "chat-1", **fields: Any) -> Json:
    keep = {"conversation_id": chat}
    body = {"keep": keep, "turn": turn, "format": "anthropic", "limit": 1, **fields}
    return await user.discover(query, **body)


def names(answer: Json) -> list[str]:
    return [each["tool"]["name"] for each in answer["tools"]]


def list_changes(answer: Json) -> list[str]:
    """Return `+` and `-` with the names in the blocks."""
    content = [] if answer["changes"] is None else answer["changes"]["content"]
    return [
        "-" + each["tool"]["name"] if each["type"] == "tool_removal" else "+" + each["tool"]["definition"]["name"]
        for each in content
    ]


async def query(container: Container, user: TestUser, statement: str) -> Any:
    async with container.database.transaction(user.id) as session:
        return await session.rows(statement)


async def test_a_conversation_needs_only_its_id(chatter: TestUser) -> None:
    first = await ask(chatter, RAIN)
    assert (names(first), list_changes(first)) == (["get_forecast"], ["+get_forecast"])
    second = await ask(chatter, MONEY)
    assert (names(second), list_changes(second)) == (["get_forecast", "refund_payment"], ["+refund_payment"])
    assert second["toolset_hash_before"] == first["toolset_hash"]
    third = await ask(chatter, RAIN)
    assert (names(third), third["changes"], third["added"], third["removed"]) == (names(second), None, [], [])
    elsewhere = await ask(chatter, MONEY, chat="chat-2")
    assert names(elsewhere) == ["refund_payment"]


async def test_a_repeated_turn_gets_the_same_answer(chatter: TestUser) -> None:
    await ask(chatter, RAIN, 1)
    answers = [await ask(chatter, MONEY, 2) for _ in range(3)]
    for answer in answers:
        del answer["discovery_id"], answer["search_duration_ms"], answer["embedding_generated"]
    assert answers == [answers[0]] * 3
    assert list_changes(answers[0]) == ["+refund_payment"]
    assert list_changes(await ask(chatter, CODE, 3)) == ["+search_repositories"]


async def test_an_edited_message_continues_from_its_turn(chatter: TestUser) -> None:
    await ask(chatter, RAIN, 1)
    await ask(chatter, MONEY, 2)
    await ask(chatter, CODE, 3)
    edited = await ask(chatter, FRENCH, 2)
    assert (names(edited), list_changes(edited)) == (["get_forecast", "translate_text"], ["+translate_text"])
    assert names(await ask(chatter, SONG, 3)) == ["get_forecast", "translate_text", "play_song"]


async def test_a_tool_that_changes_or_goes_is_removed_once(chatter: TestUser) -> None:
    await ask(chatter, RAIN)
    await ask(chatter, MONEY)
    stored = await chatter.tools()
    await chatter.http.patch(f"/tools/{stored['refund_payment']['id']}", json={"enabled": False})
    own = {"description": "Weather forecast with snow: rain, wind."}
    await chatter.http.patch(f"/tools/{stored['get_forecast']['id']}", json=own)
    answer = await ask(chatter, RAIN)
    assert list_changes(answer) == ["-get_forecast", "-refund_payment", "+get_forecast"]
    assert list_changes(await ask(chatter, RAIN)) == []
    await chatter.http.patch(f"/tools/{stored['refund_payment']['id']}", json={"enabled": True})
    assert list_changes(await ask(chatter, MONEY)) == ["+refund_payment"]


async def test_core_tools_are_added_once_and_never_retired(small: TestUser) -> None:
    await small.http.put("/core-tools", json={"tools": [tool("ask_user", "Ask the user a question.")]})
    assert list_changes(await ask(small, RAIN)) == ["+ask_user", "+get_forecast"]
    for message in (MONEY, CODE, FRENCH, FLIGHT, SONG):
        answer = await ask(small, message)
        assert "ask_user" in names(answer)
        assert "+ask_user" not in list_changes(answer)
    assert "get_forecast" not in names(answer)


@pytest.fixture
async def small(open_service: OpenService, mcp: FakeMcpServer) -> AsyncIterator[TestUser]:
    """A user of a service that retires tools above two that were not called for two turns."""
    mcp.tools = TOOLS
    limits = {"conversation_max_tools": 2, "conversation_idle_turns": 2}
    async with open_service(**limits, outbound_allow=outbound_allow(mcp)) as container, new_user(container) as user:
        await user.connect(mcp)
        yield user


async def test_tools_that_are_not_called_leave_a_long_chat(small: TestUser) -> None:
    assert list_changes(await ask(small, RAIN)) == ["+get_forecast"]
    assert list_changes(await ask(small, MONEY)) == ["+refund_payment"]
    third = await ask(small, CODE)
    assert list_changes(third) == ["-get_forecast", "+search_repositories"]
    assert third["removed"] == [(await small.tools())["get_forecast"]["id"]]
    assert list_changes(await ask(small, FRENCH)) == ["-refund_payment", "+translate_text"]
    assert list_changes(await ask(small, RAIN)) == ["-search_repositories", "+get_forecast"]


async def test_a_retry_ages_nothing(small: TestUser) -> None:
    await ask(small, RAIN, 1)
    for _ in range(5):
        assert names(await ask(small, MONEY, 2)) == ["get_forecast", "refund_payment"]
    for _ in range(3):
        assert list_changes(await ask(small, CODE, 3)) == ["-get_forecast", "+search_repositories"]


async def test_found_tools_without_room_retire_nothing(open_service: OpenService) -> None:
    limits = {"conversation_max_tools": 6, "conversation_idle_turns": 1}
    async with open_service(**limits) as container, new_user(container) as user:
        await user.add_tools(*TOOLS, *(tool(f"song_{number}", TOPICS["play_song"][0]) for number in range(8)))
        for message in (RAIN, MONEY, CODE):
            given = await ask(user, message)
        tokens = sum(each["tokens"] for each in given["tools"])
        full = await ask(user, SONG, limit=8, fill=True, max_tokens=tokens)
        assert (names(full), full["omitted"]["reason"]) == (names(given), "max_tokens")
        crowded = await ask(user, SONG, limit=8, fill=True)
        assert (len(names(crowded)), crowded["removed"]) == (8, [each["tool_key"] for each in full["tools"]])


async def test_a_small_chat_keeps_its_idle_tools(small: TestUser) -> None:
    await ask(small, RAIN)
    await ask(small, MONEY)
    for _ in range(4):
        assert names(await ask(small, RAIN)) == ["get_forecast", "refund_payment"]


async def test_a_tool_that_is_found_again_is_not_retired_in_that_turn(small: TestUser) -> None:
    await ask(small, RAIN)
    await ask(small, MONEY)
    answer = await ask(small, f"{RAIN} And {CODE}", limit=4)
    assert "get_forecast" in names(answer)
    assert len(names(answer)) > 2


async def call_over_rest(user: TestUser, discovery: Json, tool_key: str, chat: str) -> httpx.Response:
    body = {"tool_key": tool_key, "arguments": {}, "conversation_id": chat}
    return await user.http.post("/execute", json=body)


async def give_feedback(user: TestUser, discovery: Json, tool_key: str, chat: str) -> httpx.Response:
    outcome = {"outcome": "called", "conversation_id": chat}
    return await user.http.post(
        "/feedback", json={"discovery_id": discovery["discovery_id"], "tool_key": tool_key, **outcome}
    )


@pytest.mark.parametrize("call", [call_over_rest, give_feedback])
@pytest.mark.parametrize(("chat", "stays"), [("chat-1", True), ("another-chat", False)])
async def test_a_called_tool_stays(small: TestUser, call: Any, chat: str, *, stays: bool) -> None:
    first = await ask(small, RAIN)
    await ask(small, MONEY)
    assert (await call(small, first, first["tools"][0]["tool_key"], chat)).is_success
    assert ("-get_forecast" not in list_changes(await ask(small, CODE))) is stays


async def test_a_tool_that_was_irrelevant_was_not_called(small: TestUser) -> None:
    first = await ask(small, RAIN)
    await ask(small, MONEY)
    body = {"discovery_id": first["discovery_id"], "tool_key": first["tools"][0]["tool_key"]}
    body |= {"outcome": "irrelevant", "conversation_id": "chat-1"}
    assert (await small.http.post("/feedback", json=body)).status_code == 204
    assert "-get_forecast" in list_changes(await ask(small, CODE))


@pytest.mark.parametrize("called", [True, False])
async def test_calls_are_read_from_the_messages(small: TestUser, *, called: bool) -> None:
    await ask(small, RAIN, 1)
    call = {"type": "tool_use", "id": "1", "name": "get_forecast", "input": {}}
    done = [{"role": "assistant", "content": [call]}] if called else []
    messages = [{"role": "user", "content": RAIN}, {"role": "user", "content": MONEY}, *done]
    body = {"keep": {"conversationId": "chat-1"}, "format": "anthropic", "limit": 1}
    await small.http.post("/discover", json={**body, "turn": 2, "messages": messages[:2]})
    messages.append({"role": "user", "content": f"Something else: {CODE}"})
    answer = await small.http.post("/discover", json={**body, "turn": 3, "messages": messages})
    assert ("-get_forecast" not in list_changes(answer.json())) is called


async def test_a_call_of_an_unknown_conversation_changes_nothing(chatter: TestUser, container: Container) -> None:
    found = await chatter.discover(RAIN)
    assert (await give_feedback(chatter, found, found["tools"][0]["tool_key"], "never-seen")).status_code == 204
    assert await query(container, chatter, "SELECT FROM conversations") == []


async def test_calls_of_tools_that_the_conversation_does_not_have_are_not_stored(
    chatter: TestUser, container: Container
) -> None:
    [had] = (await ask(chatter, RAIN))["tools"]
    other = await chatter.discover(MONEY, limit=1)
    assert (await give_feedback(chatter, other, other["tools"][0]["tool_key"], "chat-1")).status_code == 204
    assert await query(container, chatter, "SELECT calls FROM conversations") == [({},)]
    assert (await give_feedback(chatter, other, had["tool_key"], "chat-1")).status_code == 204
    assert await query(container, chatter, "SELECT calls FROM conversations") == [({had["tool_key"]: 1},)]


async def test_a_failure_to_record_a_call_does_not_fail_the_call(
    small: TestUser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise QueryFailed("broken")

    first = await ask(small, RAIN)
    monkeypatch.setattr("app.conversations.calls.record_call", fail)
    assert (await call_over_rest(small, first, first["tools"][0]["tool_key"], "chat-1")).status_code == 200
    assert "failed to record a call in its conversation" in caplog.text


async def test_an_id_belongs_to_its_user_and_to_the_project_of_a_key(
    container: Container, chatter: TestUser, admin: httpx.AsyncClient
) -> None:
    await ask(chatter, RAIN)
    async with new_user(container) as other:
        await other.add_tools(*TOOLS)
        assert names(await ask(other, MONEY)) == ["refund_payment"]
        assert_problem(await other.http.delete("/conversations/chat-2"), 404)
        assert (await other.http.delete("/conversations/chat-1")).status_code == 204
    fields = {"name": "all", "server_ids": None, "optimization": "hybrid"}
    project_id = (await chatter.http.post("/projects", json=fields)).json()["id"]
    created = await admin.post("/keys", json={"kind": "user", "user_id": chatter.id, "project_id": project_id})
    async with open_client(container, Authorization=f"Bearer {created.json()['key']}") as http:
        bound = TestUser(chatter.id, created.json()["key"], http)
        assert names(await ask(bound, MONEY)) == ["refund_payment"]
    assert names(await ask(chatter, CODE)) == ["get_forecast", "search_repositories"]


async def test_a_deleted_conversation_begins_again(chatter: TestUser) -> None:
    await ask(chatter, RAIN)
    assert (await chatter.http.delete("/conversations/chat-1")).status_code == 204
    assert_problem(await chatter.http.delete("/conversations/chat-1"), 404, "not_found")
    assert list_changes(await ask(chatter, MONEY)) == ["+refund_payment"]
    assert names(await ask(chatter, MONEY)) == ["refund_payment"]


@pytest.mark.parametrize("gone", ["conversation", "user"])
async def test_a_deletion_during_a_search_is_not_undone(
    container: Container, admin: httpx.AsyncClient, chatter: TestUser, gone: str
) -> None:
    await ask(chatter, RAIN)
    caller = await container.authenticator.authenticate(chatter.key, None)
    conversations = container.discoverer.conversations
    deleted = False

    async def search(request: DiscoveryRequest) -> Discovery:
        nonlocal deleted
        discovery = await discover(container.discoverer, caller, replace(request, conversation=None))
        if not deleted and gone == "user":
            assert (await admin.delete(f"/users/{chatter.id}")).status_code == 204
            assert (await admin.post("/users", json={"id": chatter.id})).status_code == 201
        elif not deleted:
            assert (await chatter.http.delete("/conversations/chat-1")).status_code == 204
        deleted = True
        return discovery

    turn = ConversationTurn("chat-1")
    request = DiscoveryRequest(parse_query(MONEY), limit=1, conversation=turn)
    discovery = await conversations.discover(caller, request, turn, search)
    # for a deleted user it depends on what this process holds in memory whether there are tools at all
    found = [tool.definition.name for tool in discovery.tools]
    assert found in [["refund_payment"], *([[]] if gone == "user" else [])], "without the tools of before"
    assert await query(container, chatter, "SELECT id FROM conversations") == []


async def test_beginning_a_conversation_locks_no_other_one(
    chatter: TestUser, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "MAX_CONVERSATIONS", 2)
    for chat in ("one", "two"):
        await ask(chatter, RAIN, chat=chat)
    state, key = ConversationState(1), ConversationKey(chatter.id, "three")
    async with container.database.transaction(chatter.id) as session:
        assert await repository.write_conversation(session, key, state, None, timedelta(hours=24))
        free = await query(container, chatter, "SELECT id FROM conversations FOR UPDATE SKIP LOCKED")
    assert free == [("two",)], "the other one is deleted"


async def test_a_conversation_is_forgotten_a_day_after_its_last_turn(chatter: TestUser, container: Container) -> None:
    await ask(chatter, RAIN)
    await ask(chatter, RAIN, chat="chat-2")
    aged = "UPDATE conversations SET updated_at = now() - interval '{}' WHERE id = 'chat-1'"
    await query(container, chatter, aged.format("23 hours"))
    assert names(await ask(chatter, MONEY)) == ["get_forecast", "refund_payment"]
    await query(container, chatter, aged.format("25 hours"))
    assert list_changes(await ask(chatter, MONEY, 3)) == ["+refund_payment"]
    await query(container, chatter, aged.format("25 hours"))
    assert await delete_in_batches(container.database, expired_rows(timedelta(hours=24))) >= 1
    assert await query(container, chatter, "SELECT id FROM conversations") == [("chat-2",)]


async def test_the_oldest_conversations_of_a_user_go_first(
    chatter: TestUser, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "MAX_CONVERSATIONS", 2)
    for chat in ("one", "two", "one", "three"):
        await ask(chatter, RAIN, chat=chat)
    kept = await query(container, chatter, "SELECT id FROM conversations ORDER BY id")
    assert kept == [("one",), ("three",)]


async def test_nothing_but_keys_aliases_hashes_and_turns_is_stored(chatter: TestUser, container: Container) -> None:
    answer = await ask(chatter, RAIN, 7)
    [found] = answer["tools"]
    [(spans, calls, turn)] = await query(container, chatter, "SELECT spans, calls, turn FROM conversations")
    assert spans == [[found["tool_key"], found["alias"], found["definition_hash"], 7, None]]
    assert (calls, turn) == ({}, 7)
    [(row,)] = await query(container, chatter, "SELECT to_jsonb(c)::text FROM conversations c")
    assert "Vienna" not in row
    assert "forecast for a city" not in row


async def test_concurrent_requests_on_two_replicas_lose_no_tools(container: Container, chatter: TestUser) -> None:
    caller = await container.authenticator.authenticate(chatter.key, None)
    remembered = [Conversations(container.database, 20, 8, timedelta(hours=24)) for _ in range(2)]
    replicas = [replace(container.discoverer, conversations=each) for each in remembered]

    def request(message: str) -> DiscoveryRequest:
        return DiscoveryRequest(parse_query(message), limit=1, conversation=ConversationTurn("chat-1"))

    messages = [RAIN, MONEY, CODE, FRENCH, FLIGHT, SONG]
    answers = await asyncio.gather(
        *(discover(replicas[number % 2], caller, request(message)) for number, message in enumerate(messages))
    )
    assert sorted(len(answer.tools) for answer in answers) == [1, 2, 3, 4, 5, 6], "one after another"
    assert sorted(names(await ask(chatter, RAIN))) == sorted(TOPICS)
    [(turn,)] = await query(container, chatter, "SELECT turn FROM conversations")
    assert turn == 7


@pytest.mark.parametrize("step", ["read_conversation", "write_conversation"])
async def test_state_that_cannot_be_read_or_written_is_unavailable(
    chatter: TestUser, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def fail(*_: object) -> None:
        raise QueryFailed("broken")

    body = {"query": RAIN, "keep": {"conversation_id": "chat-1"}}
    with monkeypatch.context() as broken:
        broken.setattr(f"app.discovery.conversations.{step}", fail)
        answer = await chatter.http.post("/discover", json=body)
        assert_problem(answer, 503, "unavailable")
        assert "Retry-After" in answer.headers
        assert names(await chatter.discover(RAIN, limit=1)) == ["get_forecast"], "other discoveries are answered"
    assert (await chatter.http.post("/discover", json=body)).status_code == 200


async def test_an_explanation_reads_the_conversation_and_changes_nothing(
    chatter: TestUser, container: Container
) -> None:
    await ask(chatter, RAIN)
    before = await query(container, chatter, "SELECT to_jsonb(c)::text FROM conversations c")
    body = {"query": MONEY, "tool": "get_forecast", "keep": {"conversation_id": "chat-1"}, "limit": 1}
    [reason] = (await chatter.http.post("/discover/why", json=body)).json()["items"]
    assert (reason["reason"], reason["rank"]) == ("included", 1)
    assert await query(container, chatter, "SELECT to_jsonb(c)::text FROM conversations c") == before


async def test_a_conversation_costs_one_read_and_one_write(container: Container, chatter: TestUser) -> None:
    for _ in range(2):
        await ask(chatter, RAIN)
        await container.discoverer.snapshots.wait_loaded()
    plain = await count_least_round_trips(lambda: chatter.discover(RAIN, limit=1))
    remembered = await count_least_round_trips(lambda: ask(chatter, RAIN))
    assert (plain, remembered) == (1, 1 + 1 + 3), "to read, and to begin, write and commit"


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({}, "body.keep.conversation_id: Field required"),
        ({"conversation_id": ""}, "body.keep.conversation_id: String should have at least 1 character"),
        ({"conversation_id": "a/b"}, "body.keep.conversation_id: must not contain a slash"),
        ({"conversation_id": ".."}, "body.keep.conversation_id: must not contain a slash, or be `.` or `..`"),
        ({"thread_id": "x"}, "unknown field `thread_id`; did you mean `conversation_id`?"),
        ("chat-1", 'body.keep: must be a list of tool keys, or {"conversation_id": "…"}'),
    ],
)
async def test_an_invalid_conversation_is_explained(user: TestUser, keep: Any, message: str) -> None:
    answer = await user.http.post("/discover", json={"query": RAIN, "keep": keep})
    assert answer.status_code == 422
    assert message in answer.json()["detail"].replace("Value error, ", "")


@pytest.mark.parametrize("turn", [0, -1, 1.5, "1", 1_000_001])
async def test_a_turn_is_a_number_from_one(user: TestUser, turn: Any) -> None:
    body = {"query": RAIN, "keep": {"conversation_id": "chat-1"}}
    assert_problem(await user.http.post("/discover", json={**body, "turn": turn}), 422)
    assert (await user.http.post("/discover", json={**body, "turn": 1_000_000})).status_code == 200
