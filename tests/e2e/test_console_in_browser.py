"""The console in a real browser: a first visit from the sign-in to the sign-out, and every page looked at."""

import uuid
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from app.container import Container
from tests.support.browser import ARTIFACTS, DESK, PHONE, Watched, open_browser
from tests.support.clients import TestUser, new_user
from tests.support.factories import ADMIN_KEY, tool
from tests.support.mcp_server import FakeMcpServer

WEATHER = [
    tool("get_forecast", "The weather of the coming days at a place: highs, lows and the chance of rain"),
    tool("get_alerts", "Official warnings of storms, floods and heat"),
    tool("delete_station", "Remove a weather station for ever"),
]


pytestmark = [pytest.mark.needs_chromium, pytest.mark.needs_npm]  # axe-core comes through npm

PATIENCE_MS = 60_000
"""A browser beside everything else takes its time."""


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=PATIENCE_MS)
    async with open_browser() as opened:
        yield opened


@pytest.fixture
async def watched(chromium: Browser, address: str) -> AsyncIterator[Watched]:
    context = await chromium.new_context(base_url=address)
    context.set_default_timeout(PATIENCE_MS)
    yield Watched(await context.new_page(), urlsplit(address).netloc)
    await context.close()


async def sign_in(page: Page, key: str) -> None:
    await page.goto("/console")
    await page.get_by_label("Key", exact=True).fill(key)
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Sign out").wait_for()


async def test_a_first_visit_from_the_sign_in_to_the_sign_out(
    watched: Watched, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = WEATHER
    page = watched.page
    await page.goto("/console")
    await watched.judge("sign-in")
    await sign_in(page, user.key)

    await page.get_by_role("link", name="Servers").click()
    await expect(page.get_by_text("No server yet")).to_be_visible()
    await page.get_by_role("link", name="Add a server").click()
    await page.get_by_label("Name", exact=False).first.fill("weather")
    await page.get_by_label("Address").fill(mcp.url)
    await page.get_by_role("button", name="Test the connection").click()
    await expect(page.get_by_text("offers 3 tools")).to_be_visible()
    await watched.judge("server-tried")
    mcp.stalled.add("tools/list")  # until the page has been seen
    await page.get_by_role("button", name="Add the server").click()
    await expect(page.get_by_role("progressbar")).to_be_visible()
    mcp.stalled.clear()
    await expect(page.get_by_text("succeeded")).to_be_visible()
    await expect(page.get_by_role("progressbar")).to_have_count(0)
    await expect(page.get_by_text("connected")).to_be_visible()
    await watched.judge("server")

    await page.get_by_role("link", name="Try a message").click()
    await page.get_by_label("Message").press_sequentially("will it rain at the weekend? the weather forecast please")
    await expect(page.locator(".ranked .name").first).to_have_text("get_forecast")
    await expect(page.locator(".ranked mark").first).to_be_visible()
    await page.get_by_label("Why not").fill("delete_station")
    await expect(page.locator(".reasons")).to_contain_text("delete_station")
    await page.get_by_text("The same by curl").click()
    await expect(page.locator("#curl")).to_contain_text("Authorization: Bearer $KEY")
    await watched.judge("try")

    await page.get_by_role("link", name="Rules").click()
    await page.get_by_role("button", name="Add a rule").click()
    await page.get_by_label("Patterns").fill("delete_*")
    await page.get_by_label("Sets").select_option("off")
    await expect(page.locator("#preview")).to_contain_text("delete_station")
    await watched.judge("rules")
    await page.get_by_role("button", name="Store the rules").click()
    await expect(page.get_by_text("The rules were stored")).to_be_visible()
    assert not (await user.tools())["delete_station"]["visible"]

    mcp.tools = [{**WEATHER[0], "description": WEATHER[0]["description"] + ", in your language"}, *WEATHER[1:]]
    await page.get_by_role("link", name="Servers").click()
    await page.get_by_role("link", name="weather").click()
    await page.get_by_role("button", name="Reindex", exact=True).click()
    await expect(page.locator("table.runs tbody tr:has-text('succeeded')")).to_have_count(2)
    await page.get_by_role("link", name="Tools", exact=True).click()
    await page.get_by_label("Definition").select_option("changed")
    await expect(page.get_by_role("link", name="delete_station")).to_have_count(0)
    await page.get_by_role("link", name="get_forecast").click()
    await expect(page.locator("ins")).to_contain_text("in your language")
    await watched.judge("tool-changed")
    await page.get_by_role("button", name="Approve as it stands").click()
    await expect(page.get_by_text("The definition was approved")).to_be_visible()
    assert (await user.tools())["get_forecast"]["state"] == "approved"

    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_text("You are signed out")).to_be_visible()
    await page.goto("/console/tools")
    await expect(page.get_by_label("Key", exact=True)).to_be_visible()
    assert (watched.complaints, watched.foreign, watched.judged) == ([], [], [])


async def test_every_other_page_of_a_user_is_fit_to_be_seen(
    container: Container, watched: Watched, user: TestUser
) -> None:
    server_id = await user.add_tools(*WEATHER, server="weather", tags=["outdoors"])
    await user.discover("a weather forecast")
    await container.usage_counters.flush()
    project = (await user.http.post("/projects", json={"name": "support", "rules": [{"pattern": ["get_*"]}]})).json()
    page = watched.page
    await sign_in(page, user.key)
    for name, path in {
        "overview": "/overview",
        "servers": "/servers",
        "server-new": "/servers/new",
        "server-change": f"/servers/{server_id}/change",
        "server-delete": f"/servers/{server_id}/delete",
        "tools": "/tools",
        "projects": "/projects",
        "project-new": "/projects/new",
        "project": f"/projects/{project['id']}",
        "project-delete": f"/projects/{project['id']}/delete",
        "activity": "/activity",
        "not-there": "/nowhere",
    }.items():
        await page.goto(f"/console{path}")
        await watched.judge(name)
    # a browser tells its console of every 404, also of the one that was asked for
    assert [said for said in watched.complaints if "nowhere" not in said] == []
    assert (watched.foreign, watched.judged) == ([], [])


async def test_an_administrators_pages_are_fit_to_be_seen(
    watched: Watched, user: TestUser, admin: httpx.AsyncClient
) -> None:
    page = watched.page
    await sign_in(page, ADMIN_KEY)
    await expect(page.get_by_text("Of all users together")).to_be_visible()
    await page.get_by_role("link", name="Users", exact=True).click()
    await watched.judge("users")
    await page.get_by_role("link", name="Keys").click()
    await watched.judge("keys")
    await page.get_by_label("User", exact=True).fill(user.id)
    await page.get_by_role("button", name="Make the key").click()
    await expect(page.locator("#secret")).to_contain_text("ts_user_")
    await watched.judge("key-made")
    made = (await admin.get("/keys", params={"user_id": user.id})).json()["items"][0]
    await page.goto(f"/console/keys/{made['id']}/revoke")
    await watched.judge("key-revoke")
    assert (watched.complaints, watched.foreign, watched.judged) == ([], [], [])


LONGEST = "W" * 128
TAG = "W" * 64


async def test_names_as_long_as_they_may_be_fit_on_every_page(
    container: Container, watched: Watched, admin: httpx.AsyncClient
) -> None:
    async with new_user(container, f"0{uuid.uuid4().hex}{LONGEST}"[:128]) as user:  # the first of all users
        server_id = await user.add_tools(tool(LONGEST, LONGEST), server=LONGEST, tags=[TAG])
        tool_id = (await user.tools())[LONGEST]["id"]
        rules = [{"pattern": [LONGEST], "server": LONGEST, "tags": [TAG]}]
        wanted = {"name": LONGEST, "rules": rules, "server_ids": [server_id]}
        project = (await user.http.post("/projects", json=wanted)).json()
        assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200
        await user.discover(LONGEST)
        await container.usage_counters.flush()
        page = watched.page
        await sign_in(page, user.key)
        for path in (
            "overview",
            "servers",
            f"servers/{server_id}",
            f"servers/{server_id}/change",
            f"servers/{server_id}/delete",
            "tools",
            f"tools/{tool_id}",
            "projects",
            f"projects/{project['id']}",
            f"projects/{project['id']}/delete",
            "rules",
            "try",
            "activity",
        ):
            await page.goto(f"/console/{path}")
            await watched.measure(path.replace("/", "-"))
        await page.goto("/console/try")
        await page.get_by_label("Message").fill(LONGEST)
        await expect(page.locator(".ranked .name").first).to_have_text(LONGEST)
        await watched.measure("try-answered")
        await page.get_by_role("button", name="Sign out").click()
        await sign_in(page, ADMIN_KEY)
        for path in ("users", "keys", "activity", "overview"):
            await page.goto(f"/console/{path}")
            await watched.measure(f"all-{path}")
        key = {"kind": "user", "user_id": user.id, "name": LONGEST}
        made = (await admin.post("/keys", json=key)).json()
        await page.goto(f"/console/keys/{made['id']}/revoke")
        await expect(page.get_by_text(LONGEST, exact=True)).to_be_visible()
        await watched.measure("key-revoke")
        await page.goto("/console/users")
        await page.get_by_role("button", name=f"Act for {user.id}").click()
        await page.goto("/console/keys")
        await watched.measure("acting-keys")
    assert watched.judged == [], "\n".join(watched.judged)


async def test_an_action_stands_in_one_line_beside_names_as_long_as_they_may_be(
    container: Container, watched: Watched
) -> None:
    page = watched.page
    async with new_user(container, f"0{uuid.uuid4().hex}{LONGEST}"[:128]) as user:
        await user.add_tools(*WEATHER, server=LONGEST)
        await sign_in(page, ADMIN_KEY)
        for width, height in (DESK, PHONE):
            await page.set_viewport_size({"width": width, "height": height})
            await page.goto("/console/activity")
            lines = await page.locator(".action code").evaluate_all(
                "all => all.map(each => each.getClientRects().length)"
            )
            assert set(lines) == {1}


async def test_the_keyboard_alone_finds_the_content_and_leads_through_the_pages(
    watched: Watched, user: TestUser
) -> None:
    page = watched.page
    await sign_in(page, user.key)
    await page.goto("/console/servers")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Add a server")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Add a server")).to_be_visible()


async def test_all_but_what_moves_by_itself_works_without_scripts(
    chromium: Browser, address: str, user: TestUser
) -> None:
    await user.add_tools(*WEATHER, server="weather")
    context = await chromium.new_context(base_url=address, java_script_enabled=False)
    page = await context.new_page()
    await sign_in(page, user.key)
    await page.goto("/console/try")
    await page.get_by_label("Message").fill("the weather forecast please")
    await page.get_by_role("button", name="Find tools").click()
    await expect(page.locator(".ranked .name").first).to_have_text("get_forecast")
    await page.get_by_role("link", name="Rules").click()
    await page.get_by_role("button", name="Add a rule").click()
    await page.get_by_label("Patterns").fill("delete_*")
    await page.get_by_label("Sets").select_option("off")
    await page.get_by_role("button", name="Preview").last.click()
    await expect(page.locator("#preview")).to_contain_text("delete_station")
    await page.get_by_role("button", name="Store the rules").click()
    await expect(page.get_by_text("The rules were stored")).to_be_visible()
    await context.close()


async def test_axe_would_have_noticed(watched: Watched) -> None:
    await watched.page.goto("/console/sign-in")
    await watched.page.evaluate("document.documentElement.removeAttribute('lang')")
    await watched.judge("spoiled")
    assert all("html-has-lang" in fault for fault in watched.judged)
    assert len(watched.judged) == 4
