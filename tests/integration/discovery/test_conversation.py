"""A conversation: follow-ups, several wishes in one message, tools that stay, and messages that need no tool."""

from typing import Any

import pytest

from app.demo.seed import load_catalogue
from tests.conftest import TestUser

Json = dict[str, Any]


@pytest.fixture
async def demo(user: TestUser) -> TestUser:
    for server in load_catalogue():
        await user.add_tools(*server["tools"], server=server["name"])
    return user


async def discovered(user: TestUser, **body: Any) -> Json:
    answer = await user.http.post("/discover", json=body)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def names(answer: Json) -> list[str]:
    return [found["tool"]["name"] for found in answer["tools"]]


MOVING = [
    {"role": "user", "content": "When's my call with Mireille?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "list_events", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Tuesday 10:00"}]},
    {"role": "assistant", "content": "Tuesday at ten. Shall I move this appointment to Wednesday at another time?"},
]


async def test_a_follow_up_is_searched_with_the_turn_before(demo: TestUser) -> None:
    alone = await discovered(demo, query="yes please", limit=3, similarity_threshold=0)
    assert "update_event" not in names(alone)
    followed = await discovered(demo, messages=[*MOVING, {"role": "user", "content": "yes please"}], limit=3)
    assert "update_event" in names(followed)


async def test_a_new_subject_is_searched_alone(demo: TestUser) -> None:
    said = "What will the weather be like in Bergen on Thursday?"
    messages = [*MOVING, {"role": "user", "content": said}]
    assert names(await discovered(demo, messages=messages)) == names(await discovered(demo, query=said))


async def test_a_tool_that_was_called_lately_gains_a_little(demo: TestUser) -> None:
    ask = {"role": "user", "content": "What is on my calendar on Thursday afternoon?"}
    call = {"id": "c1", "type": "function", "function": {"name": "find_free_time", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}

    async def score(*messages: Json) -> float:
        answer = await discovered(demo, messages=[*messages, ask])
        found: float = next(each["score"] for each in answer["tools"] if each["tool"]["name"] == "find_free_time")
        return found

    assert await score(called) == pytest.approx(await score() + 0.03, abs=1e-3)


async def test_each_of_several_wishes_keeps_its_best_tool(demo: TestUser) -> None:
    message = "find the rental agreement among my files and post a message about it in the housing channel"
    answer = await discovered(demo, query=message, limit=3)
    assert {"files", "teamchat"} <= {found["server_name"] for found in answer["tools"]}
    narrow = await discovered(demo, query=message, limit=2)
    assert [found["server_name"] for found in narrow["tools"]] in (["files", "teamchat"], ["teamchat", "files"])


@pytest.mark.parametrize(
    "message", ["thank you, that was kind of you!", "Write a short poem about autumn.", "Why is the sky blue?"]
)
async def test_a_message_that_needs_no_tool_gets_none_and_says_so(demo: TestUser, message: str) -> None:
    answer = await discovered(demo, query=message)
    assert (answer["tools"], answer["no_match"], answer["degraded"]) == ([], True, False)
    why = await demo.http.post("/discover/why", json={"query": message, "tool": "web_search"})
    assert [item["reason"] for item in why.json()["items"]] == ["no_match"]


async def test_thanks_at_the_end_of_a_conversation_get_none_whatever_it_was_about(demo: TestUser) -> None:
    turns = [
        {"role": "user", "content": "what will the weather be in Graz tomorrow?"},
        {"role": "assistant", "content": "Sunny."},
    ]
    for said, none in (("thanks, that is all", True), ("and in Linz?", False)):
        answer = await discovered(demo, messages=[*turns, {"role": "user", "content": said}])
        assert (not answer["tools"], answer["no_match"]) == (none, none)


@pytest.mark.parametrize("threshold", [0, 0.4])
async def test_a_threshold_of_ones_own_takes_the_judgement_away(demo: TestUser, threshold: float) -> None:
    answer = await discovered(demo, query="Why is the sky blue?", similarity_threshold=threshold)
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


@pytest.mark.parametrize("shape", ["mcp", "anthropic", "openai"])
async def test_ten_turns_only_ever_append_to_the_definitions(demo: TestUser, shape: str) -> None:
    """So that whatever a provider has cached of the prompt stays good."""
    keep: list[str] = []
    given: list[str] = []
    messages: list[Json] = []
    for said in TEN_TURNS:
        messages.append({"role": "user", "content": said})
        answer = await demo.http.post(
            "/discover", json={"messages": messages, "keep": keep, "format": shape, "limit": 3}
        )
        found = answer.json()
        definitions = [repr(definition) for definition in found["definitions"]]
        assert definitions[: len(given)] == given
        keep, given = [each["tool_key"] for each in found["tools"]], definitions
        messages.append({"role": "assistant", "content": "Done."})
    assert len(given) > 10
