"""The page of categories, and the filter of the tools' page."""

import httpx

from app.container import Container
from tests.support.categories import EVENTS, add_categories
from tests.support.checks import leave_a_category
from tests.support.clients import TestUser
from tests.support.console_client import ConsoleClient, find_error, open_console


async def test_categories_are_listed_with_links_to_their_tools(
    container: Container, console: ConsoleClient, user: TestUser
) -> None:
    assert "No categories yet" in await console.get_page("/console/categories")
    ids = await add_categories(container, user)
    page = await console.get_page("/console/categories")
    for word, server in (("event", "calendar"), ("branch", "code")):
        link = f"/console/tools?category={ids[word]}"
        assert f'href="{link}&amp;visible=yes"' in page
        assert f">{server}</td>" in page
        tools = await console.get_page(link)
        assert tools.count('class="name"') == 3
        assert f'<option value="{ids[word]}" selected>' in tools
        assert f"create_{word}" in tools
    assert (await console.get_page("/console/tools")).count('class="name"') == 6
    tool_id = (await user.tools())["create_event"]["id"]
    assert f'href="/console/tools?category={ids["event"]}"' in await console.get_page(f"/console/tools/{tool_id}")


async def test_a_category_is_renamed_and_its_automatic_name_restored(
    container: Container, console: ConsoleClient, user: TestUser
) -> None:
    ids = await add_categories(container, user)
    path = f"/console/categories/{ids['event']}"
    await console.get_page("/console/categories")
    renamed = await console.submit(path, name="  <b>My week</b> ")
    assert renamed.status_code == 303
    page = await console.get_page(renamed.headers["location"])
    assert "Category renamed" in page
    assert "&lt;b&gt;My week&lt;/b&gt;" in page
    assert "<b>My week" not in page
    assert "your name</span>" in page
    [event, *_] = (await user.http.get("/audit")).json()["items"]
    assert (event["action"], event["target"]) == ("category.rename", ids["event"])
    assert (await console.submit(path, name="")).status_code == 303
    assert "your name</span>" not in await console.get_page("/console/categories")


async def test_a_name_that_is_taken_or_too_long_is_reported_and_kept_in_the_form(
    container: Container, console: ConsoleClient, user: TestUser
) -> None:
    ids = await add_categories(container, user)
    assert (await console.submit(f"/console/categories/{ids['event']}", name="Sources")).status_code == 303
    taken = await console.submit(f"/console/categories/{ids['branch']}", name="sources")
    assert taken.status_code == 409
    assert "Another category is called" in find_error(taken.text)
    assert 'value="sources"' in taken.text
    too_long = await console.submit(f"/console/categories/{ids['branch']}", name="x" * 300)
    assert too_long.status_code == 422
    assert find_error(too_long.text)


async def test_a_project_key_sees_the_categories_of_its_tools_and_renames_none(
    container: Container, user: TestUser, admin: httpx.AsyncClient
) -> None:
    ids = await add_categories(container, user)
    servers = (await user.http.get("/servers")).json()["items"]
    inside = [each["id"] for each in servers if each["name"] == "calendar"]
    project = (await user.http.post("/projects", json={"name": "p", "server_ids": inside})).json()["id"]
    body = {"kind": "user", "user_id": user.id, "project_id": project}
    key = (await admin.post("/keys", json=body)).json()["key"]
    async with open_console(container, key) as project_console:
        page = await project_console.get_page("/console/categories")
        assert ids["event"] in page
        assert ids["branch"] not in page
        assert ">Rename<" not in page
        assert (await project_console.submit(f"/console/categories/{ids['event']}", name="x")).status_code == 403
        options = await project_console.get_page("/console/tools")
        assert ids["event"] in options
        assert ids["branch"] not in options


async def test_a_category_of_another_user_is_not_found(
    container: Container, console: ConsoleClient, user: TestUser, other_user: TestUser
) -> None:
    mine = await add_categories(container, user)
    await other_user.add_tools(*EVENTS)
    theirs = await leave_a_category(container, other_user.id)
    assert theirs not in await console.get_page("/console/categories")
    assert (await console.submit(f"/console/categories/{theirs}", name="x")).status_code == 404
    assert "No tool matches the filter" in await console.get_page("/console/tools", category=theirs)
    assert (await console.submit(f"/console/categories/{mine['event']}", name="x")).status_code == 303
