"""The Chromium of this machine, driven by Playwright, and axe-core, which checks the accessibility of pages."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

from tests.support.paths import ROOT
from tests.support.programs import CHROMIUM

AXE = ROOT / "tests/third_party/node_modules/axe-core/axe.min.js"
ARTIFACTS = Path(os.environ.get("TOOLSCOUT_ARTIFACTS") or ROOT / "tests/artifacts")

# without these options Chromium sends requests to Google's hosts
_OPTIONS = """
    --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync
""".split()
DESKTOP, TABLET, PHONE, SMALL_PHONE = (1280, 860), (768, 1024), (390, 844), (360, 740)
_APPEARANCES = [(scheme, size) for size in (DESKTOP, PHONE) for scheme in ("light", "dark")]


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM.find(), args=_OPTIONS)
        yield browser
        await browser.close()


@dataclass
class CheckedPage:
    """A page that records console errors, requests to other hosts, and violations of the checks."""

    page: Page
    host: str
    console_errors: list[str] = field(default_factory=list)
    external_requests: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._record_message)
        self.page.on("pageerror", lambda error: self.console_errors.append(str(error)))
        self.page.on("request", self._record_request)

    def _record_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.console_errors.append(f"{self.page.url}: {message.text}")

    def _record_request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != self.host and not request.url.startswith("data:"):
            self.external_requests.append(request.url)

    async def check(self, name: str) -> None:
        """Run axe and take a screenshot, in light and dark, on a desktop and on a phone."""
        await self.page.evaluate(AXE.read_text())
        for scheme, (width, height) in _APPEARANCES:
            await self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            await self.page.set_viewport_size({"width": width, "height": height})
            await self.page.screenshot(path=ARTIFACTS / f"{name}-{scheme}-{width}.png")
            violations = await _find_violations(self.page)
            self.violations += [f"{name}, {scheme}, {width}: {violation}" for violation in violations]
        await self.page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
        await self.page.emulate_media(color_scheme="light")

    async def check_width(self, name: str) -> None:
        """Check that the page fits the screen, on a desktop, a tablet and phones."""
        for width, height in (DESKTOP, TABLET, PHONE, SMALL_PHONE):
            await self.page.set_viewport_size({"width": width, "height": height})
            if await _is_too_wide(self.page):
                await self.page.screenshot(path=ARTIFACTS / f"{name}-{width}.png")
                self.violations.append(f"{name}, {width}: wider than the screen")


async def _find_violations(page: Page) -> list[str]:
    result = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [violation for violation in result["violations"] if violation["impact"] in ("serious", "critical")]
    found = [f"{violation['id']} {[node['html'][:100] for node in violation['nodes'][:3]]}" for violation in serious]
    return [*found, "wider than the screen"] if await _is_too_wide(page) else found


async def _is_too_wide(page: Page) -> bool:
    return bool(await page.evaluate("document.documentElement.scrollWidth > innerWidth"))
