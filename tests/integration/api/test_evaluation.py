"""`POST /eval`: the figures, the misses and why, and what would help."""

from typing import Any

import httpx
import pytest

from app.api.evaluation import MAX_ITEMS
from app.container import Container
from tests.conftest import TestUser, client_of, tool
from tests.support.checks import assert_problem

Json = dict[str, Any]

FORECAST = tool("get_forecast", "The weather forecast for a city: rain, wind and temperature.")
READ = tool("read_file", "Read a text file from the disk.")
REFUND = tool("refund_payment", "Give customers their money back after a payment.")
RAIN = "weather forecast: will it rain in the city?"
NONSENSE = "sing me a song about love"


async def evaluated(user: TestUser, *items: Json, **fields: Any) -> Json:
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


async def test_what_is_found_at_once_scores_one_however_the_tool_is_named(team: TestUser) -> None:
    key = (await team.tools())["get_forecast"]["id"]
    names = ["get_forecast", "weather.get_forecast", "weather/get_forecast", key]
    shown = await evaluated(team, *(item(RAIN, name, id=name) for name in names))
    assert set(shown["measures"].values()) == {1.0}
    assert [answer["ranked"][0] for answer in shown["answers"]] == [key] * 4
    assert [answer["id"] for answer in shown["answers"]] == names
    assert (shown["messages"], shown["lost"], shown["abstained"], shown["degraded"]) == (4, 0, None, 0)
    assert shown["median_tokens"] > 0
    assert 0 < shown["median_saved_percent"] < 100
    assert shown["misses"] == shown["not_first"] == shown["unknown_labels"] == []
    assert shown["suggestions"] is None


async def test_turns_are_asked_as_discover_would_ask_them(team: TestUser) -> None:
    turns = [{"role": "user", "content": "hello"}, {"role": "user", "content": RAIN}]
    shown = await evaluated(team, {"messages": turns, "tools": ["get_forecast"]})
    assert shown["measures"]["hit_at_1"] == 1


async def test_core_tools_are_left_out(team: TestUser) -> None:
    await team.http.put("/core-tools", json={"tools": [tool("remember", "Remember something.")]})
    shown = await evaluated(team, item(RAIN, "get_forecast"))
    assert shown["answers"][0]["ranked"][0] == (await team.tools())["get_forecast"]["id"]


async def test_messages_that_need_no_tool_count_for_abstention_alone(team: TestUser) -> None:
    shown = await evaluated(team, item(NONSENSE), item(RAIN))
    assert shown["measures"] is None
    assert shown["abstained"] == 0.5
    assert shown["lost"] is None
    assert [answer["no_match"] for answer in shown["answers"]] == [True, False]
    assert shown["misses"] == []


async def test_a_lost_message_says_why(team: TestUser) -> None:
    shown = await evaluated(team, item(NONSENSE, "files.read_file", id="song"), item(RAIN, "get_forecast"))
    assert shown["lost"] == 0.5
    assert shown["measures"]["recall_at_5"] == 0.5
    [miss] = shown["misses"]
    assert (miss["id"], miss["tool"], miss["place"], miss["reason"]) == (
        "song",
        "files.read_file",
        None,
        "below_threshold",
    )
    assert miss["message"]


async def test_a_tool_that_is_switched_off_is_a_miss_that_says_so(team: TestUser) -> None:
    key = (await team.tools())["get_forecast"]["id"]
    await team.http.patch(f"/tools/{key}", json={"enabled": False})
    [miss] = (await evaluated(team, item(RAIN, "get_forecast")))["misses"]
    assert (miss["tool_key"], miss["reason"]) == (key, "switched_off")
    await team.http.patch(f"/tools/{key}", json={"enabled": True})
    assert (await evaluated(team, item(RAIN, "get_forecast")))["misses"] == []


async def test_a_tool_behind_the_fifth_place_is_a_miss_with_its_place(user: TestUser) -> None:
    siblings = [tool(f"get_forecast_{n}", f"The weather forecast for city number {n}.") for n in range(8)]
    await user.add_tools(*siblings, server="weather")
    ranked = (await evaluated(user, item(RAIN)))["answers"][0]["ranked"]
    assert len(ranked) == 8
    shown = await evaluated(user, item(RAIN, ranked[4], ranked[5]))
    assert shown["measures"]["recall_at_5"] == 0.5
    assert shown["measures"]["recall_at_10"] == 1
    [miss] = shown["misses"]
    assert (miss["tool_key"], miss["place"], miss["reason"]) == (ranked[5], 6, "included")


async def test_a_tool_that_is_found_behind_another_is_told_with_its_place_and_the_other(user: TestUser) -> None:
    siblings = [tool(f"get_forecast_{n}", f"The weather forecast for city number {n}.") for n in range(8)]
    await user.add_tools(*siblings, server="weather")
    names = {each["id"]: f"weather.{name}" for name, each in (await user.tools()).items()}
    ranked = (await evaluated(user, item(RAIN)))["answers"][0]["ranked"]
    first, second, third, *_, sixth, _seventh, _eighth = ranked
    shown = await evaluated(user, item(RAIN, second, third, id="rain"), item(RAIN, first, third), item(RAIN, sixth))
    assert shown["not_first"] == [
        {
            "id": "rain",
            "tool": names[second],
            "tool_key": second,
            "place": 2,
            "first": names[first],
            "first_key": first,
        }
    ]
    assert [miss["tool_key"] for miss in shown["misses"]] == [sixth]


async def test_the_limit_is_how_many_are_asked_for(team: TestUser) -> None:
    shown = await evaluated(team, item("a file, a forecast or a payment", "read_file"), limit=1)
    assert len(shown["answers"][0]["ranked"]) == 1


async def test_a_label_that_names_no_tool_is_told_and_counts_as_not_found(team: TestUser) -> None:
    shown = await evaluated(team, item(RAIN, "get_forecast", "weather.no_such_tool", id="rain"))
    assert shown["unknown_labels"] == [{"id": "rain", "label": "weather.no_such_tool"}]
    assert shown["measures"]["recall_at_5"] == 0.5
    assert shown["misses"] == []


async def test_a_plain_name_means_every_tool_of_that_name(team: TestUser) -> None:
    await team.add_tools(READ, server="archive")
    shown = await evaluated(team, item("read a text file", "read_file"), item("read a text file", "files.read_file"))
    assert [answer["measures"]["recall_at_5"] for answer in shown["answers"]] == [1, 1]
    assert shown["answers"][0]["measures"]["ndcg_at_10"] == 1


async def test_a_projects_key_sees_its_project_alone(
    team: TestUser, admin: httpx.AsyncClient, container: Container
) -> None:
    servers = {each["name"]: each["id"] for each in (await team.http.get("/servers")).json()["items"]}
    project = (await team.http.post("/projects", json={"name": "w", "server_ids": [servers["weather"]]})).json()["id"]
    body = {"kind": "user", "user_id": team.id, "project_id": project}
    key = (await admin.post("/keys", json=body)).json()["key"]
    items = [item(RAIN, "get_forecast"), item("read a text file", "files.read_file")]
    async with client_of(container, Authorization=f"Bearer {key}") as bound:
        shown = (await bound.post("/eval", json={"items": items, "suggest": True})).json()
    assert [each["label"] for each in shown["unknown_labels"]] == ["files.read_file"]
    assert shown["suggestions"]["tools"] == 1
    whole = await evaluated(team, *items, project_id=project)
    assert [miss["reason"] for miss in whole["misses"]] == ["outside_project"]
    assert (await evaluated(team, *items))["misses"] == []


async def test_suggestions_name_what_reads_alike_and_what_says_too_little(team: TestUser) -> None:
    await team.add_tools(FORECAST, server="another")
    vague = tool("do", "", inputSchema={"type": "object", "properties": {"a": {"type": "string"}}})
    crowd = [tool(f"query_{n}", "Run a query.") for n in range(9)]
    await team.add_tools(vague, *crowd, server="vague")
    told = (await evaluated(team, suggest=True))["suggestions"]
    assert told["tools"] == told["probed"] == 14

    twins = [pair for pair in told["pairs"] if "weather.get_forecast" in (pair["first"], pair["second"])]
    assert [{pair["first"], pair["second"]} for pair in twins] == [{"weather.get_forecast", "another.get_forecast"}]
    assert twins[0]["by"] == ["meaning", "words"]
    assert twins[0]["shared_words"] == 1

    problems = {poor["tool"]: poor["problems"] for poor in told["poor"]}
    assert problems["vague.do"] == ["no_description", "parameters_not_described"]
    assert any("not_found_by_description" in its for name, its in problems.items() if name.startswith("vague.query"))
    assert "not_found_by_description" in told["poor"][0]["problems"]
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
async def test_what_cannot_be_evaluated_is_refused(user: TestUser, body: Json) -> None:
    assert_problem(await user.http.post("/eval", json=body), 422)
    assert (await evaluated(user, item("x")))["messages"] == 1
