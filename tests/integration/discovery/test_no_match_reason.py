"""`no_match_reason`: why a discovery found nothing."""

from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.broken_search import broken_search
from tests.support.clients import TestUser, open_client
from tests.support.factories import tool

FORECAST = tool("get_forecast", "Weather forecast for a city over the next days: rain, wind, temperature.")
RAIN = "will it rain in Vienna tomorrow?"
ASK_USER = tool("ask_user", "Ask the user a question.")


async def get_reason(user: TestUser, query: str = RAIN, **fields: Any) -> str | None:
    answer = await user.discover(query, **fields)
    assert answer["no_match"] is (answer["no_match_reason"] is not None)
    assert answer["no_match"] is (answer["confidence"] == "none")
    reason: str | None = answer["no_match_reason"]
    return reason


async def make_project(user: TestUser, **fields: Any) -> str:
    made = await user.http.post("/projects", json={"name": "quiet", "optimization": "hybrid", **fields})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def test_there_is_no_reason_if_a_tool_was_found(user: TestUser) -> None:
    await user.add_tools(FORECAST)
    assert await get_reason(user) is None


async def test_a_user_without_tools_has_no_tools_even_with_core_tools_and_filters(user: TestUser) -> None:
    assert await get_reason(user) == "no_tools"
    await user.http.put("/core-tools", json={"tools": [ASK_USER]})
    assert await get_reason(user) == "no_tools"
    assert await get_reason(user, tags=["money"]) == "no_tools"
    assert await get_reason(user, "thanks, that is all") == "no_tools"


async def test_a_server_whose_tools_are_gone_leaves_no_tools(user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST)
    assert await get_reason(user) is None
    assert (await user.http.delete(f"/servers/{server_id}")).status_code == 204
    assert await get_reason(user) == "no_tools"


@pytest.mark.parametrize(
    ("query", "fields"),
    [("thanks, that is all", {}), ("zxqv", {"strategy": "bm25"}), ("qwertz", {"similarity_threshold": 1.0})],
)
async def test_a_message_that_no_tool_fits_is_no_match(user: TestUser, query: str, fields: dict[str, Any]) -> None:
    await user.add_tools(FORECAST)
    assert await get_reason(user, query, **fields) == "no_match"


async def test_kept_tools_do_not_change_the_reason(user: TestUser) -> None:
    await user.add_tools(FORECAST)
    keep = [(await user.tools())["get_forecast"]["id"]]
    answer = await user.discover("thanks, that is all", keep=keep)
    assert ([each["source"] for each in answer["tools"]], answer["no_match_reason"]) == (["kept"], "no_match")


async def test_filters_of_the_request_that_leave_no_tool_filter_all_out(user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST, tags=["outdoor"])
    filters: list[dict[str, Any]] = [{"server_ids": []}, {"server_ids": ["unknown"]}, {"tags": ["money"]}]
    for fields in filters:
        assert await get_reason(user, **fields) == "filtered_out", fields
    assert await get_reason(user, server_ids=[server_id], tags=["outdoor"]) is None


@pytest.mark.parametrize("hidden_by", ["server", "tool", "rule", "permission"])
async def test_tools_that_are_all_hidden_are_filtered_out(user: TestUser, hidden_by: str) -> None:
    server_id = await user.add_tools(FORECAST)
    tool_id = (await user.tools())["get_forecast"]["id"]
    hide = {
        "server": ("PATCH", f"/servers/{server_id}", {"enabled": False}),
        "tool": ("PATCH", f"/tools/{tool_id}", {"enabled": False}),
        "rule": ("PUT", "/rules", {"rules": [{"pattern": ["*"], "enabled": False}]}),
        "permission": ("PATCH", f"/servers/{server_id}", {"tool_permissions": {"*": False}}),
    }
    assert await get_reason(user) is None
    method, path, body = hide[hidden_by]
    assert (await user.http.request(method, path, json=body)).status_code == 200
    assert await get_reason(user) == "filtered_out"


async def test_a_project_that_leaves_no_tool_filters_all_out(user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST)
    other = await user.add_server("empty")
    assert (
        await get_reason(user, project_id=await make_project(user, name="none", server_ids=[other])) == "filtered_out"
    )
    assert await get_reason(user, project_id=await make_project(user, name="all", server_ids=[server_id])) is None


async def test_a_project_without_optimization_is_discovery_off(user: TestUser) -> None:
    await user.add_tools(FORECAST)
    await user.http.put("/core-tools", json={"tools": [ASK_USER]})
    project_id = await make_project(user, optimization=None)
    assert await get_reason(user, project_id=project_id) == "discovery_off"
    assert await get_reason(user, project_id=project_id, include_core_tools=False) == "discovery_off"


async def test_a_key_of_a_project_does_not_learn_that_there_are_tools_outside_of_it(
    container: Container, user: TestUser, admin: httpx.AsyncClient
) -> None:
    await user.add_tools(FORECAST)
    inside = await user.add_tools(tool("refund_payment"), server="payments")
    project_id = await make_project(user, server_ids=[inside])
    made = await admin.post("/keys", json={"kind": "user", "user_id": user.id, "project_id": project_id})
    async with open_client(container, Authorization=f"Bearer {made.json()['key']}") as http:
        confined = TestUser(user.id, made.json()["key"], http)
        assert await get_reason(confined, tags=["money"]) == "filtered_out"
        await user.http.patch(f"/servers/{inside}", json={"enabled": False})
        assert await get_reason(confined) == "no_tools"
        assert await get_reason(user, project_id=project_id) == "filtered_out"


async def test_the_fallback_says_why_it_has_no_tools(
    container: Container, user: TestUser, other_user: TestUser, admin: httpx.AsyncClient
) -> None:
    await user.add_tools(FORECAST)
    async with broken_search(container):
        assert await get_reason(user) is None
        assert await get_reason(user, server_ids=[]) == "filtered_out"
        assert await get_reason(other_user) == "no_tools"
    await admin.patch(f"/users/{user.id}", json={"discovery_enabled": False})
    assert await get_reason(user) is None
    assert await get_reason(user, server_ids=[]) == "filtered_out"


async def test_only_an_answer_without_visible_tools_asks_the_database_once_more(
    user: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    async def has_tools(*_: Any, confined: bool) -> bool:
        asked.append(confined)
        return True

    monkeypatch.setattr("app.discovery.discover.has_tools", has_tools)
    await user.add_tools(FORECAST)
    await user.discover(RAIN)
    await user.discover("thanks, that is all")
    assert asked == []
    await user.discover(RAIN, server_ids=[])
    assert asked == [False]
