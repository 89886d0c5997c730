"""What a real MCP server receives when members call the tools of a shared server, and who may change it."""

from typing import Any

import httpx
import pytest

from app.container import Container
from app.db.tables import SHARED_OWNER
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user
from tests.support.factories import tool
from tests.support.mcp_client import make_message, send_message
from tests.support.mcp_server import FakeMcpServer
from tests.support.shared_servers import list_shared, push_shared, settle, share
from tests.support.worker_steps import rows

READ = tool("read_page", "Reads a page of the handbook.")
OPERATOR = {"Authorization": "Bearer operators-canary"}


def sent_headers(server: FakeMcpServer) -> list[str | None]:
    """Return the credentials of the calls that the server has received."""
    return [each.headers.get("authorization") for each in server.requests if each.rpc_method == "tools/call"]


async def share_wiki(admin: httpx.AsyncClient, mcp: FakeMcpServer, **fields: Any) -> dict[str, Any]:
    mcp.tools = [READ]
    return await share(admin, "wiki", transport=mcp.transport, url=mcp.url, **fields)


async def test_calls_use_the_operators_headers_which_no_member_sees(
    service: Container, admin: httpx.AsyncClient, member: TestUser, mcp: FakeMcpServer
) -> None:
    await share_wiki(admin, mcp, headers=OPERATOR, credentials="operator", user_ids=[member.id])
    await settle(service)
    copy = (await list_shared(member))["wiki"]
    assert (copy["status"], copy["shared_credentials"], copy["header_names"]) == ("connected", "operator", [])
    assert (await member.execute("read_page")).status_code == 200
    assert sent_headers(mcp) == ["Bearer operators-canary"]
    seen = [(await member.http.get(path)).text for path in ("/servers", f"/servers/{copy['id']}", "/audit", "/tools")]
    assert not [text for text in seen if "canary" in text]
    stored = "SELECT sealed_headers FROM mcp_servers WHERE user_id = %(id)s"
    assert await rows(service, stored, id=member.id) == [(None,)]


async def test_new_headers_of_the_operator_are_used_by_the_next_call(
    service: Container, admin: httpx.AsyncClient, member: TestUser, mcp: FakeMcpServer
) -> None:
    shared = await share_wiki(admin, mcp, headers=OPERATOR, credentials="operator", user_ids=[member.id])
    await settle(service)
    assert (await member.execute("read_page")).status_code == 200
    changed = {"headers": {"Authorization": "Bearer rotated"}}
    assert (await admin.patch(f"/shared-servers/{shared['id']}", json=changed)).status_code == 200
    await settle(service)
    assert (await member.execute("read_page")).status_code == 200
    assert sent_headers(mcp) == ["Bearer operators-canary", "Bearer rotated"]


async def test_calls_use_each_members_own_headers(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser, mcp: FakeMcpServer
) -> None:
    await share_wiki(admin, mcp, headers=OPERATOR, everyone=True)
    await settle(service)
    for user, token in ((member, "Bearer first"), (stranger, "Bearer second")):
        copy = (await list_shared(user))["wiki"]
        assert copy["status"] == "needs_authorization"
        refused = await user.execute("read_page")
        assert (refused.status_code, refused.json()["code"]) == (403, "AUTHORIZATION_REQUIRED")
        path = f"/servers/{copy['id']}/credentials"
        assert (await user.http.put(path, json={"headers": {"Authorization": token}})).status_code == 200
    await settle(service)
    for user in (member, stranger):
        assert (await list_shared(user))["wiki"]["status"] == "connected"
        assert (await user.execute("read_page")).status_code == 200
    assert sent_headers(mcp) == ["Bearer first", "Bearer second"]


async def test_a_member_without_credentials_uses_a_server_that_wants_none(
    service: Container, admin: httpx.AsyncClient, member: TestUser, mcp: FakeMcpServer
) -> None:
    await share_wiki(admin, mcp, user_ids=[member.id])
    await settle(service)
    assert (await list_shared(member))["wiki"]["status"] == "connected"
    assert (await member.execute("read_page")).status_code == 200
    assert sent_headers(mcp) == [None]


async def test_a_member_who_deletes_the_credentials_is_asked_for_them_again(
    service: Container, admin: httpx.AsyncClient, member: TestUser, mcp: FakeMcpServer
) -> None:
    await share_wiki(admin, mcp, headers=OPERATOR, user_ids=[member.id])
    await settle(service)
    path = f"/servers/{(await list_shared(member))['wiki']['id']}/credentials"
    assert (await member.http.put(path, json={"headers": {"Authorization": "Bearer mine"}})).status_code == 200
    await settle(service)
    assert (await list_shared(member))["wiki"]["status"] == "connected"
    assert (await member.http.delete(path)).status_code == 204
    await settle(service)
    assert (await list_shared(member))["wiki"]["status"] == "needs_authorization"
    assert set(await member.tools()) == {"read_page"}


async def test_a_user_who_leaves_cannot_call_even_before_the_copy_is_gone(
    service: Container, admin: httpx.AsyncClient, member: TestUser, stranger: TestUser, mcp: FakeMcpServer
) -> None:
    shared = await share_wiki(admin, mcp, user_ids=[member.id, stranger.id])
    await settle(service)
    await service.shared_server_sync.loop.stop()
    try:
        assert (await member.execute("read_page")).status_code == 200
        await admin.patch(f"/shared-servers/{shared['id']}", json={"user_ids": [stranger.id]})
        assert_problem(await member.execute("read_page"), 403, "forbidden")
        assert (await stranger.execute("read_page")).status_code == 200
        assert len(sent_headers(mcp)) == 2
    finally:
        service.shared_server_sync.loop.start()


async def test_an_announced_change_lists_the_source(
    service: Container, admin: httpx.AsyncClient, member: TestUser, mcp: FakeMcpServer
) -> None:
    shared = await share_wiki(admin, mcp, user_ids=[member.id])
    await settle(service)
    copy_id = (await list_shared(member))["wiki"]["id"]
    endpoint = await service.connector.get_endpoint(member.id, copy_id)
    service.worker.on_tools_changed(endpoint)
    try:
        assert set(service.worker._announcements) == {shared["id"]}
    finally:
        service.worker._announcements.pop(shared["id"]).cancel()


CHANGES: list[tuple[str, str, Any]] = [
    ("PATCH", "/servers/{copy}", {"description": "mine"}),
    ("PATCH", "/servers/{copy}", {"enabled": False}),
    ("PATCH", "/servers/{copy}", {"url": "https://example.com/mcp"}),
    ("PATCH", "/servers/{copy}", {"headers": {"X-Mine": "1"}}),
    ("PUT", "/servers/{copy}/credentials", {"headers": {"X-Mine": "1"}}),
    ("DELETE", "/servers/{copy}/credentials", None),
    ("POST", "/servers/{copy}/connect", {}),
    ("PUT", "/servers/{copy}/tools", {"tools": [tool("mine")]}),
    ("POST", "/tools/{tool}/approve", None),
    ("DELETE", "/servers/{copy}", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_member_cannot_change_a_shared_server(
    service: Container, admin: httpx.AsyncClient, member: TestUser, method: str, path: str, body: Any
) -> None:
    shared = await share(admin, "wiki", credentials="operator", user_ids=[member.id])
    await push_shared(admin, shared, READ)
    await settle(service)
    ids = {"copy": (await list_shared(member))["wiki"]["id"], "tool": (await member.tools())["read_page"]["id"]}
    stored = "SELECT to_jsonb(s)::text FROM mcp_servers s WHERE user_id = ANY(%(ids)s) ORDER BY 1"
    before = await rows(service, stored, ids=[member.id, SHARED_OWNER])
    problem = assert_problem(await member.http.request(method, path.format(**ids), json=body), 403, "forbidden")
    assert "shared" in problem["detail"]
    acting = {"X-User-Id": member.id}
    assert_problem(await admin.request(method, path.format(**ids), json=body, headers=acting), 403, "forbidden")
    assert await rows(service, stored, ids=[member.id, SHARED_OWNER]) == before


async def test_a_member_may_do_the_same_to_a_server_of_its_own(member: TestUser) -> None:
    own = await member.add_tools(READ, server="own")
    ids = {"copy": own, "tool": (await member.tools())["read_page"]["id"]}
    for method, path, body in CHANGES:
        if not (path.endswith("/connect") or (body or {}).get("url")):  # a push server has neither
            answer = await member.http.request(method, path.format(**ids), json=body)
            assert answer.status_code < 300 or (path.startswith("/tools/") and answer.status_code == 404), answer.text


async def test_a_member_may_reindex_and_reads_nothing_of_the_owner(
    service: Container, admin: httpx.AsyncClient, member: TestUser, mcp: FakeMcpServer
) -> None:
    shared = await share_wiki(admin, mcp, headers=OPERATOR, credentials="operator", user_ids=[member.id])
    await settle(service)
    listings = mcp.listings
    run = await member.reindex((await list_shared(member))["wiki"]["id"])
    assert (run["state"], run["counts"]["unchanged"], mcp.listings - listings) == ("succeeded", 1, 0)
    [source] = (await admin.get("/tools", params={"server_id": shared["id"]})).json()["items"]
    for path in (f"/servers/{shared['id']}", f"/servers/{shared['id']}/runs", f"/tools/{source['id']}"):
        assert_problem(await member.http.get(path), 404, "not_found")
        assert (await admin.get(path)).status_code == 200
    async with service.database.transaction(member.id) as session:
        for table in ("mcp_servers", "mcp_tools", "mcp_tool_embeddings", "shared_servers", "index_runs"):
            assert await session.rows(f"SELECT FROM {table} WHERE user_id = '*'") == []
    async with service.database.transaction(SHARED_OWNER) as session:
        assert await session.rows("SELECT FROM mcp_servers WHERE user_id <> '*'") == []
        assert len(await session.rows("SELECT FROM shared_servers")) == 1


@pytest.mark.parametrize(("credentials", "is_whole"), [("operator", False), ("member", True)])
async def test_members_see_the_host_alone_of_an_address_that_may_hold_the_operators_key(
    service: Container,
    admin: httpx.AsyncClient,
    member: TestUser,
    mcp: FakeMcpServer,
    credentials: str,
    is_whole: bool,
) -> None:
    mcp.tools, url = [READ], f"{mcp.url}?key=canary"
    fields = {"transport": mcp.transport, "url": url, "credentials": credentials, "user_ids": [member.id]}
    await share(admin, "wiki", **fields)
    await settle(service)
    host = "/".join(url.split("/")[:3])
    assert (await list_shared(member))["wiki"]["url"] == (url if is_whole else f"{host}/")
    assert (await member.execute("read_page")).status_code == 200


@pytest.mark.parametrize("credentials", ["member", "operator"])
async def test_a_copy_that_is_created_again_uses_no_connection_of_the_earlier_one(
    service: Container, admin: httpx.AsyncClient, member: TestUser, mcp: FakeMcpServer, credentials: str
) -> None:
    """Another process does not know that the earlier one, maybe of a deleted user with the same id, is gone."""
    shared = await share_wiki(admin, mcp, credentials=credentials, user_ids=[member.id])
    await settle(service)
    copy_id = (await list_shared(member))["wiki"]["id"]
    earlier = await service.connector.get_endpoint(member.id, copy_id)
    assert await service.connector.get_endpoint(member.id, copy_id) == earlier
    for user_ids in ([], [member.id]):
        changed = await admin.patch(f"/shared-servers/{shared['id']}", json={"user_ids": user_ids})
        assert changed.status_code == 200, changed.text
        await settle(service)
    assert (await list_shared(member))["wiki"]["id"] == copy_id
    later = await service.connector.get_endpoint(member.id, copy_id)
    assert later.config_version > earlier.config_version


async def test_a_namesake_of_a_deleted_user_does_not_see_what_servers_listed_to_that_user(
    service: Container, admin: httpx.AsyncClient, mcp: FakeMcpServer
) -> None:
    """Listings are cached for a minute, and the copy of the later user has the id and the versions of the earlier."""
    await share_wiki(admin, mcp, credentials="operator", headers=OPERATOR, user_ids=["namesake"])
    listed, copies = [], set()
    for uri in ("file:///of-the-first", "file:///of-the-second"):
        mcp.resources = [{"uri": uri, "name": "note"}]
        async with new_user(service, "namesake") as user:
            await settle(service)
            copies.add((await list_shared(user))["wiki"]["id"])
            answer = await send_message(user.http, make_message("resources/list"), "/mcp/full")
            listed += [item["_meta"]["toolscout/uri"] for item in answer.json()["result"]["resources"]]
            assert (await admin.delete("/users/namesake")).is_success
    assert len(copies) == 1
    assert listed == ["file:///of-the-first", "file:///of-the-second"]
