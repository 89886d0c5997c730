"""What pages show and forms do, without a script: to whom, and to nobody else."""

import html
import re
from typing import Any

import httpx
import pytest

from app.auth.permissions import Permission
from app.container import Container
from tests.support.checks import console_routes, everything
from tests.support.clients import TestUser, get_app
from tests.support.console_client import Visitor, error_in, visitor_of
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer

OPEN = {"/", "/console/sign-in", "/console/static/{version}/{name}"}
QUESTIONS = {"/console/try", "/console/try/answer", "/console/rules/preview", "/console/sign-out"}
POISON = '<script>alert("1")</script><img src=x onerror=alert(1)>'


def test_every_page_but_the_open_ones_declares_the_permission_that_it_needs(container: Container) -> None:
    routes = console_routes(get_app(container))
    assert len(routes) > 40
    assert {route.path for route in routes if not route.permissions} == OPEN


def test_what_a_page_changes_needs_more_than_the_permission_to_read(container: Container) -> None:
    writing = {Permission.WRITE_CATALOG, Permission.ADMINISTER}
    for route in console_routes(get_app(container)):
        if route.method == "POST" and route.path not in OPEN | QUESTIONS:
            assert route.permissions & writing, route


def test_no_page_is_described_as_part_of_the_api(container: Container) -> None:
    assert not [path for path in get_app(container).openapi()["paths"] if path.startswith("/console") or path == "/"]


async def test_strangers_texts_are_shown_and_never_run(visitor: Visitor, user: TestUser) -> None:
    poisoned = tool("search", POISON, title=POISON)
    poisoned["inputSchema"]["properties"] = {POISON: {"type": "string", "description": POISON}}
    server_id = await user.add_tools(poisoned, server="<b>files</b>", description=POISON, tags=["<i>tag</i>"])
    tool_id = (await user.tools())["search"]["id"]
    await user.push(server_id, [{**poisoned, "description": POISON + "!"}, {"name": POISON}])
    answer = await visitor.send("/console/try", query="search", why=POISON)
    pages = [
        answer.text,
        await visitor.see("/console/servers"),
        await visitor.see(f"/console/servers/{server_id}"),
        await visitor.see("/console/tools"),
        await visitor.see(f"/console/tools/{tool_id}"),
    ]
    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "<b>files" not in page
        assert "<i>tag" not in page
    assert html.escape(POISON, quote=False).split("(")[0] in pages[4]


async def test_the_answer_to_a_message_is_the_apis(visitor: Visitor, user: TestUser) -> None:
    await user.add_tools(tool("get_forecast", "The weather of the coming days"), tool("send_mail", "Send a letter"))
    expected = await user.discover("what will the weather be like?")
    page = (await visitor.send("/console/try", query="what will the weather be like?", format="openai")).text
    for found in expected["tools"]:
        assert found["tool"]["name"] in page
    assert "<mark>weather</mark>" in page
    assert '"type": "function"' in html.unescape(page)
    assert "curl -s http://toolscout/discover" in page
    assert user.key not in page


async def test_what_was_saved_is_told_only_where_something_was_found(visitor: Visitor, user: TestUser) -> None:
    await user.add_tools(tool("get_forecast", "The weather of the coming days"), tool("send_mail", "Send a letter"))
    assert "Saved" in (await visitor.ask("/console/try/answer", query="weather of the coming days")).text
    nothing = (await visitor.ask("/console/try/answer", query="thanks, that is all")).text
    assert "No tool fits this message" in nothing
    assert "Saved" not in nothing


async def test_an_answer_while_typing_is_a_part_of_a_page(visitor: Visitor, user: TestUser) -> None:
    await user.add_tools(tool("get_forecast", "The weather of the coming days"))
    part = (await visitor.ask("/console/try/answer", query="weather", why="get_forecast")).text
    assert "get_forecast" in part
    assert "<html" not in part
    assert "number 1 of the answer" in part
    wrong = await visitor.ask("/console/try/answer", query="weather", limit="99")
    assert wrong.status_code == 422
    assert error_in(wrong.text) == "Limit: should be less than or equal to 50."


async def test_what_was_typed_stays_where_it_was_wrong(visitor: Visitor) -> None:
    answer = await visitor.send("/console/try", query="rain", threshold="2", limit="7")
    assert answer.status_code == 422
    assert error_in(answer.text).startswith("Similarity threshold: should be less")
    assert 'value="7"' in answer.text
    assert ">rain</textarea>" in answer.text


async def test_a_server_is_tried_then_added_then_deleted(visitor: Visitor, user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read_file"), tool("write_file")]
    form = {"name": "files", "transport": mcp.transport, "url": mcp.url, "tags": "one, two"}
    tried = await visitor.send("/console/servers", do="test", **form)
    assert "offers 2 tools" in tried.text
    assert "read_file" in tried.text
    assert (await user.http.get("/servers")).json()["items"] == []
    added = await visitor.send("/console/servers", do="add", **form)
    place = added.headers["location"].partition("?")[0]
    await user.reindex(place.rpartition("/")[2])
    page = await visitor.see(place)
    assert "connected" in page
    assert "succeeded" in page
    assert "data-poll" not in page
    assert "2" in await visitor.see(place + "/delete")
    await visitor.send(place + "/delete")
    assert "No server yet" in await visitor.see("/console/servers")


async def test_a_server_that_cannot_be_reached_is_told_of_in_a_sentence(visitor: Visitor) -> None:
    form = {"name": "inside", "transport": "streamable_http", "url": "http://127.0.0.1:1/mcp"}
    for button in ("test", "add"):
        answer = await visitor.send("/console/servers", do=button, **form)
        assert answer.status_code == 422
        assert error_in(answer.text)
        assert 'value="http://127.0.0.1:1/mcp"' in answer.text


async def test_headers_go_in_and_never_come_out(visitor: Visitor, user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read_file")]
    form: dict[str, Any] = {"name": "files", "transport": mcp.transport, "url": mcp.url, "do": "add"}
    added = await visitor.send(
        "/console/servers", **form, header_name=["X-Token", ""], header_value=["a-canary-of-a-token", ""]
    )
    place = added.headers["location"].partition("?")[0]
    for path in (place, place + "/change", "/console/servers"):
        assert "a-canary-of-a-token" not in await visitor.see(path)
    assert "X-Token" in await visitor.see(place)
    reserved = await visitor.send("/console/servers", **form | {"name": "b"}, header_name="Host", header_value="x")
    assert "set by the connection itself" in error_in(reserved.text)


async def test_a_server_is_changed_only_where_the_form_differs(visitor: Visitor, user: TestUser) -> None:
    server_id = await user.add_server("files", description="old", tags=["one"])
    place = f"/console/servers/{server_id}"
    await visitor.send(place + "/change", name="papers", description="old", tags="one")
    server = (await user.http.get(f"/servers/{server_id}")).json()
    assert (server["name"], server["description"], server["tags"]) == ("papers", "old", ["one"])
    await visitor.send(place + "/switch", enabled="")
    assert (await user.http.get(f"/servers/{server_id}")).json()["enabled"] is False
    await user.add_server("taken")
    refused = await visitor.send(place + "/change", name="taken", description="new", tags="")
    assert refused.status_code == 409
    assert 'value="new"' in refused.text


async def test_a_tool_is_switched_tagged_and_pinned(visitor: Visitor, user: TestUser) -> None:
    await user.add_tools(tool("read_file"), tool("write_file"))
    place = f"/console/tools/{(await user.tools())['read_file']['id']}"
    await visitor.send(place, switch="off", tags="mine, yours", pinned=["no", "yes"])
    changed = (await user.tools())["read_file"]
    assert (changed["enabled"], changed["enabled_by"]) == (False, "user")
    assert (changed["own_tags"], changed["pinned"]) == (["mine", "yours"], True)
    back = await visitor.send(place, switch="on", back="/console/tools?name=read")
    assert back.headers["location"] == f"/console/tools?name=read&said=tool-changed#{place.rpartition('/')[2]}"
    switched = (await user.tools())["read_file"]
    assert (switched["enabled"], switched["own_tags"], switched["pinned"]) == (True, ["mine", "yours"], True)
    await visitor.send(place, switch="rules")
    assert (await user.tools())["read_file"]["enabled_by"] == "default"


async def test_tools_are_filtered_and_paged(visitor: Visitor, user: TestUser) -> None:
    await user.add_tools(*(tool(f"tool_{n:03}") for n in range(60)), server="many", tags=["bulk"])
    await user.add_tools(tool("lonely"), server="few")
    first = await visitor.see("/console/tools")
    assert first.count('class="name"') == 50
    following = html.unescape(first.split('rel="next" href="')[1].split('"')[0])
    second = await visitor.see(following)
    assert second.count('class="name"') == 11
    assert "First page" in second
    assert (await visitor.see("/console/tools", tag="bulk", name="tool_00")).count('class="name"') == 10
    assert "No tool is like that" in await visitor.see("/console/tools", visible="no")
    assert "no such filter" in error_in(await visitor.see("/console/tools", status=422, state="odd"))


async def test_a_changed_definition_is_shown_side_by_side_and_approved(visitor: Visitor, user: TestUser) -> None:
    server_id = await user.add_tools(tool("read_file", "Reads a small file"))
    await user.push(server_id, [tool("read_file", "Reads a large file")])
    seen = (await user.tools())["read_file"]
    place = f"/console/tools/{seen['id']}"
    page = await visitor.see(place)
    assert "<del>small</del>" in page
    assert "<ins>large</ins>" in page
    stale = await visitor.send(place + "/approve", definition_hash="0" * 64)
    assert stale.status_code == 409
    assert (await user.tools())["read_file"]["state"] == "changed"
    await visitor.send(place + "/approve", definition_hash=seen["definition_hash"])
    assert (await user.tools())["read_file"]["state"] == "approved"


async def test_rules_are_arranged_previewed_and_stored(visitor: Visitor, user: TestUser) -> None:
    await user.add_tools(tool("read_file"), tool("delete_file"))
    rows = {"pattern": ["*delete*", "*"], "server": ["", ""], "enabled": ["off", ""], "tags": ["", "all, some"]}
    part = (await visitor.ask("/console/rules/preview", **rows)).text
    assert "Would disappear" in part
    assert "<code>delete_file</code>" in part
    moved = (await visitor.send("/console/rules", do="up-2", **rows)).text
    assert moved.index(">*</textarea>") < moved.index(">*delete*</textarea>")
    assert (await user.http.get("/rules")).json()["rules"] == []
    assert (await visitor.send("/console/rules", do="store", **rows)).status_code == 303
    stored = (await user.http.get("/rules")).json()["rules"]
    assert [rule["pattern"] for rule in stored] == [["*delete*"], ["*"]]
    assert stored[1]["tags"] == ["all", "some"]
    assert not (await user.tools())["delete_file"]["visible"]


async def test_a_rule_that_cannot_be_read_is_told_of_and_kept(visitor: Visitor, user: TestUser) -> None:
    rows = {"pattern": "/(/", "server": "", "enabled": "off", "tags": ""}
    for path, do in (("/console/rules", "store"), ("/console/rules", "preview")):
        answer = await visitor.send(path, do=do, **rows)
        assert answer.status_code == 422
        assert error_in(answer.text).startswith("Rule 1")
        assert ">/(/</textarea>" in answer.text
    assert (await visitor.ask("/console/rules/preview", **rows)).status_code == 422
    assert (await user.http.get("/rules")).json()["rules"] == []


async def test_rows_are_added_and_removed_without_being_stored(visitor: Visitor, user: TestUser) -> None:
    rows = {"pattern": ["a", "b"], "server": ["", ""], "enabled": ["off", "off"], "tags": ["", ""]}
    assert (await visitor.send("/console/rules", do="add", **rows)).text.count("<legend>Rule") == 3
    left = (await visitor.send("/console/rules", do="remove-1", **rows)).text
    assert ">b</textarea>" in left
    assert ">a</textarea>" not in left
    assert (await visitor.send("/console/rules", do="down-9", **rows)).text.count("<legend>Rule") == 2


async def test_a_project_is_made_changed_and_deleted(visitor: Visitor, user: TestUser) -> None:
    server_id = await user.add_tools(tool("read_file"), server="files")
    rows = {"pattern": "read_*", "server": "", "enabled": "on", "tags": ""}
    form = {"name": "support", "members": "some", "server_ids": server_id, "optimization": "bm25", "limit": "5"}
    made = await visitor.send("/console/projects", do="store", **form, **rows)
    place = made.headers["location"].partition("?")[0]
    project = (await user.http.get(place.removeprefix("/console"))).json()
    assert (project["server_ids"], project["optimization"], project["limit"]) == ([server_id], "bm25", 5)
    assert project["rules"][0]["pattern"] == ["read_*"]
    assert 'value="5"' in await visitor.see(place)
    page = (await visitor.send(place, do="preview", **form, **rows)).text
    assert "matches 1, decides 1" in page
    wrong = await visitor.send(place, do="store", **form | {"limit": "0", "name": "kept"}, **rows)
    assert wrong.status_code == 422
    assert 'value="kept"' in wrong.text
    await visitor.send(place, do="store", **form | {"members": "all", "read_only": "yes"}, **rows)
    changed = (await user.http.get(place.removeprefix("/console"))).json()
    assert (changed["server_ids"], changed["read_only"]) == (None, True)
    await visitor.send(place + "/delete")
    assert "No project yet" in await visitor.see("/console/projects")


async def test_a_new_key_is_shown_once_and_revoked(
    administrator: Visitor, user: TestUser, admin: httpx.AsyncClient
) -> None:
    made = await administrator.send("/console/keys", kind="user", user_id=user.id, name="a-name-of-a-key")
    assert made.status_code == 201
    secret = made.text.split("ts_user_")[1].split("<")[0]
    listed = await everything(admin, "/keys")
    [key] = [key for key in listed if key["name"] == "a-name-of-a-key"]
    asked = await administrator.see(f"/console/keys/{key['id']}/revoke")
    assert all(told in asked for told in (f"{key['prefix']}…", "a-name-of-a-key", user.id, ">user<"))
    assert secret not in asked
    assert (await user.http.get("/tools", headers={"Authorization": f"Bearer ts_user_{secret}"})).status_code == 200
    await administrator.send(f"/console/keys/{key['id']}/revoke")
    assert (await user.http.get("/tools", headers={"Authorization": f"Bearer ts_user_{secret}"})).status_code == 401
    wrong = await administrator.send("/console/keys", kind="user", name="kept")
    assert wrong.status_code == 422
    assert 'value="kept"' in wrong.text


async def test_an_administrator_makes_users_and_switches_their_discovery(
    administrator: Visitor, admin: httpx.AsyncClient, user: TestUser
) -> None:
    made = await administrator.send("/console/users", id=f"{user.id}-friend", name="A friend")
    assert made.status_code == 303
    await administrator.send(f"/console/users/{user.id}-friend", discovery_enabled="")
    assert (await admin.get(f"/users/{user.id}-friend")).json()["discovery_enabled"] is False
    again = await administrator.send("/console/users", id=f"{user.id}-friend")
    assert again.status_code == 409
    assert "there is already a user" in error_in(again.text).lower()


async def test_the_overview_draws_what_discoveries_have_come_to(
    container: Container, visitor: Visitor, administrator: Visitor, user: TestUser
) -> None:
    assert "add a server" in await visitor.see("/console/overview")
    await user.add_tools(tool("get_forecast", "The weather of the coming days"), tool("send_mail", "Send a letter"))
    container.authenticator.clear_cache()  # for half a second it knows the user as one without tools
    assert "No discovery in this time" in await visitor.see("/console/overview")
    await user.discover("get_forecast", limit=1)
    await container.usage_counters.flush()
    for window in ("hour", "day", "week", "month", "nonsense"):
        page = await visitor.see("/console/overview", window=window)
        assert page.count('<svg class="plot"') == 5
        assert "<dt>Discoveries</dt><dd>1</dd>" in page
    most_used, never_found = page.split("Never found")
    assert "get_forecast" in most_used
    assert "send_mail" in never_found
    assert "Of all users together" in await administrator.see("/console/overview")


async def test_what_is_only_tried_is_counted_nowhere(container: Container, visitor: Visitor, user: TestUser) -> None:
    await user.add_tools(tool("get_forecast", "The weather of the coming days"))
    found = await visitor.ask("/console/try/answer", query="get_forecast", why="get_forecast")
    assert "get_forecast" in found.text
    await container.usage_counters.flush()
    container.authenticator.clear_cache()
    assert "No discovery in this time" in await visitor.see("/console/overview")


async def test_activity_is_filtered(visitor: Visitor, user: TestUser) -> None:
    await user.add_server("files")
    assert "server.create" in (await visitor.see("/console/activity")).split("<tbody>")[1]
    only = (await visitor.see("/console/activity", action="console.sign_in")).split("<tbody>")[1]
    assert "server.create" not in only
    assert "Nothing is like that" in await visitor.see("/console/activity", until="2020-01-01T00:00")
    assert "A moment is written like" in error_in(await visitor.see("/console/activity", status=422, since="today"))


async def test_an_administrator_who_acts_for_nobody_sees_everybodys_activity(
    administrator: Visitor, user: TestUser
) -> None:
    server_id = await user.add_server("files")
    assert user.id in await administrator.see("/console/activity", target=server_id)


@pytest.mark.parametrize("page", ["users", "keys"])
async def test_only_administrators_see_users_and_keys(visitor: Visitor, administrator: Visitor, page: str) -> None:
    assert "this key may not do that" in error_in(await visitor.see(f"/console/{page}", status=403)).lower()
    assert f'href="/console/{page}"' not in await visitor.see("/console/try")
    assert f'href="/console/{page}"' in await administrator.see(f"/console/{page}")


async def test_a_projects_key_sees_what_its_project_shows_and_no_way_to_the_rest(
    container: Container, user: TestUser, admin: httpx.AsyncClient
) -> None:
    inside = await user.add_tools(tool("read_file"), server="files")
    await user.add_tools(tool("send_mail"), server="mail")
    project = (await user.http.post("/projects", json={"name": "p", "server_ids": [inside]})).json()["id"]
    body = {"kind": "user", "user_id": user.id, "project_id": project}
    key = (await admin.post("/keys", json=body)).json()["key"]
    tools = await user.tools()
    async with visitor_of(container, key) as confined:
        page = await confined.see("/console")
        for hidden in ("servers", "rules", "projects", "activity", "users", "keys"):
            assert f'"/console/{hidden}"' not in page
            assert (await confined.http.get(f"/console/{hidden}")).status_code == 403
        listed = await confined.see("/console/tools")
        assert "read_file" in listed
        assert "send_mail" not in listed
        assert "Switch off" not in listed
        assert "Decide" not in await confined.see(f"/console/tools/{tools['read_file']['id']}")
        await confined.see(f"/console/tools/{tools['send_mail']['id']}", status=404)
        found = (await confined.send("/console/try", query="send_mail or read_file")).text
        assert ">read_file</a>" in found
        assert ">send_mail</a>" not in found
        assert (await confined.send(f"/console/tools/{tools['read_file']['id']}", pinned="yes")).status_code == 403


async def test_another_users_things_are_not_there(
    container: Container, visitor: Visitor, user: TestUser, other_user: TestUser
) -> None:
    server_id = await other_user.add_tools(tool("read_file"))
    tool_id = (await other_user.tools())["read_file"]["id"]
    project = (await other_user.http.post("/projects", json={"name": "p"})).json()["id"]
    places = [f"servers/{server_id}", f"tools/{tool_id}", f"projects/{project}"]
    deeds = [f"servers/{server_id}/{deed}" for deed in ("reindex", "change", "switch", "delete")]
    deeds += [f"tools/{tool_id}", f"tools/{tool_id}/approve", f"projects/{project}", f"projects/{project}/delete"]
    for place in places:
        assert (await visitor.http.get(f"/console/{place}")).status_code == 404
    for deed in deeds:
        answer = await visitor.send(f"/console/{deed}", do="store", name="x", definition_hash="x")
        assert answer.status_code == 404, deed
    async with visitor_of(container, other_user.key) as owner:
        for place in places:
            await owner.see(f"/console/{place}")
    assert (await other_user.tools())["read_file"]["pinned"] is False


async def test_what_is_changed_here_stands_in_the_audit(visitor: Visitor, user: TestUser) -> None:
    await user.add_tools(tool("read_file"))
    tool_id = (await user.tools())["read_file"]["id"]
    await visitor.send("/console/servers", do="add", name="mail", transport="push")
    await visitor.send(f"/console/tools/{tool_id}", pinned="yes")
    await visitor.send("/console/rules", do="store")
    made = await visitor.send("/console/projects", do="store", name="p", members="all", optimization="hybrid")
    await visitor.send(made.headers["location"].partition("?")[0] + "/delete")
    events = (await user.http.get("/audit")).json()["items"]
    done = ["project.delete", "project.create", "rules.replace", "tool.change", "server.create"]
    assert [event["action"] for event in events][:5] == done


_MANY_SERVERS = """
    INSERT INTO mcp_servers (user_id, id, name, transport)
    SELECT %(user_id)s, %(user_id)s || n, 'server ' || n, 'push' FROM generate_series(1, 250) n
"""


async def test_a_project_keeps_its_members_however_many_there_are(
    container: Container, visitor: Visitor, user: TestUser
) -> None:
    async with container.database.transaction(user.id) as session:
        await session.rows(_MANY_SERVERS, {"user_id": user.id})
    servers = [f"{user.id}{n}" for n in range(1, 251)]
    project = (await user.http.post("/projects", json={"name": "p", "server_ids": servers})).json()["id"]
    page = await visitor.see(f"/console/projects/{project}")
    offered = re.findall(r'name="server_ids" value="([^"]+)" checked', page)
    form = {"name": "p", "members": "some", "optimization": "hybrid", "server_ids": offered}
    await visitor.send(f"/console/projects/{project}", do="store", **form)
    stored = (await user.http.get(f"/projects/{project}")).json()["server_ids"]
    assert sorted(stored) == sorted(servers)


async def test_a_page_that_is_not_there_is_a_page_all_the_same(visitor: Visitor) -> None:
    assert error_in(await visitor.see("/console/nowhere", status=404)) == "There is no such page."
    assert (await visitor.http.get("/console/static/x/none.css")).status_code == 404


@pytest.mark.parametrize("body", [b"csrf=%00", b"csrf=\xff", b"&".join([b"a=1"] * 6_000)])
async def test_a_form_that_is_none_is_refused(visitor: Visitor, body: bytes) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "X-CSRF-Token": visitor.token}
    assert (await visitor.http.post("/console/rules", content=body, headers=headers)).status_code == 422
    assert (await visitor.http.post("/console/rules", content=b"do=add", headers=headers)).status_code == 200
