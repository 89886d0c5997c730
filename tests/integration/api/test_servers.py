"""MCP servers: created, returned, changed and deleted; their credentials are never returned."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.container import Container
from app.crypto import SecretOwner
from tests.support.checks import assert_problem, pages, rows_of
from tests.support.clients import TestUser, new_user
from tests.support.factories import tool

URL = "https://mcp.example.com/mcp"
CANARY = "canary-5c1d7e-secret"
SECRET_HEADERS = {"Authorization": f"Bearer {CANARY}", "X-Team": CANARY}

GOOD_URLS = [
    URL,
    "https://example.com:8080/mcp?team=1",
    "https://[2606:4700::1111]:8443/mcp",
    "HTTPS://EXAMPLE.COM",
    "https://example.com/a%20path",
]
BAD_URLS = [
    "",
    "example.com/mcp",
    "//example.com/mcp",
    "https://",
    "https:///mcp",
    "https://:443/mcp",
    "ftp://example.com",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "https://someone:password@example.com",
    "https://someone@example.com",
    "https://@example.com",
    "https://example.com/#part",
    "https://exa mple.com",
    "https://example.com/a b",
    "https://example.com/\n",
    "https://exam\tple.com",
    "https://example.com\\.evil.example",
    "https://example.com:99999",
    "https://example.com:0",
    "https://example.com:port",
    "https://[::1",
    "http://example.com/mcp",
]
TOO_LONG_URL = "https://example.com/" + "x" * 2_048
BAD_FIELDS = [
    {"name": ""},
    {"name": None},
    {"name": 7},
    {"name": "a\nb"},
    {"name": "x" * 129},
    {"description": None},
    {"description": "x" * 4_001},
    {"tags": "mail"},
    {"tags": [""]},
    {"tags": ["a\nb"]},
    {"tags": ["x" * 65]},
    {"tags": ["x"] * 65},
    {"enabled": "yes"},
    {"enabled": 1},
    {"headers": {"a b": "x"}},
    {"headers": {"": "x"}},
    {"headers": {"X-Key\n": "x"}},
    {"headers": {"X-Key": "two\nlines"}},
    {"headers": {"X-Key": 7}},
    {"headers": {f"X-{number}": "x" for number in range(33)}},
    {"headers": {"Host": "elsewhere.example.com"}},
    {"headers": {"Mcp-Session-Id": "stolen"}},
    {"headers": {"transfer-encoding": "chunked"}},
    {"transport": "stdio"},
    {"transport": "telepathy"},
    {"command": "/bin/sh"},
    {"args": ["-c", "id"]},
    {"env": {"PATH": "/tmp"}},  # noqa: S108 never touched
    {"user_id": "somebody-else"},
    {"unknown": True},
]


@pytest.fixture(scope="module")
async def owner(container: Container) -> AsyncIterator[TestUser]:
    """For tests that do not depend on how many servers there are."""
    async with new_user(container) as made:
        yield made


def fresh_name() -> str:
    return f"server-{uuid.uuid4().hex[:12]}"


async def post_server(user: TestUser, **fields: Any) -> httpx.Response:
    return await user.http.post("/servers", json={"name": fresh_name(), "transport": "push", **fields})


async def connected_server(user: TestUser) -> str:
    """Disabled, so that no run lists its tools during the test."""
    fields = {"transport": "streamable_http", "url": URL, "headers": SECRET_HEADERS, "enabled": False}
    return await user.add_server(fresh_name(), **fields)


@pytest.mark.parametrize("name", ["streamable_http", "http", "streamable-http", "streamableHttp"])
async def test_every_name_of_streamable_http_is_accepted_and_stored_as_one(owner: TestUser, name: str) -> None:
    created = await post_server(owner, transport=name, url=URL, enabled=False)
    assert created.status_code == 201, created.text
    assert created.json()["transport"] == "streamable_http"
    server_id = await owner.add_server(fresh_name(), transport="sse", url=URL, enabled=False)
    changed = await owner.http.patch(f"/servers/{server_id}", json={"transport": name})
    assert (changed.status_code, changed.json()["transport"]) == (200, "streamable_http")


async def test_the_error_about_a_wrong_transport_names_all_that_are_accepted(owner: TestUser) -> None:
    server_id = await owner.add_server(fresh_name())
    refused = [
        await post_server(owner, transport="websocket", url=URL),
        await owner.http.patch(f"/servers/{server_id}", json={"transport": "websocket"}),
    ]
    for answer in refused:
        detail = assert_problem(answer, 422)["detail"]
        for name in ("streamable_http", "http", "streamable-http", "streamableHttp", "sse", "stdio", "push"):
            assert f"`{name}`" in detail
    assert_problem(await post_server(owner, transport=7, url=URL), 422)


async def test_a_new_server_is_returned_as_requested(user: TestUser) -> None:
    wanted = {
        "name": "github",
        "transport": "sse",
        "url": URL,
        "description": "code",
        "tags": ["dev"],
        "enabled": False,
    }
    created = await user.http.post("/servers", json=wanted)
    assert created.status_code == 201
    shown = created.json()
    assert {key: shown[key] for key in wanted} == wanted
    assert (shown["user_id"], shown["status"], shown["tool_count"]) == (user.id, "disconnected", 0)
    assert str(uuid.UUID(shown["id"])) == shown["id"]
    assert (await user.http.get(f"/servers/{shown['id']}")).json() == shown
    assert (await user.http.get("/servers")).json()["items"] == [shown]


async def test_a_servers_name_is_unique_for_its_user(user: TestUser, other_user: TestUser) -> None:
    assert (await post_server(user, name="github")).status_code == 201
    assert_problem(await post_server(user, name="github"), 409)
    assert (await post_server(other_user, name="github")).status_code == 201
    assert (await post_server(user, name="gitlab")).status_code == 201
    assert [server["name"] for server in (await user.http.get("/servers")).json()["items"]] == ["github", "gitlab"]


async def test_only_one_of_many_concurrent_requests_gets_a_name(user: TestUser) -> None:
    answers = await asyncio.gather(*(post_server(user, name="github") for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]


async def test_a_rename_to_another_servers_name_is_a_conflict(user: TestUser) -> None:
    await user.add_server("github")
    server_id = await user.add_server("gitlab")
    assert_problem(await user.http.patch(f"/servers/{server_id}", json={"name": "github"}), 409)
    assert (await user.http.patch(f"/servers/{server_id}", json={"name": "gitlab"})).status_code == 200


async def test_servers_are_listed_in_pages_by_name(user: TestUser) -> None:
    names = [f"server-{number}" for number in range(5)]
    for name in reversed(names):
        await user.add_server(name)
    found = await pages(user.http, "/servers", limit=2)
    assert [[server["name"] for server in page] for page in found] == [names[:2], names[2:4], names[4:]]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"name": "forge"},
        {"description": "where code lives"},
        {"tags": ["dev", "code"]},
        {"tags": []},
        {"url": "https://mcp.example.com/another/path?team=1"},
        {"transport": "sse"},
    ],
)
async def test_a_patch_changes_only_the_fields_that_it_names(owner: TestUser, changes: dict[str, Any]) -> None:
    server_id = await connected_server(owner)
    before = (await owner.http.get(f"/servers/{server_id}")).json()
    answer = await owner.http.patch(f"/servers/{server_id}", json=changes)
    assert answer.status_code == 200, answer.text
    reconnects = bool({"url", "transport"} & changes.keys())
    moved = {"updated_at": answer.json()["updated_at"], "config_version": before["config_version"] + reconnects}
    assert answer.json() == {**before, **changes, **moved}
    assert (await owner.http.get(f"/servers/{server_id}")).json() == answer.json()


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
async def test_a_server_that_is_not_well_described_is_neither_made_nor_changed(
    owner: TestUser, fields: dict[str, Any]
) -> None:
    assert_problem(await post_server(owner, **fields), 422)
    server_id = (await post_server(owner)).json()["id"]
    before = (await owner.http.get(f"/servers/{server_id}")).json()
    assert_problem(await owner.http.patch(f"/servers/{server_id}", json=fields), 422)
    assert (await owner.http.get(f"/servers/{server_id}")).json() == before


@pytest.mark.parametrize("url", GOOD_URLS)
async def test_an_http_url_is_stored_unchanged(owner: TestUser, url: str) -> None:
    created = await post_server(owner, transport="streamable_http", url=url, enabled=False)
    assert created.status_code == 201
    assert created.json()["url"] == url
    changed = await owner.http.patch(f"/servers/{created.json()['id']}", json={"url": url})
    assert changed.status_code == 200


@pytest.mark.parametrize("url", BAD_URLS)
async def test_any_other_url_is_rejected(owner: TestUser, url: str) -> None:
    answer = await post_server(owner, transport="streamable_http", url=url)
    assert_problem(answer, 422, "url_not_allowed")
    assert "password" not in answer.text
    server_id = await connected_server(owner)
    assert_problem(await owner.http.patch(f"/servers/{server_id}", json={"url": url}), 422, "url_not_allowed")


async def test_the_length_of_a_url_is_limited(owner: TestUser) -> None:
    assert_problem(await post_server(owner, transport="streamable_http", url=TOO_LONG_URL), 422)
    assert_problem(await owner.http.patch(f"/servers/{await connected_server(owner)}", json={"url": TOO_LONG_URL}), 422)


@pytest.mark.parametrize(
    ("transport", "url", "status"),
    [
        ("push", None, 201),
        ("push", URL, 422),
        ("streamable_http", URL, 201),
        ("streamable_http", None, 422),
        ("sse", URL, 201),
        ("sse", None, 422),
        ("stdio", None, 422),
        ("stdio", URL, 422),
    ],
)
async def test_a_url_must_fit_the_transport(owner: TestUser, transport: str, url: str | None, status: int) -> None:
    assert (await post_server(owner, transport=transport, url=url)).status_code == status
    server_id = await owner.add_server(fresh_name())
    changed = await owner.http.patch(f"/servers/{server_id}", json={"transport": transport, "url": url})
    assert changed.status_code == (200 if status == 201 else 422)


@pytest.mark.parametrize("changes", [{"url": URL}, {"transport": "sse"}, {"transport": "stdio"}])
async def test_a_patch_is_validated_together_with_the_stored_fields(owner: TestUser, changes: dict[str, Any]) -> None:
    server_id = await owner.add_server(fresh_name())
    assert_problem(await owner.http.patch(f"/servers/{server_id}", json=changes), 422)
    both = {"transport": "sse", "url": URL}
    assert (await owner.http.patch(f"/servers/{server_id}", json=both)).status_code == 200


async def test_credentials_are_in_no_answer(user: TestUser) -> None:
    created = await post_server(user, name="github", transport="sse", url=URL, headers=SECRET_HEADERS)
    assert created.json()["header_names"] == sorted(SECRET_HEADERS)
    path = f"/servers/{created.json()['id']}"
    answers = [
        created,
        await user.http.get(path),
        await user.http.get("/servers"),
        await user.http.patch(path, json={"headers": SECRET_HEADERS}),
        await post_server(user, name="github", transport="sse", url=URL, headers=SECRET_HEADERS),
        await post_server(user, transport="sse", headers=SECRET_HEADERS),
        await post_server(user, headers={"X-Key": f"{CANARY}\n"}),
        await user.http.patch(path, json={"headers": {"X-Key": f"{CANARY}\n"}}),
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 409, 422, 422, 422]
    assert not [answer.text for answer in answers if CANARY in answer.text]


async def test_credentials_are_encrypted_and_bound_to_their_server(owner: TestUser, container: Container) -> None:
    server_id = await connected_server(owner)
    async with container.database.system_transaction() as session:
        statement = "SELECT sealed_headers, s::text FROM mcp_servers s WHERE id = %(id)s"
        [(sealed, whole_row)] = await session.rows(statement, {"id": server_id})
    assert CANARY not in whole_row
    assert CANARY.encode() not in bytes(sealed)
    assert CANARY.encode().hex() not in whole_row
    assert CANARY.encode() in container.sealer.open(bytes(sealed), SecretOwner(owner.id, server_id, "headers"))


@pytest.mark.parametrize(
    ("headers", "names"), [({"X-New": "1"}, ["X-New"]), ({}, []), (None, [])], ids=["other", "none", "null"]
)
async def test_new_credentials_replace_all_old_ones(
    owner: TestUser, headers: dict[str, str] | None, names: list[str]
) -> None:
    server_id = await connected_server(owner)
    answer = await owner.http.patch(f"/servers/{server_id}", json={"headers": headers})
    assert answer.json()["header_names"] == names
    assert answer.json()["config_version"] == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "https://elsewhere.example.com/mcp"},
        {"url": "https://mcp.example.com.evil.example/mcp"},
        {"url": "https://mcp.example.com:8443/mcp"},
        {"transport": "push", "url": None},
    ],
    ids=str,
)
async def test_credentials_do_not_follow_a_server_to_another_origin(owner: TestUser, changes: dict[str, Any]) -> None:
    moved, kept = await connected_server(owner), await connected_server(owner)
    answer = await owner.http.patch(f"/servers/{moved}", json=changes)
    assert (answer.status_code, answer.json()["header_names"]) == (200, [])
    given_anew = await owner.http.patch(f"/servers/{kept}", json={**changes, "headers": SECRET_HEADERS})
    assert (given_anew.status_code, given_anew.json()["header_names"]) == (200, sorted(SECRET_HEADERS))


async def test_credentials_do_not_return_when_the_url_is_reverted(owner: TestUser) -> None:
    server_id = await connected_server(owner)
    for url in ("https://elsewhere.example.com/mcp", URL):
        answer = await owner.http.patch(f"/servers/{server_id}", json={"url": url})
        assert answer.json()["header_names"] == []


async def test_deleting_a_server_deletes_all_its_rows_and_no_others(user: TestUser, container: Container) -> None:
    kept = await user.add_tools(tool("read_mail", "Reads a mail."), server="mail")
    before = await rows_of(container, user.id)
    deleted = await user.add_tools(tool("read_file", "Reads a file."), tool("write_file", "Writes a file."))
    assert (await user.http.delete(f"/servers/{deleted}")).status_code == 204
    assert await rows_of(container, user.id) == before
    assert_problem(await user.http.delete(f"/servers/{deleted}"), 404)
    assert_problem(await user.http.get(f"/servers/{deleted}"), 404)
    assert [server["id"] for server in (await user.http.get("/servers")).json()["items"]] == [kept]
    found = await user.discover("read a file", similarity_threshold=0)
    assert (found["total_searched"], [hit["tool"]["name"] for hit in found["tools"]]) == (1, ["read_mail"])


async def test_a_users_tool_count_follows_added_and_deleted_tools(user: TestUser, admin: httpx.AsyncClient) -> None:
    server_id = await user.add_tools(tool("read_file"), tool("write_file"))
    assert (await user.http.get(f"/servers/{server_id}")).json()["tool_count"] == 2
    assert (await admin.get(f"/users/{user.id}")).json()["tool_count"] == 2
    await user.http.delete(f"/servers/{server_id}")
    assert (await admin.get(f"/users/{user.id}")).json()["tool_count"] == 0


async def test_the_name_of_a_deleted_server_can_be_used_again(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read_file", "Reads a file."))
    await user.http.delete(f"/servers/{server_id}")
    await user.add_tools(tool("read_file", "Reads a file."))
    assert (await user.discover("read a file"))["total_searched"] == 1


async def test_a_renamed_server_is_found_under_its_new_name(user: TestUser) -> None:
    server_id = await user.add_tools(tool("list_items", "Lists what is there."), server="warehouse")
    await user.add_tools(tool("list_items", "Lists what is there."), server="theatre")
    assert (await user.http.patch(f"/servers/{server_id}", json={"name": "zoo"})).json()["name"] == "zoo"
    for _ in range(1_200):
        found = await user.discover("zoo", strategy="bm25")
        if found["tools"]:
            break
        await asyncio.sleep(0.05)
    assert [(hit["server_id"], hit["server_name"]) for hit in found["tools"]] == [(server_id, "zoo")]
    assert (await user.discover("warehouse", strategy="bm25"))["no_match"] is True
    assert {found["server_name"] for found in (await user.tools()).values()} <= {"zoo", "theatre"}


async def test_an_administrator_finds_a_server_by_its_id(
    user: TestUser, other_user: TestUser, admin: httpx.AsyncClient
) -> None:
    server_id = await user.add_server()
    path = f"/servers/{server_id}"
    assert (await admin.get(path)).json()["user_id"] == user.id
    assert (await admin.patch(path, json={"description": "seen to"})).json()["description"] == "seen to"
    pushed = await admin.put(f"{path}/tools", json={"tools": [tool("read_file")]}, params={"wait": True})
    assert pushed.json()["counts"]["added"] == 1
    assert (await admin.post(f"{path}/reindex", params={"wait": True})).status_code == 200
    assert len((await admin.get(f"{path}/runs")).json()["items"]) == 2
    assert_problem(await admin.get(path, headers={"X-User-Id": other_user.id}), 404)
    assert_problem(await admin.get(f"/servers/{uuid.uuid4()}"), 404)
    assert (await admin.get(path, headers={"X-User-Id": user.id})).status_code == 200
    assert (await admin.delete(path)).status_code == 204
    assert_problem(await user.http.get(path), 404)
