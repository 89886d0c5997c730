"""Conversations: follow-ups, several requests in one message, kept tools, and messages that need no tool."""

from typing import Any

import pytest

from app.demo.seed import load_catalogue
from tests.support.clients import TestUser

Json = dict[str, Any]


@pytest.fixture
async def demo(user: TestUser) -> TestUser:
    for server in load_catalogue():
        await user.add_tools(*server["tools"], server=server["name"])
    return user


async def discover(user: TestUser, **body: Any) -> Json:
    answer = await user.http.post("/discover", json=body)
    assert answer.status_code == 200, answer.text
    result: Json = answer.json()
    return result


def names(answer: Json) -> list[str]:
    return [found["tool"]["name"] for found in answer["tools"]]


MOVING = [
    {"role": "user", "content": "When's my call with Mireille?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "list_events", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Tuesday 10:00"}]},
    {"role": "assistant", "content": "Tuesday at ten. Shall I move this appointment to Wednesday at another time?"},
]


async def test_a_follow_up_is_searched_with_the_turn_before(demo: TestUser) -> None:
    alone = await discover(demo, query="yes please", limit=3, similarity_threshold=0)
    assert "update_event" not in names(alone)
    followed = await discover(demo, messages=[*MOVING, {"role": "user", "content": "yes please"}], limit=3)
    assert "update_event" in names(followed)


async def test_a_change_of_subject_finds_the_new_subject_first(demo: TestUser) -> None:
    text = "What will the weather be like in Bergen on Thursday?"
    messages = [*MOVING, {"role": "user", "content": text}]
    assert names(await discover(demo, messages=messages))[0] == names(await discover(demo, query=text))[0]


async def test_a_recently_called_tool_gets_a_boost(demo: TestUser) -> None:
    message = {"role": "user", "content": "What is on my calendar on Thursday afternoon?"}
    call = {"id": "c1", "type": "function", "function": {"name": "find_free_time", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}

    async def score(*messages: Json) -> float:
        answer = await discover(demo, messages=[*messages, message], fill=True)
        found: float = next(each["score"] for each in answer["tools"] if each["tool"]["name"] == "find_free_time")
        return found

    assert await score(called) == pytest.approx(await score() + 0.15, abs=1e-3)


async def test_each_of_several_requests_keeps_its_best_tool(demo: TestUser) -> None:
    message = "find the rental agreement among my files and post a message about it in the housing channel"
    answer = await discover(demo, query=message, limit=3)
    assert {"files", "teamchat"} <= {found["server_name"] for found in answer["tools"]}
    narrow = await discover(demo, query=message, limit=2)
    assert [found["server_name"] for found in narrow["tools"]] in (["files", "teamchat"], ["teamchat", "files"])


@pytest.mark.parametrize(
    "message", ["thank you, that was kind of you!", "Write a short poem about autumn.", "Why is the sky blue?"]
)
async def test_a_message_that_needs_no_tool_is_no_match(demo: TestUser, message: str) -> None:
    answer = await discover(demo, query=message)
    assert (answer["tools"], answer["no_match"], answer["degraded"]) == ([], True, False)
    [nearest] = (await discover(demo, query=message, similarity_threshold=0, limit=1))["tools"]
    why = await demo.http.post("/discover/why", json={"query": message, "tool": nearest["tool_key"]})
    assert [item["reason"] for item in why.json()["items"]] == ["no_match"]


async def test_thanks_at_the_end_of_a_conversation_are_no_match(demo: TestUser) -> None:
    turns = [
        {"role": "user", "content": "what will the weather be in Graz tomorrow?"},
        {"role": "assistant", "content": "Sunny."},
    ]
    for text, none in (("thanks, that is all", True), ("and in Linz?", False)):
        answer = await discover(demo, messages=[*turns, {"role": "user", "content": text}])
        assert (not answer["tools"], answer["no_match"]) == (none, none)


@pytest.mark.parametrize("threshold", [0, 0.4])
async def test_a_threshold_of_the_request_prevents_abstention(demo: TestUser, threshold: float) -> None:
    answer = await discover(demo, query="Why is the sky blue?", similarity_threshold=threshold)
    assert answer["tools"]
    assert all(found["similarity"] >= threshold for found in answer["tools"])


TEN_TURNS = """
what's the weather in Oslo tomorrow?
find the invoice from March
mail it to the accountant? no, post it in the finance channel
how many orders did we have in May?
refund the payment of Mrs Hollis
open the page of the railway and take a screenshot
move my dentist appointment to Friday
show me the failed build of the webshop
thanks!
and the air quality there?
""".strip().splitlines()


@pytest.mark.parametrize("api_format", ["mcp", "anthropic", "openai"])
async def test_ten_turns_only_append_to_the_definitions(demo: TestUser, api_format: str) -> None:
    """A model that is given the whole array finds what it had before in the same bytes."""
    keep: list[str] = []
    given: list[str] = []
    messages: list[Json] = []
    for text in TEN_TURNS:
        messages.append({"role": "user", "content": text})
        answer = await demo.http.post(
            "/discover", json={"messages": messages, "keep": keep, "format": api_format, "limit": 3}
        )
        found = answer.json()
        definitions = [repr(definition) for definition in found["definitions"]]
        assert definitions[: len(given)] == given
        keep, given = [each["tool_key"] for each in found["tools"]], definitions
        messages.append({"role": "assistant", "content": "Done."})
    assert len(given) > 10
