"""Server permissions, failing servers, and users without discovery: what can be found is what can be run."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from app.catalog.servers import record_contact, record_failure
from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user
from tests.support.factories import make_database, make_settings, outbound_allow, tool
from tests.support.mcp_server import FakeMcpServer, Fault, malformed_json, respond_after, status

Json = dict[str, Any]

SEARCH = tool("search", "Search all the notes for some words.")
WRITE = tool("write", "Write words into a note.")
ERASE = tool("erase", "Erase a note and all its words.")
EVERY_TOOL = {"search", "write", "erase"}
ASKED = "search, write and erase the words of a note"

# permissions of the server, and which of the three tools can then be found and run
PERMITTED: dict[str, tuple[dict[str, bool], set[str]]] = {
    "nothing said": ({}, EVERY_TOOL),
    "one by name": ({"*": False, "search": True}, {"search"}),
    "all but one": ({"erase": False}, {"search", "write"}),
    "all but one, said of all": ({"*": True, "erase": False}, {"search", "write"}),
    "all by name": ({"*": False, "search": True, "write": True, "erase": True}, EVERY_TOOL),
    "none": ({"*": False}, set()),
    "names that are not there": ({"Search": False, "sear": False}, EVERY_TOOL),
}


async def found(user: TestUser, **fields: Any) -> dict[str, Json]:
    """Return all found tools by name; a threshold of 0 lets all pass."""
    answer = await user.discover(ASKED, **{"similarity_threshold": 0, **fields})
    return {hit["tool"]["name"]: hit for hit in answer["tools"]}


async def run(user: TestUser, names: set[str]) -> set[str]:
    """Return which of the tools could be run."""
    answers = {name: await user.execute(name) for name in names}
    for name, answer in answers.items():
        assert answer.status_code == 200 or assert_problem(answer, 404, "TOOL_NOT_FOUND"), name
    return {name for name, answer in answers.items() if answer.status_code == 200}


async def change_server(user: TestUser, server_id: str, **changes: Any) -> None:
    answer = await user.http.patch(f"/servers/{server_id}", json=changes)
    assert answer.status_code == 200, answer.text


async def switch_discovery(admin: httpx.AsyncClient, user: TestUser, *, on: bool) -> None:
    assert (await admin.patch(f"/users/{user.id}", json={"discovery_enabled": on})).status_code == 200


@pytest.fixture
async def notes(user: TestUser, mcp: FakeMcpServer) -> str:
    """The id of a server with three tools that can be run."""
    mcp.tools = [SEARCH, WRITE, ERASE]
    return await user.connect(mcp, name="notes")


async def test_a_tool_that_is_not_permitted_can_be_neither_found_nor_run(
    user: TestUser, notes: str, admin: httpx.AsyncClient
) -> None:
    for permissions, permitted in PERMITTED.values():
        await change_server(user, notes, tool_permissions=permissions)
        for strategy in ("hybrid", "bm25"):
            assert (await found(user, strategy=strategy)).keys() == permitted, permissions
        assert await run(user, EVERY_TOOL) == permitted, permissions
        shown = await user.tools()
        assert {name for name, each in shown.items() if each["visible"]} == permitted
        assert {each["hidden_by"] for name, each in shown.items() if name not in permitted} <= {"permission"}
        assert all(each["enabled"] and each["enabled_by"] == "default" for each in shown.values())
        await switch_discovery(admin, user, on=False)
        assert (await found(user)).keys() == permitted, permissions
        await switch_discovery(admin, user, on=True)


async def test_neither_a_switch_nor_a_rule_overrides_permissions(user: TestUser, notes: str) -> None:
    await change_server(user, notes, tool_permissions={"erase": False})
    key = (await user.tools())["erase"]["id"]
    assert (await user.http.patch(f"/tools/{key}", json={"enabled": True})).json()["hidden_by"] == "permission"
    allowing_all = {"rules": [{"pattern": ["*"], "enabled": True}]}
    assert (await user.http.put("/rules", json=allowing_all)).status_code == 200
    assert (await found(user)).keys() == {"search", "write"}
    await change_server(user, notes, tool_permissions={})
    assert (await found(user)).keys() == EVERY_TOOL


async def test_permissions_apply_to_tools_that_are_added_later(user: TestUser) -> None:
    server_id = await user.add_tools(SEARCH, tool_permissions={"*": False, "search": True})
    await user.push(server_id, [SEARCH, WRITE])
    assert (await found(user)).keys() == {"search"}
    shown = (await user.http.get(f"/servers/{server_id}")).json()
    assert shown["tool_permissions"] == {"*": False, "search": True}
    assert shown["tool_count"] == 2


async def test_permissions_apply_to_one_server_only(user: TestUser) -> None:
    await user.add_tools(SEARCH, server="closed", tool_permissions={"*": False})
    await user.add_tools(SEARCH, server="open")
    assert {hit["server_name"] for hit in (await user.discover(ASKED, similarity_threshold=0))["tools"]} == {"open"}


@pytest.mark.parametrize("wrong", [{"search": "yes"}, {"search": None}, ["search"], {"": True}, "*"], ids=repr)
async def test_invalid_permissions_are_rejected(user: TestUser, wrong: Any) -> None:
    body = {"name": "notes", "transport": "push", "tool_permissions": wrong}
    assert_problem(await user.http.post("/servers", json=body), 422)
    assert (await user.http.post("/servers", json=body | {"tool_permissions": {"x": True}})).status_code == 201


async def test_tools_of_a_disabled_server_cannot_be_run(user: TestUser, notes: str, mcp: FakeMcpServer) -> None:
    await change_server(user, notes, enabled=False)
    assert await run(user, EVERY_TOOL) == set()
    assert mcp.calls == []
    assert {each["hidden_by"] for each in (await user.tools()).values()} == {"server"}
    await change_server(user, notes, enabled=True)
    assert await run(user, EVERY_TOOL) == EVERY_TOOL


@contextmanager
def unreachable(mcp: FakeMcpServer) -> Iterator[None]:
    mcp.stop()
    try:
        yield
    finally:
        mcp.start()


async def statuses(user: TestUser) -> set[str]:
    return {hit["server_status"] for hit in (await found(user)).values()}


async def test_tools_of_a_failing_server_can_be_found_and_show_its_status(
    user: TestUser, notes: str, mcp: FakeMcpServer, admin: httpx.AsyncClient
) -> None:
    assert await statuses(user) == await statuses(user) == {"connected"}
    mcp.fault = Fault(malformed_json, on=["tools/list"])
    assert (await user.reindex(notes))["state"] == "failed"
    assert await statuses(user) == {"error"}
    await switch_discovery(admin, user, on=False)
    assert await statuses(user) == {"error"}
    await switch_discovery(admin, user, on=True)
    assert await run(user, {"search"}) == {"search"}
    assert await statuses(user) == {"connected"}, "it has answered"
    mcp.fault = None
    with unreachable(mcp):
        assert_problem(await user.execute("search"), 502, "SERVER_CONNECTION_ERROR")
    assert await statuses(user) == {"disconnected"}
    assert (await user.reindex(notes))["state"] == "succeeded"
    assert await statuses(user) == {"connected"}
    assert (await found(user)).keys() == EVERY_TOOL


async def test_a_new_address_resets_the_status_of_a_server(user: TestUser, notes: str, mcp: FakeMcpServer) -> None:
    assert await statuses(user) == {"connected"}
    gate = threading.Event()
    mcp.fault = Fault(respond_after(gate, status(401)))
    await change_server(user, notes, url=f"{mcp.url}/")
    assert await statuses(user) == {"disconnected"}
    gate.set()


@pytest.fixture(scope="module")
async def hiding_service(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, mcp_servers: dict[str, FakeMcpServer]
) -> AsyncIterator[Container]:
    """A service that hides tools of failing servers."""
    settings = make_settings(
        tmp_path_factory.mktemp("hiding"),
        outbound_allow=outbound_allow(*mcp_servers.values()),
        find_failing_servers=False,
    )
    async with open_container(settings, make_database(postgres)) as opened:
        yield opened


async def test_tools_of_a_failing_server_are_hidden_if_the_operator_wants_that(
    hiding_service: Container, mcp: FakeMcpServer
) -> None:
    mcp.tools = [SEARCH, WRITE]
    async with new_user(hiding_service) as user:
        server_id = await user.connect(mcp, name="notes")
        await user.add_tools(ERASE, server="other")
        assert (await found(user)).keys() == EVERY_TOOL
        mcp.fault, mcp.requests = Fault(malformed_json, on=["tools/list"]), []
        assert (await user.reindex(server_id))["state"] == "failed"
        assert (await found(user)).keys() == {"erase"}
        assert await run(user, {"search", "write"}) == set()
        assert mcp.calls == []
        assert {name: each["hidden_by"] for name, each in (await user.tools()).items()} == {
            "search": "status",
            "write": "status",
            "erase": None,
        }
        mcp.fault = None
        assert (await user.reindex(server_id))["state"] == "succeeded"
        assert (await found(user)).keys() == EVERY_TOOL
        assert await run(user, {"search", "write"}) == {"search", "write"}


async def test_a_failed_call_hides_a_servers_tools_until_a_reindex_succeeds(
    hiding_service: Container, mcp: FakeMcpServer
) -> None:
    mcp.tools = [SEARCH, WRITE]
    async with new_user(hiding_service) as user:
        server_id = await user.connect(mcp, name="notes")
        with unreachable(mcp):
            assert_problem(await user.execute("search"), 502, "SERVER_CONNECTION_ERROR")
        assert (await found(user)).keys() == set()
        assert await run(user, {"search", "write"}) == set()
        await user.reindex(server_id)
        assert (await found(user)).keys() == await run(user, {"search", "write"}) == {"search", "write"}


async def test_a_rejected_listing_hides_nothing(hiding_service: Container) -> None:
    """The stored tools stay usable: the server answers, though with an empty list."""
    async with new_user(hiding_service) as user:
        server_id = await user.add_tools(SEARCH)
        assert (await found(user)).keys() == {"search"}
        assert (await user.push(server_id, []))["state"] == "failed"
        assert (await found(user)).keys() == {"search"}


async def test_a_user_without_discovery_gets_all_visible_tools_up_to_the_limit(
    user: TestUser, admin: httpx.AsyncClient
) -> None:
    await user.add_tools(SEARCH, WRITE, ERASE)
    await user.http.patch(f"/tools/{(await user.tools())['write']['id']}", json={"pinned": True})
    await user.http.patch(f"/tools/{(await user.tools())['erase']['id']}", json={"enabled": False})
    await switch_discovery(admin, user, on=False)
    for limit, names in ((1, ["write"]), (2, ["write", "search"]), (8, ["write", "search"])):
        answer = await user.discover("what is the time?", limit=limit, explain=True)
        assert [hit["tool"]["name"] for hit in answer["tools"]] == names
        assert {hit["source"] for hit in answer["tools"]} == {"fallback"}
        assert {hit["similarity"] for hit in answer["tools"]} == {None}
        assert (answer["degraded"], answer["degraded_reason"]) == (True, "disabled")
        assert (answer["embedding_generated"], answer["no_match"]) == (False, False)
        assert answer["total_searched"] == 2
    await switch_discovery(admin, user, on=True)
    again = await user.discover("search the notes")
    assert (again["degraded"], again["degraded_reason"]) == (False, None)
    assert again["tools"][0]["source"] == "semantic"


async def test_filters_apply_to_a_user_without_discovery(user: TestUser, admin: httpx.AsyncClient) -> None:
    first = await user.add_tools(SEARCH, server="first", tags=["notes"])
    await user.add_tools(WRITE, server="second")
    await switch_discovery(admin, user, on=False)
    assert (await found(user)).keys() == {"search", "write"}
    assert (await found(user, server_ids=[first])).keys() == {"search"}
    assert (await found(user, tags=["notes"])).keys() == {"search"}
    assert (await found(user, server_ids=[])).keys() == set()


@pytest.mark.parametrize("name", ["sear*", "*e", "**"])
async def test_a_pattern_in_permissions_is_rejected(user: TestUser, name: str) -> None:
    """It would match no name, and so hide nothing."""
    body = {"name": "notes", "transport": "push", "tool_permissions": {name: False}}
    assert_problem(await user.http.post("/servers", json=body), 422)
    assert (await user.http.post("/servers", json={**body, "tool_permissions": {"*": False}})).status_code == 201


async def test_the_later_of_two_concurrent_status_updates_wins(hiding_service: Container) -> None:
    async with new_user(hiding_service) as user:
        server_id = await user.add_tools(SEARCH)
        this = user.id, server_id
        async with hiding_service.database.transaction(user.id) as session:
            await record_failure(session, *this, "closed", "It broke.")
        assert await found(user) == {}
        async with hiding_service.database.transaction(user.id) as session:
            await record_contact(session, *this)
            later = asyncio.create_task(_record_failure_again(hiding_service, *this))
            await asyncio.sleep(0.1)  # it has read the old status, which is about to change
        await later
        assert await found(user) == {}
        async with hiding_service.database.transaction(user.id) as session:
            await record_contact(session, *this)
        assert (await found(user)).keys() == {"search"}


async def _record_failure_again(container: Container, user_id: str, server_id: str) -> None:
    async with container.database.transaction(user_id) as session:
        await record_failure(session, user_id, server_id, "closed", "It broke again.")
