"""Who gets a copy of a shared server, and who loses it."""

import uuid

import httpx

from app.auth.users import change_groups
from app.container import Container
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user
from tests.support.factories import tool
from tests.support.shared_servers import list_shared, push_shared, settle, share, wait_for_members

READ = tool("read_page", "Reads a page of the handbook.")


async def join_groups(container: Container, user: TestUser, *groups: str) -> None:
    async with container.database.system_transaction() as session:
        await change_groups(session, user.id, groups, "test")


async def test_a_listed_user_finds_the_tools_and_others_do_not(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser
) -> None:
    shared = await share(admin, "handbook", user_ids=[member.id])
    await push_shared(admin, shared, READ)
    assert (await wait_for_members(admin, shared))["members"] == {"total": 1, "ready": 1}
    await settle(service)
    found = await member.discover("read a page of the handbook", strategy="bm25")
    assert [each["tool"]["name"] for each in found["tools"]] == ["read_page"]
    assert [each["server_name"] for each in found["tools"]] == ["handbook"]
    assert await list_shared(stranger) == {}
    assert (await stranger.discover("read a page of the handbook", strategy="bm25"))["tools"] == []


async def test_a_server_for_everyone_reaches_users_who_come_later(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    shared = await share(admin, "handbook", everyone=True)
    await push_shared(admin, shared, READ)
    await settle(service)
    async with new_user(service) as newcomer:
        await settle(service)
        assert set(await newcomer.tools()) == set(await member.tools()) == {"read_page"}


async def test_a_user_listed_before_it_exists_gets_the_server_once_it_does(
    service: Container, admin: httpx.AsyncClient
) -> None:
    user_id = f"later-{uuid.uuid4().hex[:8]}"
    shared = await share(admin, "handbook", user_ids=[user_id])
    await push_shared(admin, shared, READ)
    assert (await wait_for_members(admin, shared))["members"]["total"] == 0
    async with new_user(service, user_id) as user:
        await settle(service)
        assert set(await user.tools()) == {"read_page"}


async def test_a_group_gives_and_takes_the_server(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser
) -> None:
    await join_groups(service, member, "staff", "berlin")
    await join_groups(service, stranger, "guests")
    await share(admin, "handbook", groups=["staff"])
    await settle(service)
    assert (set(await list_shared(member)), set(await list_shared(stranger))) == ({"handbook"}, set())
    await join_groups(service, member, "berlin")
    await join_groups(service, stranger, "staff")
    await settle(service)
    assert (set(await list_shared(member)), set(await list_shared(stranger))) == (set(), {"handbook"})


async def test_a_user_who_leaves_the_list_loses_the_tools_and_finds_the_same_ids_on_return(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser
) -> None:
    shared = await share(admin, "handbook", user_ids=[member.id, stranger.id])
    await push_shared(admin, shared, READ)
    await settle(service)
    before = (await member.tools())["read_page"]["id"]
    await admin.patch(f"/shared-servers/{shared['id']}", json={"user_ids": [stranger.id]})
    await settle(service)
    assert (await member.tools(), await list_shared(member)) == ({}, {})
    assert set(await stranger.tools()) == {"read_page"}
    async with service.database.transaction(member.id) as session:
        assert await session.rows("SELECT tool_count FROM users WHERE id = %(id)s", {"id": member.id}) == [(0,)]
    await admin.patch(f"/shared-servers/{shared['id']}", json={"user_ids": [member.id]})
    await settle(service)
    assert (await member.tools())["read_page"]["id"] == before
    assert await stranger.tools() == {}


async def test_deleting_a_shared_server_removes_all_copies(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser
) -> None:
    shared = await share(admin, "handbook", everyone=True)
    kept = await share(admin, "kept", everyone=True)
    await push_shared(admin, shared, READ)
    await settle(service)
    assert set(await list_shared(member)) == set(await list_shared(stranger)) == {"handbook", "kept"}
    assert (await admin.delete(f"/shared-servers/{shared['id']}")).status_code == 204
    await settle(service)
    assert set(await list_shared(member)) == set(await list_shared(stranger)) == {"kept"}
    assert await member.tools() == {}
    assert_problem(await admin.get(f"/shared-servers/{shared['id']}"), 404, "not_found")
    assert (await admin.get(f"/shared-servers/{kept['id']}")).status_code == 200


async def test_a_copy_gets_another_name_where_the_user_has_a_server_of_that_name(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser
) -> None:
    own = await member.add_tools(tool("own_page"), server="handbook")
    await member.add_server("handbook-shared")
    shared = await share(admin, "handbook", everyone=True)
    await push_shared(admin, shared, READ)
    await settle(service)
    assert set(await list_shared(member)) == {"handbook-shared-2"}
    assert set(await list_shared(stranger)) == {"handbook"}
    tools = await member.tools()
    assert (tools["own_page"]["server_id"], tools["read_page"]["server_name"]) == (own, "handbook-shared-2")


async def test_shared_servers_do_not_count_against_the_limit_of_servers(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    await share(admin, "handbook", everyone=True)
    await settle(service)
    limit = service.settings.max_servers
    async with service.database.transaction(member.id) as session:
        await session.rows(
            "INSERT INTO mcp_servers (user_id, id, name, transport) "
            "SELECT %(id)s, gen_random_uuid()::text, 'own-' || n, 'push' FROM generate_series(1, %(count)s::int) n",
            {"id": member.id, "count": limit - 1},
        )
    assert (await member.http.post("/servers", json={"name": "last", "transport": "push"})).status_code == 201
    assert (await member.http.post("/servers", json={"name": "more", "transport": "push"})).status_code != 201


async def test_nobody_can_act_for_or_see_the_owner_of_shared_servers(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    await share(admin, "handbook", user_ids=[member.id])
    ids = [user["id"] for user in (await admin.get("/users", params={"limit": 200})).json()["items"]]
    assert member.id in ids
    assert "*" not in ids
    for method in ("GET", "DELETE"):
        assert_problem(await admin.request(method, "/users/*"), 404, "not_found")
    assert_problem(await admin.patch("/users/*", json={"name": "taken"}), 404, "not_found")
    assert (await admin.get(f"/users/{member.id}")).status_code == 200
    assert_problem(await admin.get("/servers", headers={"X-User-Id": "*"}), 422)
    assert_problem(await admin.post("/keys", json={"kind": "user", "user_id": "*"}), 422)
    assert_problem(await admin.post("/users", json={"id": "*"}), 422)
