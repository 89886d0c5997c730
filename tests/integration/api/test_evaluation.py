"""`POST /eval`: the measures, the explained misses and the suggestions."""

from typing import Any

import httpx
import pytest

from app.container import Container
from app.schemas.evaluation import MAX_ITEMS
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, open_client
from tests.support.factories import tool

Json = dict[str, Any]

FORECAST = tool("get_forecast", "The weather forecast for a city: rain, wind and temperature.")
READ = tool("read_file", "Read a text file from the disk.")
REFUND = tool("refund_payment", "Give customers their money back after a payment.")
RAIN = "weather forecast: will it rain in the city?"
NONSENSE = "sing me a song about love"
BOOK = "what is a good book to read?"
"""It resembles a tool, but needs none."""


async def evaluate(user: TestUser, *items: Json, **fields: Any) -> Json:
    answer = await user.http.post("/eval", json={"items": list(items), **fields})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def item(message: str, *tools: str, **fields: Any) -> Json:
    return {"message": message, "tools": list(tools), **fields}


@pytest.fixture
async def team(user: TestUser) -> TestUser:
    await user.add_tools(FORECAST, server="weather")
    await user.add_tools(READ, server="files")
    await user.add_tools(REFUND, server="payments")
    return user


async def test_a_tool_found_first_scores_one_for_every_form_of_its_label(team: TestUser) -> None:
    key = (await team.tools())["get_forecast"]["id"]
    names = ["get_forecast", "weather.get_forecast", "weather/get_forecast", key]
    body = await evaluate(team, *(item(RAIN, name, id=name) for name in names))
    assert set(body["measures"].values()) == {1.0}
    assert [answer["ranked"][0] for answer in body["answers"]] == [key] * 4
    assert [answer["id"] for answer in body["answers"]] == names
    assert (body["messages"], body["lost"], body["abstained"], body["degraded"]) == (4, 0, None, 0)
    assert body["median_tokens"] > 0
    assert 0 < body["median_saved_percent"] < 100
    assert body["misses"] == body["not_first"] == body["unknown_labels"] == []
    assert body["suggestions"] is None


async def test_turns_are_searched_as_in_discover(team: TestUser) -> None:
    turns = [{"role": "user", "content": "hello"}, {"role": "user", "content": RAIN}]
    body = await evaluate(team, {"messages": turns, "tools": ["get_forecast"]})
    assert body["measures"]["hit_at_1"] == 1


async def test_core_tools_are_excluded(team: TestUser) -> None:
    await team.http.put("/core-tools", json={"tools": [tool("remember", "Remember something.")]})
    body = await evaluate(team, item(RAIN, "get_forecast"))
    assert body["answers"][0]["ranked"][0] == (await team.tools())["get_forecast"]["id"]


async def test_messages_that_need_no_tool_count_for_abstention_only(team: TestUser) -> None:
    body = await evaluate(team, item(NONSENSE), item(RAIN))
    assert body["measures"] is None
    assert body["abstained"] == 0.5
    assert body["lost"] is None
    assert [answer["no_match"] for answer in body["answers"]] == [True, False]
    assert body["misses"] == []


async def test_the_summary_has_the_size_and_the_confidence_of_answers(team: TestUser) -> None:
    body = await evaluate(team, item(RAIN, "get_forecast"), item(NONSENSE), item(RAIN))
    sizes = [len(answer["ranked"]) for answer in body["answers"]]
    confidences = [answer["confidence"] for answer in body["answers"]]
    assert sizes[0] == sizes[2] > sizes[1] == 0
    assert confidences == ["high", "none", "high"]
    assert (body["mean_tools"], body["mean_unneeded_tools"]) == (sizes[0], sizes[0] / 2)
    assert body["low_confidence"] == 0
    only_needing = await evaluate(team, item(RAIN, "get_forecast"))
    assert only_needing["mean_unneeded_tools"] is None
    only_not_needing = await evaluate(team, item(NONSENSE))
    assert only_not_needing["mean_tools"] is None


async def test_the_summary_has_the_share_of_answers_with_low_confidence(team: TestUser) -> None:
    project = {"name": "words alone", "optimization": "bm25"}
    project_id = (await team.http.post("/projects", json=project)).json()["id"]
    uncertain = "weather plonk frobnicate xyzzy"
    items = [item(uncertain, "get_forecast"), item("weather forecast", "get_forecast")]
    body = await evaluate(team, *items, project_id=project_id)
    assert [answer["confidence"] for answer in body["answers"]] == ["low", "high"]
    assert body["low_confidence"] == 0.5


async def test_a_lost_message_is_explained(team: TestUser) -> None:
    body = await evaluate(team, item(BOOK, "files.read_file", id="book"), item(RAIN, "get_forecast"))
    assert body["lost"] == 0.5
    assert body["measures"]["recall_at_5"] == 0.5
    [miss] = body["misses"]
    assert (miss["id"], miss["tool"], miss["place"], miss["reason"]) == (
        "book",
        "files.read_file",
        None,
        "no_match",
    )
    assert miss["message"]


async def test_a_tool_that_is_too_different_from_the_message_is_a_miss_with_that_reason(team: TestUser) -> None:
    body = await evaluate(team, item(RAIN, "get_forecast", "files.read_file"))
    assert body["lost"] == 0
    [miss] = body["misses"]
    assert (miss["tool"], miss["place"], miss["reason"]) == ("files.read_file", None, "below_threshold")


async def test_a_disabled_tool_is_a_miss_with_that_reason(team: TestUser) -> None:
    key = (await team.tools())["get_forecast"]["id"]
    await team.http.patch(f"/tools/{key}", json={"enabled": False})
    [miss] = (await evaluate(team, item(RAIN, "get_forecast")))["misses"]
    assert (miss["tool_key"], miss["reason"]) == (key, "switched_off")
    await team.http.patch(f"/tools/{key}", json={"enabled": True})
    assert (await evaluate(team, item(RAIN, "get_forecast")))["misses"] == []


async def test_a_tool_below_rank_five_is_a_miss_with_its_rank(user: TestUser) -> None:
    siblings = [tool(f"get_forecast_{n}", f"The weather forecast for city number {n}.") for n in range(8)]
    await user.add_tools(*siblings, server="weather")
    ranked = (await evaluate(user, item(RAIN)))["answers"][0]["ranked"]
    assert len(ranked) == 8
    body = await evaluate(user, item(RAIN, ranked[4], ranked[5]))
    assert body["measures"]["recall_at_5"] == 0.5
    assert body["measures"]["recall_at_10"] == 1
    [miss] = body["misses"]
    assert (miss["tool_key"], miss["place"], miss["reason"]) == (ranked[5], 6, "included")


async def test_a_tool_that_ranks_below_another_is_listed_with_its_rank_and_the_other(user: TestUser) -> None:
    siblings = [tool(f"get_forecast_{n}", f"The weather forecast for city number {n}.") for n in range(8)]
    await user.add_tools(*siblings, server="weather")
    names = {each["id"]: f"weather.{name}" for name, each in (await user.tools()).items()}
    ranked = (await evaluate(user, item(RAIN)))["answers"][0]["ranked"]
    first, second, third, *_, sixth, _seventh, _eighth = ranked
    body = await evaluate(user, item(RAIN, second, third, id="rain"), item(RAIN, first, third), item(RAIN, sixth))
    assert body["not_first"] == [
        {
            "id": "rain",
            "tool": names[second],
            "tool_key": second,
            "place": 2,
            "first": names[first],
            "first_key": first,
        }
    ]
    assert [miss["tool_key"] for miss in body["misses"]] == [sixth]


async def test_the_limit_is_the_number_of_tools(team: TestUser) -> None:
    both = item("read a text file, then give the customer their money back", "read_file", "refund_payment")
    assert len((await evaluate(team, both))["answers"][0]["ranked"]) == 2
    assert len((await evaluate(team, both, limit=1))["answers"][0]["ranked"]) == 1


async def test_an_unknown_label_is_listed_and_counts_as_not_found(team: TestUser) -> None:
    body = await evaluate(team, item(RAIN, "get_forecast", "weather.no_such_tool", id="rain"))
    assert body["unknown_labels"] == [{"id": "rain", "label": "weather.no_such_tool"}]
    assert body["measures"]["recall_at_5"] == 0.5
    assert body["misses"] == []


async def test_a_plain_name_stands_for_every_tool_of_that_name(team: TestUser) -> None:
    await team.add_tools(READ, server="archive")
    body = await evaluate(team, item("read a text file", "read_file"), item("read a text file", "files.read_file"))
    assert [answer["measures"]["recall_at_5"] for answer in body["answers"]] == [1, 1]
    assert body["answers"][0]["measures"]["ndcg_at_10"] == 1


async def test_a_project_key_sees_only_its_project(
    team: TestUser, admin: httpx.AsyncClient, container: Container
) -> None:
    servers = {each["name"]: each["id"] for each in (await team.http.get("/servers")).json()["items"]}
    project = (await team.http.post("/projects", json={"name": "w", "server_ids": [servers["weather"]]})).json()["id"]
    new_key = {"kind": "user", "user_id": team.id, "project_id": project}
    key = (await admin.post("/keys", json=new_key)).json()["key"]
    items = [item(RAIN, "get_forecast"), item("read a text file", "files.read_file")]
    async with open_client(container, Authorization=f"Bearer {key}") as bound:
        body = (await bound.post("/eval", json={"items": items, "suggest": True})).json()
    assert [each["label"] for each in body["unknown_labels"]] == ["files.read_file"]
    assert body["suggestions"]["tools"] == 1
    whole = await evaluate(team, *items, project_id=project)
    assert [miss["reason"] for miss in whole["misses"]] == ["outside_project"]
    assert (await evaluate(team, *items))["misses"] == []


async def test_suggestions_list_similar_tools_and_poor_descriptions(team: TestUser) -> None:
    await team.add_tools(FORECAST, server="another")
    vague = tool("do", "", inputSchema={"type": "object", "properties": {"a": {"type": "string"}}})
    crowd = [tool(f"query_{n}", "Run a query.") for n in range(9)]
    await team.add_tools(vague, *crowd, server="vague")
    suggestions = (await evaluate(team, suggest=True))["suggestions"]
    assert suggestions["tools"] == suggestions["probed"] == 14

    twins = [pair for pair in suggestions["pairs"] if "weather.get_forecast" in (pair["first"], pair["second"])]
    assert [{pair["first"], pair["second"]} for pair in twins] == [{"weather.get_forecast", "another.get_forecast"}]
    assert twins[0]["by"] == ["meaning", "words"]
    assert twins[0]["shared_words"] == 1
    for path in (twins[0]["first_path"], twins[0]["second_path"]):
        assert (await team.http.get(path)).json()["name"] == "get_forecast"

    problems = {poor["tool"]: poor["problems"] for poor in suggestions["poor"]}
    assert problems["vague.do"] == ["no_description", "parameters_not_described"]
    [path] = [poor["path"] for poor in suggestions["poor"] if poor["tool"] == "vague.do"]
    assert (await team.http.patch(path, json={"description": "Does it."})).json()["name"] == "do"
    assert any("not_found_by_description" in its for name, its in problems.items() if name.startswith("vague.query"))
    assert "not_found_by_description" in suggestions["poor"][0]["problems"]
    assert not {"weather.get_forecast", "files.read_file", "payments.refund_payment"} & problems.keys()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"items": []},
        {"items": [{"message": "x"}]},
        {"items": [{"tools": []}]},
        {"items": [{"message": " ", "tools": []}]},
        {"items": [{"message": "x", "messages": [], "tools": []}]},
        {"items": [{"message": "x", "tools": [""]}]},
        {"items": [{"message": "x", "tools": []}], "limit": 0},
        {"items": [{"message": "x", "tools": []}] * (MAX_ITEMS + 1)},
    ],
)
async def test_an_invalid_request_is_rejected(user: TestUser, body: Json) -> None:
    assert_problem(await user.http.post("/eval", json=body), 422)
    assert (await evaluate(user, item("x")))["messages"] == 1
