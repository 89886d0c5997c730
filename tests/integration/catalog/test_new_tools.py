"""Tools that a server adds after its first listing: marked, and held back if the operator wants that."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.catalog.visibility import apply_policy
from app.catalog.visibility_policy import Policy
from app.container import Container, open_container
from app.indexing import store
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import OpenService, make_database, make_settings, tool
from tests.support.mcp_server import FakeMcpServer, Fault, status

Json = dict[str, Any]

FORECAST = tool("get_forecast", "Weather forecast for a city.")
REFUND = tool("refund_payment", "Give a customer their money back.")
REFUND_ALL = tool("refund_payment", "Give all customers their money back.")
WARNING = "new, and held until approved: refund_payment"


@pytest.fixture(scope="module")
async def strict(open_shared_service: OpenService) -> AsyncIterator[Container]:
    """A service that holds back new tools, and no changed ones."""
    async with open_shared_service(hold_new_tools=True) as opened:
        yield opened


@pytest.fixture
async def strict_user(strict: Container) -> AsyncIterator[TestUser]:
    async with new_user(strict) as made:
        yield made


async def refund(user: TestUser) -> Json:
    return (await user.tools())["refund_payment"]


async def decisions(user: TestUser) -> dict[str, tuple[str, str | None]]:
    return {name: (each["state"], each["hidden_by"]) for name, each in (await user.tools()).items()}


async def is_found(user: TestUser) -> bool:
    answer = await user.discover("give a customer their money back", similarity_threshold=0)
    return "refund_payment" in {hit["tool"]["name"] for hit in answer["tools"]}


async def approve(user: TestUser, **query: str) -> Json:
    answer = await user.http.post(f"/tools/{(await refund(user))['id']}/approve", params=query)
    assert answer.status_code == 200, answer.text
    approved: Json = answer.json()
    return approved


async def test_a_new_tool_is_neither_found_nor_run_until_somebody_approves_it(
    strict_user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [FORECAST]
    server_id = await strict_user.connect(mcp)
    assert await decisions(strict_user) == {"get_forecast": ("approved", None)}
    mcp.tools, mcp.requests = [FORECAST, REFUND], []
    run = await strict_user.reindex(server_id)
    assert (run["counts"]["added"], run["warnings"]) == (1, [WARNING])
    shown = await refund(strict_user)
    assert (shown["state"], shown["enabled"], shown["visible"], shown["hidden_by"]) == ("new", True, False, "new")
    assert not await is_found(strict_user)
    call = {"tool_key": shown["id"], "arguments": {}}
    assert_problem(await strict_user.http.post("/execute", json=call), 404, code="TOOL_NOT_FOUND")
    assert mcp.calls == []
    [reason] = (await strict_user.http.post("/discover/why", json={"query": "x", "tool": "refund_payment"})).json()[
        "items"
    ]
    assert (reason["reason"], reason["included"]) == ("held", False)
    assert (await strict_user.reindex(server_id))["warnings"] == [WARNING]
    approved = await approve(strict_user, definition_hash=shown["definition_hash"])
    assert (approved["state"], approved["visible"], approved["hidden_by"]) == ("approved", True, None)
    assert await is_found(strict_user)
    assert (await strict_user.http.post("/execute", json=call)).status_code == 200
    assert (await strict_user.reindex(server_id))["warnings"] == []


async def test_a_new_tool_is_marked_and_stays_visible_by_default(user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST)
    run = await user.push(server_id, [FORECAST, REFUND])
    assert (run["counts"]["added"], run["warnings"]) == (1, [])
    assert await decisions(user) == {"get_forecast": ("approved", None), "refund_payment": ("new", None)}
    assert await is_found(user)
    for state, names in (("new", ["refund_payment"]), ("approved", ["get_forecast"]), ("changed", [])):
        listed = (await user.http.get("/tools", params={"state": state})).json()["items"]
        assert [each["name"] for each in listed] == names
    assert (await approve(user))["state"] == "approved"


async def test_the_first_listing_is_approved_as_a_whole(strict_user: TestUser) -> None:
    run = await strict_user.push(await strict_user.add_server(), [FORECAST, REFUND])
    assert run["warnings"] == []
    assert await decisions(strict_user) == {"get_forecast": ("approved", None), "refund_payment": ("approved", None)}


async def test_an_empty_first_listing_counts_as_one(strict_user: TestUser) -> None:
    """A server that shows nothing while somebody looks at it must not get its tools in afterwards."""
    server_id = await strict_user.add_server()
    assert (await strict_user.push(server_id, []))["state"] == "succeeded"
    await strict_user.push(server_id, [REFUND])
    assert await decisions(strict_user) == {"refund_payment": ("new", "new")}


async def test_a_failed_listing_does_not_count_as_the_first(strict_user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools, mcp.fault = [FORECAST, REFUND], Fault(status(404))
    server_id = await strict_user.add_server(transport=mcp.transport, url=mcp.url)
    assert (await strict_user.reindex(server_id))["state"] == "failed"
    mcp.fault = None
    assert (await strict_user.reindex(server_id))["state"] == "succeeded"
    assert await decisions(strict_user) == {"get_forecast": ("approved", None), "refund_payment": ("approved", None)}


async def test_a_push_after_a_listing_holds_what_it_adds(strict_user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [FORECAST]
    server_id = await strict_user.connect(mcp)
    run = await strict_user.push(server_id, [FORECAST, REFUND])
    assert WARNING in run["warnings"]
    assert (await refund(strict_user))["hidden_by"] == "new"


async def test_a_tool_that_vanishes_and_returns_unchanged_is_not_new(strict_user: TestUser) -> None:
    server_id = await strict_user.add_tools(FORECAST, REFUND)
    await strict_user.push(server_id, [FORECAST])
    run = await strict_user.push(server_id, [FORECAST, REFUND])
    assert (run["counts"]["added"], run["warnings"]) == (1, [])
    assert (await refund(strict_user))["state"] == "approved"


async def test_a_new_tool_that_vanishes_and_returns_is_still_held(strict_user: TestUser) -> None:
    server_id = await strict_user.add_tools(FORECAST)
    await strict_user.push(server_id, [FORECAST, REFUND])
    await strict_user.push(server_id, [FORECAST])
    assert (await strict_user.push(server_id, [FORECAST, REFUND]))["warnings"] == [WARNING]
    assert (await refund(strict_user))["hidden_by"] == "new"


async def test_a_removed_tool_that_is_no_longer_remembered_returns_as_new(
    strict_user: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_DELETED_TOOLS", 0)
    server_id = await strict_user.add_tools(FORECAST, REFUND)
    await strict_user.push(server_id, [FORECAST])
    await strict_user.push(server_id, [FORECAST, REFUND])
    assert (await refund(strict_user))["hidden_by"] == "new"


async def test_a_renamed_tool_is_new(strict_user: TestUser) -> None:
    server_id = await strict_user.add_tools(FORECAST, REFUND)
    await strict_user.push(server_id, [{**FORECAST, "name": "get_forecasts"}, REFUND])
    assert await decisions(strict_user) == {"get_forecasts": ("new", "new"), "refund_payment": ("approved", None)}


async def test_a_held_tool_that_changes_stays_new_and_only_its_latest_definition_can_be_approved(
    strict_user: TestUser,
) -> None:
    """The service does not hold changed tools: a change must not be a way out."""
    server_id = await strict_user.add_tools(FORECAST)
    await strict_user.push(server_id, [FORECAST, REFUND])
    seen = (await refund(strict_user))["definition_hash"]
    run = await strict_user.push(server_id, [FORECAST, REFUND_ALL])
    assert (run["counts"]["changed"], run["warnings"]) == (1, [WARNING])
    shown = await refund(strict_user)
    assert (shown["state"], shown["hidden_by"], shown["description"]) == ("new", "new", REFUND_ALL["description"])
    path = f"/tools/{shown['id']}/approve"
    assert_problem(await strict_user.http.post(path, params={"definition_hash": seen}), 409)
    assert (await refund(strict_user))["hidden_by"] == "new"
    assert (await approve(strict_user, definition_hash=shown["definition_hash"]))["visible"]
    await strict_user.push(server_id, [FORECAST, REFUND])
    assert (await refund(strict_user))["state"] == "changed", "an approved tool changes as any other"


async def test_a_new_tool_that_is_used_and_then_changes_is_a_changed_one(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, hold_changed_tools=True)
    async with open_container(settings, make_database(postgres)) as service, new_user(service) as user:
        server_id = await user.add_tools(FORECAST)
        await user.push(server_id, [FORECAST, REFUND])
        assert (await refund(user))["state"] == "new"
        run = await user.push(server_id, [FORECAST, REFUND_ALL])
        assert run["warnings"] == ["changed, and held until approved: refund_payment"]
        shown = await refund(user)
        assert (shown["state"], shown["hidden_by"]) == ("changed", "changed")


async def test_switching_the_setting_recomputes_visibility(strict: Container, strict_user: TestUser) -> None:
    server_id = await strict_user.add_tools(FORECAST)
    await strict_user.push(server_id, [FORECAST, REFUND])
    held = Policy(hold_new=True)
    for policy, hidden_by in ((Policy(), None), (Policy(hold_changed=True), None), (held, "new")):
        await apply_policy(strict.database, policy)
        assert (await decisions(strict_user))["refund_payment"] == ("new", hidden_by)
        assert await is_found(strict_user) is (hidden_by is None)
    before = (await strict_user.http.get("/tools")).json()
    await apply_policy(strict.database, held)
    assert (await strict_user.http.get("/tools")).json() == before


async def test_a_service_that_starts_with_the_setting_holds_what_was_added_before(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    url = make_database(postgres)
    async with open_container(make_settings(tmp_path), url) as lenient, new_user(lenient) as user:
        server_id = await user.add_tools(FORECAST)
        await user.push(server_id, [FORECAST, REFUND])
        assert await is_found(user)
        key = user.key
    async with (
        open_container(make_settings(tmp_path, hold_new_tools=True), url) as opened,
        open_client(opened, Authorization=f"Bearer {key}") as http,
    ):
        user = TestUser(user.id, key, http)
        assert await decisions(user) == {"get_forecast": ("approved", None), "refund_payment": ("new", "new")}


async def test_a_new_tool_of_another_user_cannot_be_approved(strict: Container, strict_user: TestUser) -> None:
    server_id = await strict_user.add_tools(FORECAST)
    await strict_user.push(server_id, [FORECAST, REFUND])
    path = f"/tools/{(await refund(strict_user))['id']}/approve"
    async with new_user(strict) as other:
        assert_problem(await other.http.post(path), 404)
    assert (await refund(strict_user))["state"] == "new"
    assert (await strict_user.http.post(path)).json()["state"] == "approved"
