"""Who comes in at the MCP door, and how it answers what is no proper message: as the specification says, in few words,
and never with a word about its own insides."""

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
from tests.conftest import ADMIN_KEY, TestUser, client_of, new_user, tool
from tests.support.checks import assert_problem, assert_refused
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
INSIDES = re.compile(r"pydantic|validation error|Traceback|\.py\b|input_value|JSONRPC[A-Z]|site-packages|psycopg")
DISCOVERY: Json = {"name": "tool_discovery", "arguments": {"query": ["read a file"]}}


@pytest.fixture(scope="module")
async def visitor(container: Container) -> AsyncIterator[TestUser]:
    """Only asks."""
    async with new_user(container) as made:
        yield made


def rpc(answer: httpx.Response) -> Json:
    """The message in an answer, which is the last event where it is a stream."""
    assert INSIDES.search(answer.text) is None, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        *_, last = re.findall(r"^data: (.*?)\r?$", answer.text, re.MULTILINE)
        told: Json = json.loads(last)
    else:
        assert answer.headers["content-type"] == "application/json"
        told = answer.json()
    assert told["jsonrpc"] == "2.0"
    return told


def error_code(answer: httpx.Response) -> int:
    code: int = rpc(answer)["error"]["code"]
    return code


def lists(answer: httpx.Response) -> bool:
    return answer.status_code == 200 and "tools" in rpc(answer)["result"]


async def posted(http: httpx.AsyncClient, body: bytes | Json, headers: dict[str, str], **more: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await http.post("/mcp", content=content, headers={"Content-Type": "application/json", **headers, **more})


# Who comes in


async def test_a_key_opens_the_door_in_either_header(client: httpx.AsyncClient, visitor: TestUser) -> None:
    for header in ({"Authorization": f"Bearer {visitor.key}"}, {"X-API-Key": visitor.key}):
        assert lists(await send_message(client, LISTING, **header))
    both = await send_message(client, LISTING, **{"Authorization": f"Bearer {visitor.key}", "X-API-Key": visitor.key})
    assert_refused(both, 400)


@pytest.mark.parametrize(
    "header",
    [{}, {"Authorization": "Bearer ts_wrong"}, {"X-API-Key": "ts_wrong"}, {"Authorization": "Basic dTpw"}],
    ids=["none", "wrong bearer", "wrong key", "another scheme"],
)
async def test_whoever_has_no_key_is_told_to_bring_one(client: httpx.AsyncClient, header: dict[str, str]) -> None:
    answer = await send_message(client, LISTING, **header)
    assert_refused(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_revoked_key_opens_nothing_any_more(
    client: httpx.AsyncClient, admin: httpx.AsyncClient, visitor: TestUser
) -> None:
    made = (await admin.post("/keys", json={"kind": "user", "user_id": visitor.id})).json()
    bearer = {"Authorization": f"Bearer {made['key']}"}
    assert lists(await send_message(client, LISTING, **bearer))
    assert (await admin.delete(f"/keys/{made['id']}")).status_code == 204
    assert_refused(await send_message(client, LISTING, **bearer), 401)


async def test_a_key_for_many_users_says_for_whom(
    client: httpx.AsyncClient, admin: httpx.AsyncClient, visitor: TestUser
) -> None:
    service = (await admin.post("/keys", json={"kind": "service"})).json()["key"]
    for key in (service, ADMIN_KEY):
        bearer = {"Authorization": f"Bearer {key}"}
        assert lists(await send_message(client, LISTING, **bearer, **{"X-User-Id": visitor.id}))
        assert "X-User-Id" in assert_refused(await send_message(client, LISTING, **bearer), 400)


async def test_a_users_key_is_for_that_user_alone(visitor: TestUser, other_user: TestUser) -> None:
    assert lists(await send_message(visitor.http, LISTING, **{"X-User-Id": visitor.id}))
    assert_refused(await send_message(visitor.http, LISTING, **{"X-User-Id": other_user.id}), 403)


async def test_a_projects_key_stays_within_its_project(
    client: httpx.AsyncClient, admin: httpx.AsyncClient, user: TestUser
) -> None:
    inside = await user.add_tools(tool("read_file", "Read a file"), server="inside")
    await user.add_tools(tool("read_file_too", "Read a file"), server="outside")
    mine, other = [
        (await user.http.post("/projects", json={"name": name, "server_ids": [inside]})).json()["id"]
        for name in ("mine", "other")
    ]
    made = await admin.post("/keys", json={"kind": "user", "user_id": user.id, "project_id": mine})
    bearer = {"Authorization": f"Bearer {made.json()['key']}"}
    asking = make_message("tools/call", DISCOVERY)
    for path in ("/mcp", f"/projects/{mine}/mcp"):
        found = rpc(await send_message(client, asking, path, **bearer))["result"]["structuredContent"]["results"]
        assert [hit["toolName"] for hit in found] == ["read_file"]
    assert_refused(await send_message(client, asking, f"/projects/{other}/mcp", **bearer), 404)
    assert_refused(await send_message(client, asking, f"/projects/{uuid.uuid4()}/mcp", **bearer), 404)
    everything = (await call_meta_tool(user.http, **DISCOVERY))["structuredContent"]["results"]
    assert {hit["toolName"] for hit in everything} == {"read_file", "read_file_too"}


async def test_another_users_tool_answers_as_one_that_never_was(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("secret")]
    await other_user.connect(mcp)
    theirs = (await other_user.tools())["secret"]["id"]
    for name in ("tool_execute", "get_tool_details"):
        told = [
            await call_meta_tool(user.http, name, {"toolKey": key}, "/mcp/full")
            for key in (theirs, str(uuid.uuid4()), "x")
        ]
        assert told[0] == told[1] == told[2]
        assert get_error(told[0])["code"] == "TOOL_NOT_FOUND"
        assert "isError" not in await call_meta_tool(other_user.http, name, {"toolKey": theirs}, "/mcp/full")
    assert len(mcp.calls) == 1


# From where


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost@evil.example", "localhost."]
)
async def test_a_name_that_is_not_ours_is_misdirected(visitor: TestUser, client: httpx.AsyncClient, host: str) -> None:
    for http in (visitor.http, client):
        told = assert_refused(await send_message(http, LISTING, Host=host), 421)
        assert "TOOLSCOUT_SERVED_HOSTS" in told


@pytest.mark.parametrize("host", ["localhost:8000", "LOCALHOST", "127.0.0.1:9", "[::1]:9", "toolscout", "a.localhost"])
async def test_an_address_and_a_name_that_nobody_can_look_up_are_ours(visitor: TestUser, host: str) -> None:
    assert lists(await send_message(visitor.http, LISTING, Host=host))


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://toolscout:81", "http://toolscout.evil"])
async def test_a_page_of_a_strange_origin_may_not_ask(visitor: TestUser, origin: str) -> None:
    assert "TOOLSCOUT_WEB_ORIGINS" in assert_refused(await send_message(visitor.http, LISTING, Origin=origin), 403)
    assert lists(await send_message(visitor.http, LISTING, Origin="http://toolscout"))


PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, mcp-protocol-version, mcp-method, mcp-name",
}


async def test_a_named_host_and_a_named_origin_come_in(container: Container, visitor: TestUser) -> None:
    named = {"served_hosts": "Tools.example.com", "web_origins": "https://Chat.example.com"}
    service = replace(container, settings=container.settings.model_copy(update=named))
    async with client_of(service, Authorization=f"Bearer {visitor.key}") as http:
        page = {"Host": "tools.example.com", "Origin": "https://chat.example.com"}
        answer = await send_message(http, LISTING, **page)
        assert lists(answer)
        assert answer.headers["access-control-allow-origin"] == "https://chat.example.com"
        assert "Mcp-Session-Id" in answer.headers["access-control-expose-headers"]
        asked = await http.options("/mcp", headers={**page, **PREFLIGHT})
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://chat.example.com"
        allowed = asked.headers["access-control-allow-headers"].lower()
        assert all(name in allowed for name in PREFLIGHT["Access-Control-Request-Headers"].split(", "))

        strange = {**page, "Origin": "https://evil.example"}
        assert_refused(await send_message(http, LISTING, **strange), 403)
        refused = await http.options("/mcp", headers={**strange, **PREFLIGHT})
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers
        assert_refused(await send_message(http, LISTING, Host="evil.example"), 421)


# What is no proper message


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/full"])
async def test_only_posting_is_allowed(visitor: TestUser, method: str, path: str) -> None:
    answer = await visitor.http.request(method, path, headers=MODERN_HEADERS)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def spelled(**changes: Any) -> bytes:
    """A request for the list, but for this."""
    return json.dumps({**LISTING, **changes}).encode()


def carrying(value: bytes) -> bytes:
    """The same, with something of no meaning in its params."""
    meta = json.dumps(LISTING["params"]["_meta"]).encode()
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":%b,"x":%b}}' % (meta, value)


UNREADABLE = {
    "nothing": b"",
    "half of it": spelled()[:-2],
    "not UTF-8": carrying(b'"\xff"'),
    "NaN": carrying(b"NaN"),
    "a lone surrogate": carrying(rb'"\ud800"'),
    "a NUL": carrying(rb'"\u0000"'),
    "2000 deep": carrying(b"[" * 2_000 + b"]" * 2_000),
}
READABLE = {
    "a number": carrying(b"1.5"),
    "a pair of surrogates": carrying(rb'"\ud83d\ude00"'),
    "a backslash": carrying(rb'"\\u0000"'),
    "100 deep": carrying(b"[" * 100 + b"]" * 100),
}
WRONG = {
    "a batch": b"[%b]" % spelled(),
    "an empty batch": b"[]",
    "a text": b'"tools/list"',
    "null": b"null",
    "jsonrpc 1.0": spelled(jsonrpc="1.0"),
    "jsonrpc as a number": spelled(jsonrpc=2.0),
    "no jsonrpc": b'{"id": 1, "method": "tools/list"}',
    "id null": spelled(id=None),
    "id with a fraction": spelled(id=1.5),
    "id true": spelled(id=True),
    "id a list": spelled(id=[1]),
    "params a list": spelled(params=[]),
    "params a text": spelled(params="x"),
    "method a number": spelled(method=5),
    "no method": b'{"jsonrpc": "2.0", "id": 1}',
    "a response": b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
    "a response of an odd shape": b'{"jsonrpc": "2.0", "id": 1, "result": 5}',
    "an error": b'{"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}',
    "an error of an odd shape": b'{"jsonrpc": "2.0", "id": 1, "error": 5}',
    "an error for nothing": b'{"jsonrpc": "2.0", "error": {"code": 1, "message": "x"}}',
}
RIGHT = {
    "id a text": spelled(id="a"),
    "id 0": spelled(id=0),
    "id below 0": spelled(id=-1),
    "a member too many": spelled(extra=1),
}


@pytest.mark.parametrize("era", ERAS)
async def test_what_cannot_be_read_is_a_parse_error(visitor: TestUser, era: str) -> None:
    for name, body in UNREADABLE.items():
        answer = await posted(visitor.http, body, ERAS[era])
        assert (answer.status_code, error_code(answer)) == (400, PARSE_ERROR), name
        assert rpc(answer)["id"] is None
    for name, body in READABLE.items():
        assert lists(await posted(visitor.http, body, ERAS[era])), name


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_no_message_is_an_invalid_request(visitor: TestUser, era: str) -> None:
    for name, body in WRONG.items():
        answer = await posted(visitor.http, body, ERAS[era])
        assert (answer.status_code, error_code(answer)) == (400, INVALID_REQUEST), name
    for name, body in RIGHT.items():
        answer = await posted(visitor.http, body, ERAS[era])
        assert lists(answer), name
        assert rpc(answer)["id"] == json.loads(body)["id"]


async def test_older_clients_may_say_that_there_are_no_params(visitor: TestUser) -> None:
    assert lists(await posted(visitor.http, spelled(params=None), OLDER_HEADERS))
    assert error_code(await posted(visitor.http, spelled(params=None), MODERN_HEADERS)) == INVALID_PARAMS


async def test_a_body_has_a_limit(visitor: TestUser) -> None:
    def of(size: int) -> bytes:
        return carrying(b'"' + b"x" * (size - len(carrying(b'""'))) + b'"')

    assert len(of(MIB)) == MIB
    assert lists(await posted(visitor.http, of(MIB), MODERN_HEADERS))
    assert_problem(await posted(visitor.http, of(MIB + 1), MODERN_HEADERS), 413)


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_must_take_what_we_send_and_say_what_it_sends(visitor: TestUser, era: str) -> None:
    async def status(**headers: str) -> int:
        answer = await posted(visitor.http, LISTING, ERAS[era], **headers)
        assert INSIDES.search(answer.text) is None
        return answer.status_code

    for accept in ("text/html", "application/json", "text/event-stream"):
        assert await status(Accept=accept) == 406
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert await status(**{"Content-Type": content_type}) == 400
    assert await status(Accept="*/*") == 200
    assert await status(**{"Content-Type": "application/json; charset=utf-8"}) == 200


def of_version(version: str) -> Json:
    return make_message("tools/list", {"_meta": {PROTOCOL_VERSION_META_KEY: version}})


async def test_a_version_that_is_not_spoken_is_refused_with_those_that_are(visitor: TestUser) -> None:
    unknown = await posted(
        visitor.http, of_version("1999-01-01"), MODERN_HEADERS, **{"MCP-Protocol-Version": "1999-01-01"}
    )
    assert (unknown.status_code, error_code(unknown)) == (400, UNSUPPORTED_PROTOCOL_VERSION)
    assert LATEST_MODERN_VERSION in rpc(unknown)["error"]["data"]["supported"]
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", LATEST_HANDSHAKE_VERSION):
        assert lists(await posted(visitor.http, LISTING, OLDER_HEADERS, **{"MCP-Protocol-Version": version}))


MISMATCHED: dict[str, tuple[Json, dict[str, str]]] = {
    "another version in the header": (LISTING, {"MCP-Protocol-Version": "2099-01-01"}),
    "another version in the message": (of_version(LATEST_HANDSHAKE_VERSION), {}),
    "another method": (LISTING, {"Mcp-Method": "ping"}),
    "another name": (make_message("tools/call", DISCOVERY), {"Mcp-Name": "tool_execute"}),
    "no name": (make_message("tools/call", DISCOVERY), {"Mcp-Name": ""}),
}


@pytest.mark.parametrize("case", MISMATCHED)
async def test_headers_that_contradict_the_message_are_refused(visitor: TestUser, case: str) -> None:
    body, headers = MISMATCHED[case]
    answer = await send_message(visitor.http, body, **headers)
    assert (answer.status_code, error_code(answer)) == (400, HEADER_MISMATCH)
    assert rpc(answer)["id"] == 1
    twin = make_message(body["method"], {**body["params"], "_meta": {}})
    assert "result" in rpc(await send_message(visitor.http, twin))


async def test_the_newer_protocol_wants_its_envelope(visitor: TestUser) -> None:
    answer = await posted(visitor.http, spelled(params={}), MODERN_HEADERS)
    assert (answer.status_code, error_code(answer)) == (400, INVALID_PARAMS)
    assert lists(await posted(visitor.http, LISTING, MODERN_HEADERS))


BAD_CALLS: dict[str, Json] = {
    "no name": {"arguments": {}},
    "arguments a list": {"name": "tool_discovery", "arguments": []},
    "a token that is none": {**DISCOVERY, "_meta": {"progressToken": {}}},
    "responses that are none": {**DISCOVERY, "inputResponses": 5},
    "an unknown tool": {"name": "tool_discover", "arguments": {}},
}


@pytest.mark.parametrize("case", BAD_CALLS)
async def test_params_of_another_shape_are_refused(visitor: TestUser, case: str) -> None:
    body = make_message("tools/call", BAD_CALLS[case])
    answer = await send_message(visitor.http, body)
    assert (answer.status_code, error_code(answer)) == (400, INVALID_PARAMS)
    assert error_code(await posted(visitor.http, body, OLDER_HEADERS)) == INVALID_PARAMS
    assert "isError" not in await call_meta_tool(visitor.http, **DISCOVERY)


async def test_who_calls_an_unknown_tool_is_told_which_there_are(visitor: TestUser) -> None:
    body = make_message("tools/call", {"name": "list_servers", "arguments": {}})
    told = rpc(await send_message(visitor.http, body))["error"]["message"]
    assert "tool_discovery, tool_execute" in told
    assert rpc(await send_message(visitor.http, body, "/mcp/full"))["result"]["structuredContent"] == {"servers": []}


@pytest.mark.parametrize("deep", [200, 400])
async def test_arguments_may_be_deep_but_not_without_end(user: TestUser, mcp: FakeMcpServer, deep: int) -> None:
    mcp.tools = [tool("dig")]
    await user.connect(mcp)
    key = (await user.tools())["dig"]["id"]
    nested: list[Any] = []
    for _ in range(deep):
        nested = [nested]
    result = await call_meta_tool(user.http, "tool_execute", {"toolKey": key, "arguments": {"x": nested}})
    if deep == 200:
        assert ("isError" in result, len(mcp.calls)) == (False, 1)
    else:
        assert (get_error(result)["code"], mcp.calls) == ("TOOL_VALIDATION_ERROR", [])


# What there is beside tools, and what there is not


@pytest.mark.parametrize("method", ["resources/list", "prompts/list", "resources/templates/list", "no/such"])
async def test_a_method_that_there_is_not_is_not_found(visitor: TestUser, method: str) -> None:
    modern = await send_message(visitor.http, make_message(method))
    assert (modern.status_code, error_code(modern)) == (404, METHOD_NOT_FOUND)
    assert error_code(await posted(visitor.http, make_message(method), OLDER_HEADERS)) == METHOD_NOT_FOUND
    assert lists(await send_message(visitor.http, LISTING))


async def test_older_clients_may_ask_whether_anybody_is_there(visitor: TestUser) -> None:
    assert rpc(await posted(visitor.http, make_message("ping"), OLDER_HEADERS))["result"] == {}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("method", ["initialized", "cancelled", "roots/list_changed", "no_such"])
async def test_a_notification_is_taken_without_a_word(visitor: TestUser, era: str, method: str) -> None:
    several: list[Json | None] = [{}, {"requestId": 7}, {"requestId": {}}, None]
    for params in several:
        told = {"jsonrpc": "2.0", "method": f"notifications/{method}"} | ({} if params is None else {"params": params})
        answer = await posted(visitor.http, told, ERAS[era])
        assert (answer.status_code, answer.content) == (202, b"")


def beginning(version: str = LATEST_HANDSHAKE_VERSION) -> Json:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


@pytest.mark.parametrize(("asked", "spoken"), [("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")])
async def test_an_older_client_gets_a_session_that_nobody_need_remember(
    visitor: TestUser, container: Container, asked: str, spoken: str
) -> None:
    begun = await posted(visitor.http, beginning(asked), ERAS["no version"])
    result = rpc(begun)["result"]
    assert result["protocolVersion"] == spoken
    assert result["capabilities"] == {"tools": {"listChanged": False}}
    assert result["serverInfo"]["name"] == "toolscout"
    session = begun.headers["mcp-session-id"]
    assert uuid.UUID(session)
    for named in ({"Mcp-Session-Id": session}, {"Mcp-Session-Id": str(uuid.uuid4())}, {}):
        answer = await posted(visitor.http, LISTING, OLDER_HEADERS, **named)
        assert lists(answer)
        assert "mcp-session-id" not in answer.headers


async def test_a_client_of_the_newer_protocol_gets_no_session(visitor: TestUser) -> None:
    answer = await send_message(visitor.http, make_message("server/discover"))
    assert rpc(answer)["result"]["capabilities"] == {"tools": {"listChanged": False}}
    assert "mcp-session-id" not in answer.headers


# When something is wrong with us


def away_from(container: Container) -> Database:
    """A database that is not there."""
    url = container.database.engine.url
    return Database(url.set(database="no_such_database").render_as_string(hide_password=False), pool_size=1)


@asynccontextmanager
async def without_database(container: Container, key: str, *, known: bool) -> AsyncIterator[httpx.AsyncClient]:
    """`known`: whose key it is can still be looked up."""
    database = away_from(container)
    service = replace(
        container,
        database=database,
        authenticator=container.authenticator if known else Authenticator(database, ADMIN_KEY),
        discoverer=replace(container.discoverer, database=database),
        executor=replace(container.executor, database=database),
    )
    async with client_of(service, Authorization=f"Bearer {key}") as http:
        yield http
    await database.close()


async def test_without_its_database_the_door_is_shut_for_a_while(container: Container, visitor: TestUser) -> None:
    async with without_database(container, visitor.key, known=False) as http:
        for path in ("/mcp", "/mcp/full", f"/projects/{uuid.uuid4()}/mcp"):
            answer = await send_message(http, LISTING, path)
            assert_refused(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1
            assert INSIDES.search(answer.text) is None
    assert lists(await send_message(visitor.http, LISTING))


async def test_a_call_whose_database_is_away_says_to_try_again(
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
            assert INSIDES.search(get_text(result)) is None
            assert "structuredContent" not in result
    assert mcp.calls == []
    for name, arguments in calls:
        assert "isError" not in await call_meta_tool(user.http, name, arguments, "/mcp/full")


async def boom(*_: object) -> Json:
    raise RuntimeError("canary-5c1f")


@pytest.mark.parametrize("era", ["modern", "older"])
async def test_what_nobody_foresaw_is_told_without_its_cause_and_logged_once(
    visitor: TestUser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, era: str
) -> None:
    body = make_message("tools/call", DISCOVERY)
    headers = make_headers(body) if era == "modern" else OLDER_HEADERS
    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG):
        patch.setattr("app.mcp_server.tools.discover", boom)
        answer = await posted(visitor.http, body, headers)
    told = rpc(answer)["error"]
    assert told["code"] == INTERNAL_ERROR
    assert answer.headers["x-request-id"] in told["message"]
    assert "canary" not in answer.text
    assert "RuntimeError" not in answer.text
    # others, whose work goes on behind this test, may have stumbled over something of their own
    [record] = [each for each in caplog.records if each.exc_info and "canary-5c1f" in str(each.exc_info[1])]
    assert (record.name, record.levelname, record.getMessage()) == ("toolscout.mcp", "ERROR", "unexpected error")
    assert "canary-5c1f" in caplog.text
    assert "result" in rpc(await posted(visitor.http, body, headers))


async def counted(http: httpx.AsyncClient, name: str, outcome: str) -> float:
    line = f'toolscout_mcp_calls_total{{outcome="{outcome}",tool="{name}"}} '
    shown = (await http.get("/metrics")).text
    return sum(float(each.removeprefix(line)) for each in shown.splitlines() if each.startswith(line))


async def test_calls_are_counted_by_tool_and_outcome(
    visitor: TestUser, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counts() -> list[float]:
        kinds = [(name, outcome) for name in ("search_tools", "list_tools") for outcome in ("succeeded", "failed")]
        return [await counted(client, name, outcome) for name, outcome in kinds]

    before = await counts()
    await call_meta_tool(visitor.http, "search_tools", {"query": "a file"}, "/mcp/full")
    await call_meta_tool(visitor.http, "search_tools", {"query": ""}, "/mcp/full")
    await call_meta_tool(visitor.http, "list_tools", {"server": "none"}, "/mcp/full")
    with monkeypatch.context() as patch:
        patch.setattr("app.mcp_server.tools.list_server_definitions", boom)
        await send_message(
            visitor.http, make_message("tools/call", {"name": "list_tools", "arguments": {"server": "x"}}), "/mcp/full"
        )
    unknown = make_message("tools/call", {"name": "canary-5c1f", "arguments": {}})
    await send_message(visitor.http, unknown)
    assert [now - then for now, then in zip(await counts(), before, strict=True)] == [1, 1, 0, 2]
    assert "canary-5c1f" not in (await client.get("/metrics")).text


async def test_every_answer_says_which_request_it_belongs_to(visitor: TestUser, client: httpx.AsyncClient) -> None:
    answers = [
        await send_message(visitor.http, LISTING),
        await posted(visitor.http, LISTING, OLDER_HEADERS),
        await posted(visitor.http, b"{", MODERN_HEADERS),
        await send_message(client, LISTING),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 401]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_learns_why_it_was_turned_away(address: str, mode: Mode) -> None:
    async def come_in() -> None:
        async with connect_client(f"{address}/mcp", "ts_wrong", mode) as client:
            await client.list_tools()

    with pytest.raises((MCPError, ExceptionGroup)) as refused:
        await come_in()
    error: BaseException = refused.value
    while isinstance(error, ExceptionGroup):
        [error] = error.exceptions
    assert isinstance(error, MCPError)
    assert "key" in error.message
