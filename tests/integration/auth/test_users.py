"""Management of users by an administrator."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from app.auth.authentication import Authenticator
from app.auth.users import change_groups
from app.container import Container
from tests.support.calls import connect_with_tools
from tests.support.checks import (
    assert_problem,
    everything,
    find_and_praise,
    leave_a_call,
    leave_a_category,
    leave_a_sharing,
    leave_a_sign_in,
    pages,
    rows_of,
)
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, OpenService, tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.seed_vectors import owner_connection
from tests.support.worker_steps import rows, until

PUSHED = {"name": "files", "transport": "push"}
DEFAULTS: dict[str, Any] = {
    "name": None,
    "settings": {},
    "discovery_enabled": True,
    "discovery_decided_by": "percent",
    "tool_count": 0,
    "groups": [],
}


def fresh_id(prefix: str = "made") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
async def changed_user(container: Container) -> AsyncIterator[TestUser]:
    """For tests that compare a user before and after a change."""
    async with new_user(container) as made:
        yield made


async def fill(container: Container, user: TestUser) -> None:
    """Make a row in every table that holds data of a user."""
    server_id = await user.add_tools(tool("read_file", "Reads a file."), tool("write_file", "Writes a file."))
    await user.push(server_id, [tool("read_file", "Reads a file, now faster."), tool("write_file", "Writes a file.")])
    rules = [{"pattern": ["*"], "tags": ["tried"]}]
    assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200
    project = {"name": "support", "server_ids": None, "rules": rules}
    assert (await user.http.post("/projects", json=project)).status_code == 201
    await leave_a_call(container, user.id)
    await leave_a_category(container, user.id)
    await leave_a_sign_in(container, user.id)
    await leave_a_sharing(container, user.id)
    await find_and_praise(container, user, "read a file")
    answer = await user.http.put("/core-tools", json={"tools": [tool("ask_user")]})
    assert answer.status_code == 200


async def make_large(container: Container, user: TestUser) -> None:
    """Make the rows of a very large user, without the indexes, once no index run writes any more."""

    async def is_indexed() -> bool:
        return (
            await rows(container, "SELECT FROM index_runs WHERE user_id = %(u)s AND finished_at IS NULL", u=user.id)
            == []
        )

    await until(is_indexed)
    with owner_connection(container) as connection:
        connection.execute("UPDATE mcp_tool_embeddings SET ann = true WHERE user_id = %s", (user.id,))
        connection.execute("INSERT INTO large_tenant_terms VALUES (%s, 'model', 1, 1)", (user.id,))
        connection.execute("INSERT INTO large_tenant_stats VALUES (%s, 'model', '', 1, 1, 1, '{}')", (user.id,))


async def test_a_new_user_is_returned_as_requested(admin: httpx.AsyncClient) -> None:
    user_id = fresh_id()
    created = await admin.post("/users", json={"id": user_id, "name": "Alice"})
    assert created.status_code == 201
    assert created.json() == {**DEFAULTS, "id": user_id, "name": "Alice", "created_at": created.json()["created_at"]}
    assert (await admin.get(f"/users/{user_id}")).json() == created.json()


async def test_a_user_can_be_created_only_once(admin: httpx.AsyncClient) -> None:
    user_id = fresh_id()
    assert (await admin.post("/users", json={"id": user_id, "name": "first"})).status_code == 201
    assert_problem(await admin.post("/users", json={"id": user_id, "name": "second"}), 409)
    assert (await admin.get(f"/users/{user_id}")).json()["name"] == "first"


@pytest.mark.parametrize("suffix", ["", ".b_c@d:e|f+g=h~i-j", "-" + "x" * 110, "0"])
async def test_user_ids_of_chat_backends_are_stored_unchanged(admin: httpx.AsyncClient, suffix: str) -> None:
    user_id = fresh_id("u")[:17] + suffix
    assert (await admin.post("/users", json={"id": user_id})).json()["id"] == user_id
    assert (await admin.get(f"/users/{user_id}")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"id": None},
        {"id": 7},
        {"id": ""},
        {"id": " alice"},
        {"id": "-alice"},
        {"id": "al ice"},
        {"id": "al/ice"},
        {"id": "alice\n"},
        {"id": "élise"},
        {"id": "x" * 129},
        {"id": "alice", "name": ""},
        {"id": "alice", "name": "a\nb"},
        {"id": "alice", "name": "x" * 129},
        {"id": "alice", "admin": True},
    ],
)
async def test_an_invalid_user_is_not_created(admin: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert_problem(await admin.post("/users", json=body), 422)


async def test_pages_of_users_neither_overlap_nor_skip(open_service: OpenService) -> None:
    wanted = [f"user-{number}" for number in range(7)]
    async with open_service() as service, open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        for user_id in reversed(wanted):
            assert (await admin.post("/users", json={"id": user_id})).status_code == 201
        found = await pages(admin, "/users", limit=3)
    assert [len(page) for page in found] == [3, 3, 1]
    assert [user["id"] for page in found for user in page] == wanted


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"name": "Alice"}, {"name": "Alice"}),
        ({"name": None}, {"name": None}),
        ({"discovery_enabled": False}, {"discovery_enabled": False, "discovery_decided_by": "user"}),
        ({"discovery_enabled": True}, {"discovery_enabled": True, "discovery_decided_by": "user"}),
        ({"discovery_enabled": None}, {"discovery_enabled": True, "discovery_decided_by": "percent"}),
        ({"settings": {"limit": 3}}, {"settings": {"limit": 3}}),
        (
            {"settings": {"strategy": "bm25", "similarity_threshold": 0, "limit": 50}},
            {"settings": {"strategy": "bm25", "similarity_threshold": 0, "limit": 50}},
        ),
        ({"settings": {"limit": None}}, {"settings": {}}),
        ({"settings": {"selection_log": True}}, {"settings": {"selection_log": True}}),
        ({}, {}),
    ],
)
async def test_a_patch_changes_only_the_fields_that_it_names(
    admin: httpx.AsyncClient, changed_user: TestUser, changes: dict[str, Any], shown: dict[str, Any]
) -> None:
    before = (await admin.get(f"/users/{changed_user.id}")).json()
    answer = await admin.patch(f"/users/{changed_user.id}", json=changes)
    assert answer.status_code == 200
    assert answer.json() == {**before, **shown}
    assert (await admin.get(f"/users/{changed_user.id}")).json() == answer.json()


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "another"},
        {"name": ""},
        {"discovery_enabled": "yes"},
        {"settings": None},
        {"settings": {"limit": 0}},
        {"settings": {"limit": 51}},
        {"settings": {"limit": "8"}},
        {"settings": {"similarity_threshold": 1.1}},
        {"settings": {"strategy": "magic"}},
        {"settings": {"selection_log": "yes"}},
        {"settings": {"unknown": 1}},
    ],
)
async def test_an_invalid_patch_changes_nothing(
    admin: httpx.AsyncClient, changed_user: TestUser, changes: dict[str, Any]
) -> None:
    before = (await admin.get(f"/users/{changed_user.id}")).json()
    assert_problem(await admin.patch(f"/users/{changed_user.id}", json=changes), 422)
    assert (await admin.get(f"/users/{changed_user.id}")).json() == before


async def test_a_users_settings_are_the_defaults_of_its_discoveries(admin: httpx.AsyncClient, user: TestUser) -> None:
    await user.add_tools(*(tool(f"read_file_{number}", "Reads a file.") for number in range(3)))
    settings = {"strategy": "bm25", "limit": 2}
    await admin.patch(f"/users/{user.id}", json={"settings": settings})
    by_default = await user.discover("read a file")
    assert (by_default["strategy"], len(by_default["tools"])) == ("bm25", 2)
    asked = await user.discover("read a file", strategy="hybrid", limit=3)
    assert (asked["strategy"], len(asked["tools"])) == ("hybrid", 3)


async def test_a_user_without_discovery_gets_all_tools_as_degraded(admin: httpx.AsyncClient, user: TestUser) -> None:
    await user.add_tools(tool("read_file", "Reads a file."), tool("zebra", "Nothing that anybody asks for."))
    assert (await user.discover("read a file"))["degraded"] is False
    await admin.patch(f"/users/{user.id}", json={"discovery_enabled": False})
    answer = await user.discover("read a file")
    assert {found["tool"]["name"] for found in answer["tools"]} == {"read_file", "zebra"}
    assert {found["source"] for found in answer["tools"]} == {"fallback"}
    assert answer["degraded_reason"] == "disabled"


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PATCH", {"name": "x"}), ("DELETE", None)])
async def test_a_user_that_does_not_exist_is_not_found(
    admin: httpx.AsyncClient, user: TestUser, method: str, body: dict[str, Any] | None
) -> None:
    assert_problem(await admin.request(method, f"/users/{fresh_id('nobody')}", json=body), 404)
    assert (await admin.request(method, f"/users/{user.id}", json=body)).is_success


async def has_no_runs(container: Container, user: TestUser) -> bool:
    statement = "SELECT FROM index_runs WHERE user_id = %(user_id)s AND state IN ('queued', 'running')"
    [unfinished] = await container.database.system_fetch([(statement, {"user_id": user.id})])
    return not unfinished


async def test_deleting_a_user_deletes_all_its_rows_and_no_others(
    admin: httpx.AsyncClient, container: Container, user: TestUser, other_user: TestUser
) -> None:
    for somebody in (user, other_user):
        await fill(container, somebody)
        await until(partial(has_no_runs, container, somebody))  # a run counts the tools again
        await make_large(container, somebody)
    before = await rows_of(container, user.id)
    others = await rows_of(container, other_user.id)
    assert all(before.values()), f"the test must fill every table: {before}"

    assert (await admin.delete(f"/users/{user.id}")).status_code == 204

    assert await rows_of(container, user.id) == dict.fromkeys(before, 0)
    assert await rows_of(container, other_user.id) == others
    assert_problem(await user.http.get("/servers"), 401)
    assert (await other_user.http.get("/servers")).status_code == 200
    assert_problem(await admin.delete(f"/users/{user.id}"), 404)
    assert user.id not in {shown["id"] for shown in await everything(admin, "/users")}


async def test_connections_to_a_deleted_users_servers_are_closed(
    admin: httpx.AsyncClient, container: Container, user: TestUser, other_user: TestUser, mcp: FakeMcpServer
) -> None:
    def connected() -> set[str]:
        return {owner for owner, _ in container.mcp_pool._entries} & {user.id, other_user.id}

    for somebody in (user, other_user):
        await connect_with_tools(somebody, mcp, "read")
    assert connected() == {user.id, other_user.id}
    assert (await admin.delete(f"/users/{user.id}")).status_code == 204
    assert connected() == {other_user.id}


async def test_a_user_created_again_after_its_deletion_owns_nothing(
    admin: httpx.AsyncClient, container: Container, user: TestUser
) -> None:
    await fill(container, user)
    await admin.delete(f"/users/{user.id}")
    assert (await admin.post("/users", json={"id": user.id})).status_code == 201
    acting = {"X-User-Id": user.id}
    assert (await admin.get("/tools", headers=acting)).json()["items"] == []
    assert (await admin.get("/core-tools", headers=acting)).json()["tools"] == []
    assert (await admin.get("/rules", headers=acting)).json()["rules"] == []
    assert (await admin.get("/projects", headers=acting)).json()["items"] == []
    assert_problem(await user.http.get("/tools"), 401)


async def test_a_replica_that_knows_a_deleted_user_refuses_it_and_writes_nothing_for_it(
    admin: httpx.AsyncClient, container: Container, user: TestUser, other_user: TestUser
) -> None:
    """Rows written for it would belong to the next user with that id."""
    replica = replace(container, authenticator=Authenticator(container.database, None))
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("PUT", "/core-tools", {"tools": [tool("ask_user")]}),
        ("POST", "/servers", PUSHED),
        ("PUT", "/rules", {"rules": [{"pattern": ["*"]}]}),
        ("POST", "/projects", {"name": "support", "server_ids": None}),
    ]
    async with open_client(replica) as http:
        keys = {somebody.id: {"X-API-Key": somebody.key} for somebody in (user, other_user)}
        for key in keys.values():
            assert (await http.get("/servers", headers=key)).status_code == 200
        assert (await admin.delete(f"/users/{user.id}")).status_code == 204
        for method, path, body in requests:
            late = await http.request(method, path, json=body, headers=keys[user.id])
            assert late.status_code == 401, late.text
            assert (await http.request(method, path, json=body, headers=keys[other_user.id])).is_success
    assert not any((await rows_of(container, user.id)).values())


async def test_a_change_of_groups_is_stored_shown_and_audited(
    container: Container, admin: httpx.AsyncClient, user: TestUser, other_user: TestUser
) -> None:
    async with container.database.system_transaction() as session:
        changed = await change_groups(session, user.id, ["engineering", "staff"], "user:oidc:somebody")
    assert list(changed.groups) == ["engineering", "staff"]
    assert (await admin.get(f"/users/{user.id}")).json()["groups"] == ["engineering", "staff"]
    assert (await admin.get(f"/users/{other_user.id}")).json()["groups"] == []
    [event] = (await admin.get("/audit", params={"action": "user.groups", "target": user.id})).json()["items"]
    assert event["actor"] == "user:oidc:somebody"
