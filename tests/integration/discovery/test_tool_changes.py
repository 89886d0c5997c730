"""`added`, `removed` and `changes` of `POST /discover` with a list as `keep`."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.container import Container
from app.errors import QueryFailed
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import OpenService, tool
from tests.support.round_trips import count_least_round_trips

Json = dict[str, Any]

FORECAST = tool("get_forecast", "Weather forecast for a city over the next days: rain, wind, temperature.")
REFUND = tool("refund_payment", "Give a customer their money back for a payment.")
SEARCH = tool("search_repositories", "Search code repositories by topic, language or text.")
ASK_USER = tool("ask_user", "Ask the user a question.")
RAIN = "will it rain in Vienna tomorrow?"
MONEY = "give the customer of this payment the money back"


@pytest.fixture
async def server_id(user: TestUser) -> str:
    return await user.add_tools(FORECAST, REFUND, SEARCH)


async def discover(user: TestUser, query: str, api_format: str = "anthropic", **fields: Any) -> Json:
    return await user.discover(query, format=api_format, limit=1, **fields)


def to_keep(answer: Json) -> list[Json]:
    return [{name: each[name] for name in ("tool_key", "alias", "definition_hash")} for each in answer["tools"]]


def to_keys(answer: Json) -> list[str]:
    return [each["tool_key"] for each in answer["tools"]]


def names(answer: Json) -> list[str]:
    return [each["tool"]["name"] for each in answer["tools"]]


def list_changes(answer: Json) -> list[tuple[str, str]]:
    """Return the kind of each block, and the name in it."""
    if answer["changes"] is None:
        return []
    blocks = answer["changes"]["content"]
    return [(each["type"], each["tool"].get("name") or each["tool"]["definition"]["name"]) for each in blocks]


async def test_without_keep_nothing_is_compared(user: TestUser, server_id: str) -> None:
    answer = await discover(user, RAIN)
    fields = "added", "removed", "changes", "toolset_hash_before"
    assert [answer[field] for field in fields] == [None] * 4
    assert all(len(found["definition_hash"]) == 16 for found in answer["tools"])


@pytest.mark.parametrize("exact", [True, False])
async def test_a_conversation_gets_only_what_is_new(user: TestUser, server_id: str, *, exact: bool) -> None:
    first = await discover(user, RAIN, keep=[])
    assert (names(first), first["added"], first["removed"]) == (["get_forecast"], to_keys(first), [])
    assert list_changes(first) == [("tool_addition", "get_forecast")]
    [block] = first["changes"]["content"]
    assert block["tool"]["definition"] == first["definitions"][0]
    second = await discover(user, MONEY, keep=to_keep(first) if exact else to_keys(first))
    assert names(second) == ["get_forecast", "refund_payment"]
    assert (second["added"], second["removed"]) == (to_keys(second)[1:], [])
    assert list_changes(second) == [("tool_addition", "refund_payment")]
    assert second["toolset_hash_before"] == first["toolset_hash"] != second["toolset_hash"]
    third = await discover(user, RAIN, keep=to_keep(second) if exact else to_keys(second))
    assert (third["added"], third["removed"], third["changes"]) == ([], [], None)
    assert third["toolset_hash_before"] == third["toolset_hash"] == second["toolset_hash"]


async def test_the_same_request_has_the_same_bytes(user: TestUser, server_id: str) -> None:
    keep = to_keep(await discover(user, RAIN))
    one, two = [await discover(user, MONEY, keep=keep) for _ in range(2)]
    for answer in (one, two):
        del answer["discovery_id"], answer["search_duration_ms"], answer["embedding_generated"]
    assert one == two


async def test_openai_gets_the_new_tools_as_an_item(user: TestUser, server_id: str) -> None:
    first = await discover(user, RAIN, "openai_responses")
    second = await discover(user, MONEY, "openai_responses", keep=to_keep(first))
    definitions = second["definitions"][1:]
    assert second["changes"] == {"type": "additional_tools", "role": "developer", "tools": definitions}


@pytest.mark.parametrize("api_format", ["mcp", "openai"])
async def test_other_formats_get_keys_and_definitions(user: TestUser, server_id: str, api_format: str) -> None:
    answer = await discover(user, RAIN, api_format, keep=[])
    assert (answer["added"], answer["changes"]) == (to_keys(answer), None)
    assert answer["definitions"]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("gone", ["hidden", "vanished", "without its server"])
async def test_a_kept_tool_that_is_gone_is_removed(user: TestUser, server_id: str, gone: str, *, exact: bool) -> None:
    first = await discover(user, RAIN)
    [key] = to_keys(first)
    if gone == "hidden":
        await user.http.patch(f"/tools/{key}", json={"enabled": False})
    elif gone == "vanished":
        await user.push(server_id, [REFUND, SEARCH])
    else:
        await user.http.delete(f"/servers/{server_id}")
        await user.add_tools(REFUND)
    answer = await discover(user, MONEY, keep=to_keep(first) if exact else [key])
    assert (answer["removed"], names(answer)) == ([key], ["refund_payment"])
    known = exact or gone != "without its server"
    removals = [("tool_removal", "get_forecast")] if known else []
    assert list_changes(answer) == [*removals, ("tool_addition", "refund_payment")]
    assert answer["toolset_hash_before"] == (first["toolset_hash"] if exact else None)


async def test_a_key_by_name_is_removed_as_it_was_given(user: TestUser, server_id: str) -> None:
    found = await discover(user, MONEY, keep=["files.get_forecast", "files.never_there"])
    assert found["removed"] == ["files.never_there"]
    await user.push(server_id, [REFUND, SEARCH])
    answer = await discover(user, MONEY, keep=["files.get_forecast", "files.never_there"])
    assert answer["removed"] == ["files.get_forecast", "files.never_there"]
    assert list_changes(answer)[0] == ("tool_removal", "get_forecast")


async def test_a_changed_definition_is_removed_and_added(user: TestUser, server_id: str) -> None:
    first = await discover(user, RAIN)
    second = await discover(user, MONEY, keep=to_keep(first))
    changed = FORECAST | {"description": FORECAST["description"] + " Also snow."}
    await user.push(server_id, [changed, REFUND, SEARCH])
    answer = await discover(user, MONEY, keep=to_keep(second))
    assert answer["removed"] == answer["added"] == to_keys(first)
    assert list_changes(answer) == [("tool_removal", "get_forecast"), ("tool_addition", "get_forecast")]
    assert names(answer) == ["refund_payment", "get_forecast"], "what the model has already comes first"
    assert answer["definitions"][1]["description"].endswith("Also snow.")
    by_key = await discover(user, MONEY, keep=to_keys(second))
    assert (by_key["removed"], by_key["added"]) == ([], []), "a key does not say which definition the model has"


async def test_a_second_tool_of_the_name_changes_the_alias(user: TestUser, server_id: str) -> None:
    first = await discover(user, RAIN)
    await user.add_tools(tool("get_forecast", "The budget of the next quarter."), server="finance")
    answer = await discover(user, RAIN, keep=to_keep(first))
    [now] = [each for each in answer["tools"] if each["tool_key"] == to_keys(first)[0]]
    assert now["alias"] != "get_forecast"
    assert list_changes(answer)[:2] == [("tool_removal", "get_forecast"), ("tool_addition", now["alias"])]


@pytest.mark.parametrize("exact", [True, False])
async def test_a_removal_has_no_name_that_the_model_may_not_know(
    user: TestUser, server_id: str, *, exact: bool
) -> None:
    """A second tool of the name changes the alias of the first: only the caller knows which one the model has."""
    first = await discover(user, RAIN)
    await user.add_tools(tool("get_forecast", "The budget of the next quarter."), server="finance")
    await user.http.patch(f"/tools/{to_keys(first)[0]}", json={"enabled": False})
    answer = await discover(user, MONEY, keep=to_keep(first) if exact else to_keys(first))
    assert answer["removed"] == to_keys(first)
    removals = [("tool_removal", "get_forecast")] if exact else []
    assert list_changes(answer) == [*removals, ("tool_addition", "refund_payment")]


async def test_names_in_keep_that_cannot_be_looked_up_are_not_called_removed(
    user: TestUser, server_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise QueryFailed("broken")

    key = to_keys(await discover(user, RAIN))
    monkeypatch.setattr("app.discovery.discover.resolve_keys", fail)
    answer = await user.http.post("/discover", json={"query": MONEY, "keep": ["files.get_forecast"]})
    assert_problem(answer, 503, "unavailable")
    assert "Retry-After" in answer.headers
    assert names(await discover(user, MONEY, keep=key)) == ["get_forecast", "refund_payment"], "ids need no look-up"


@pytest.fixture
async def strict_user(open_service: OpenService) -> AsyncIterator[TestUser]:
    async with open_service(hold_changed_tools=True) as container, new_user(container) as user:
        yield user


async def test_a_held_tool_is_removed_until_it_is_approved(strict_user: TestUser) -> None:
    server_id = await strict_user.add_tools(FORECAST, REFUND)
    first = await discover(strict_user, RAIN)
    [key] = to_keys(first)
    await strict_user.push(server_id, [FORECAST | {"description": "Weather forecast of rain, changed."}, REFUND])
    held = await discover(strict_user, MONEY, keep=to_keep(first))
    assert (held["removed"], key in held["added"]) == ([key], False)
    assert (await strict_user.http.post(f"/tools/{key}/approve")).status_code == 200
    approved = await discover(strict_user, MONEY, keep=to_keep(first))
    assert (approved["removed"], key in approved["added"]) == ([key], True)


async def test_a_kept_tool_without_room_is_removed(user: TestUser, server_id: str) -> None:
    first = await discover(user, RAIN)
    answer = await discover(user, MONEY, keep=to_keys(first), max_tokens=1)
    assert (answer["tools"], answer["removed"], answer["added"]) == ([], to_keys(first), [])
    assert list_changes(answer) == [("tool_removal", "get_forecast")]


async def test_a_kept_tool_outside_of_the_filter_is_removed(user: TestUser, server_id: str) -> None:
    first = await discover(user, RAIN)
    answer = await discover(user, RAIN, keep=to_keep(first), server_ids=[])
    assert (answer["tools"], answer["removed"]) == ([], to_keys(first))


async def test_core_tools_are_added_once(user: TestUser, server_id: str) -> None:
    assert (await user.http.put("/core-tools", json={"tools": [ASK_USER]})).status_code == 200
    first = await discover(user, RAIN, keep=[])
    assert list_changes(first) == [("tool_addition", "ask_user"), ("tool_addition", "get_forecast")]
    second = await discover(user, MONEY, keep=to_keep(first))
    assert list_changes(second) == [("tool_addition", "refund_payment")]
    without = await discover(user, MONEY, keep=to_keys(second), include_core_tools=False)
    assert list_changes(without) == [("tool_removal", "ask_user")]


async def test_a_key_of_a_project_learns_no_names_from_outside(
    container: Container, admin: httpx.AsyncClient, user: TestUser
) -> None:
    inside = await user.add_tools(FORECAST, SEARCH, server="weather")
    await user.add_tools(REFUND, server="payments")
    fields = {"name": "weather", "server_ids": [inside], "optimization": "hybrid"}
    project_id = (await user.http.post("/projects", json=fields)).json()["id"]
    stored = await user.tools()
    keep = [stored["get_forecast"]["id"], stored["refund_payment"]["id"], "payments.refund_payment"]
    await user.http.patch(f"/tools/{keep[0]}", json={"enabled": False})
    fields = {"kind": "user", "user_id": user.id, "project_id": project_id}
    key = (await admin.post("/keys", json=fields)).json()["key"]
    async with open_client(container, Authorization=f"Bearer {key}") as http:
        body = {"query": "search code", "keep": keep, "format": "anthropic", "strategy": "semantic"}
        bound = (await http.post("/discover", json=body | {"server_ids": []})).json()
        found = (await http.post("/discover", json={"query": "search code", "fill": True})).json()
        no_room = (await http.post("/discover", json=body | {"keep": to_keys(found), "max_tokens": 1})).json()
    assert (bound["removed"], bound["changes"]) == (keep, None)
    assert list_changes(no_room) == [("tool_removal", "search_repositories")], "it is a tool of the project"
    own = await user.discover(RAIN, keep=keep, project_id=project_id, format="anthropic")
    assert list_changes(own)[:2] == [("tool_removal", "get_forecast"), ("tool_removal", "refund_payment")]


async def test_visible_tools_in_keep_take_no_further_round_trip(
    container: Container, user: TestUser, server_id: str
) -> None:
    keep = to_keep(await discover(user, RAIN))
    for _ in range(2):
        await discover(user, MONEY)
        await container.discoverer.snapshots.wait_loaded()
    assert await count_least_round_trips(lambda: discover(user, MONEY)) == 1
    assert await count_least_round_trips(lambda: discover(user, MONEY, keep=keep)) == 1


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"tool_key": "x", "alias": "not valid"}, "body.keep.0.alias: String should match"),
        ({"tool_key": "x", "definition_hash": "abc"}, "body.keep.0.definition_hash: String should match"),
        ({"alias": "x"}, "body.keep.0.tool_key: Field required"),
        ({"tool_key": "x", "name": "x"}, "body.keep.0.name: unknown field `name`; did you mean `alias`?"),
        ("", "body.keep.0: String should have at least 1 character"),
        (5, "body.keep.0: must be a tool key, or an object with `tool_key`, `alias` and `definition_hash`"),
    ],
)
async def test_an_invalid_item_of_keep_is_named(user: TestUser, item: Any, message: str) -> None:
    answer = await user.http.post("/discover", json={"query": RAIN, "keep": [item]})
    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert (await user.http.post("/discover", json={"query": RAIN, "keep": [{"toolKey": "x"}]})).status_code == 200
