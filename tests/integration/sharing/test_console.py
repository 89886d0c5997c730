"""What a member sees of a shared server in the console, and how an administrator manages it there."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.clients import TestUser
from tests.support.console_client import ConsoleClient, find_error, open_console
from tests.support.factories import ADMIN_KEY, tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.shared_servers import list_shared, push_shared, settle, share
from tests.support.worker_steps import rows

PAGES = "/console/shared-servers"
HOSTILE_TEXT = "<script>alert(1)</script>"


@pytest.fixture
async def admin_console(service: Container) -> AsyncIterator[ConsoleClient]:
    async with open_console(service, ADMIN_KEY) as console:
        yield console


async def test_a_shared_server_has_a_badge_and_no_buttons_that_change_it(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    own_id = await member.add_server("own")
    await share(admin, "wiki", user_ids=[member.id])
    await settle(service)
    copy_id = (await list_shared(member))["wiki"]["id"]
    async with open_console(service, member.key) as console:
        assert (await console.get_page("/console/servers")).count(">shared</span>") == 1
        own, copy = [await console.get_page(f"/console/servers/{each}") for each in (own_id, copy_id)]
        for path in ("change", "switch", "delete"):
            assert f"/console/servers/{own_id}/{path}" in own
            assert f"/console/servers/{copy_id}/{path}" not in copy
        assert "An administrator manages this server" in copy
        for path in ("delete", "switch"):
            assert (await console.submit(f"/console/servers/{copy_id}/{path}")).status_code == 403
            assert (await console.submit(f"/console/servers/{own_id}/{path}")).status_code in (303, 404)
    assert set(await list_shared(member)) == {"wiki"}


async def test_an_administrator_tests_shares_changes_and_deletes_a_server(
    service: Container,
    admin: httpx.AsyncClient,
    admin_console: ConsoleClient,
    member: TestUser,
    stranger: TestUser,
    mcp: FakeMcpServer,
) -> None:
    mcp.tools = [tool("read_page"), tool("write_page")]
    assert "No shared servers yet" in await admin_console.get_page(PAGES)
    assert 'name="everyone"' in await admin_console.get_page(f"{PAGES}/new")
    form: dict[str, Any] = {"name": "wiki", "transport": mcp.transport, "url": mcp.url, "tags": "one, two"}
    form |= {"user_ids": f"{member.id}\r\n\r\n{member.id}", "groups": "CN=staff,OU=people\r\nguests"}
    form |= {"credentials": "operator", "header_name": "Authorization", "header_value": "Bearer operators-canary"}
    tested = await admin_console.submit(PAGES, do="test", **form)
    assert "2 tools found" in tested.text
    assert (await admin.get("/shared-servers")).json()["items"] == []
    added = await admin_console.submit(PAGES, do="add", **form)
    path = added.headers["location"].partition("?")[0]
    await settle(service)
    [shared] = (await admin.get("/shared-servers")).json()["items"]
    assert path == f"{PAGES}/{shared['id']}"
    assert (shared["everyone"], shared["user_ids"], shared["credentials"]) == (False, [member.id], "operator")
    assert (shared["groups"], shared["tags"]) == (["CN=staff,OU=people", "guests"], ["one", "two"])
    assert set(await member.tools()) == {"read_page", "write_page"}
    pages = [await admin_console.get_page(each) for each in (PAGES, path, f"{path}/change", f"{path}/runs")]
    assert not [page for page in pages if "operators-canary" in page]
    assert "1 of 1" in pages[0]
    assert "1 of 1" in pages[1]
    assert "data-poll" not in pages[1]

    change = {"name": "handbook", "url": mcp.url, "tags": "one, two", "credentials": "member", "everyone": "yes"}
    assert (await admin_console.submit(f"{path}/change", **change)).status_code == 303
    await settle(service)
    shared = (await admin.get(f"/shared-servers/{shared['id']}")).json()
    assert (shared["name"], shared["everyone"], shared["user_ids"], shared["groups"]) == ("handbook", True, [], [])
    assert shared["header_names"] == ["Authorization"], "empty header fields keep what is stored"
    assert set(await list_shared(stranger)) == {"handbook"}
    assert "everyone" in await admin_console.get_page(path)
    await admin_console.submit(f"{path}/switch")
    assert (await admin.get(f"/shared-servers/{shared['id']}")).json()["enabled"] is False
    assert "Delete for all members" in await admin_console.get_page(f"{path}/delete")
    assert (await admin_console.submit(f"{path}/delete")).status_code == 303
    await settle(service)
    assert (await list_shared(member), await list_shared(stranger)) == ({}, {})


async def test_the_page_polls_until_all_members_are_ready(
    service: Container, admin: httpx.AsyncClient, admin_console: ConsoleClient, member: TestUser
) -> None:
    shared = await share(admin, "wiki")
    path = f"{PAGES}/{shared['id']}"
    await settle(service)
    assert "data-poll" not in await admin_console.get_page(path)
    await service.shared_server_sync.loop.stop()
    try:
        await admin_console.submit(f"{path}/change", name="wiki", user_ids=member.id, credentials="member")
        assert f'data-poll="{path}/runs"' in await admin_console.get_page(path)
        assert "0 of 1" in await admin_console.get_page(f"{path}/runs")
    finally:
        service.shared_server_sync.loop.start()
    await settle(service)
    assert "1 of 1" in await admin_console.get_page(f"{path}/runs")


async def test_a_save_without_a_change_leaves_the_copies_alone(
    service: Container, admin: httpx.AsyncClient, admin_console: ConsoleClient, member: TestUser
) -> None:
    shared = await share(admin, "wiki", user_ids=[member.id], groups=["staff"])
    await settle(service)
    version = "SELECT version FROM shared_servers WHERE server_id = %(id)s"
    before = await rows(service, version, id=shared["id"])
    form = {"name": "wiki", "user_ids": member.id, "groups": "staff", "credentials": "member"}
    await admin_console.submit(f"{PAGES}/{shared['id']}/change", **form)
    assert await rows(service, version, id=shared["id"]) == before
    await admin_console.submit(f"{PAGES}/{shared['id']}/change", **form | {"groups": ""})
    assert await rows(service, version, id=shared["id"]) > before


async def test_an_invalid_form_of_a_shared_server_keeps_what_was_typed(
    admin: httpx.AsyncClient, admin_console: ConsoleClient
) -> None:
    form = {"name": "inside", "transport": "streamable_http", "url": "http://127.0.0.1:1/mcp", "groups": "staff"}
    refused = await admin_console.submit(PAGES, do="add", **form)
    assert refused.status_code == 422
    assert find_error(refused.text)
    assert 'value="http://127.0.0.1:1/mcp"' in refused.text
    assert ">staff</textarea>" in refused.text
    shared = await share(admin, "wiki")
    path = f"{PAGES}/{shared['id']}"
    wrong = await admin_console.submit(f"{path}/change", name="wiki", credentials="anybody", user_ids="kim")
    assert (wrong.status_code, ">kim</textarea>" in wrong.text) == (422, True)
    assert (await admin_console.submit(f"{path}/change", name="wiki", credentials="member")).status_code == 303


async def test_texts_of_a_shared_server_are_escaped(
    service: Container, admin: httpx.AsyncClient, admin_console: ConsoleClient
) -> None:
    fields = {"description": HOSTILE_TEXT, "groups": [HOSTILE_TEXT]}
    shared = await share(admin, f"wiki {HOSTILE_TEXT}", **fields)
    await settle(service)
    path = f"{PAGES}/{shared['id']}"
    for page in (PAGES, path, f"{path}/change", f"{path}/delete", f"{path}/runs"):
        shown = await admin_console.get_page(page)
        assert "<script>alert" not in shown
        assert "&lt;script&gt;" in shown or page.endswith("/runs")


async def test_the_console_leaves_the_same_audit_events_as_the_api(
    service: Container, admin: httpx.AsyncClient, admin_console: ConsoleClient
) -> None:
    async def list_events(name: str) -> list[tuple[str, str]]:
        events = (await admin.get("/audit", params={"limit": 200})).json()["items"]
        return sorted((each["action"], each["outcome"]) for each in events if each["target"] == name)

    over_rest = (await share(admin, "rest"))["id"]
    await push_shared(admin, {"id": over_rest}, tool("read_page"))
    await admin.patch(f"/shared-servers/{over_rest}", json={"description": "other", "groups": ["staff"]})
    await admin.delete(f"/shared-servers/{over_rest}")
    added = await admin_console.submit(PAGES, name="console", transport="push", do="add")
    in_console = added.headers["location"].partition("?")[0].rpartition("/")[2]
    await push_shared(admin, {"id": in_console}, tool("read_page"))
    path = f"{PAGES}/{in_console}"
    await admin_console.submit(f"{path}/change", name="console", description="other", groups="staff")
    await admin_console.submit(f"{path}/delete")
    await settle(service)
    events = await list_events(in_console)
    assert ("shared_server.create", "succeeded") in events
    assert events == await list_events(over_rest)


async def test_no_member_reaches_the_administrators_pages(
    service: Container, admin: httpx.AsyncClient, admin_console: ConsoleClient, member: TestUser
) -> None:
    shared = await share(admin, "wiki", user_ids=[member.id])
    await settle(service)
    path = f"{PAGES}/{shared['id']}"
    async with open_console(service, member.key) as console:
        for page in (PAGES, f"{PAGES}/new", path, f"{path}/runs", f"{path}/change", f"{path}/delete"):
            assert (await console.http.get(page)).status_code == 403
            await admin_console.get_page(page)
        for form in ("", "/reindex", "/change", "/switch", "/connect", "/disconnect", "/delete"):
            assert (await console.submit(f"{path}{form}" if form else PAGES, name="mine")).status_code == 403
    assert (await admin.get(f"/shared-servers/{shared['id']}")).json()["name"] == "wiki"
    own = await member.add_server("own")
    assert (await admin_console.http.get(f"{PAGES}/{own}")).status_code == 404


async def test_a_member_approves_changed_tools_of_its_own_servers_alone(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    own_id = await member.add_tools(tool("print_page"), server="own")
    shared = await share(admin, "wiki", user_ids=[member.id])
    await push_shared(admin, shared, tool("read_page"))
    await settle(service)
    await member.push(own_id, [tool("print_page", "Prints it in colour.")])
    await push_shared(admin, shared, tool("read_page", "Reads and forwards a page."))
    await settle(service)
    tools = await member.tools()
    shown = {name: f"{each['id']}:{each['definition_hash']}" for name, each in tools.items()}
    async with open_console(service, member.key) as console:
        page = await console.get_page("/console/tools", state="changed")
        assert "Approve the 1 shown" in page
        assert (shown["print_page"] in page, shown["read_page"] in page) == (True, False)
        for name, offered in (("print_page", True), ("read_page", False)):
            page = await console.get_page(f"/console/tools/{tools[name]['id']}")
            assert ("Approve definition" in page) == offered
        refused = await console.submit("/console/tools/approve", definition=list(shown.values()))
        assert refused.status_code == 403
        assert {each["state"] for each in (await member.tools()).values()} == {"changed"}
        await console.submit("/console/tools/approve", definition=[shown["print_page"]])
    states = {name: each["state"] for name, each in (await member.tools()).items()}
    assert states == {"print_page": "approved", "read_page": "changed"}
