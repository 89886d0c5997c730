"""Sign-in to the console at oidc-provider, which others wrote, in a browser for which it is another site."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from playwright.async_api import expect
from pydantic import SecretStr

from bench.service import free_port
from tests.support.browser import open_browser
from tests.support.factories import OpenService
from tests.support.http_server import serve_app
from tests.support.oidc_provider import OidcProvider, Person, running_oidc_provider

pytestmark = pytest.mark.needs_npm

CLIENT = {"client_id": "console", "client_secret": "a-secret-of-the-console"}
TIMEOUT_MS = 60_000


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def provider(port: int) -> Iterator[OidcProvider]:
    client = {**CLIENT, "redirect_uris": [f"http://localhost:{port}/console/sign-in/callback"]}
    with running_oidc_provider(clients=[client]) as running:
        yield running


@pytest.fixture
async def address(open_service: OpenService, provider: OidcProvider, port: int) -> AsyncIterator[str]:
    """At `localhost`, so that the provider at 127.0.0.1 is another site."""
    url = f"http://localhost:{port}"
    settings = {
        "public_url": url,
        "oidc_issuer": provider.url,
        "oidc_audience": url,
        "oidc_admin_groups": "operators",
        "oidc_scopes": "openid email groups",
        "oidc_client_id": CLIENT["client_id"],
        "oidc_client_secret": SecretStr(CLIENT["client_secret"]),
    }
    async with open_service(**settings) as container, serve_app(container, port=port):
        yield url


@pytest.mark.needs_chromium
async def test_a_person_signs_in_to_the_console_with_a_browser(address: str) -> None:
    """The first page after the provider's shows the session, although its cookie is not sent from other sites."""
    async with open_browser() as browser:
        context = await browser.new_context(base_url=address)
        context.set_default_timeout(TIMEOUT_MS)
        page = await context.new_page()
        await page.goto("/console/tools")
        await page.get_by_role("link", name="Sign in with").click()
        await page.locator('input[name="login"]').fill("root")
        await page.locator('input[name="password"]').fill("any")
        await page.get_by_role("button", name="Sign-in").click()
        await page.get_by_role("button", name="Continue").click()
        await page.wait_for_url(f"{address}/console/**")
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible(timeout=TIMEOUT_MS)
        await expect(page.get_by_role("link", name="Users")).to_be_visible(timeout=TIMEOUT_MS)
        cookies = {cookie["name"]: cookie for cookie in await context.cookies()}
        assert cookies["toolscout_session"]["sameSite"] == "Strict"
        assert "toolscout_sign_in" not in cookies
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("link", name="sign out there")).to_be_visible(timeout=TIMEOUT_MS)


async def test_a_person_signs_in_to_the_console_without_a_browser(address: str) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=30) as http:
        started = await http.get("/console/sign-in/provider")
        returned = await asyncio.to_thread(Person("ada").authorize, started.headers["location"])
        assert (await http.get(returned)).status_code == 200
        page = (await http.get("/console/servers")).text
        assert "Signed in as</span> <strong>ada" in page
        assert (await http.get("/console/users")).status_code == 403
        assert (await http.get(returned)).status_code == 401  # an answer counts once
