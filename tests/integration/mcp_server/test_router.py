"""Tests of the MCP endpoint: authentication, hosts and origins, and answers to malformed messages, which follow the
specification and show no internals."""

import json
import logging
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from mcp import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from app.auth.authentication import Authenticator
from app.container import Container
from app.db.engine import Database
from tests.support.checks import assert_problem, assert_refused
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, tool
from tests.support.mcp_client import (
    MODES,
    OLDER_HEADERS,
    Json,
    Mode,
    call_meta_tool,
    connect_client,
    get_error,
    get_text,
    make_headers,
    make_message,
    send_message,
)
from tests.support.mcp_server import FakeMcpServer

MIB = 1024 * 1024
LISTING = make_message("tools/list")
MODERN_HEADERS = make_headers(LISTING)
ERAS = {"modern": MODERN_HEADERS, "older": OLDER_HEADERS, "no version": {"Accept": OLDER_HEADERS["Accept"]}}
INTERNALS = re.compile(r"pydantic|validation error|Traceback|\.py\b|input_value|JSONRPC[A-Z]|site-packages|psycopg")
DISCOVERY: Json = {"name": "tool_discovery", "arguments": {"query": ["read a file"]}}


@pytest.fixture(scope="module")
async def reader(container: Container) -> AsyncIterator[TestUser]:
    """A user that tests only read with."""
    async with new_user(container) as created:
        yield created


def parse_rpc(answer: httpx.Response) -> Json:
    """Return the message of a response: its body, or the last event of a stream."""
    assert INTERNALS.search(answer.text) is None, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        *_, last = re.findall(r"^data: (.*?)\r?$", answer.text, re.MULTILINE)
        message: Json = json.loads(last)
    else:
        assert answer.headers["content-type"] == "application/json"
        message = answer.json()
    assert message["jsonrpc"] == "2.0"
    return message


def error_code(answer: httpx.Response) -> int:
    code: int = parse_rpc(answer)["error"]["code"]
    return code


def has_tools(answer: httpx.Response) -> bool:
    return answer.status_code == 200 and "tools" in parse_rpc(answer)["result"]


async def post_raw(http: httpx.AsyncClient, body: bytes | Json, headers: dict[str, str], **more: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await http.post("/mcp", content=content, headers={"Content-Type": "application/json", **headers, **more})


# Authentication


async def test_a_key_is_accepted_in_either_header(client: httpx.AsyncClient, reader: TestUser) -> None:
    for header in ({"Authorization": f"Bearer {reader.key}"}, {"X-API-Key": reader.key}):
        assert has_tools(await send_message(client, LISTING, **header))
    both = await send_message(client, LISTING, **{"Authorization": f"Bearer {reader.key}", "X-API-Key": reader.key})
    assert_refused(both, 400)


@pytest.mark.parametrize(
    "header",
    [{}, {"Authorization": "Bearer ts_wrong"}, {"X-API-Key": "ts_wrong"}, {"Authorization": "Basic dTpw"}],
    ids=["none", "wrong bearer", "wrong key", "another scheme"],
)
async def test_a_request_without_a_valid_key_is_unauthenticated(
    client: httpx.AsyncClient, header: dict[str, str]
) -> None:
    answer = await send_message(client, LISTING, **header)
    assert_refused(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_revoked_key_is_rejected(client: httpx.AsyncClient, admin: httpx.AsyncClient, reader: TestUser) -> None:
    created = (await admin.post("/keys", json={"kind": "user", "user_id": reader.id})).json()
    bearer = {"Authorization": f"Bearer {created['key']}"}
    assert has_tools(await send_message(client, LISTING, **bearer))
    assert (await admin.delete(f"/keys/{created['id']}")).status_code == 204
    assert_refused(await send_message(client, LISTING, **bearer), 401)


async def test_a_service_or_admin_key_must_name_its_user(
    client: httpx.AsyncClient, admin: httpx.AsyncClient, reader: TestUser
) -> None:
    service = (await admin.post("/keys", json={"kind": "service"})).json()["key"]
    for key in (service, ADMIN_KEY):
        bearer = {"Authorization": f"Bearer {key}"}
        assert has_tools(await send_message(client, LISTING, **bearer, **{"X-User-Id": reader.id}))
        assert "X-User-Id" in assert_refused(await send_message(client, LISTING, **bearer), 400)


async def test_a_user_key_cannot_act_for_another_user(reader: TestUser, other_user: TestUser) -> None:
    assert has_tools(await send_message(reader.http, LISTING, **{"X-User-Id": reader.id}))
    assert_refused(await send_message(reader.http, LISTING, **{"X-User-Id": other_user.id}), 403)


async def test_a_project_key_stays_inside_its_project(
    client: httpx.AsyncClient, admin: httpx.AsyncClient, user: TestUser
) -> None:
    inside = await user.add_tools(tool("read_file", "Read a file"), server="inside")
    await user.add_tools(tool("read_file_too", "Read a file"), server="outside")
    mine, other = [
        (await user.http.post("/projects", json={"name": name, "server_ids": [inside]})).json()["id"]
        for name in ("mine", "other")
    ]
    created = await admin.post("/keys", json={"kind": "user", "user_id": user.id, "project_id": mine})
    bearer = {"Authorization": f"Bearer {created.json()['key']}"}
    discovery_call = make_message("tools/call", DISCOVERY)
    for path in ("/mcp", f"/projects/{mine}/mcp"):
        found = parse_rpc(await send_message(client, discovery_call, path, **bearer))["result"]["structuredContent"][
            "results"
        ]
        assert [hit["toolName"] for hit in found] == ["read_file"]
    assert_refused(await send_message(client, discovery_call, f"/projects/{other}/mcp", **bearer), 404)
    assert_refused(await send_message(client, discovery_call, f"/projects/{uuid.uuid4()}/mcp", **bearer), 404)
    everything = (await call_meta_tool(user.http, **DISCOVERY))["structuredContent"]["results"]
    assert {hit["toolName"] for hit in everything} == {"read_file", "read_file_too"}


async def test_another_users_tool_is_answered_like_a_missing_one(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("secret")]
    await other_user.connect(mcp)
    theirs = (await other_user.tools())["secret"]["id"]
    for name in ("tool_execute", "get_tool_details"):
        results = [
            await call_meta_tool(user.http, name, {"toolKey": key}, "/mcp/full")
            for key in (theirs, str(uuid.uuid4()), "x")
        ]
        assert results[0] == results[1] == results[2]
        assert get_error(results[0])["code"] == "TOOL_NOT_FOUND"
        assert "isError" not in await call_meta_tool(other_user.http, name, {"toolKey": theirs}, "/mcp/full")
    assert len(mcp.calls) == 1


# Hosts and origins


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost@evil.example", "localhost."]
)
async def test_a_foreign_host_name_is_misdirected(reader: TestUser, client: httpx.AsyncClient, host: str) -> None:
    for http in (reader.http, client):
        message = assert_refused(await send_message(http, LISTING, Host=host), 421)
        assert "TOOLSCOUT_SERVED_HOSTS" in message


@pytest.mark.parametrize("host", ["localhost:8000", "LOCALHOST", "127.0.0.1:9", "[::1]:9", "toolscout", "a.localhost"])
async def test_ip_addresses_and_local_host_names_are_accepted(reader: TestUser, host: str) -> None:
    assert has_tools(await send_message(reader.http, LISTING, Host=host))


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://toolscout:81", "http://toolscout.evil"])
async def test_a_foreign_origin_is_forbidden(reader: TestUser, origin: str) -> None:
    assert "TOOLSCOUT_WEB_ORIGINS" in assert_refused(await send_message(reader.http, LISTING, Origin=origin), 403)
    assert has_tools(await send_message(reader.http, LISTING, Origin="http://toolscout"))


PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, mcp-protocol-version, mcp-method, mcp-name",
}


async def test_a_configured_host_and_origin_are_accepted(container: Container, reader: TestUser) -> None:
    configured = {"served_hosts": "Tools.example.com", "web_origins": "https://Chat.example.com"}
    service = replace(container, settings=container.settings.model_copy(update=configured))
    async with open_client(service, Authorization=f"Bearer {reader.key}") as http:
        page = {"Host": "tools.example.com", "Origin": "https://chat.example.com"}
        answer = await send_message(http, LISTING, **page)
        assert has_tools(answer)
        assert answer.headers["access-control-allow-origin"] == "https://chat.example.com"
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"Mcp-Session-Id", "Retry-After"} <= set(exposed)
        preflight = await http.options("/mcp", headers={**page, **PREFLIGHT})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://chat.example.com"
        allowed = preflight.headers["access-control-allow-headers"].lower()
        assert all(name in allowed for name in PREFLIGHT["Access-Control-Request-Headers"].split(", "))

        foreign = {**page, "Origin": "https://evil.example"}
        assert_refused(await send_message(http, LISTING, **foreign), 403)
        refused = await http.options("/mcp", headers={**foreign, **PREFLIGHT})
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers
        assert_refused(await send_message(http, LISTING, Host="evil.example"), 421)


# Malformed messages


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/full"])
async def test_only_post_is_allowed(reader: TestUser, method: str, path: str) -> None:
    answer = await reader.http.request(method, path, headers=MODERN_HEADERS)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def make_listing(**changes: Any) -> bytes:
    """Return a `tools/list` request with these changes."""
    return json.dumps({**LISTING, **changes}).encode()


def listing_with_param(value: bytes) -> bytes:
    """Return a `tools/list` request with an unknown param of this JSON value."""
    meta = json.dumps(LISTING["params"]["_meta"]).encode()
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":%b,"x":%b}}' % (meta, value)


UNREADABLE = {
    "empty": b"",
    "truncated": make_listing()[:-2],
    "not UTF-8": listing_with_param(b'"\xff"'),
    "NaN": listing_with_param(b"NaN"),
    "a lone surrogate": listing_with_param(rb'"\ud800"'),
    "a NUL": listing_with_param(rb'"\u0000"'),
    "2000 levels": listing_with_param(b"[" * 2_000 + b"]" * 2_000),
}
READABLE = {
    "a number": listing_with_param(b"1.5"),
    "a pair of surrogates": listing_with_param(rb'"\ud83d\ude00"'),
    "a backslash": listing_with_param(rb'"\\u0000"'),
    "100 levels": listing_with_param(b"[" * 100 + b"]" * 100),
}
INVALID = {
    "a batch": b"[%b]" % make_listing(),
    "an empty batch": b"[]",
    "a text": b'"tools/list"',
    "null": b"null",
    "jsonrpc 1.0": make_listing(jsonrpc="1.0"),
    "jsonrpc as a number": make_listing(jsonrpc=2.0),
    "no jsonrpc": b'{"id": 1, "method": "tools/list"}',
    "id null": make_listing(id=None),
    "id with a fraction": make_listing(id=1.5),
    "id true": make_listing(id=True),
    "id a list": make_listing(id=[1]),
    "params a list": make_listing(params=[]),
    "params a text": make_listing(params="x"),
    "method a number": make_listing(method=5),
    "no method": b'{"jsonrpc": "2.0", "id": 1}',
    "a response": b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
    "a malformed response": b'{"jsonrpc": "2.0", "id": 1, "result": 5}',
    "an error": b'{"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}',
    "a malformed error": b'{"jsonrpc": "2.0", "id": 1, "error": 5}',
    "an error without an id": b'{"jsonrpc": "2.0", "error": {"code": 1, "message": "x"}}',
}
VALID = {
    "id a text": make_listing(id="a"),
    "id 0": make_listing(id=0),
    "id below 0": make_listing(id=-1),
    "an unknown member": make_listing(extra=1),
}


@pytest.mark.parametrize("era", ERAS)
async def test_an_unreadable_body_is_a_parse_error(reader: TestUser, era: str) -> None:
    for name, body in UNREADABLE.items():
        answer = await post_raw(reader.http, body, ERAS[era])
        assert (answer.status_code, error_code(answer)) == (400, PARSE_ERROR), name
        assert parse_rpc(answer)["id"] is None
    for name, body in READABLE.items():
        assert has_tools(await post_raw(reader.http, body, ERAS[era])), name


@pytest.mark.parametrize("era", ERAS)
async def test_a_body_that_is_not_a_message_is_an_invalid_request(reader: TestUser, era: str) -> None:
    for name, body in INVALID.items():
        answer = await post_raw(reader.http, body, ERAS[era])
        assert (answer.status_code, error_code(answer)) == (400, INVALID_REQUEST), name
    for name, body in VALID.items():
        answer = await post_raw(reader.http, body, ERAS[era])
        assert has_tools(answer), name
        assert parse_rpc(answer)["id"] == json.loads(body)["id"]


async def test_older_clients_may_send_null_params(reader: TestUser) -> None:
    assert has_tools(await post_raw(reader.http, make_listing(params=None), OLDER_HEADERS))
    assert error_code(await post_raw(reader.http, make_listing(params=None), MODERN_HEADERS)) == INVALID_PARAMS


async def test_the_body_size_is_limited(reader: TestUser) -> None:
    def make_body(size: int) -> bytes:
        return listing_with_param(b'"' + b"x" * (size - len(listing_with_param(b'""'))) + b'"')

    assert len(make_body(MIB)) == MIB
    assert has_tools(await post_raw(reader.http, make_body(MIB), MODERN_HEADERS))
    assert_problem(await post_raw(reader.http, make_body(MIB + 1), MODERN_HEADERS), 413)


@pytest.mark.parametrize("era", ERAS)
async def test_accept_and_content_type_are_checked(reader: TestUser, era: str) -> None:
    async def status(**headers: str) -> int:
        answer = await post_raw(reader.http, LISTING, ERAS[era], **headers)
        assert INTERNALS.search(answer.text) is None
        return answer.status_code

    for accept in ("text/html", "application/json", "text/event-stream"):
        assert await status(Accept=accept) == 406
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert await status(**{"Content-Type": content_type}) == 400
    assert await status(Accept="*/*") == 200
    assert await status(**{"Content-Type": "application/json; charset=utf-8"}) == 200


def listing_of_version(version: str) -> Json:
    return make_message("tools/list", {"_meta": {PROTOCOL_VERSION_META_KEY: version}})


async def test_an_unsupported_version_is_rejected_with_the_supported_ones(reader: TestUser) -> None:
    unknown = await post_raw(
        reader.http, listing_of_version("1999-01-01"), MODERN_HEADERS, **{"MCP-Protocol-Version": "1999-01-01"}
    )
    assert (unknown.status_code, error_code(unknown)) == (400, UNSUPPORTED_PROTOCOL_VERSION)
    assert LATEST_MODERN_VERSION in parse_rpc(unknown)["error"]["data"]["supported"]
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", LATEST_HANDSHAKE_VERSION):
        assert has_tools(await post_raw(reader.http, LISTING, OLDER_HEADERS, **{"MCP-Protocol-Version": version}))


MISMATCHED: dict[str, tuple[Json, dict[str, str]]] = {
    "another version in the header": (LISTING, {"MCP-Protocol-Version": "2099-01-01"}),
    "another version in the message": (listing_of_version(LATEST_HANDSHAKE_VERSION), {}),
    "another method": (LISTING, {"Mcp-Method": "ping"}),
    "another name": (make_message("tools/call", DISCOVERY), {"Mcp-Name": "tool_execute"}),
    "no name": (make_message("tools/call", DISCOVERY), {"Mcp-Name": ""}),
}


@pytest.mark.parametrize("case", MISMATCHED)
async def test_headers_that_contradict_the_message_are_rejected(reader: TestUser, case: str) -> None:
    body, headers = MISMATCHED[case]
    answer = await send_message(reader.http, body, **headers)
    assert (answer.status_code, error_code(answer)) == (400, HEADER_MISMATCH)
    assert parse_rpc(answer)["id"] == 1
    matching = make_message(body["method"], {**body["params"], "_meta": {}})
    assert "result" in parse_rpc(await send_message(reader.http, matching))


async def test_the_newer_protocol_requires_its_meta(reader: TestUser) -> None:
    answer = await post_raw(reader.http, make_listing(params={}), MODERN_HEADERS)
    assert (answer.status_code, error_code(answer)) == (400, INVALID_PARAMS)
    assert has_tools(await post_raw(reader.http, LISTING, MODERN_HEADERS))


INVALID_CALLS: dict[str, Json] = {
    "no name": {"arguments": {}},
    "arguments a list": {"name": "tool_discovery", "arguments": []},
    "an invalid progress token": {**DISCOVERY, "_meta": {"progressToken": {}}},
    "invalid input responses": {**DISCOVERY, "inputResponses": 5},
    "an unknown tool": {"name": "tool_discover", "arguments": {}},
}


@pytest.mark.parametrize("case", INVALID_CALLS)
async def test_invalid_params_are_rejected(reader: TestUser, case: str) -> None:
    body = make_message("tools/call", INVALID_CALLS[case])
    answer = await send_message(reader.http, body)
    assert (answer.status_code, error_code(answer)) == (400, INVALID_PARAMS)
    assert error_code(await post_raw(reader.http, body, OLDER_HEADERS)) == INVALID_PARAMS
    assert "isError" not in await call_meta_tool(reader.http, **DISCOVERY)


async def test_the_error_for_an_unknown_tool_names_the_known_ones(reader: TestUser) -> None:
    body = make_message("tools/call", {"name": "list_servers", "arguments": {}})
    message = parse_rpc(await send_message(reader.http, body))["error"]["message"]
    assert "tool_discovery, tool_execute" in message
    assert parse_rpc(await send_message(reader.http, body, "/mcp/full"))["result"]["structuredContent"] == {
        "servers": []
    }


@pytest.mark.parametrize("depth", [200, 400])
async def test_the_depth_of_arguments_is_limited(user: TestUser, mcp: FakeMcpServer, depth: int) -> None:
    mcp.tools = [tool("dig")]
    await user.connect(mcp)
    key = (await user.tools())["dig"]["id"]
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    result = await call_meta_tool(user.http, "tool_execute", {"toolKey": key, "arguments": {"x": nested}})
    if depth == 200:
        assert ("isError" in result, len(mcp.calls)) == (False, 1)
    else:
        assert (get_error(result)["code"], mcp.calls) == ("TOOL_VALIDATION_ERROR", [])


# Other methods


@pytest.mark.parametrize("method", ["resources/list", "prompts/list", "resources/templates/list", "no/such"])
async def test_an_unknown_method_is_not_found(reader: TestUser, method: str) -> None:
    modern = await send_message(reader.http, make_message(method))
    assert (modern.status_code, error_code(modern)) == (404, METHOD_NOT_FOUND)
    assert error_code(await post_raw(reader.http, make_message(method), OLDER_HEADERS)) == METHOD_NOT_FOUND
    assert has_tools(await send_message(reader.http, LISTING))


async def test_older_clients_may_ping(reader: TestUser) -> None:
    assert parse_rpc(await post_raw(reader.http, make_message("ping"), OLDER_HEADERS))["result"] == {}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("method", ["initialized", "cancelled", "roots/list_changed", "no_such"])
async def test_a_notification_is_accepted_without_a_body(reader: TestUser, era: str, method: str) -> None:
    params_variants: list[Json | None] = [{}, {"requestId": 7}, {"requestId": {}}, None]
    for params in params_variants:
        notification = {"jsonrpc": "2.0", "method": f"notifications/{method}"} | (
            {} if params is None else {"params": params}
        )
        answer = await post_raw(reader.http, notification, ERAS[era])
        assert (answer.status_code, answer.content) == (202, b"")


def make_initialize(version: str = LATEST_HANDSHAKE_VERSION) -> Json:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


@pytest.mark.parametrize(("requested", "negotiated"), [("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")])
async def test_an_older_client_gets_a_session_id_that_is_not_stored(
    reader: TestUser, container: Container, requested: str, negotiated: str
) -> None:
    initialized = await post_raw(reader.http, make_initialize(requested), ERAS["no version"])
    result = parse_rpc(initialized)["result"]
    assert result["protocolVersion"] == negotiated
    assert result["capabilities"] == {"tools": {"listChanged": False}}
    assert result["serverInfo"]["name"] == "toolscout"
    session = initialized.headers["mcp-session-id"]
    assert uuid.UUID(session)
    for session_header in ({"Mcp-Session-Id": session}, {"Mcp-Session-Id": str(uuid.uuid4())}, {}):
        answer = await post_raw(reader.http, LISTING, OLDER_HEADERS, **session_header)
        assert has_tools(answer)
        assert "mcp-session-id" not in answer.headers


async def test_a_client_of_the_newer_protocol_gets_no_session(reader: TestUser) -> None:
    answer = await send_message(reader.http, make_message("server/discover"))
    assert parse_rpc(answer)["result"]["capabilities"] == {"tools": {"listChanged": False}}
    assert "mcp-session-id" not in answer.headers


# Failures of the service


def unreachable_database(container: Container) -> Database:
    """Return a database that does not exist."""
    url = container.database.engine.url
    return Database(url.set(database="no_such_database").render_as_string(hide_password=False), pool_size=1)


@asynccontextmanager
async def without_database(container: Container, key: str, *, known: bool) -> AsyncIterator[httpx.AsyncClient]:
    """`known`: the key can still be authenticated."""
    database = unreachable_database(container)
    searcher = replace(container.searcher, database=database)
    service = replace(
        container,
        database=database,
        authenticator=container.authenticator if known else Authenticator(database, ADMIN_KEY),
        searcher=searcher,
        discoverer=replace(container.discoverer, searcher=searcher),
        executor=replace(container.executor, database=database),
    )
    async with open_client(service, Authorization=f"Bearer {key}") as http:
        yield http
    await database.close()


async def test_the_endpoint_is_unavailable_without_its_database(container: Container, reader: TestUser) -> None:
    async with without_database(container, reader.key, known=False) as http:
        for path in ("/mcp", "/mcp/full", f"/projects/{uuid.uuid4()}/mcp"):
            answer = await send_message(http, LISTING, path)
            assert_refused(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1
            assert INTERNALS.search(answer.text) is None
    assert has_tools(await send_message(reader.http, LISTING))


async def test_a_call_without_the_database_advises_to_try_again(
    container: Container, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("read_file")]
    await user.connect(mcp)
    key = (await user.tools())["read_file"]["id"]
    calls: list[tuple[str, Json]] = [
        ("tool_discovery", DISCOVERY["arguments"]),
        ("tool_execute", {"toolKey": key}),
        ("list_servers", {}),
        ("list_tools", {"server": "files"}),
        ("get_tool_details", {"toolKey": key}),
    ]
    async with without_database(container, user.key, known=True) as http:
        for name, arguments in calls:
            result = await call_meta_tool(http, name, arguments, "/mcp/full")
            assert get_error(result)["code"] == "unavailable"
            assert "Try again" in get_text(result)
            assert INTERNALS.search(get_text(result)) is None
            assert "structuredContent" not in result
    assert mcp.calls == []
    for name, arguments in calls:
        assert "isError" not in await call_meta_tool(user.http, name, arguments, "/mcp/full")


async def raise_unexpected(*_: object) -> Json:
    raise RuntimeError("canary-5c1f")


@pytest.mark.parametrize("era", ["modern", "older"])
async def test_an_unexpected_error_is_reported_without_its_cause_and_logged_once(
    reader: TestUser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, era: str
) -> None:
    body = make_message("tools/call", DISCOVERY)
    headers = make_headers(body) if era == "modern" else OLDER_HEADERS
    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG):
        patch.setattr("app.mcp_server.discovery_handlers.discover_each", raise_unexpected)
        answer = await post_raw(reader.http, body, headers)
    error = parse_rpc(answer)["error"]
    assert error["code"] == INTERNAL_ERROR
    assert answer.headers["x-request-id"] in error["message"]
    assert "canary" not in answer.text
    assert "RuntimeError" not in answer.text
    # background work of other tests may have logged errors of its own
    [record] = [entry for entry in caplog.records if entry.exc_info and "canary-5c1f" in str(entry.exc_info[1])]
    assert (record.name, record.levelname, record.getMessage()) == ("toolscout.mcp", "ERROR", "unexpected error")
    assert "canary-5c1f" in caplog.text
    assert "result" in parse_rpc(await post_raw(reader.http, body, headers))


async def read_counter(http: httpx.AsyncClient, name: str, outcome: str) -> float:
    line = f'toolscout_mcp_calls_total{{outcome="{outcome}",tool="{name}"}} '
    metrics = (await http.get("/metrics")).text
    return sum(float(row.removeprefix(line)) for row in metrics.splitlines() if row.startswith(line))


async def test_calls_are_counted_by_tool_and_outcome(
    reader: TestUser, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counts() -> list[float]:
        kinds = [(name, outcome) for name in ("search_tools", "list_tools") for outcome in ("succeeded", "failed")]
        return [await read_counter(client, name, outcome) for name, outcome in kinds]

    before = await counts()
    await call_meta_tool(reader.http, "search_tools", {"query": "a file"}, "/mcp/full")
    await call_meta_tool(reader.http, "search_tools", {"query": ""}, "/mcp/full")
    await call_meta_tool(reader.http, "list_tools", {"server": "none"}, "/mcp/full")
    with monkeypatch.context() as patch:
        patch.setattr("app.mcp_server.catalog_handlers.list_server_definitions", raise_unexpected)
        await send_message(
            reader.http, make_message("tools/call", {"name": "list_tools", "arguments": {"server": "x"}}), "/mcp/full"
        )
    unknown = make_message("tools/call", {"name": "canary-5c1f", "arguments": {}})
    await send_message(reader.http, unknown)
    assert [now - then for now, then in zip(await counts(), before, strict=True)] == [1, 1, 0, 2]
    assert "canary-5c1f" not in (await client.get("/metrics")).text


async def test_every_response_has_a_request_id(reader: TestUser, client: httpx.AsyncClient) -> None:
    answers = [
        await send_message(reader.http, LISTING),
        await post_raw(reader.http, LISTING, OLDER_HEADERS),
        await post_raw(reader.http, b"{", MODERN_HEADERS),
        await send_message(client, LISTING),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 401]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_learns_why_it_was_rejected(address: str, mode: Mode) -> None:
    async def connect_with_wrong_key() -> None:
        async with connect_client(f"{address}/mcp", "ts_wrong", mode) as client:
            await client.list_tools()

    with pytest.raises((MCPError, ExceptionGroup)) as refused:
        await connect_with_wrong_key()
    error: BaseException = refused.value
    while isinstance(error, ExceptionGroup):
        [error] = error.exceptions
    assert isinstance(error, MCPError)
    assert "key" in error.message
