"""A tool can be named by its id, `serverId:toolName` or `server.tool`, wherever a key is taken."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from app.catalog.definitions import ToolDefinitionView, read_definitions
from app.catalog.tool_keys import KeyedTool, ToolKeyIndex, make_short_key, read_tools, resolve_keys
from app.catalog.visibility import Scope
from app.container import Container
from tests.support.calls import assert_ok, list_executions
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, open_client
from tests.support.factories import ADMIN_KEY, tool
from tests.support.mcp_client import call_meta_tool, get_error
from tests.support.mcp_server import FakeMcpServer
from tests.support.sql_statements import recorded_statements

Json = dict[str, Any]


async def ids_by_name(user: TestUser) -> dict[str, str]:
    """Return the ids of all tools by `SERVER.TOOL`."""
    items = (await user.http.get("/tools", params={"limit": 200})).json()["items"]
    return {f"{item['server_name']}.{item['name']}": item["id"] for item in items}


async def execute(user: TestUser, key: str, **headers: str) -> httpx.Response:
    return await user.http.post("/execute", json={"tool_key": key}, headers=headers)


async def connect(user: TestUser, mcp: FakeMcpServer, *names: str, server: str = "files") -> str:
    mcp.tools = [tool(name) for name in names]
    return await user.connect(mcp, server)


@pytest.fixture
async def dotted(user: TestUser) -> dict[str, str]:
    """Servers and tools whose names contain dots, so that `a.b.c` can be read in two ways."""
    await user.add_tools(tool("b.c"), tool("c"), tool("only"), server="a")
    await user.add_tools(tool("c"), tool("x:y"), tool("repos/list"), server="a.b")
    return await ids_by_name(user)


async def test_every_form_of_the_key_runs_the_tool(user: TestUser, mcp: FakeMcpServer) -> None:
    server_id = await connect(user, mcp, "read")
    tool_id = (await ids_by_name(user))["files.read"]
    for key in (tool_id, f"{server_id}:read", "files.read"):
        assert assert_ok(await execute(user, key))["tool_key"] == tool_id
    assert_problem(await execute(user, "read"), 404, "TOOL_NOT_FOUND")
    assert len(mcp.calls) == 3


async def test_the_longest_server_name_decides(user: TestUser, dotted: dict[str, str]) -> None:
    keys = {"a.b.c": dotted["a.b.c"], "a.c": dotted["a.c"], "a.b.x:y": dotted["a.b.x:y"]}
    for key, tool_id in keys.items():
        assert (await user.http.get(f"/tools/{quote(key, safe='')}")).json()["id"] == tool_id, key
    listed = (await user.http.get("/servers")).json()["items"]
    server_ids = {item["name"]: item["id"] for item in listed}
    shorter = (await user.http.get(f"/tools/{server_ids['a']}:b.c")).json()
    assert (shorter["server_name"], shorter["name"]) == ("a", "b.c")


Name = Callable[[TestUser, str], Awaitable[httpx.Response]]


async def _feedback(user: TestUser, key: str) -> httpx.Response:
    discovery_id = (await user.discover("anything"))["discovery_id"]
    body = {"discovery_id": discovery_id, "tool_key": key, "outcome": "called"}
    return await user.http.post("/feedback", json=body)


ROUTES: dict[str, Name] = {
    "execute": execute,
    "feedback": _feedback,
    "get": lambda user, key: user.http.get(f"/tools/{quote(key, safe='')}"),
    "patch": lambda user, key: user.http.patch(f"/tools/{quote(key, safe='')}", json={"pinned": True}),
    "approve": lambda user, key: user.http.post(f"/tools/{quote(key, safe='')}/approve"),
    "history": lambda user, key: user.http.get(f"/tools/{quote(key, safe='')}/history"),
}


@pytest.mark.parametrize("route", ROUTES)
async def test_an_ambiguous_name_is_a_conflict_that_lists_the_choices(
    user: TestUser, mcp: FakeMcpServer, route: str
) -> None:
    await connect(user, mcp, "search", server="github")
    await user.add_tools(tool("search"), server="gitlab")
    ids = await ids_by_name(user)
    problem = assert_problem(await ROUTES[route](user, "search"), 409, "conflict")
    assert "choose one of github.search, gitlab.search" in problem["detail"]
    assert problem["choices"] == [
        {"tool_key": ids["github.search"], "name": "github.search"},
        {"tool_key": ids["gitlab.search"], "name": "gitlab.search"},
    ]
    assert (await ROUTES[route](user, "github.search")).is_success
    assert (await ROUTES[route](user, ids["github.search"])).is_success


@pytest.mark.parametrize("route", ROUTES)
async def test_another_users_tool_is_answered_as_a_missing_one(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer, route: str
) -> None:
    server_id = await connect(other_user, mcp, "secret", server="theirs")
    await user.add_tools(tool("mine"))
    missing = assert_problem(
        await ROUTES[route](user, "nowhere.nothing"), 404, None if route not in ("execute",) else "TOOL_NOT_FOUND"
    )
    for key in ("theirs.secret", f"{server_id}:secret", "secret"):
        answer = await ROUTES[route](user, key)
        assert answer.status_code == 404
        assert answer.json() | {"request_id": ""} == missing | {"request_id": ""}
    for key in ("theirs.secret", f"{server_id}:secret"):
        assert (await ROUTES[route](other_user, key)).is_success


async def test_a_project_key_names_the_tools_of_its_project_only(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    inside = await connect(user, mcp, "search", server="inside")
    await user.add_tools(tool("search"), tool("other"), server="outside")
    project = (await user.http.post("/projects", json={"name": "p", "server_ids": [inside]})).json()
    async with open_client(container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        body = {"kind": "user", "user_id": user.id, "project_id": project["id"]}
        key = (await admin.post("/keys", json=body)).json()["key"]
    async with open_client(container, Authorization=f"Bearer {key}") as http:
        bound = TestUser(user.id, key, http)
        assert_problem(await execute(bound, "search"), 404, "TOOL_NOT_FOUND")  # the tool outside is no choice
        assert_ok(await execute(bound, "inside.search"))
        assert_problem(await execute(bound, "outside.search"), 404, "TOOL_NOT_FOUND")
        assert (await http.get("/tools/inside.search")).json()["server_name"] == "inside"
        assert_problem(await http.get("/tools/outside.other"), 404)
        details = await call_meta_tool(http, "get_tool_details", {"toolKey": "outside.other"}, "/mcp/full")
        assert get_error(details)["code"] == "TOOL_NOT_FOUND"
    assert_problem(await execute(user, "search"), 409)


async def test_a_hidden_tool_cannot_be_run_by_name_and_the_attempt_is_audited(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await connect(user, mcp, "read")
    tool_id = (await ids_by_name(user))["files.read"]
    assert (await user.http.patch("/tools/files.read", json={"enabled": False})).json()["id"] == tool_id
    assert_problem(await execute(user, "files.read"), 404, "TOOL_NOT_FOUND")
    assert (await user.http.patch("/tools/files.read", json={"enabled": True})).json()["visible"] is True
    assert_ok(await execute(user, "files.read"))
    assert await list_executions(container, user.id) == [("TOOL_NOT_FOUND", tool_id), ("succeeded", tool_id)]


async def test_all_forms_of_a_key_are_the_same_request_to_an_idempotency_key(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    server_id = await connect(user, mcp, "pay")
    tool_id = (await ids_by_name(user))["files.pay"]
    answers = [
        assert_ok(await execute(user, key, **{"Idempotency-Key": "k"}))
        for key in ("files.pay", tool_id, f"{server_id}:pay")
    ]
    assert answers == [answers[0]] * 3
    assert len(mcp.calls) == 1
    await user.http.patch("/tools/files.pay", json={"enabled": False})
    assert assert_ok(await execute(user, "files.pay", **{"Idempotency-Key": "k"})) == answers[0]


async def test_kept_tools_are_named_by_any_key_in_one_statement(user: TestUser, dotted: dict[str, str]) -> None:
    server_id = (await user.http.get(f"/tools/{dotted['a.only']}")).json()["server_id"]
    keep = [f"{server_id}:only", "a.b.x:y", dotted["a.b.c"], "a.b.c", "c", "nothing.here", str(uuid.uuid4())]
    with recorded_statements() as statements:
        found = await user.discover("zzz", keep=keep, similarity_threshold=1)
    assert sum("FROM reading r" in statement for statement in statements) == 1
    kept = [hit["tool_key"] for hit in found["tools"] if hit["source"] == "kept"]
    assert kept == [dotted["a.only"], dotted["a.b.x:y"], dotted["a.b.c"]], "ambiguous and unknown keys are ignored"
    with recorded_statements() as statements:
        await user.discover("zzz", keep=[dotted["a.b.c"]])
    assert not any("FROM reading r" in statement for statement in statements)


async def test_an_id_needs_no_look_up(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect(user, mcp, "read")
    tool_id = (await ids_by_name(user))["files.read"]
    with recorded_statements() as statements:
        assert_ok(await execute(user, tool_id))
        await user.http.get(f"/tools/{tool_id}")
    assert not any("FROM reading r" in statement for statement in statements)


async def test_core_tools_are_named_by_id_or_name_and_never_run(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect(user, mcp, "clock")
    await user.http.put("/core-tools", json={"tools": [tool("clock"), tool("ask_user")]})
    found = await user.discover("zzz", keep=["ask_user"])
    core = {hit["tool"]["name"]: hit["tool_key"] for hit in found["tools"] if hit["source"] == "core"}
    assert found["tools"][0]["tool"]["name"] == "ask_user", "a kept core tool keeps its place"
    for key in ("ask_user", "clock"):
        problem = assert_problem(await execute(user, key), 404, "TOOL_NOT_FOUND")
        assert "this is a core tool" in problem["detail"]
    assert_problem(await execute(user, core["ask_user"]), 404, "TOOL_NOT_FOUND")
    assert_ok(await execute(user, "files.clock"))
    for key in ("ask_user", core["ask_user"], "files.clock"):
        assert (await _feedback(user, key)).status_code == 204
    assert_problem(await user.http.get("/tools/ask_user"), 404)


async def test_why_takes_every_form_of_a_key(user: TestUser, dotted: dict[str, str]) -> None:
    server_id = (await user.http.get(f"/tools/{dotted['a.only']}")).json()["server_id"]
    keys = {"a.b.c": [dotted["a.b.c"]], f"{server_id}:only": [dotted["a.only"]], "only": [dotted["a.only"]]}
    keys["c"] = [dotted["a.c"], dotted["a.b.c"]]
    keys[dotted["a.c"]] = [dotted["a.c"]]
    for key, expected in keys.items():
        answer = await user.http.post("/discover/why", json={"query": "anything", "tool": key})
        assert sorted(item["tool_key"] for item in answer.json()["items"]) == sorted(expected), key


async def test_mcp_tools_take_every_form_of_a_key(user: TestUser, mcp: FakeMcpServer) -> None:
    server_id = await connect(user, mcp, "read")
    await user.add_tools(tool("read"), server="other")
    tool_id = (await ids_by_name(user))["files.read"]
    for key in (tool_id, f"{server_id}:read", "files.read"):
        details = await call_meta_tool(user.http, "get_tool_details", {"toolKey": key}, "/mcp/full")
        assert details["structuredContent"]["toolKey"] == tool_id
        assert "isError" not in await call_meta_tool(user.http, "tool_execute", {"toolKey": key})
    for name in ("tool_execute", "get_tool_details"):
        error = get_error(await call_meta_tool(user.http, name, {"toolKey": "read"}, "/mcp/full"))
        assert [choice["name"] for choice in error["choices"]] == ["files.read", "other.read"]
    assert len(mcp.calls) == 3


async def test_the_name_of_a_tool_may_contain_a_slash(user: TestUser, dotted: dict[str, str]) -> None:
    path = f"/tools/{quote('a.b.repos/list', safe='')}"
    assert (await user.http.get(path)).json()["id"] == dotted["a.b.repos/list"]
    assert (await user.http.patch(path, json={"pinned": True})).json()["pinned"] is True
    assert (await user.http.get(f"{path}/history")).json()["items"] == []
    assert (await user.http.post(f"{path}/approve")).json()["id"] == dotted["a.b.repos/list"]
    assert_problem(await user.http.get("/tools/a.b.repos/list"), 404)


async def test_the_name_of_a_vanished_tool_leads_to_its_history(user: TestUser) -> None:
    server_id = await user.add_tools(tool("old"), tool("kept"))
    await user.push(server_id, [tool("kept")])
    assert (await user.http.get("/tools/files.old/history")).status_code == 200
    assert_problem(await user.http.get("/tools/files.old"), 404)


async def test_tools_in_the_database_and_in_memory_are_found_alike(
    user: TestUser, container: Container, dotted: dict[str, str]
) -> None:
    items = (await user.http.get("/tools", params={"limit": 200})).json()["items"]
    index = ToolKeyIndex(KeyedTool(item["id"], item["server_id"], item["server_name"], item["name"]) for item in items)
    server_ids = {item["server_name"]: item["server_id"] for item in items}
    keys = ["a.b.c", "a.c", "b.c", "only", "a.only", "x:y", "a.b.x:y", "c", "", ".", "a.", ".c", "a", "repos/list"]
    keys += [f"{server_id}:{name}" for server_id in server_ids.values() for name in ("c", "b.c", "x:y", "only")]
    keys += list(dotted.values())
    scope = Scope(user.id, container.model.id)
    for key in keys:
        async with container.database.transaction(user.id) as session:
            stored = await resolve_keys(session, scope, [key])
        in_memory = [each.tool_id for each in index.find(key)]
        is_plain_name = key in {item["name"] for item in items} and key not in dotted
        assert [*stored.values()] == ([] if is_plain_name else in_memory), key


async def test_a_name_that_is_nearly_right_gets_a_suggestion(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect(user, mcp, "search_issues", "create_issue", server="github")
    for key in ("github.serch_issues", "githb.search_issues", "search_issues", "searchIssues", "github.search-issues"):
        problem = assert_problem(await execute(user, key), 404, "TOOL_NOT_FOUND")
        assert problem["detail"].endswith("; did you mean github.search_issues?"), key
        error = get_error(await call_meta_tool(user.http, "tool_execute", {"toolKey": key}))
        assert error["message"] == problem["detail"]
    call = {"type": "tool_use", "name": "serch_issues", "input": {}}
    problem = assert_problem(await user.http.post("/execute", json={"tool_call": call}), 404, "TOOL_NOT_FOUND")
    assert problem["detail"].endswith("; did you mean github.search_issues?")
    for key in ("weather.forecast", str(uuid.uuid4())):
        assert "did you mean" not in (await execute(user, key)).json()["detail"]
    assert mcp.calls == []


async def test_only_visible_tools_are_suggested_and_a_hidden_one_answers_as_a_missing_one(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer
) -> None:
    await connect(user, mcp, "search_issues", "search_issue", server="github")
    await other_user.add_tools(tool("delete_everything"), server="theirs")
    await user.http.patch("/tools/github.search_issue", json={"enabled": False})
    foreign = (await execute(user, "theirs.delete_everythin")).json()
    assert "did you mean" not in foreign["detail"]
    own = (await execute(other_user, "theirs.delete_everythin")).json()
    assert own["detail"].endswith("did you mean theirs.delete_everything?")
    hidden, missing = [(await execute(user, f"github.{name}")).json() for name in ("search_issue", "search_issuee")]
    assert hidden | {"request_id": ""} == missing | {"request_id": ""}
    assert hidden["detail"].endswith("did you mean github.search_issues?")


async def test_a_key_of_many_dots_is_answered(user: TestUser) -> None:
    assert_problem(await execute(user, "." * 300), 404, "TOOL_NOT_FOUND")
    assert_problem(await execute(user, "." * 301), 422)


async def test_a_short_key_names_its_own_tool_or_there_is_none(
    container: Container, user: TestUser, dotted: dict[str, str]
) -> None:
    await user.add_tools(tool("run"), server="My Server @ home")
    await user.add_tools(tool("run"), server="quoted (name)")
    scope, ids = Scope(user.id, container.model.id), list((await ids_by_name(user)).values())
    async with container.database.transaction(user.id) as session:
        definitions = (await read_definitions(session, scope, ids, core=False)).tools
        short_keys = {tool_id: make_short_key(definition) for tool_id, definition in definitions.items()}
        given = {key: tool_id for tool_id, key in short_keys.items() if key is not None}
        found = await read_tools(session, scope, list(given))
    assert {key: each.tool_id for key, each in found.items() if isinstance(each, ToolDefinitionView)} == given
    assert set(given) == {"a.c", "a.only", "a.b.c", "a.b.repos/list", "My Server @ home.run"}


async def test_several_tools_are_read_with_few_statements(
    container: Container, user: TestUser, dotted: dict[str, str]
) -> None:
    scope, keys = Scope(user.id, container.model.id), ["a.c", "a.only", "a.b.c", dotted["a.b.x:y"]]
    async with container.database.transaction(user.id) as session:
        with recorded_statements() as statements:
            found = await read_tools(session, scope, keys)
    assert all(isinstance(each, ToolDefinitionView) for each in found.values())
    assert len(statements) == 2
