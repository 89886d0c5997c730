"""The console in a real browser: a first session from sign-in to sign-out, and a check of every page."""

import json
import uuid
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from app.container import Container
from tests.support.browser import ARTIFACTS, DESKTOP, PHONE, CheckedPage, open_browser
from tests.support.checks import everything, write_down
from tests.support.clients import TestUser, new_user
from tests.support.factories import ADMIN_KEY, tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.shared_servers import settle

pytestmark = [pytest.mark.needs_chromium, pytest.mark.needs_npm]  # axe-core comes through npm

WEATHER = [
    tool("get_forecast", "The weather of the coming days at a place: highs, lows and the chance of rain"),
    tool("get_alerts", "Official warnings of storms, floods and heat"),
    tool("delete_station", "Remove a weather station forever"),
]

TIMEOUT_MS = 60_000
"""Generous: the browser shares the machine with other tests."""


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=TIMEOUT_MS)
    async with open_browser() as browser:
        yield browser


@pytest.fixture
async def checked(chromium: Browser, address: str) -> AsyncIterator[CheckedPage]:
    context = await chromium.new_context(base_url=address)
    context.set_default_timeout(TIMEOUT_MS)
    yield CheckedPage(await context.new_page(), urlsplit(address).netloc)
    await context.close()


async def sign_in(page: Page, key: str) -> None:
    await page.goto("/console")
    await page.get_by_label("Key", exact=True).fill(key)
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Sign out").wait_for()


async def test_a_first_session_from_sign_in_to_sign_out(
    checked: CheckedPage, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = WEATHER
    page = checked.page
    await page.goto("/console")
    await checked.check("sign-in")
    await sign_in(page, user.key)

    await page.get_by_role("link", name="Servers").click()
    await expect(page.get_by_text("No servers yet")).to_be_visible()
    await page.get_by_role("link", name="Add a server").click()
    await page.get_by_label("Name", exact=False).first.fill("weather")
    await page.get_by_label("URL").fill(mcp.url)
    await page.get_by_role("button", name="Test connection").click()
    await expect(page.get_by_text("3 tools found")).to_be_visible()
    await checked.check("server-tested")
    mcp.stalled.add("tools/list")  # so that the run is still in progress when the page is shown
    await page.get_by_role("button", name="Add server").click()
    await expect(page.get_by_role("progressbar")).to_be_visible()
    mcp.stalled.clear()
    await expect(page.get_by_text("succeeded")).to_be_visible()
    await expect(page.get_by_role("progressbar")).to_have_count(0)
    await expect(page.get_by_text("connected")).to_be_visible()
    await checked.check("server")

    await page.get_by_role("link", name="Try a message").click()
    await page.get_by_label("Message").press_sequentially("will it rain at the weekend? the weather forecast please")
    await expect(page.locator(".results .name").first).to_have_text("get_forecast")
    await expect(page.locator(".results mark").first).to_be_visible()
    await page.get_by_label("Explain a tool").fill("delete_station")
    await expect(page.locator(".reasons")).to_contain_text("delete_station")
    await page.get_by_text("The same request with curl").click()
    await expect(page.locator("#curl")).to_contain_text("Authorization: Bearer $KEY")
    await checked.check("try")

    await page.get_by_role("link", name="Run get_forecast").click()
    await page.get_by_label("Arguments").fill('{"place": "Oslo"}')
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_text("succeeded")).to_be_visible()
    await expect(page.locator("#text-1")).to_have_text('{"place": "Oslo"}')
    await checked.check("tool-run")

    await page.get_by_role("link", name="Rules").click()
    await page.get_by_role("button", name="Add rule").click()
    await page.get_by_label("Patterns").fill("delete_*")
    await page.get_by_label("Effect").select_option("off")
    await expect(page.locator("#preview")).to_contain_text("delete_station")
    await checked.check("rules")
    await page.get_by_role("button", name="Save rules").click()
    await expect(page.get_by_text("Rules saved")).to_be_visible()
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
    await checked.check("tool-changed")
    await page.get_by_role("button", name="Approve definition").click()
    await expect(page.get_by_text("Definition approved")).to_be_visible()
    assert (await user.tools())["get_forecast"]["state"] == "approved"

    await page.get_by_text("Write texts of your own").click()
    await page.get_by_label("Description").fill("Do I need an umbrella? The weather of the coming days")
    await expect(page.locator("#texts-preview")).to_contain_text("tokens")
    await page.get_by_label("Only reads").select_option("yes")
    await page.get_by_role("button", name="Save texts").click()
    await expect(page.get_by_text("Texts saved")).to_be_visible()
    await expect(page.get_by_role("cell", name="Do I need an umbrella?")).to_be_visible()
    await checked.check("tool-texts")
    await page.get_by_role("button", name="Use the server’s texts").click()
    await expect(page.get_by_text("The server’s texts are in use again")).to_be_visible()
    assert (await user.tools())["get_forecast"]["own_texts"] is None

    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_text("You are signed out")).to_be_visible()
    await page.goto("/console/tools")
    await expect(page.get_by_label("Key", exact=True)).to_be_visible()
    assert (checked.console_errors, checked.external_requests, checked.violations) == ([], [], [])


async def test_every_other_page_of_a_user_passes_the_checks(
    container: Container, checked: CheckedPage, user: TestUser
) -> None:
    server_id = await user.add_tools(*WEATHER, server="weather", tags=["outdoors"])
    await user.discover("a weather forecast")
    await write_down(container)
    project = (await user.http.post("/projects", json={"name": "support", "rules": [{"pattern": ["get_*"]}]})).json()
    page = checked.page
    await sign_in(page, user.key)
    for name, path in {
        "overview": "/overview",
        "servers": "/servers",
        "server-new": "/servers/new",
        "server-import": "/servers/import",
        "server-change": f"/servers/{server_id}/change",
        "server-delete": f"/servers/{server_id}/delete",
        "tools": "/tools",
        "projects": "/projects",
        "project-new": "/projects/new",
        "project": f"/projects/{project['id']}",
        "project-delete": f"/projects/{project['id']}/delete",
        "activity": "/activity",
        "searches": "/activity/searches",
        "not-found": "/nowhere",
    }.items():
        await page.goto(f"/console{path}")
        await checked.check(name)
    await page.goto("/console/servers/import")
    servers = {"tickets": {"url": "https://mcp.example.com", "headers": {"X-Key": "${KEY}"}, "disabled": True}}
    await page.get_by_label("Configuration").fill(json.dumps({"mcpServers": servers | {"local": {"command": "npx"}}}))
    await page.get_by_role("button", name="Import").click()
    await page.get_by_label("KEY", exact=True).fill("secret")
    await checked.check("server-import-values")
    await page.get_by_role("button", name="Import").click()
    await expect(page.get_by_role("heading", name="1 server imported, 1 skipped")).to_be_visible()
    await checked.check("server-imported")
    # the browser logs every 404, including the intended one
    assert [error for error in checked.console_errors if "nowhere" not in error] == []
    assert (checked.external_requests, checked.violations) == ([], [])


async def test_the_pages_of_an_administrator_pass_the_checks(
    checked: CheckedPage, user: TestUser, admin: httpx.AsyncClient
) -> None:
    page = checked.page
    await sign_in(page, ADMIN_KEY)
    await expect(page.get_by_text("All users combined")).to_be_visible()
    await page.get_by_role("link", name="Users", exact=True).click()
    await checked.check("users")
    await page.get_by_role("link", name="Keys").click()
    await checked.check("keys")
    await page.get_by_label("User", exact=True).fill(user.id)
    await page.get_by_role("button", name="Create key").click()
    await expect(page.locator("#secret")).to_contain_text("ts_user_")
    await checked.check("key-created")
    created = next(key for key in await everything(admin, "/keys") if key["user_id"] == user.id)
    await page.goto(f"/console/keys/{created['id']}/revoke")
    await checked.check("key-revoke")
    assert (checked.console_errors, checked.external_requests, checked.violations) == ([], [], [])


LONGEST_NAME = "W" * 128
LONGEST_TAG = "W" * 64


async def test_the_longest_names_fit_on_every_page(
    container: Container, checked: CheckedPage, admin: httpx.AsyncClient
) -> None:
    async with new_user(container, f"0{uuid.uuid4().hex}{LONGEST_NAME}"[:128]) as user:  # first in the list of users
        server_id = await user.add_tools(tool(LONGEST_NAME, LONGEST_NAME), server=LONGEST_NAME, tags=[LONGEST_TAG])
        tool_id = (await user.tools())[LONGEST_NAME]["id"]
        rules = [{"pattern": [LONGEST_NAME], "server": LONGEST_NAME, "tags": [LONGEST_TAG]}]
        body = {"name": LONGEST_NAME, "rules": rules, "server_ids": [server_id]}
        project = (await user.http.post("/projects", json=body)).json()
        assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200
        await user.discover(LONGEST_NAME)
        await write_down(container)
        page = checked.page
        await sign_in(page, user.key)
        for path in (
            "overview",
            "servers",
            f"servers/{server_id}",
            f"servers/{server_id}/change",
            f"servers/{server_id}/delete",
            "tools",
            f"tools/{tool_id}",
            "categories",
            "projects",
            f"projects/{project['id']}",
            f"projects/{project['id']}/delete",
            "rules",
            "try",
            "activity",
            "activity/searches",
        ):
            await page.goto(f"/console/{path}")
            await checked.check_width(path.replace("/", "-"))
        await page.goto("/console/try")
        await page.get_by_label("Message").fill(LONGEST_NAME)
        await expect(page.locator(".results .name").first).to_have_text(LONGEST_NAME)
        await checked.check_width("try-answered")
        await page.get_by_text("Filter by tags").click()
        await expect(page.get_by_label(LONGEST_TAG, exact=False).first).to_be_visible()
        await checked.check_width("try-tags")
        await page.get_by_role("button", name="Sign out").click()
        await sign_in(page, ADMIN_KEY)
        for path in ("users", "keys", "activity", "overview"):
            await page.goto(f"/console/{path}")
            await checked.check_width(f"all-{path}")
        key = {"kind": "user", "user_id": user.id, "name": LONGEST_NAME}
        created = (await admin.post("/keys", json=key)).json()
        await page.goto(f"/console/keys/{created['id']}/revoke")
        await expect(page.get_by_text(LONGEST_NAME, exact=True)).to_be_visible()
        await checked.check_width("key-revoke")
        await page.goto("/console/users")
        await page.get_by_role("button", name=f"Act for user {user.id}").click()
        await page.goto("/console/keys")
        await checked.check_width("acting-keys")
    assert checked.violations == [], "\n".join(checked.violations)


async def test_an_action_stays_on_one_line_next_to_the_longest_names(
    container: Container, checked: CheckedPage
) -> None:
    page = checked.page
    async with new_user(container, f"0{uuid.uuid4().hex}{LONGEST_NAME}"[:128]) as user:
        await user.add_tools(*WEATHER, server=LONGEST_NAME)
        await sign_in(page, ADMIN_KEY)
        for width, height in (DESKTOP, PHONE):
            await page.set_viewport_size({"width": width, "height": height})
            await page.goto("/console/activity")
            lines = await page.locator(".action code").evaluate_all(
                "all => all.map(each => each.getClientRects().length)"
            )
            assert set(lines) == {1}


async def test_the_pages_can_be_used_with_the_keyboard_alone(checked: CheckedPage, user: TestUser) -> None:
    page = checked.page
    await sign_in(page, user.key)
    await page.goto("/console/servers")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Import a configuration")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Add a server")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Add a server")).to_be_visible()


async def test_the_console_works_without_scripts(chromium: Browser, address: str, user: TestUser) -> None:
    await user.add_tools(*WEATHER, server="weather")
    context = await chromium.new_context(base_url=address, java_script_enabled=False)
    page = await context.new_page()
    await sign_in(page, user.key)
    await page.goto("/console/try")
    await page.get_by_label("Message").fill("the weather forecast please")
    await page.get_by_role("button", name="Find tools").click()
    await expect(page.locator(".results .name").first).to_have_text("get_forecast")
    await page.get_by_role("link", name="Rules").click()
    await page.get_by_role("button", name="Add rule").click()
    await page.get_by_label("Patterns").fill("delete_*")
    await page.get_by_label("Effect").select_option("off")
    await page.get_by_role("button", name="Preview").last.click()
    await expect(page.locator("#preview")).to_contain_text("delete_station")
    await page.get_by_role("button", name="Save rules").click()
    await expect(page.get_by_text("Rules saved")).to_be_visible()
    await context.close()


async def test_the_check_reports_a_violation(checked: CheckedPage) -> None:
    await checked.page.goto("/console/sign-in")
    await checked.page.evaluate("document.documentElement.removeAttribute('lang')")
    await checked.check("broken")
    assert all("html-has-lang" in violation for violation in checked.violations)
    assert len(checked.violations) == 4


async def test_an_administrator_shares_a_server(checked: CheckedPage, user: TestUser, container: Container) -> None:
    page = checked.page
    await sign_in(page, ADMIN_KEY)
    await page.get_by_role("link", name="Shared servers").click()
    await page.get_by_role("link", name="Share a server").click()
    await page.get_by_label("Transport").select_option("push")
    await page.get_by_label("Name", exact=False).first.fill("handbook")
    await page.get_by_role("textbox", name="Groups").fill(LONGEST_NAME)
    await page.get_by_role("textbox", name="Users").fill(user.id)
    await checked.check("shared-server-new")
    await page.get_by_role("button", name="Share server").click()
    await expect(page.get_by_text("1 of 1")).to_be_visible()
    await checked.check("shared-server")
    await page.get_by_role("link", name="Edit").click()
    await expect(page.get_by_role("textbox", name="Users")).to_have_value(user.id)
    await checked.check("shared-server-change")
    await page.get_by_role("textbox", name="Users").fill("")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("0 of 0")).to_be_visible()
    await page.goto("/console/shared-servers")
    await checked.check("shared-servers")
    await page.get_by_role("link", name="handbook").click()
    await page.get_by_role("link", name="Delete").click()
    await page.get_by_role("button", name="Delete for all members").click()
    await expect(page.get_by_text("Shared server deleted")).to_be_visible()
    await settle(container)
    assert checked.console_errors == []
    assert checked.violations == [], "\n".join(checked.violations)
