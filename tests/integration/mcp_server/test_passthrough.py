"""Tests of the resources and prompts of users' servers on `/mcp/full`: listed with the server's name, read from the
server, and hidden with it."""

import asyncio
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    SERVER_INFO_META_KEY,
    BlobResourceContents,
    ElicitRequestParams,
    ElicitResult,
    TextContent,
    TextResourceContents,
)

from app.auth.permissions import Caller, Permission
from app.catalog import visible_servers
from app.container import Container
from app.execution import server_content
from app.mcp_client.content import RESOURCE_NOT_FOUND
from app.mcp_server.tool_results import TOOLS_META
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_client import MODES, Json, Mode, call_meta_tool, connect_client, make_message, send_message
from tests.support.mcp_server import FakeMcpServer, Fault, hang, status

FULL = "/mcp/full"
NOTE = {"uri": "file:///notes/today.txt", "name": "today", "title": "Today", "mimeType": "text/plain"}
CLOCK = {"uri": "ui://clock/app.html", "name": "clock", "mimeType": "text/html;profile=mcp-app"}
TEMPLATE = {"uriTemplate": "file:///archive/{name}.txt", "name": "archive"}
PROMPT = {"name": "summarize", "description": "Summarize a note.", "arguments": [{"name": "note", "required": True}]}


@pytest.fixture(params=["mcp", "legacy_mcp", "sse_mcp"])
def any_mcp(request: pytest.FixtureRequest) -> FakeMcpServer:
    server: FakeMcpServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def mcp(mcp: FakeMcpServer) -> FakeMcpServer:
    return add_content(mcp)


def add_content(mcp: FakeMcpServer) -> FakeMcpServer:
    """Give the server a tool, a resource, a template and a prompt."""
    mcp.tools = [tool("read_note")]
    mcp.resources, mcp.resource_templates, mcp.prompts = [NOTE], [TEMPLATE], [PROMPT]
    return mcp


@pytest.fixture
def _quick_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_content, "_SERVER_TIMEOUT_S", 0.5)


def connect(address: str, user: TestUser, mode: Mode = "auto", path: str = FULL, **options: Any) -> Any:
    return connect_client(f"{address}{path}", user.key, mode, **options)


async def list_uris(client: Client) -> list[str]:
    return [resource.uri for resource in (await client.list_resources()).resources]


async def list_prompt_names(client: Client) -> list[str]:
    return [prompt.name for prompt in (await client.list_prompts()).prompts]


async def read_text(client: Client, uri: str) -> str:
    [part] = (await client.read_resource(uri)).contents
    assert isinstance(part, TextResourceContents)
    return part.text


async def send(user: TestUser, method: str, params: Json | None = None, path: str = FULL) -> Json:
    """Send a bare message and return the result."""
    headers = {"Mcp-Name": params["uri"]} if params and "uri" in params else {}
    answer = await send_message(user.http, make_message(method, params), path, **headers)
    assert answer.status_code == 200, answer.text
    result: Json = answer.json()["result"]
    return result


async def list_events(user: TestUser, action: str) -> list[tuple[str | None, str]]:
    """Return the target and the outcome of the user's audit events of this action."""
    events = (await user.http.get("/audit", params={"action": action})).json()["items"]
    return [(event["target"], event["outcome"]) for event in events]


def count_requests(mcp: FakeMcpServer, method: str) -> int:
    return sum(request.rpc_method == method for request in mcp.requests)


# What is listed and read


@pytest.mark.parametrize("mode", MODES)
async def test_content_of_every_server_is_listed_with_its_name_and_read_by_every_client(
    user: TestUser, address: str, any_mcp: FakeMcpServer, mode: Mode
) -> None:
    server_id = await user.connect(add_content(any_mcp), "notes")
    async with connect(address, user, mode) as client:
        assert client.server_capabilities.resources is not None
        assert client.server_capabilities.prompts is not None
        [resource] = (await client.list_resources()).resources
        assert (resource.name, resource.title, resource.mime_type) == ("notes.today", "Today (notes)", "text/plain")
        assert resource.uri == f"toolscout://{server_id}/{NOTE['uri']}"
        assert resource.meta == {"toolscout/server": "notes", "toolscout/uri": NOTE["uri"]}
        [template] = (await client.list_resource_templates()).resource_templates
        assert (template.name, template.title) == ("notes.archive", "archive (notes)")
        assert template.uri_template == f"toolscout://{server_id}/file:///archive/{{name}}.txt"
        [prompt] = (await client.list_prompts()).prompts
        assert (prompt.name, prompt.title, prompt.description) == (
            "notes.summarize",
            "summarize (notes)",
            "Summarize a note.",
        )
        assert prompt.arguments is not None
        assert [(argument.name, argument.required) for argument in prompt.arguments] == [("note", True)]

        [part] = (await client.read_resource(resource.uri)).contents
        assert part == TextResourceContents(
            uri=resource.uri, mime_type="text/plain", text="the text of file:///notes/today.txt"
        )
        [message] = (await client.get_prompt(prompt.name, {"note": "today"})).messages
        assert (message.role, message.content) == (
            "user",
            TextContent(text='summarize with {"note": "today"}'),
        )
    assert await list_events(user, "resource.read") == [(server_id, "succeeded")]
    assert await list_events(user, "prompt.get") == [(server_id, "succeeded")]


async def test_the_small_endpoint_has_neither_resources_nor_prompts(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    await user.connect(mcp)
    async with connect(address, user, path="/mcp") as client:
        assert client.server_capabilities.resources is None
        assert client.server_capabilities.prompts is None
        with pytest.raises(MCPError):
            await client.list_resources()
    async with connect(address, user) as client:
        assert len(await list_uris(client)) == 1


async def test_a_resource_of_a_template_is_read(user: TestUser, address: str, mcp: FakeMcpServer) -> None:
    mcp.on_read["file:///archive/may.txt"] = lambda: {"contents": [{"uri": "file:///archive/may.txt", "text": "May"}]}
    await user.connect(mcp)
    async with connect(address, user) as client:
        [template] = (await client.list_resource_templates()).resource_templates
        assert await read_text(client, template.uri_template.replace("{name}", "may")) == "May"
        assert await read_text(client, "file:///archive/may.txt") == "May", "by the server's own URI, too"


async def test_parts_blobs_and_meta_are_passed_on_without_reserved_keys(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    meta = {"ui": {"csp": {"connectDomains": ["https://example.com"]}}}
    reserved = {"toolscout/server": "bank", SERVER_INFO_META_KEY: {"name": "bank", "version": "1"}}
    parts = [
        {"uri": CLOCK["uri"], "mimeType": CLOCK["mimeType"], "text": "<html>", "_meta": meta | reserved},
        {"uri": "ui://clock/hand.png", "mimeType": "image/png", "blob": "aGk="},
    ]
    mcp.resources = [CLOCK]
    mcp.on_read[CLOCK["uri"]] = lambda: {"contents": parts, "_meta": reserved}
    server_id = await user.connect(mcp)
    async with connect(address, user) as client:
        [uri] = await list_uris(client)
        result = await client.read_resource(uri)
    assert uri == f"ui://toolscout/{server_id}/clock/app.html"
    page, image = result.contents
    assert page == TextResourceContents(uri=uri, mime_type=CLOCK["mimeType"], text="<html>", _meta=meta)
    assert image == BlobResourceContents(
        uri=f"ui://toolscout/{server_id}/clock/hand.png", mime_type="image/png", blob="aGk="
    )
    assert "toolscout/server" not in (result.meta or {})


async def test_resources_in_a_prompt_can_be_read(user: TestUser, address: str, mcp: FakeMcpServer) -> None:
    link = {"type": "resource_link", "uri": NOTE["uri"], "name": "today"}
    mcp.on_prompt["summarize"] = lambda _: {"messages": [{"role": "user", "content": link}]}
    await user.connect(mcp, "notes")
    async with connect(address, user) as client:
        [message] = (await client.get_prompt("notes.summarize", {})).messages
        assert "file:///notes" in await read_text(client, message.content.uri)


async def test_a_long_list_is_paged_and_pages_of_a_server_are_followed(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    mcp.resources = [{"uri": f"file:///{number}", "name": str(number)} for number in range(250)]
    mcp.content_page_size = 40
    await user.connect(mcp, "b")
    await user.connect(mcp, "a")
    async with connect(address, user) as client:
        pages, cursor = [], None
        while True:
            page = await client.list_resources(cursor=cursor)
            pages.append([resource.name for resource in page.resources])
            if (cursor := page.next_cursor) is None:
                break
    assert [len(page) for page in pages] == [100] * 5
    assert [name for page in pages for name in page] == [f"{server}.{n}" for server in "ab" for n in range(250)]
    assert count_requests(mcp, "resources/list") == 2 * 7, "the list is cached between the pages"


async def test_pages_do_not_depend_on_the_collation_of_the_database(
    user: TestUser, address: str, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_letter = f"{visible_servers._VISIBLE_SERVERS} ORDER BY lower(s.name)"
    monkeypatch.setattr(visible_servers, "_VISIBLE_SERVERS", by_letter)
    mcp.resources = [{"uri": f"file:///{number}", "name": str(number)} for number in range(100)]
    for name in ("alpha", "Beta"):
        await user.connect(mcp, name)
    async with connect(address, user) as client:
        first = await client.list_resources()
        last = await client.list_resources(cursor=first.next_cursor)
    pages = [{resource.name.partition(".")[0] for resource in page.resources} for page in (first, last)]
    assert (pages, last.next_cursor) == ([{"Beta"}, {"alpha"}], None)


@pytest.mark.parametrize("cursor", ["x", "", "bnVsbA==", "WzEsMiwzXQ=="])
async def test_an_invented_cursor_is_refused(user: TestUser, address: str, mcp: FakeMcpServer, cursor: str) -> None:
    async with connect(address, user) as client:
        with pytest.raises(MCPError) as refused:
            await client.list_prompts(cursor=cursor)
    assert refused.value.code == INVALID_PARAMS


async def test_what_nobody_can_see_and_what_is_too_large_is_left_out(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    mcp.prompts = [
        {"name": "a", "description": "Sum\u200bmarize.", "_meta": {"toolscout/server": "bank", "x": 1}},
        {"name": "b\u200b", "description": "Hidden."},
        {"name": "c", "description": "x" * 20_000},
        {"name": "d", "icons": [{"src": "javascript:alert(1)"}, {"src": "https://example.com/d.png"}]},
    ]
    await user.connect(mcp, "s")
    prompts = (await send(user, "prompts/list"))["prompts"]
    assert prompts == [
        {
            "name": "s.a",
            "title": "a (s)",
            "description": "Summarize.",
            "_meta": {"x": 1, "toolscout/server": "s"},
        },
        {
            "name": "s.d",
            "title": "d (s)",
            "icons": [{"src": "https://example.com/d.png"}],
            "_meta": {"toolscout/server": "s"},
        },
    ]


async def test_a_large_list_is_cut(user: TestUser, address: str, mcp: FakeMcpServer) -> None:
    """With nested texts, 16 MiB of it would keep the process busy for many seconds."""
    nested = {f"key {number}": [number, "\u200b"] for number in range(500)}
    mcp.resources = [{"uri": f"file:///{number}", "name": "n", "_meta": nested} for number in range(200)]
    mcp.content_page_size = 50
    await user.connect(mcp, "s")
    listed = (await send(user, "resources/list"))["resources"]
    assert 20 < len(listed) < 150
    assert listed[0]["_meta"]["key 0"] == [0, ""]


async def test_icons_that_are_not_shown_do_not_cut_the_list(user: TestUser, address: str, mcp: FakeMcpServer) -> None:
    small = {"src": "https://example.com/a.png"}
    icons = [{"src": f"data:image/png;base64,{'A' * 30_000}"}, small]
    mcp.resources = [{"uri": f"file:///{number}", "name": "n", "icons": icons} for number in range(90)]
    await user.connect(mcp, "s")
    listed = (await send(user, "resources/list"))["resources"]
    assert [resource["icons"] for resource in listed] == [[small]] * 90


async def test_an_answer_above_the_limit_is_refused(user: TestUser, address: str, mcp: FakeMcpServer) -> None:
    mcp.on_read[NOTE["uri"]] = lambda: {"contents": [{"uri": NOTE["uri"], "text": "x" * (4 * 1024 * 1024)}]}
    server_id = await user.connect(mcp)
    async with connect(address, user) as client:
        with pytest.raises(MCPError, match="TOOLSCOUT_MAX_RESOURCE_BYTES"):
            await client.read_resource(NOTE["uri"])
        mcp.on_read[NOTE["uri"]] = lambda: {"contents": [{"uri": NOTE["uri"], "text": "x" * (3 * 1024 * 1024)}]}
        assert len(await read_text(client, NOTE["uri"])) == 3 * 1024 * 1024
    assert [outcome for _, outcome in await list_events(user, "resource.read")] == [
        "succeeded",
        "SERVER_REQUEST_REJECTED",
    ]
    assert {target for target, _ in await list_events(user, "resource.read")} == {server_id}


# URIs and names of servers


async def test_the_user_interface_of_a_tool_is_read_although_its_server_does_not_list_it(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    """MCP Apps: hosts read the resource that `_meta` of a tool names, and servers need not list it."""
    mcp.tools = [tool("show_clock", "Shows a clock.", _meta={"ui": {"resourceUri": CLOCK["uri"]}})]
    mcp.on_read[CLOCK["uri"]] = lambda: {"contents": [{**CLOCK, "text": "<html>"}]}
    server_id = await user.connect(mcp, "clock")
    details = await call_meta_tool(user.http, "get_tool_details", {"toolKey": "clock.show_clock"}, FULL)
    [described] = details["_meta"][TOOLS_META].values()
    uri = described["_meta"]["ui"]["resourceUri"]
    assert uri == f"ui://toolscout/{server_id}/clock/app.html"
    async with connect(address, user) as client:
        assert await read_text(client, uri) == "<html>"
        assert await read_text(client, CLOCK["uri"]) == "<html>", "as `/discover` names it"
    assert count_requests(mcp, "resources/list") == 0


async def test_a_long_uri_is_compared_with_no_template(user: TestUser, address: str, mcp: FakeMcpServer) -> None:
    long, short = (f"file:///archive/{'a' * size}.txt" for size in (2_000, 1_900))
    mcp.on_read[long] = lambda: {"contents": [{"uri": long, "text": "May"}]}
    mcp.on_read[short] = lambda: {"contents": [{"uri": short, "text": "May"}]}
    server_id = await user.connect(mcp)
    async with connect(address, user) as client:
        with pytest.raises(MCPError, match="does not exist"):
            await client.read_resource(long)
        assert await read_text(client, f"toolscout://{server_id}/{long}") == "May", "ours needs no template"
        assert await read_text(client, short) == "May"


async def test_a_resource_that_two_servers_have_is_read_by_the_uri_of_one(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    ids = [await user.connect(mcp, name) for name in ("a", "b")]
    async with connect(address, user) as client:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(NOTE["uri"])
        assert refused.value.code == INVALID_PARAMS
        for server_id in ids:
            uri = f"toolscout://{server_id}/{NOTE['uri']}"
            assert uri in refused.value.message
            assert await read_text(client, uri) == "the text of file:///notes/today.txt"


async def test_a_prompt_is_found_although_the_names_of_servers_contain_dots(
    user: TestUser, address: str, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.prompts = [{"name": "b.c"}, {"name": "x"}]
    add_content(legacy_mcp).prompts = [{"name": "x"}]
    await user.connect(mcp, "a")
    await user.connect(legacy_mcp, "a.b")
    async with connect(address, user) as client:
        assert await list_prompt_names(client) == ["a.b.c", "a.x", "a.b.x"]
        for name, own_name in (("a.b.c", "b.c"), ("a.x", "x"), ("a.b.x", "x")):
            [message] = (await client.get_prompt(name)).messages
            assert message.content == TextContent(text=f"{own_name} with {{}}")
    assert count_requests(legacy_mcp, "prompts/get") == 1


@pytest.mark.parametrize("mode", MODES)
async def test_what_does_not_exist_is_an_error_of_the_protocol(
    user: TestUser, address: str, mcp: FakeMcpServer, mode: Mode
) -> None:
    server_id = await user.connect(mcp, "notes")
    not_found = INVALID_PARAMS if mode == "auto" else RESOURCE_NOT_FOUND
    async with connect(address, user, mode) as client:
        for uri in ("file:///else", "nonsense", "toolscout://x/file:///else", f"toolscout://{server_id}"):
            with pytest.raises(MCPError) as unknown:
                await client.read_resource(uri)
            assert (unknown.value.code, unknown.value.data["code"]) == (not_found, "not_found"), uri
        with pytest.raises(MCPError) as refused:
            await client.read_resource(f"toolscout://{server_id}/file:///else")
        assert (refused.value.code, refused.value.data["code"]) == (not_found, "SERVER_REQUEST_REJECTED")
        assert "Unknown resource: file:///else" in refused.value.message
        for name in ("summarize", "else.summarize", "notes.else"):
            with pytest.raises(MCPError) as unknown:
                await client.get_prompt(name)
            assert unknown.value.code == INVALID_PARAMS
        assert await read_text(client, NOTE["uri"])


# Isolation and visibility


async def test_content_of_another_user_is_neither_listed_nor_read(
    user: TestUser, other_user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    server_id = await user.connect(mcp, "notes")
    uri = f"toolscout://{server_id}/{NOTE['uri']}"
    async with connect(address, user) as client:
        assert await list_uris(client) == [uri]
        assert await read_text(client, uri)
    before = len(mcp.requests)
    async with connect(address, other_user) as stranger:
        assert await list_uris(stranger) == []
        assert await list_prompt_names(stranger) == []
        assert (await stranger.list_resource_templates()).resource_templates == []
        errors = []
        for foreign in (uri, uri.replace(server_id, "11111111-2222-3333-4444-555555555555"), NOTE["uri"]):
            with pytest.raises(MCPError) as unknown:
                await stranger.read_resource(foreign)
            errors.append((unknown.value.code, unknown.value.message))
        with pytest.raises(MCPError):
            await stranger.get_prompt("notes.summarize")
    assert len(set(errors)) == 1, "a foreign id answers as a missing one"
    assert len(mcp.requests) == before
    assert {target for target, _ in await list_events(other_user, "resource.read")} == {None}


async def test_content_of_another_project_is_neither_listed_nor_read(
    user: TestUser, address: str, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    inside = await user.connect(mcp, "inside")
    outside = await user.connect(add_content(legacy_mcp), "outside")
    fields = {"name": "p", "server_ids": [inside], "optimization": "hybrid"}
    project_id = (await user.http.post("/projects", json=fields)).json()["id"]
    allowed, refused = (f"toolscout://{server_id}/{NOTE['uri']}" for server_id in (inside, outside))
    async with connect(address, user, path=f"/projects/{project_id}{FULL}") as client:
        assert await list_uris(client) == [allowed]
        assert await list_prompt_names(client) == ["inside.summarize"]
        assert await read_text(client, allowed)
        assert await read_text(client, NOTE["uri"]), "only one server of the project has it"
        with pytest.raises(MCPError):
            await client.read_resource(refused)
        with pytest.raises(MCPError):
            await client.get_prompt("outside.summarize")
    narrowed = await send(user, "resources/list", {"_meta": {"projectId": project_id}})
    assert [resource["uri"] for resource in narrowed["resources"]] == [allowed]
    async with connect(address, user) as client:
        assert await list_uris(client) == [allowed, refused]
        assert await read_text(client, refused)


async def hide_by_rule(user: TestUser, _server_id: str) -> None:
    rules = [{"pattern": ["*"], "server": "notes", "enabled": False}]
    assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200


async def switch_off(user: TestUser, server_id: str) -> None:
    assert (await user.http.patch(f"/servers/{server_id}", json={"enabled": False})).status_code == 200


async def delete_server(user: TestUser, server_id: str) -> None:
    assert (await user.http.delete(f"/servers/{server_id}")).status_code in (200, 204)


@pytest.mark.parametrize("hide", [hide_by_rule, switch_off, delete_server])
@pytest.mark.parametrize("tools", [["read_note"], []], ids=["tools", "no tools"])
async def test_a_hidden_server_shows_nothing_at_once(
    user: TestUser, address: str, mcp: FakeMcpServer, hide: Any, tools: list[str]
) -> None:
    mcp.tools = [tool(name) for name in tools]
    server_id = await user.connect(mcp, "notes")
    async with connect(address, user) as client:
        [uri] = await list_uris(client)
        assert await read_text(client, uri)
        await hide(user, server_id)
        assert await list_uris(client) == []
        with pytest.raises(MCPError):
            await client.read_resource(uri)
        with pytest.raises(MCPError):
            await client.get_prompt("notes.summarize")


async def test_a_server_without_tools_is_shown_in_its_project_alone(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    mcp.tools = []
    server_id = await user.connect(mcp, "notes")
    for server_ids, expected in (([server_id], 1), ([], 0), (None, 1)):
        fields = {"name": f"p{server_ids}", "server_ids": server_ids, "optimization": "hybrid"}
        project = (await user.http.post("/projects", json=fields)).json()
        async with connect(address, user, path=f"/projects/{project['id']}{FULL}") as client:
            assert len(await list_uris(client)) == expected


async def test_a_caller_who_may_not_run_tools_reads_nothing(user: TestUser, address: str, mcp: FakeMcpServer) -> None:
    """There is no such key today: the permission is checked where the handler begins."""
    await user.connect(mcp)
    granted = Caller.require_permission

    def refuse_execution(caller: Caller, permission: Permission) -> None:
        granted(caller, Permission.ADMINISTER if permission is Permission.EXECUTE else permission)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Caller, "require_permission", refuse_execution)
        async with connect(address, user) as client:
            [uri] = await list_uris(client)
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
    assert (refused.value.code, refused.value.data["code"]) == (INVALID_REQUEST, "forbidden")
    assert count_requests(mcp, "resources/read") == 0


# Servers that fail


@pytest.mark.usefixtures("_quick_timeouts")
@pytest.mark.parametrize("fault", [hang, status(500)], ids=["hangs", "fails"])
async def test_a_failing_server_is_left_out_and_not_asked_again_at_once(
    user: TestUser, address: str, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, fault: Any
) -> None:
    await user.connect(add_content(legacy_mcp), "broken")
    works = await user.connect(mcp, "works")
    legacy_mcp.fault = Fault(fault, on={"resources/list"})
    async with connect(address, user) as client, asyncio.timeout(30):
        for _ in range(3):
            assert await list_uris(client) == [f"toolscout://{works}/{NOTE['uri']}"]
    assert count_requests(legacy_mcp, "resources/list") == 1


async def test_a_server_that_declares_nothing_is_not_asked(
    user: TestUser, address: str, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    legacy_mcp.declares_content = False
    await user.connect(add_content(legacy_mcp), "silent")
    await user.connect(mcp, "works")
    async with connect(address, user) as client:
        assert await list_prompt_names(client) == ["works.summarize"]
        assert len(await list_uris(client)) == 1
    assert count_requests(legacy_mcp, "prompts/list") == 0
    assert count_requests(mcp, "prompts/list") == 1


async def test_a_server_that_cannot_be_reached_is_an_error_with_its_code(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    server_id = await user.connect(mcp)
    mcp.fault = Fault(status(503), on={"resources/read"})
    async with connect(address, user) as client:
        with pytest.raises(MCPError) as failed:
            await client.read_resource(f"toolscout://{server_id}/{NOTE['uri']}")
    assert (failed.value.code, failed.value.data["code"]) == (INTERNAL_ERROR, "SERVER_CONNECTION_ERROR")
    assert await list_events(user, "resource.read") == [(server_id, "SERVER_CONNECTION_ERROR")]
    assert (await user.http.get(f"/servers/{server_id}")).json()["status"] == "connected", "its tools still run"


async def test_push_servers_show_nothing(user: TestUser, address: str) -> None:
    await user.add_tools(tool("read_note"))
    async with connect(address, user) as client:
        assert await list_uris(client) == []


async def test_the_servers_question_reaches_the_user_and_the_answer_the_server(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    schema = {"type": "object", "properties": {"pin": {"type": "string"}}}
    question = {
        "resultType": "input_required",
        "inputRequests": {
            "pin": {"method": "elicitation/create", "params": {"message": "Your PIN?", "requestedSchema": schema}}
        },
    }

    def read() -> Json:
        [*_, request] = [each for each in mcp.requests if each.rpc_method == "resources/read"]
        if "inputResponses" not in request.params:
            return question
        pin = request.params["inputResponses"]["pin"]["content"]["pin"]
        return {"contents": [{"uri": NOTE["uri"], "text": f"the PIN is {pin}"}]}

    async def answer(_context: Any, params: ElicitRequestParams) -> ElicitResult:
        assert params.message == "Your PIN?"
        return ElicitResult(action="accept", content={"pin": "1234"})

    mcp.on_read[NOTE["uri"]] = read
    await user.connect(mcp)
    async with connect(address, user, elicitation_callback=answer) as client:
        assert await read_text(client, NOTE["uri"]) == "the PIN is 1234"
    async with connect(address, user) as client:
        with pytest.raises(MCPError, match="asks the user for input"):
            await client.read_resource(NOTE["uri"])


async def test_requests_are_counted_by_method(user: TestUser, container: Container, mcp: FakeMcpServer) -> None:
    counter = 'toolscout_mcp_calls_total{outcome="succeeded",tool="prompts/list"}'

    def count() -> float:
        lines = container.metrics.render().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(counter))

    await user.connect(mcp, "notes")
    before = count()
    await send(user, "prompts/list")
    assert count() == before + 1
