"""The audit log: one row for each change and call, without any content, and nobody can change it afterwards."""

import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import event, insert

from app.audit.events import EventFilter, list_events
from app.container import Container
from app.db.pagination import PageRequest
from app.db.tables import audit_events
from app.errors import QueryFailed
from tests.support.calls import (
    assert_ok,
    audit_insert_revoked,
    connect_with_tools,
    list_executions,
    raise_disk_full,
    stopped_server,
)
from tests.support.checks import MCP_PATHS, QUESTIONS, Json, assert_problem, door_routes, everything, pages
from tests.support.clients import TestUser, get_app, new_user, open_client
from tests.support.factories import ADMIN_KEY, tool
from tests.support.mcp_server import FakeMcpServer, Fault, drop, status
from tests.support.shared_servers import share
from tests.support.worker_steps import until

CANARY = "canary-9c2e"


async def list_rows(http: httpx.AsyncClient, **query: Any) -> list[Json]:
    return await everything(http, "/audit", **query)


async def get_actor(user: TestUser, admin: httpx.AsyncClient) -> str:
    """Return the actor that stands for the only key of the user."""
    [key] = [each["id"] for each in await everything(admin, "/keys") if each["user_id"] == user.id]
    return f"user:{key}"


@dataclass(frozen=True)
class World:
    """The objects that the changes below are applied to."""

    began: str
    user: TestUser
    admin: httpx.AsyncClient
    server_id: str
    tool_id: str
    project_id: str
    stranger_id: str
    key_id: str
    shared_id: str


@pytest.fixture
async def world(user: TestUser, admin: httpx.AsyncClient, mcp: FakeMcpServer) -> World:
    server_id = await connect_with_tools(user, mcp, "read")
    stranger_id = f"stranger-{uuid.uuid4().hex[:8]}"
    await admin.post("/users", json={"id": stranger_id})
    key = await admin.post("/keys", json={"kind": "user", "user_id": stranger_id})
    tool_id = (await user.tools())["read"]["id"]
    project = await user.http.post("/projects", json={"name": "support", "server_ids": None})
    shared = await share(admin, f"{stranger_id}-shared", groups=["nobody-is-here"])
    ids = server_id, tool_id, project.json()["id"], stranger_id, key.json()["id"], shared["id"]
    return World(datetime.now(UTC).isoformat(), user, admin, *ids)


async def rows_since(world: World, **query: Any) -> list[Json]:
    """Return the rows of requests since the world was built, without runs and calls of earlier tests."""
    found = await list_rows(world.admin, since=world.began, **query)
    requested = (row for row in found if not row["actor"].startswith("server:"))
    asynchronous = {"server.reindex", "tool.execute"}
    return [row for row in requested if row["action"] not in asynchronous or _is_of_world(row, world)]


def _is_of_world(row: Json, world: World) -> bool:
    return bool(row["user_id"] == world.user.id or row["target"] == world.shared_id)


@dataclass(frozen=True)
class Change:
    action: str
    body: Json | None = None
    target: str | None = None
    """The target in the row: the name of a field of `World`, or of the response."""
    by_admin: bool = False


CHANGES: dict[tuple[str, str], Change] = {
    ("POST", "/execute"): Change("tool.execute", {"tool_key": "{tool_id}"}, "tool_id"),
    ("POST", "/servers"): Change("server.create", {"name": "new", "transport": "push"}, "id"),
    ("POST", "/servers/import"): Change(
        "server.create", {"config": {"mcpServers": {"new": {"url": "https://mcp.example.com", "disabled": True}}}}, "id"
    ),
    ("PATCH", "/servers/{server_id}"): Change("server.change", {"description": "other"}, "server_id"),
    ("PUT", "/servers/{server_id}/credentials"): Change(
        "server.credentials.replace", {"headers": {"X-Key": "other"}}, "server_id"
    ),
    ("DELETE", "/servers/{server_id}/credentials"): Change("server.credentials.delete", None, "server_id"),
    ("DELETE", "/servers/{server_id}"): Change("server.delete", None, "server_id"),
    ("PUT", "/servers/{server_id}/tools"): Change("server.reindex", {"tools": [tool("pushed")]}, "server_id"),
    ("POST", "/servers/{server_id}/reindex"): Change("server.reindex", None, "server_id"),
    ("POST", "/reindex"): Change("server.reindex", None, "server_id"),
    ("PATCH", "/tools/{tool_id}"): Change("tool.change", {"pinned": True}, "tool_id"),
    ("POST", "/tools/{tool_id}/approve"): Change("tool.approve", None, "tool_id"),
    ("PUT", "/tools/{tool_id}/examples"): Change("tool.examples", {"messages": ["what does it say?"]}, "tool_id"),
    ("DELETE", "/tools/{tool_id}/examples"): Change("tool.forget", None, "tool_id"),
    ("DELETE", "/examples"): Change("examples.delete"),
    ("PUT", "/rules"): Change("rules.replace", {"rules": [{"pattern": ["read"], "enabled": True}]}),
    ("POST", "/projects"): Change("project.create", {"name": "new", "server_ids": None}, "id"),
    ("PATCH", "/projects/{project_id}"): Change("project.change", {"name": "other"}, "project_id"),
    ("DELETE", "/projects/{project_id}"): Change("project.delete", None, "project_id"),
    ("PUT", "/core-tools"): Change("core_tools.replace", {"tools": [tool("native")]}),
    ("DELETE", "/selections"): Change("selections.delete"),
    ("POST", "/users"): Change("user.create", {"id": "{stranger_id}-2"}, "id", by_admin=True),
    ("PATCH", "/users/{user_id}"): Change("user.change", {"name": "other"}, "stranger_id", by_admin=True),
    ("DELETE", "/users/{user_id}"): Change("user.delete", None, "stranger_id", by_admin=True),
    ("POST", "/keys"): Change("key.create", {"kind": "service"}, "id", by_admin=True),
    ("DELETE", "/keys/{key_id}"): Change("key.revoke", None, "key_id", by_admin=True),
    ("POST", "/reload"): Change("settings.reload", by_admin=True),
    ("POST", "/shared-servers"): Change(
        "shared_server.create",
        {"name": "everyones", "transport": "push", "groups": ["nobody-is-here"]},
        "id",
        by_admin=True,
    ),
    ("PATCH", "/shared-servers/{shared_id}"): Change(
        "shared_server.change", {"groups": ["nor-here"]}, "shared_id", by_admin=True
    ),
    ("POST", "/shared-servers/{shared_id}/reindex"): Change("server.reindex", None, "shared_id", by_admin=True),
    ("DELETE", "/shared-servers/{shared_id}"): Change("server.delete", None, "shared_id", by_admin=True),
}
TESTED_ELSEWHERE = {
    ("POST", "/servers/{server_id}/connect"),  # the end of the sign-in leaves the row
    ("DELETE", "/servers/{server_id}/connection"),
    ("POST", "/servers/from-registry"),
    ("PATCH", "/categories/{category_id}"),
}
"""Routes that need an authorization server, a registry or categories: tests/integration/connections, registry and
discovery/test_categories.py."""


def test_every_route_that_changes_something_is_in_the_table(container: Container) -> None:
    changing = {
        (route.method, route.path.replace("/shared-servers/{server_id}", "/shared-servers/{shared_id}"))
        for route in door_routes(get_app(container))
        if route.method not in ("GET", "HEAD", "OPTIONS") and route.path not in QUESTIONS | MCP_PATHS
    }
    assert CHANGES.keys() | TESTED_ELSEWHERE == changing


async def perform(world: World, method: str, path: str, change: Change) -> httpx.Response:
    filled = {**vars(world), "user_id": world.stranger_id}
    body = None if change.body is None else {**change.body}
    for name in ("tool_key", "id"):
        if body is not None and name in body:
            body[name] = body[name].format(**filled)
    http = world.admin if change.by_admin else world.user.http
    answer = await http.request(method, path.format(**filled), json=body)
    assert answer.is_success, answer.text
    return answer


@pytest.mark.parametrize(("method", "path"), CHANGES.keys())
async def test_every_change_leaves_one_row(world: World, method: str, path: str) -> None:
    change = CHANGES[method, path]
    answer = await perform(world, method, path, change)

    [row] = await until(lambda: rows_since(world, action=change.action))
    body = answer.json() if answer.content else {}
    [body] = body.get("imported", [body])
    target = None if change.target is None else vars(world).get(change.target, body.get(change.target))
    actor = "admin:bootstrap" if change.by_admin else await get_actor(world.user, world.admin)
    assert (row["actor"], row["target"], row["outcome"]) == (actor, target, "succeeded")
    assert 0 < row["duration_ms"] < 60_000
    assert abs(datetime.fromisoformat(row["at"]) - datetime.now(UTC)) < timedelta(minutes=1)
    # the worker runs an index run later, outside of any request
    assert row["request_id"] == (None if change.action == "server.reindex" else answer.headers["x-request-id"])


async def test_a_change_that_is_refused_leaves_no_row(world: World) -> None:
    assert_problem(await world.user.http.patch(f"/tools/{uuid.uuid4()}", json={"pinned": True}), 404)
    assert_problem(await world.user.http.patch(f"/tools/{world.tool_id}", json={"pinned": 5}), 422)
    assert_problem(await world.user.http.post("/servers", json={"name": "files", "transport": "push"}), 409)
    assert_problem(await world.user.http.delete(f"/servers/{uuid.uuid4()}"), 404)
    assert_problem(await world.user.http.put("/rules", json={"rules": [{"pattern": ["!read"]}]}), 422)
    assert_problem(await world.user.http.post("/projects", json={"name": "support", "server_ids": None}), 409)
    assert_problem(await world.user.http.post(f"/tools/{world.tool_id}/approve?definition_hash=other"), 409)
    assert (await world.user.http.post("/rules/preview", json={"rules": []})).status_code == 200
    assert_problem(await world.admin.delete("/users/nobody-here"), 404)
    assert_problem(await world.user.http.post("/users", json={"id": "x"}), 403)
    assert await rows_since(world) == []
    assert (await world.user.http.patch(f"/tools/{world.tool_id}", json={"pinned": True})).status_code == 200
    assert len(await rows_since(world)) == 1


async def test_a_change_whose_row_cannot_be_written_does_not_happen(world: World, container: Container) -> None:
    path = f"/tools/{world.tool_id}"
    before = (await world.user.http.get(path)).json()
    with audit_insert_revoked(container):
        answer = await world.user.http.patch(path, json={"pinned": True})
    assert answer.status_code == 500
    assert (await world.user.http.get(path)).json() == before
    assert (await world.user.http.patch(path, json={"pinned": True})).json()["pinned"] is True


async def test_every_execution_leaves_one_row_whatever_its_outcome(
    user: TestUser, admin: httpx.AsyncClient, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("run", inputSchema={"type": "object", "properties": {"n": {"type": "integer"}}})]
    await user.connect(mcp)
    key = (await user.tools())["run"]["id"]
    expected: list[tuple[str, str | None, str]] = []

    async def run(outcome: str, tool_key: str = key, **fields: Any) -> None:
        answer = await user.http.post("/execute", json={"tool_key": tool_key, **fields})
        assert outcome in ("succeeded", answer.json().get("code"))
        expected.append((outcome, key if tool_key == key else None, answer.headers["x-request-id"]))

    await run("succeeded")
    await run("TOOL_NOT_FOUND", str(uuid.uuid4()))
    for enabled in (False, True):  # a disabled tool is not found, but its key is known
        await user.http.patch(f"/tools/{key}", json={"enabled": enabled})
        await run("succeeded" if enabled else "TOOL_NOT_FOUND")
    await run("TOOL_VALIDATION_ERROR", arguments={"n": "x"})
    mcp.on_call["run"] = raise_disk_full
    await run("TOOL_EXECUTION_ERROR")
    mcp.on_call, mcp.delays["run"] = {}, 30.0
    await run("TOOL_EXECUTION_TIMEOUT", timeout_ms=100)
    mcp.delays, mcp.fault = {}, Fault(drop, on=["tools/call"])
    await run("TOOL_EXECUTION_ERROR")
    mcp.fault = None
    with stopped_server(mcp):
        await run("SERVER_CONNECTION_ERROR")
    found = await list_rows(user.http, action="tool.execute")
    assert [(row["outcome"], row["target"], row["request_id"]) for row in reversed(found)] == expected
    assert {row["actor"] for row in found} == {await get_actor(user, admin)}
    assert all(row["duration_ms"] > 0 for row in found)
    assert [row["duration_ms"] >= 100 for row in reversed(found)][6]


async def test_a_failed_index_run_is_recorded_with_its_cause(user: TestUser, mcp: FakeMcpServer) -> None:
    server_id = await connect_with_tools(user, mcp, "read")
    mcp.fault = Fault(status(403))
    assert (await user.reindex(server_id))["state"] == "failed"
    failed_run, good_run = (await list_rows(user.http, action="server.reindex"))[:2]
    assert (failed_run["outcome"], good_run["outcome"]) == ("unauthorized", "succeeded")


async def test_no_content_is_in_the_audit_log(
    user: TestUser, container: Container, admin: httpx.AsyncClient, mcp: FakeMcpServer
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    mcp.tools = [tool(f"{CANARY} tool", CANARY, inputSchema=schema)]
    mcp.on_call[f"{CANARY} tool"] = lambda arguments: {"content": [{"type": "text", "text": f"{CANARY} {arguments}"}]}
    server_id = await user.connect(mcp, CANARY, description=CANARY, tags=[CANARY], headers={"X-Secret": CANARY})
    await user.http.patch(f"/servers/{server_id}", json={"headers": {"X-Secret": f"{CANARY} 2"}})
    await user.http.put("/core-tools", json={"tools": [tool(CANARY, CANARY)]})
    rules = [{"pattern": [f"*{CANARY}*"], "server": CANARY, "tags": [CANARY]}]
    assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200
    project = {"name": CANARY, "server_ids": [server_id], "rules": rules}
    assert (await user.http.post("/projects", json=project)).status_code == 201
    await admin.patch(f"/users/{user.id}", json={"name": CANARY})
    answer = await user.execute(f"{CANARY} tool", {"text": CANARY})
    assert CANARY in answer.text
    assert CANARY in (await user.execute(f"{CANARY} tool", {"n": CANARY})).text
    assert any(CANARY in request.headers.get("x-secret", "") for request in mcp.requests)
    mcp.on_call[f"{CANARY} tool"] = raise_disk_full
    await user.execute(f"{CANARY} tool", {"text": CANARY})
    call = {"type": "tool_use", "name": CANARY, "input": {"text": CANARY}}
    await user.http.post("/execute", json={"tool_call": call}, headers={"Idempotency-Key": CANARY})
    async with container.database.transaction(user.id) as session:
        found = [text for (text,) in await session.rows("SELECT to_jsonb(t)::text FROM audit_events t")]
    assert len(found) >= 11
    for text in found:
        assert CANARY not in text
        assert user.key not in text


async def test_rows_are_filtered_by_their_fields(user: TestUser, admin: httpx.AsyncClient, mcp: FakeMcpServer) -> None:
    server_id = await connect_with_tools(user, mcp, "read")
    assert_ok(await user.execute("read"))
    assert_problem(await user.http.post("/execute", json={"tool_key": "nothing"}), 404, "TOOL_NOT_FOUND")
    all_rows = await list_rows(user.http)

    async def check(expected: Callable[[Json], bool], **query: str) -> None:
        found = await list_rows(user.http, **query)
        assert found == [row for row in all_rows if expected(row)]
        assert 0 < len(found) < len(all_rows)

    await check(lambda row: row["action"] == "tool.execute", action="tool.execute")
    await check(lambda row: row["target"] == server_id, target=server_id)
    await check(lambda row: row["outcome"] == "TOOL_NOT_FOUND", outcome="TOOL_NOT_FOUND")
    await check(lambda row: row["actor"] == "admin:bootstrap", actor="admin:bootstrap")
    both = {"action": "tool.execute", "outcome": "succeeded"}
    await check(lambda row: both.items() <= row.items(), **both)
    middle = all_rows[2]["at"]
    await check(lambda row: row["at"] >= middle, since=middle)
    await check(lambda row: row["at"] < middle, until=middle)
    assert await list_rows(user.http, action="nothing") == []
    assert await list_rows(user.http, target=str(uuid.uuid4())) == []


def _set_tokyo_time(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("SET timezone = 'Asia/Tokyo'")
    cursor.close()


@pytest.fixture
async def tokyo_time(container: Container) -> AsyncIterator[None]:
    """A Postgres whose time zone is not UTC."""
    engine = container.database.engine
    event.listen(engine.sync_engine, "connect", _set_tokyo_time)
    await engine.dispose()
    yield
    event.remove(engine.sync_engine, "connect", _set_tokyo_time)
    await engine.dispose()


async def test_a_time_without_a_zone_is_in_utc(user: TestUser, tokyo_time: None) -> None:
    await user.add_server()
    now = datetime.now(UTC)
    for moment, expected in ((now - timedelta(minutes=5), True), (now + timedelta(minutes=5), False)):
        naive = moment.replace(tzinfo=None).isoformat()
        assert bool(await list_rows(user.http, since=naive)) is expected
        assert bool(await list_rows(user.http, until=naive)) is not expected


@pytest.mark.parametrize(
    "time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00Z", "1e9", "2026-11-16"]
)
async def test_no_time_is_too_far_away(user: TestUser, time: str) -> None:
    for name in ("since", "until"):
        answer = await user.http.get("/audit", params={name: time})
        assert answer.status_code in (200, 422), answer.text


@pytest.mark.parametrize(
    "query",
    [{"since": "yesterday"}, {"until": ""}, {"action": "x" * 257}, {"limit": 0}, {"cursor": "x"}, {"limit": 201}],
)
async def test_an_invalid_filter_is_refused(user: TestUser, query: dict[str, Any]) -> None:
    assert_problem(await user.http.get("/audit", params=query), 422)
    assert (await user.http.get("/audit", params={"limit": 200})).status_code == 200


async def test_pages_contain_every_row_once_newest_first(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read"))
    for number in range(5):
        await user.http.patch(f"/servers/{server_id}", json={"description": f"{number}"})
    whole = await list_rows(user.http)
    assert len(whole) >= 8
    for limit in (1, 2, 3, len(whole)):
        found = await pages(user.http, "/audit", limit)
        assert [row for page in found for row in page] == whole
        assert all(len(page) == limit for page in found[:-1])
    times = [row["at"] for row in whole]
    assert times == sorted(times, reverse=True)
    changes = await pages(user.http, "/audit", 2, action="server.change")
    assert [len(page) for page in changes] == [2, 2, 1]


async def test_rows_that_arrive_between_two_pages_shift_nothing(user: TestUser) -> None:
    for number in range(4):
        await user.add_server(f"server {number}")
    whole = await list_rows(user.http)
    first = (await user.http.get("/audit", params={"limit": 2})).json()
    await user.add_server("late")
    second = (await user.http.get("/audit", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert first["items"] + second["items"] == whole[:4]


async def test_a_user_sees_only_their_own_rows_and_an_administrator_all(
    user: TestUser, other_user: TestUser, container: Container, admin: httpx.AsyncClient
) -> None:
    began = datetime.now(UTC).isoformat()
    mine, theirs = await user.add_server(), await other_user.add_server()
    service_key = (await admin.post("/keys", json={"kind": "service"})).json()["key"]

    async def owners(http: httpx.AsyncClient, **query: str) -> set[str]:
        return {row["user_id"] for row in await list_rows(http, **query)}

    assert await owners(user.http) == {user.id}
    assert await owners(user.http, target=theirs) == set()
    assert await owners(other_user.http, target=theirs) == {other_user.id}
    assert await owners(admin, since=began) >= {user.id, other_user.id, ""}
    assert await owners(admin, target=mine) == {user.id}
    for key in (service_key, ADMIN_KEY):
        async with open_client(container, **{"X-API-Key": key, "X-User-Id": user.id}) as http:
            assert await owners(http) == {user.id}
    async with open_client(container, **{"X-API-Key": service_key}) as http:
        assert_problem(await http.get("/audit"), 400)
    async with open_client(container, **{"X-API-Key": user.key, "X-User-Id": other_user.id}) as http:
        assert_problem(await http.get("/audit"), 403)
    async with open_client(container) as http:
        assert_problem(await http.get("/audit"), 401)


async def test_the_predicate_alone_separates_users(user: TestUser, other_user: TestUser, container: Container) -> None:
    """In the system scope, row-level security filters nothing."""
    for each in (user, other_user):
        await each.add_server()
    async with container.database.system_transaction() as session:
        mine = await list_events(session, user.id, EventFilter(action="server.create"), PageRequest())
        all_of_them = await list_events(session, None, EventFilter(action="server.create"), PageRequest(200))
    assert [row.user_id for row in mine.items] == [user.id]
    assert {row.user_id for row in all_of_them.items} >= {user.id, other_user.id}


async def test_keys_that_are_revoked_with_their_project_are_recorded(world: World) -> None:
    async def bound_key() -> str:
        body = {"kind": "user", "user_id": world.user.id, "project_id": world.project_id}
        key_id: str = (await world.admin.post("/keys", json=body)).json()["id"]
        return key_id

    revoked_before, active = await bound_key(), await bound_key()
    assert (await world.admin.delete(f"/keys/{revoked_before}")).status_code == 204
    assert (await world.user.http.delete(f"/projects/{world.project_id}")).status_code == 204
    actor = await get_actor(world.user, world.admin)
    revoked = [(row["actor"], row["target"]) for row in await rows_since(world, action="key.revoke")]
    assert revoked == [(actor, active), ("admin:bootstrap", revoked_before)]


async def test_a_user_created_by_a_first_mention_is_attributed_to_the_key(
    admin: httpx.AsyncClient, container: Container
) -> None:
    made = (await admin.post("/keys", json={"kind": "service", "name": "backend"})).json()
    user_id = f"mentioned-{uuid.uuid4().hex[:8]}"
    for key in (made["key"], made["key"], ADMIN_KEY):
        async with open_client(container, **{"Authorization": f"Bearer {key}", "X-User-Id": user_id}) as http:
            assert (await http.get("/tools")).status_code == 200
    created = [(row["actor"], row["user_id"]) for row in await list_rows(admin, action="user.create", target=user_id)]
    assert created == [(f"service:{made['id']}", user_id)]


async def test_rows_outlive_the_deleted_user(user: TestUser, container: Container, admin: httpx.AsyncClient) -> None:
    began = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    server_id = await user.add_server()
    assert (await admin.delete(f"/users/{user.id}")).status_code == 204
    actions = {row["action"] for row in await list_rows(admin, since=began) if row["user_id"] == user.id}
    assert actions >= {"user.create", "key.create", "server.create", "user.delete"}
    assert [row["action"] for row in await list_rows(admin, target=server_id)] == ["server.create"]
    assert_problem(await user.http.get("/audit"), 401)


async def test_a_user_who_is_created_again_does_not_read_the_predecessors_events(
    container: Container, admin: httpx.AsyncClient
) -> None:
    user_id = f"again-{uuid.uuid4().hex[:8]}"
    async with new_user(container, user_id) as predecessor:
        old_server = await predecessor.add_server()
    assert (await admin.delete(f"/users/{user_id}")).status_code == 204
    async with new_user(container, user_id) as user:
        new_server = await user.add_server()
        own = await list_rows(user.http)
        asked = await list_rows(user.http, since=(datetime.now(UTC) - timedelta(days=1)).isoformat())
        named = await list_rows(admin, target=old_server)
    assert own == asked
    assert [row["action"] for row in reversed(own)] == ["user.create", "key.create", "server.create"]
    assert {row["target"] for row in own if row["action"] == "server.create"} == {new_server}
    assert [row["action"] for row in named] == ["server.create"], "administrators still see them"
    async with open_client(container, **{"Authorization": f"Bearer {ADMIN_KEY}", "X-User-Id": user_id}) as named_admin:
        actions = [row["action"] for row in await list_rows(named_admin)]
    assert actions.count("user.create") == 2
    assert "user.delete" in actions


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_events SET outcome = 'forged'",
        "DELETE FROM audit_events",
        "TRUNCATE audit_events",
        "DROP TABLE audit_events",
        "ALTER TABLE audit_events DISABLE ROW LEVEL SECURITY",
        "INSERT INTO audit_events (user_id, id, actor, action, outcome) SELECT user_id, id, 'f', 'f', 'f'"
        " FROM audit_events ON CONFLICT (user_id, id) DO UPDATE SET outcome = 'forged'",
    ],
    ids=lambda statement: statement.split(" (")[0],
)
@pytest.mark.parametrize("scope", ["user", "system"])
async def test_the_app_itself_cannot_change_rows(
    user: TestUser, container: Container, statement: str, scope: str
) -> None:
    await user.add_server()
    before = await list_rows(user.http)
    database = container.database
    with pytest.raises(QueryFailed) as refusal:
        async with database.transaction(user.id) if scope == "user" else database.system_transaction() as session:
            await session.rows(statement)
    assert any(reason in str(refusal.value.__cause__) for reason in ("permission denied", "must be owner"))
    assert await list_rows(user.http) == before


async def test_a_user_cannot_write_rows_of_another_user(
    user: TestUser, other_user: TestUser, container: Container
) -> None:
    def row(owner: str) -> Any:
        values = {"user_id": owner, "id": str(uuid.uuid4()), "actor": "a", "action": "forged", "outcome": "o"}
        return insert(audit_events).values(**values)

    for owner in (other_user.id, ""):
        with pytest.raises(QueryFailed) as refusal:
            async with container.database.transaction(user.id) as session:
                await session.execute(row(owner))
        assert "row-level security" in str(refusal.value.__cause__)
    assert await list_rows(other_user.http, action="forged") == []
    async with container.database.transaction(user.id) as session:
        await session.execute(row(user.id))
    assert len(await list_rows(user.http, action="forged")) == 1


async def test_a_call_with_a_service_key_is_recorded_for_its_user_with_the_key_as_actor(
    user: TestUser, container: Container, admin: httpx.AsyncClient, mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, mcp, "read")
    made = (await admin.post("/keys", json={"kind": "service"})).json()
    key = (await user.tools())["read"]["id"]
    async with open_client(container, **{"X-API-Key": made["key"], "X-User-Id": user.id}) as http:
        assert_ok(await http.post("/execute", json={"tool_key": key}))
    assert await list_executions(container, user.id) == [("succeeded", key)]
    [row] = await list_rows(user.http, action="tool.execute")
    assert row["actor"] == f"service:{made['id']}"
