"""What the pages show and what the forms do without a script, and who may use them."""

import html
import re
from typing import Any

import httpx
import pytest

from app.audit.actions import ACTIONS
from app.audit.record import record_event
from app.auth.permissions import Permission
from app.catalog.visibility import apply_policy
from app.catalog.visibility_policy import Policy
from app.container import Container
from tests.support.checks import console_routes, everything
from tests.support.clients import TestUser, get_app
from tests.support.console_client import ConsoleClient, find_error, open_console
from tests.support.factories import tool
from tests.support.known_tools import pick_known_tools
from tests.support.mcp_server import FakeMcpServer
from tests.support.sql_statements import recorded_statements

OPEN_PATHS = {
    "/",
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-protected-resource/{path:path}",
    "/console/sign-in",
    "/console/sign-in/callback",
    "/console/sign-in/provider",
    "/console/static/{version}/{name}",
    "/oauth/callback",
    "/oauth/client-metadata.json",
    "/oauth/start",
}
READ_ONLY_POSTS = {"/console/try", "/console/try/answer", "/console/rules/preview", "/console/sign-out"}
HOSTILE_TEXT = '<script>alert("1")</script><img src=x onerror=alert(1)>'


def test_every_page_except_the_open_ones_declares_a_permission(container: Container) -> None:
    routes = console_routes(get_app(container))
    assert len(routes) > 40
    assert {route.path for route in routes if not route.permissions} == OPEN_PATHS


def test_pages_that_change_something_need_a_permission_for_it(container: Container) -> None:
    write_permissions = {Permission.WRITE_CATALOG, Permission.EXECUTE, Permission.ADMINISTER}
    for route in console_routes(get_app(container)):
        if route.method == "POST" and route.path not in OPEN_PATHS | READ_ONLY_POSTS:
            assert route.permissions & write_permissions, route


def test_pages_are_not_in_the_openapi_document(container: Container) -> None:
    assert not [path for path in get_app(container).openapi()["paths"] if path.startswith("/console") or path == "/"]


async def test_texts_from_servers_are_escaped(console: ConsoleClient, user: TestUser) -> None:
    hostile = tool("search", HOSTILE_TEXT, title=HOSTILE_TEXT)
    hostile["inputSchema"]["properties"] = {HOSTILE_TEXT: {"type": "string", "description": HOSTILE_TEXT}}
    server_id = await user.add_tools(hostile, server="<b>files</b>", description=HOSTILE_TEXT, tags=["<i>tag</i>"])
    tool_id = (await user.tools())["search"]["id"]
    await user.push(server_id, [{**hostile, "description": HOSTILE_TEXT + "!"}, {"name": HOSTILE_TEXT}])
    response = await console.submit("/console/try", query="search", why=HOSTILE_TEXT)
    pages = [
        response.text,
        await console.get_page("/console/servers"),
        await console.get_page(f"/console/servers/{server_id}"),
        await console.get_page("/console/tools"),
        await console.get_page(f"/console/tools/{tool_id}"),
        await console.get_page(f"/console/tools/{tool_id}/run"),
    ]
    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "<b>files" not in page
        assert "<i>tag" not in page
    assert html.escape(HOSTILE_TEXT, quote=False).split("(")[0] in pages[4]


async def test_the_playground_gives_the_same_answer_as_the_api(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(tool("get_forecast", "The weather of the coming days"), tool("send_mail", "Send a letter"))
    expected = await user.discover("what will the weather be like?")
    page = (await console.submit("/console/try", query="what will the weather be like?", format="openai")).text
    for found in expected["tools"]:
        assert found["tool"]["name"] in page
    assert "<mark>weather</mark>" in page
    assert '"type": "function"' in html.unescape(page)
    assert "curl -s http://toolscout/discover" in page
    assert user.key not in page


async def test_saved_tokens_are_shown_only_if_tools_were_found(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(tool("get_forecast", "The weather of the coming days"), tool("send_mail", "Send a letter"))
    assert (
        "Tokens saved" in (await console.fetch_fragment("/console/try/answer", query="weather of the coming days")).text
    )
    no_match = (await console.fetch_fragment("/console/try/answer", query="thanks, that is all")).text
    assert "No tool matches this message" in no_match
    assert "Tokens saved" not in no_match


async def test_the_playground_says_why_nothing_was_found(console: ConsoleClient, user: TestUser) -> None:
    fields = {"query": "weather of the coming days"}
    nothing = (await console.fetch_fragment("/console/try/answer", **fields)).text
    assert "Nothing was found: there are no tools to search: add a server" in nothing
    await user.add_tools(tool("get_forecast", "The weather of the coming days"))
    filtered = (await console.fetch_fragment("/console/try/answer", **fields, tags="money")).text
    assert "leave none to search" in filtered
    assert "Nothing was found" not in (await console.fetch_fragment("/console/try/answer", **fields)).text


async def test_the_playground_says_that_max_tokens_left_tools_out(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(tool("get_forecast", "The weather of the coming days"))
    fields = {"query": "weather of the coming days"}
    tight = (await console.fetch_fragment("/console/try/answer", **fields, max_tokens="1")).text
    assert "There is no room for 1 more tool: raise max_tokens." in tight
    assert "no room" not in (await console.fetch_fragment("/console/try/answer", **fields)).text


CHAT = [
    tool("send_message", "Send a direct message to a person."),
    tool("post_message", "Post a message to a channel."),
    tool("create_event", "Create an event in the calendar and invite people."),
    tool("get_forecast", "The weather of the coming days."),
    tool("create_invoice", "Create an invoice for a customer."),
    tool("resize_image", "Change the size of an image."),
]
CHAT_MESSAGE = "send a direct message to Kim"


async def test_the_playground_tells_the_confidence_in_words(console: ConsoleClient, user: TestUser) -> None:
    async def get_text(query: str, **fields: Any) -> str:
        fragment = (await console.fetch_fragment("/console/try/answer", query=query, **fields)).text
        return " ".join(re.findall(r'<span class="badge (?:ok|warn)">(.*?)</span>', fragment))

    await user.add_tools(*CHAT)
    assert await get_text(CHAT_MESSAGE) == "high confidence"
    assert await get_text("thanks, that is all") == "no tool fits"
    assert await get_text("message plonk frobnicate xyzzy", strategy="bm25") == "low confidence: the best 2"


async def test_the_playground_fills_an_answer_to_the_limit(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(*CHAT)
    short = (await console.submit("/console/try", query=CHAT_MESSAGE, why="resize_image", threshold="")).text
    filled = (await console.submit("/console/try", query=CHAT_MESSAGE, why="resize_image", fill="yes")).text
    answers = [await user.discover(CHAT_MESSAGE, fill=fill) for fill in (False, True)]
    assert [page.count('<div class="head">') for page in (short, filled)] == [len(each["tools"]) for each in answers]
    assert len(answers[0]["tools"]) < len(answers[1]["tools"])
    assert "&#34;fill&#34;:true" in filled
    assert re.search(r'name="fill" value="yes" checked', filled)
    assert "fill&#34;" not in short
    assert re.search(r'name="fill" value="yes">', short)


async def test_the_playground_explains_an_unlikely_tool(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(*CHAT)
    last = (await user.discover(CHAT_MESSAGE, fill=True))["tools"][-1]["tool"]["name"]
    fragment = (await console.fetch_fragment("/console/try/answer", query=CHAT_MESSAGE, why=last)).text
    assert "<code>unlikely</code>" in fragment
    assert "its chance of being the right tool is too small" in fragment
    filled = (await console.fetch_fragment("/console/try/answer", query=CHAT_MESSAGE, why=last, fill="yes")).text
    assert "<code>included</code>" in filled


async def test_an_answer_while_typing_is_a_fragment(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(tool("get_forecast", "The weather of the coming days"))
    fragment = (await console.fetch_fragment("/console/try/answer", query="weather", why="get_forecast")).text
    assert "get_forecast" in fragment
    assert "<html" not in fragment
    assert "number 1 of the answer" in fragment
    invalid = await console.fetch_fragment("/console/try/answer", query="weather", limit="99")
    assert invalid.status_code == 422
    assert find_error(invalid.text) == "Limit: should be less than or equal to 50."


async def test_an_invalid_form_keeps_what_was_typed(console: ConsoleClient) -> None:
    response = await console.submit("/console/try", query="rain", threshold="2", limit="7")
    assert response.status_code == 422
    assert find_error(response.text).startswith("Similarity threshold: should be less")
    assert 'value="7"' in response.text
    assert ">rain</textarea>" in response.text


async def test_a_server_is_tested_then_added_then_deleted(
    console: ConsoleClient, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("read_file"), tool("write_file")]
    form = {"name": "files", "transport": mcp.transport, "url": mcp.url, "tags": "one, two"}
    tested = await console.submit("/console/servers", do="test", **form | {"transport": "http"})
    assert "2 tools found" in tested.text
    assert "read_file" in tested.text
    assert (await user.http.get("/servers")).json()["items"] == []
    added = await console.submit("/console/servers", do="add", **form)
    path = added.headers["location"].partition("?")[0]
    await user.reindex(path.rpartition("/")[2])
    page = await console.get_page(path)
    assert "connected" in page
    assert "succeeded" in page
    assert "data-poll" not in page
    assert "2" in await console.get_page(path + "/delete")
    await console.submit(path + "/delete")
    assert "No servers yet" in await console.get_page("/console/servers")


async def test_an_unreachable_server_is_reported_and_the_form_is_kept(console: ConsoleClient) -> None:
    form = {"name": "inside", "transport": "streamable_http", "url": "http://127.0.0.1:1/mcp"}
    for button in ("test", "add"):
        response = await console.submit("/console/servers", do=button, **form)
        assert response.status_code == 422
        assert find_error(response.text)
        assert 'value="http://127.0.0.1:1/mcp"' in response.text


async def test_headers_are_never_shown_again(console: ConsoleClient, user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read_file")]
    form: dict[str, Any] = {"name": "files", "transport": mcp.transport, "url": mcp.url, "do": "add"}
    added = await console.submit(
        "/console/servers", **form, header_name=["X-Token", ""], header_value=["secret-canary", ""]
    )
    path = added.headers["location"].partition("?")[0]
    for shown in (path, path + "/change", "/console/servers"):
        assert "secret-canary" not in await console.get_page(shown)
    assert "X-Token" in await console.get_page(path)
    reserved = await console.submit("/console/servers", **form | {"name": "b"}, header_name="Host", header_value="x")
    assert "set by the connection itself" in find_error(reserved.text)


async def test_only_the_fields_of_a_server_that_differ_are_changed(console: ConsoleClient, user: TestUser) -> None:
    server_id = await user.add_server("files", description="old", tags=["one"])
    path = f"/console/servers/{server_id}"
    await console.submit(path + "/change", name="papers", description="old", tags="one")
    server = (await user.http.get(f"/servers/{server_id}")).json()
    assert (server["name"], server["description"], server["tags"]) == ("papers", "old", ["one"])
    await console.submit(path + "/switch", enabled="")
    assert (await user.http.get(f"/servers/{server_id}")).json()["enabled"] is False
    await user.add_server("taken")
    conflict = await console.submit(path + "/change", name="taken", description="new", tags="")
    assert conflict.status_code == 409
    assert 'value="new"' in conflict.text


async def test_a_tool_is_disabled_tagged_and_pinned(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(tool("read_file"), tool("write_file"))
    path = f"/console/tools/{(await user.tools())['read_file']['id']}"
    await console.submit(path, switch="off", tags="mine, yours", pinned=["no", "yes"])
    changed = (await user.tools())["read_file"]
    assert (changed["enabled"], changed["enabled_by"]) == (False, "user")
    assert (changed["own_tags"], changed["pinned"]) == (["mine", "yours"], True)
    from_list = await console.submit(path, switch="on", back="/console/tools?name=read")
    tool_id = path.rpartition("/")[2]
    assert from_list.headers["location"] == f"/console/tools?name=read&notice=tool-changed#{tool_id}"
    enabled = (await user.tools())["read_file"]
    assert (enabled["enabled"], enabled["own_tags"], enabled["pinned"]) == (True, ["mine", "yours"], True)
    await console.submit(path, switch="rules")
    assert (await user.tools())["read_file"]["enabled_by"] == "default"


async def test_tools_are_filtered_and_paged(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(*(tool(f"tool_{n:03}") for n in range(60)), server="many", tags=["bulk"])
    await user.add_tools(tool("lonely"), server="few")
    first = await console.get_page("/console/tools")
    assert first.count('class="name"') == 50
    next_url = html.unescape(first.split('rel="next" href="')[1].split('"')[0])
    second = await console.get_page(next_url)
    assert second.count('class="name"') == 11
    assert "First page" in second
    assert (await console.get_page("/console/tools", tag="bulk", name="tool_00")).count('class="name"') == 10
    assert "No tool matches the filter" in await console.get_page("/console/tools", visible="no")
    assert "Unknown value in the filter" in find_error(
        await console.get_page("/console/tools", status=422, state="odd")
    )


async def test_the_page_of_a_known_tool_shows_its_known_examples(console: ConsoleClient, user: TestUser) -> None:
    [known] = pick_known_tools(1)
    await user.add_tools(tool(known.name, known.description), tool("unknown"))
    listed = await user.tools()
    page = html.unescape(await console.get_page(f"/console/tools/{listed[known.name]['id']}"))
    assert f"it comes with {len(known.examples)} examples" in page
    assert "become part of the index with the next index run" in page
    assert all(example in page for example in known.examples)
    assert "it comes with" not in await console.get_page(f"/console/tools/{listed['unknown']['id']}")


async def test_examples_of_a_tool_are_written_shown_and_forgotten(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(tool("read_file"))
    tool_id = (await user.tools())["read_file"]["id"]
    path = f"/console/tools/{tool_id}"
    assert "Toolscout has learnt none from use yet." in (await console.get_page(path))
    saved = await console.submit(path + "/examples", messages="what is <in> there\r\n\r\n open it for me ")
    assert saved.headers["location"] == f"{path}?notice=examples-saved"
    found = await user.discover("open the thing for me", similarity_threshold=0)
    feedback = {"discovery_id": found["discovery_id"], "tool_key": tool_id, "outcome": "succeeded"}
    assert (await user.http.post("/feedback", json=feedback)).status_code == 204
    page = await console.get_page(path)
    assert "what is &lt;in&gt; there\nopen it for me</textarea>" in page
    assert "Toolscout has learnt 1 from successful uses; their words are not stored." in page
    await console.submit(path + "/examples/forget")
    examples = (await user.http.get(f"/tools/{tool_id}/examples")).json()
    assert examples == {"messages": ["what is <in> there", "open it for me"], "learned": 0, "learned_against": 0}
    refused = await console.submit(path + "/examples", messages="x" * 501)
    assert (refused.status_code, "at most 500 characters" in refused.text) == (422, True)


async def test_a_changed_definition_is_shown_side_by_side_and_approved(console: ConsoleClient, user: TestUser) -> None:
    server_id = await user.add_tools(tool("read_file", "Reads a small file"))
    await user.push(server_id, [tool("read_file", "Reads a large file")])
    reviewed = (await user.tools())["read_file"]
    path = f"/console/tools/{reviewed['id']}"
    page = await console.get_page(path)
    assert "<del>small</del>" in page
    assert "<ins>large</ins>" in page
    stale = await console.submit(path + "/approve", definition_hash="0" * 64)
    assert stale.status_code == 409
    assert (await user.tools())["read_file"]["state"] == "changed"
    await console.submit(path + "/approve", definition_hash=reviewed["definition_hash"])
    assert (await user.tools())["read_file"]["state"] == "approved"


async def test_a_new_tool_is_marked_held_and_approved(
    container: Container, console: ConsoleClient, user: TestUser
) -> None:
    server_id = await user.add_tools(tool("read_file"))
    await user.push(server_id, [tool("read_file"), tool("delete_file")])
    added = (await user.tools())["delete_file"]
    path = f"/console/tools/{added['id']}"
    assert "delete_file" in await console.get_page("/console/tools", state="new")
    page = await console.get_page(path)
    assert "has added this tool after its first listing. It is found by Toolscout" in page
    assert "is held" not in await console.get_page("/console/overview")
    await apply_policy(container.database, Policy(hold_new=True))
    try:
        assert "Until you approve it, the tool is neither found nor run" in await console.get_page(path)
        assert "1 new tool is held" in await console.get_page("/console/overview")
    finally:
        await apply_policy(container.database, Policy())
    await console.submit(path + "/approve", definition_hash=added["definition_hash"])
    assert (await user.tools())["delete_file"]["state"] == "approved"
    assert "delete_file" not in await console.get_page("/console/tools", state="new")


async def test_all_shown_tools_are_approved_or_none(console: ConsoleClient, user: TestUser) -> None:
    server_id = await user.add_tools(tool("read_file"))
    await user.push(server_id, [tool("read_file"), tool("copy_file"), tool("move_file")])
    assert "Approve the 2 shown" in await console.get_page("/console/tools", state="new")
    assert "Approve the" not in await console.get_page("/console/tools")
    shown = [f"{each['id']}:{each['definition_hash']}" for each in (await user.tools()).values()]
    await user.push(server_id, [tool("read_file"), tool("copy_file"), tool("move_file", "Moves it elsewhere.")])
    refused = await console.submit("/console/tools/approve", definition=shown)
    assert (refused.status_code, "move_file has changed" in refused.text) == (409, True)
    assert (await user.tools())["copy_file"]["state"] == "new"
    shown = [f"{each['id']}:{each['definition_hash']}" for each in (await user.tools()).values()]
    await console.submit("/console/tools/approve", definition=shown)
    assert {each["state"] for each in (await user.tools()).values()} == {"approved"}


async def test_rules_are_previewed_moved_and_saved(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(tool("read_file"), tool("delete_file"))
    rows = {"pattern": ["*delete*", "*"], "server": ["", ""], "enabled": ["off", ""], "tags": ["", "all, some"]}
    fragment = (await console.fetch_fragment("/console/rules/preview", **rows)).text
    assert "Would disappear" in fragment
    assert "<code>delete_file</code>" in fragment
    moved = (await console.submit("/console/rules", do="up-2", **rows)).text
    assert moved.index(">*</textarea>") < moved.index(">*delete*</textarea>")
    assert (await user.http.get("/rules")).json()["rules"] == []
    assert (await console.submit("/console/rules", do="store", **rows)).status_code == 303
    stored = (await user.http.get("/rules")).json()["rules"]
    assert [rule["pattern"] for rule in stored] == [["*delete*"], ["*"]]
    assert stored[1]["tags"] == ["all", "some"]
    assert not (await user.tools())["delete_file"]["visible"]


async def test_an_invalid_rule_is_reported_and_the_form_keeps_it(console: ConsoleClient, user: TestUser) -> None:
    rows = {"pattern": "/(/", "server": "", "enabled": "off", "tags": ""}
    for path, do in (("/console/rules", "store"), ("/console/rules", "preview")):
        response = await console.submit(path, do=do, **rows)
        assert response.status_code == 422
        assert find_error(response.text).startswith("Rule 1")
        assert ">/(/</textarea>" in response.text
    assert (await console.fetch_fragment("/console/rules/preview", **rows)).status_code == 422
    assert (await user.http.get("/rules")).json()["rules"] == []


async def test_rows_are_added_and_removed_before_they_are_saved(console: ConsoleClient, user: TestUser) -> None:
    rows = {"pattern": ["a", "b"], "server": ["", ""], "enabled": ["off", "off"], "tags": ["", ""]}
    assert (await console.submit("/console/rules", do="add", **rows)).text.count("<legend>Rule") == 3
    remaining = (await console.submit("/console/rules", do="remove-1", **rows)).text
    assert ">b</textarea>" in remaining
    assert ">a</textarea>" not in remaining
    assert (await console.submit("/console/rules", do="down-9", **rows)).text.count("<legend>Rule") == 2


async def test_a_project_is_created_changed_and_deleted(console: ConsoleClient, user: TestUser) -> None:
    server_id = await user.add_tools(tool("read_file"), server="files")
    rows = {"pattern": "read_*", "server": "", "enabled": "on", "tags": ""}
    form = {"name": "support", "members": "some", "server_ids": server_id, "optimization": "bm25", "limit": "5"}
    created = await console.submit("/console/projects", do="store", **form, **rows)
    path = created.headers["location"].partition("?")[0]
    project = (await user.http.get(path.removeprefix("/console"))).json()
    assert (project["server_ids"], project["optimization"], project["limit"]) == ([server_id], "bm25", 5)
    assert project["rules"][0]["pattern"] == ["read_*"]
    assert 'value="5"' in await console.get_page(path)
    page = (await console.submit(path, do="preview", **form, **rows)).text
    assert "matches 1, decides 1" in page
    invalid = await console.submit(path, do="store", **form | {"limit": "0", "name": "kept"}, **rows)
    assert invalid.status_code == 422
    assert 'value="kept"' in invalid.text
    await console.submit(path, do="store", **form | {"members": "all", "read_only": "yes"}, **rows)
    changed = (await user.http.get(path.removeprefix("/console"))).json()
    assert (changed["server_ids"], changed["read_only"]) == (None, True)
    await console.submit(path + "/delete")
    assert "No projects yet" in await console.get_page("/console/projects")


async def test_a_new_key_is_shown_once_and_revoked(
    admin_console: ConsoleClient, user: TestUser, admin: httpx.AsyncClient
) -> None:
    created = await admin_console.submit("/console/keys", kind="user", user_id=user.id, name="a-key-name")
    assert created.status_code == 201
    secret = created.text.split("ts_user_")[1].split("<")[0]
    listed = await everything(admin, "/keys")
    [key] = [key for key in listed if key["name"] == "a-key-name"]
    confirmation = await admin_console.get_page(f"/console/keys/{key['id']}/revoke")
    assert all(text in confirmation for text in (f"{key['prefix']}…", "a-key-name", user.id, ">user<"))
    assert secret not in confirmation
    assert (await user.http.get("/tools", headers={"Authorization": f"Bearer ts_user_{secret}"})).status_code == 200
    await admin_console.submit(f"/console/keys/{key['id']}/revoke")
    assert (await user.http.get("/tools", headers={"Authorization": f"Bearer ts_user_{secret}"})).status_code == 401
    invalid = await admin_console.submit("/console/keys", kind="user", name="kept")
    assert invalid.status_code == 422
    assert 'value="kept"' in invalid.text


async def test_an_administrator_creates_users_and_turns_their_discovery_off(
    admin_console: ConsoleClient, admin: httpx.AsyncClient, user: TestUser
) -> None:
    created = await admin_console.submit("/console/users", id=f"{user.id}-friend", name="A friend")
    assert created.status_code == 303
    await admin_console.submit(f"/console/users/{user.id}-friend", discovery_enabled="")
    assert (await admin.get(f"/users/{user.id}-friend")).json()["discovery_enabled"] is False
    await admin_console.submit(f"/console/users/{user.id}-friend", discovery_enabled="yes")
    shown = (await admin.get(f"/users/{user.id}-friend")).json()
    assert (shown["discovery_enabled"], shown["discovery_decided_by"]) == (True, "user")
    await admin_console.submit(f"/console/users/{user.id}-friend", discovery_enabled="rollout")
    assert (await admin.get(f"/users/{user.id}-friend")).json()["discovery_decided_by"] == "percent"
    again = await admin_console.submit("/console/users", id=f"{user.id}-friend")
    assert again.status_code == 409
    assert "there is already a user" in find_error(again.text).lower()


async def test_the_overview_shows_the_statistics_of_discoveries(
    container: Container, console: ConsoleClient, admin_console: ConsoleClient, user: TestUser
) -> None:
    assert "add a server" in await console.get_page("/console/overview")
    await user.add_tools(tool("get_forecast", "The weather of the coming days"), tool("send_mail", "Send a letter"))
    assert "No discoveries in this time range" in await console.get_page("/console/overview")
    await user.discover("get_forecast", limit=1)
    await container.usage_counters.flush()
    for window in ("hour", "day", "week", "month", "nonsense"):
        page = await console.get_page("/console/overview", window=window)
        assert page.count('<svg class="chart"') == 5
        assert "<dt>Discoveries</dt><dd>1</dd>" in page
    most_used, never_found = page.split("Never found")
    assert "get_forecast" in most_used
    assert "send_mail" in never_found
    assert "All users combined" in await admin_console.get_page("/console/overview")


async def test_a_message_that_is_only_tried_is_not_counted(
    container: Container, console: ConsoleClient, user: TestUser
) -> None:
    await user.add_tools(tool("get_forecast", "The weather of the coming days"))
    response = await console.fetch_fragment("/console/try/answer", query="get_forecast", why="get_forecast")
    assert "get_forecast" in response.text
    await container.usage_counters.flush()
    assert "No discoveries in this time range" in await console.get_page("/console/overview")


async def test_searches_are_shown_with_the_names_of_their_tools_and_without_messages(
    console: ConsoleClient, user: TestUser, container: Container
) -> None:
    await user.add_tools(tool("read_file", "Reads a file from the disk."))
    assert "No searches yet" in await console.get_page("/console/activity/searches")
    project = (await user.http.post("/projects", json={"name": "Support desk", "optimization": "bm25"})).json()["id"]
    await user.discover("read a file canary", project_id=project)
    await user.discover("xyzzy plugh", strategy="bm25")
    await container.decisions.flush()
    table = (await console.get_page("/console/activity/searches")).split("<tbody>")[1]
    assert "files.read_file" in table
    assert "in Support desk" in table
    assert "no tool found" in table
    assert "canary" not in table
    unmatched = (await console.get_page("/console/activity/searches", result="no_match")).split("<tbody>")[1]
    assert "files.read_file" not in unmatched
    assert "no tool found" in unmatched
    assert "No search matches" in await console.get_page("/console/activity/searches", result="degraded")
    assert "must have the form" in find_error(
        await console.get_page("/console/activity/searches", status=422, since="today")
    )


async def test_an_administrator_sees_the_searches_of_all_users(
    admin_console: ConsoleClient, user: TestUser, container: Container
) -> None:
    found = await user.discover("read a file")
    await container.decisions.flush()
    page = await admin_console.get_page("/console/activity/searches", discovery_id=found["discovery_id"])
    assert user.id in page.split("<tbody>")[1]


async def test_activity_can_be_filtered_by_every_action(console: ConsoleClient) -> None:
    page = await console.get_page("/console/activity")
    [options] = re.findall(r'<select name="action">(.*?)</select>', page, re.DOTALL)
    assert re.findall(r'<option value="([^"]+)"', options) == list(ACTIONS)
    chosen = await console.get_page("/console/activity", action="server.connect")
    assert re.search(r'<option value="server.connect" selected', chosen)


async def test_activity_is_filtered(console: ConsoleClient, user: TestUser) -> None:
    await user.add_server("files")
    assert "server.create" in (await console.get_page("/console/activity")).split("<tbody>")[1]
    sign_ins = (await console.get_page("/console/activity", action="console.sign_in")).split("<tbody>")[1]
    assert "server.create" not in sign_ins
    assert "No event matches the filter" in await console.get_page("/console/activity", until="2020-01-01T00:00")
    assert "A time must have the form" in find_error(
        await console.get_page("/console/activity", status=422, since="today")
    )


async def test_an_administrator_who_acts_for_no_user_sees_the_activity_of_all(
    admin_console: ConsoleClient, user: TestUser
) -> None:
    server_id = await user.add_server("files")
    assert user.id in await admin_console.get_page("/console/activity", target=server_id)


async def test_activity_shows_names_and_the_ids_of_what_was_deleted(
    admin_console: ConsoleClient, container: Container, user: TestUser, admin: httpx.AsyncClient
) -> None:
    await admin.patch(f"/users/{user.id}", json={"name": "Ada Lovelace"})
    service = (await admin.post("/keys", json={"kind": "service", "name": "chat backend"})).json()
    headers = {"Authorization": f"Bearer {service['key']}", "X-User-Id": user.id}
    await user.add_tools(tool("read_file"), server="files")
    key = (await user.tools())["read_file"]["id"]
    await user.http.patch(f"/tools/{key}", json={"pinned": True}, headers=headers)
    gone = await user.add_server("gone")
    await user.http.delete(f"/servers/{gone}")
    for act_for in ("", user.id):
        await admin_console.submit("/console/act-for", user_id=act_for)
        pinned = (await admin_console.get_page("/console/activity", target=key)).split("<tbody>")[1]
        text = re.sub(r"<[^>]+>", "", pinned)
        assert "files.read_file" in text
        assert "chat backend" in text
        assert key not in text
        assert f'title="{key}"' in pinned
        assert ("Ada Lovelace" in text) is (not act_for)
        deleted = (await admin_console.get_page("/console/activity", target=gone)).split("<tbody>")[1]
        assert gone in re.sub(r"<[^>]+>", "", deleted)
    async with open_console(container, user.key) as own:
        text = re.sub(r"<[^>]+>", "", (await own.get_page("/console/activity", target=key)).split("<tbody>")[1])
    assert "files.read_file" in text
    assert "chat backend" not in text, "keys of administrators and backends are not the user's"
    assert "service key" in text


async def test_names_of_other_users_are_not_shown_in_activity(
    console: ConsoleClient, user: TestUser, other_user: TestUser, container: Container
) -> None:
    """An event may hold the id of something that is not the user's."""
    theirs = await other_user.add_server("their-secret-server")
    async with container.database.transaction(user.id) as session:
        await record_event(session, user.id, "user:somebody", "server.change", theirs)
    page = await console.get_page("/console/activity", target=theirs)
    assert theirs in page.split("<tbody>")[1]
    assert "their-secret-server" not in page


async def test_activity_reads_all_names_in_one_statement(console: ConsoleClient, user: TestUser) -> None:
    async def count_statements() -> int:
        with recorded_statements() as statements:
            await console.get_page("/console/activity")
        return len(statements)

    await user.add_server("first")
    before = await count_statements()
    for number in range(5):
        await user.add_server(f"server-{number}")
    assert await count_statements() == before


async def test_the_overview_begins_with_what_needs_attention(
    container: Container, console: ConsoleClient, admin_console: ConsoleClient, user: TestUser
) -> None:
    pushed = await user.add_tools(tool("read_file", "Reads a file"), server="files")
    assert "Needs attention" not in await console.get_page("/console/overview")
    await user.discover("read_file")
    await container.usage_counters.flush()
    assert "Nothing needs your attention" in await console.get_page("/console/overview")
    await user.push(pushed, [tool("read_file", "Reads any file"), tool("")])
    async with container.database.transaction(user.id) as session:
        failing = await session.rows(
            "INSERT INTO mcp_servers (user_id, id, name, transport, status, last_error, last_cause)"
            " VALUES (%(user_id)s, gen_random_uuid()::text, 'broken', 'sse', 'error', 'it is down', 'refused')"
            " RETURNING id",
            {"user_id": user.id},
        )
        await session.rows("UPDATE discovery_stats SET degraded = 1 WHERE user_id = %(user_id)s", {"user_id": user.id})
    page = await console.get_page("/console/overview")
    attention = page.split("Needs attention")[1].split("</section>")[0]
    for expected in (
        f'<a href="/console/servers/{failing[0][0]}">broken</a>: it is down',
        '<a href="/console/tools?state=changed">1 tool has changed its definition</a>',
        f'1 tool of <a href="/console/servers/{pushed}">files</a>',
        '<a href="/console/activity/searches?result=degraded">1 answer</a>',
    ):
        assert expected in attention
    assert page.index("Needs attention") < page.index("<dt>Discoveries</dt>")
    assert "Needs attention" in await admin_console.get_page("/console/overview")
    assert "it is down" not in await admin_console.get_page("/console/overview")


async def test_whom_an_administrator_acts_for_is_on_every_page(
    admin_console: ConsoleClient, console: ConsoleClient, user: TestUser
) -> None:
    for path in ("overview", "activity", "users", "keys"):
        assert "Acting for <strong>no user</strong>" in await admin_console.get_page(f"/console/{path}")
    await admin_console.submit("/console/act-for", user_id=user.id)
    acting = f"Acting for <strong>{user.id}</strong>"
    for path in (
        "overview",
        "try",
        "servers",
        "servers/new",
        "tools",
        "rules",
        "projects",
        "activity",
        "users",
        "keys",
    ):
        assert acting in await admin_console.get_page(f"/console/{path}"), path
    assert acting in await admin_console.get_page("/console/nothing-here", status=404)
    assert "Acting for" not in await console.get_page("/console/servers")


async def test_a_key_of_a_project_is_created_on_the_projects_page(
    admin_console: ConsoleClient, console: ConsoleClient, user: TestUser, admin: httpx.AsyncClient
) -> None:
    project = (await user.http.post("/projects", json={"name": "Support desk"})).json()["id"]
    await admin_console.submit("/console/act-for", user_id=user.id)
    page = await admin_console.get_page(f"/console/projects/{project}")
    form = page.split('action="/console/keys"')[1].split("</form>")[0]
    fields = dict(re.findall(r'type="hidden" name="(kind|user_id|project_id)" value="([^"]*)"', form))
    assert fields == {"kind": "user", "user_id": user.id, "project_id": project}
    created = await admin_console.submit("/console/keys", **fields, name="desk")
    assert created.status_code == 201
    [key] = [key for key in await everything(admin, "/keys") if key["project_id"] == project]
    assert (key["user_id"], key["name"]) == (user.id, "desk")
    page = await admin_console.get_page("/console/keys")
    while key["prefix"] not in page:
        [following] = re.findall(r'rel="next" href="([^"]*)"', page)
        page = await admin_console.get_page(html.unescape(following))
    assert "Support desk" in page.split(key["prefix"])[1].split("</tr>")[0]
    own = await console.get_page(f"/console/projects/{project}")
    assert 'action="/console/keys"' not in own
    assert "An administrator creates it" in own


@pytest.mark.parametrize("page", ["users", "keys", "shared-servers"])
async def test_only_administrators_see_users_keys_and_shared_servers(
    console: ConsoleClient, admin_console: ConsoleClient, page: str
) -> None:
    assert "this key may not do that" in find_error(await console.get_page(f"/console/{page}", status=403)).lower()
    assert f'href="/console/{page}"' not in await console.get_page("/console/try")
    assert f'href="/console/{page}"' in await admin_console.get_page(f"/console/{page}")


async def test_a_project_key_sees_only_its_project(
    container: Container, user: TestUser, admin: httpx.AsyncClient
) -> None:
    inside = await user.add_tools(tool("read_file"), server="files")
    await user.add_tools(tool("send_mail"), server="mail")
    project = (await user.http.post("/projects", json={"name": "p", "server_ids": [inside]})).json()["id"]
    body = {"kind": "user", "user_id": user.id, "project_id": project}
    key = (await admin.post("/keys", json=body)).json()["key"]
    tools = await user.tools()
    async with open_console(container, key) as project_console:
        page = await project_console.get_page("/console")
        for hidden in ("servers", "rules", "projects", "activity", "shared-servers", "users", "keys"):
            assert f'"/console/{hidden}"' not in page
            assert (await project_console.http.get(f"/console/{hidden}")).status_code == 403
        listed = await project_console.get_page("/console/tools")
        assert "read_file" in listed
        assert "send_mail" not in listed
        assert ">Disable<" not in listed
        assert "<h2>Settings" not in await project_console.get_page(f"/console/tools/{tools['read_file']['id']}")
        await project_console.get_page(f"/console/tools/{tools['send_mail']['id']}", status=404)
        found = (await project_console.submit("/console/try", query="send_mail or read_file")).text
        assert ">read_file</a>" in found
        assert ">send_mail</a>" not in found
        assert (
            await project_console.submit(f"/console/tools/{tools['read_file']['id']}", pinned="yes")
        ).status_code == 403


async def test_objects_of_another_user_are_not_found(
    container: Container, console: ConsoleClient, user: TestUser, other_user: TestUser
) -> None:
    server_id = await other_user.add_tools(tool("read_file"))
    tool_id = (await other_user.tools())["read_file"]["id"]
    project = (await other_user.http.post("/projects", json={"name": "p"})).json()["id"]
    pages = [f"servers/{server_id}", f"tools/{tool_id}", f"projects/{project}"]
    forms = [f"servers/{server_id}/{form}" for form in ("reindex", "change", "switch", "delete")]
    forms += [f"tools/{tool_id}", f"tools/{tool_id}/approve", f"projects/{project}", f"projects/{project}/delete"]
    forms += [f"tools/{tool_id}/{form}" for form in ("examples", "examples/forget", "texts", "texts/preview")]
    for page in pages:
        assert (await console.http.get(f"/console/{page}")).status_code == 404
    for form in forms:
        response = await console.submit(f"/console/{form}", do="store", name="x", definition_hash="x")
        assert response.status_code == 404, form
    async with open_console(container, other_user.key) as owner:
        for page in pages:
            await owner.get_page(f"/console/{page}")
    assert (await other_user.tools())["read_file"]["pinned"] is False


async def test_changes_are_audited(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(tool("read_file"))
    tool_id = (await user.tools())["read_file"]["id"]
    await console.submit("/console/servers", do="add", name="mail", transport="push")
    await console.submit(f"/console/tools/{tool_id}", pinned="yes")
    await console.submit("/console/rules", do="store")
    created = await console.submit("/console/projects", do="store", name="p", members="all", optimization="hybrid")
    await console.submit(created.headers["location"].partition("?")[0] + "/delete")
    events = (await user.http.get("/audit")).json()["items"]
    expected = ["project.delete", "project.create", "rules.replace", "tool.change", "server.create"]
    assert [event["action"] for event in events][:5] == expected


_MANY_SERVERS = """
    INSERT INTO mcp_servers (user_id, id, name, transport)
    SELECT %(user_id)s, %(user_id)s || n, 'server ' || n, 'push' FROM generate_series(1, 250) n
"""


async def test_a_project_with_many_servers_keeps_all_of_them(
    container: Container, console: ConsoleClient, user: TestUser
) -> None:
    async with container.database.transaction(user.id) as session:
        await session.rows(_MANY_SERVERS, {"user_id": user.id})
    servers = [f"{user.id}{n}" for n in range(1, 251)]
    project = (await user.http.post("/projects", json={"name": "p", "server_ids": servers})).json()["id"]
    page = await console.get_page(f"/console/projects/{project}")
    checked = re.findall(r'name="server_ids" value="([^"]+)" checked', page)
    form = {"name": "p", "members": "some", "optimization": "hybrid", "server_ids": checked}
    await console.submit(f"/console/projects/{project}", do="store", **form)
    stored = (await user.http.get(f"/projects/{project}")).json()["server_ids"]
    assert sorted(stored) == sorted(servers)


async def test_an_unknown_page_is_reported_as_a_page(console: ConsoleClient) -> None:
    assert find_error(await console.get_page("/console/nowhere", status=404)) == "There is no such page."
    assert (await console.http.get("/console/static/x/none.css")).status_code == 404


@pytest.mark.parametrize("body", [b"csrf=%00", b"csrf=\xff", b"&".join([b"a=1"] * 6_000)])
async def test_a_malformed_form_is_rejected(console: ConsoleClient, body: bytes) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "X-CSRF-Token": console.token}
    assert (await console.http.post("/console/rules", content=body, headers=headers)).status_code == 422
    assert (await console.http.post("/console/rules", content=b"do=add", headers=headers)).status_code == 200
