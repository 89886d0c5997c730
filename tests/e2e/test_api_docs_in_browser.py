"""The API documentation in a real browser: Swagger UI draws every operation, runs one, and asks no other host."""

from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import expect

from tests.support.browser import CheckedPage, open_browser

pytestmark = pytest.mark.needs_chromium

TIMEOUT_MS = 60_000


async def test_swagger_ui_shows_and_runs_operations_without_the_internet(
    address: str, client: httpx.AsyncClient
) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    operations = sum(len(methods) for methods in paths.values())
    assert operations > 40
    async with open_browser() as browser:
        context = await browser.new_context(base_url=address)
        checked = CheckedPage(await context.new_page(), urlsplit(address).netloc)
        await checked.page.goto("/docs")
        await expect(checked.page.locator(".opblock")).to_have_count(operations, timeout=TIMEOUT_MS)
        health = checked.page.locator(".opblock", has=checked.page.get_by_text("/healthz", exact=True))
        await health.locator(".opblock-summary-control").click()
        await health.get_by_role("button", name="Try it out").click()
        await health.get_by_role("button", name="Execute").click()
        await expect(health.locator(".live-responses-table")).to_contain_text('"ok"', timeout=TIMEOUT_MS)
    assert checked.external_requests == []
    assert checked.console_errors == []
