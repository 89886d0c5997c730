"""The Chromium of this machine, driven by Playwright, and axe-core, which checks the accessibility of its pages."""

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

# without them it would ask for hosts of its maker's, which are none of ours
_QUIETLY = """
    --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync
""".split()
DESK, PHONE = (1280, 860), (390, 844)
_LOOKS = [(scheme, size) for size in (DESK, PHONE) for scheme in ("light", "dark")]


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM.find(), args=_QUIETLY)
        yield browser
        await browser.close()


@dataclass
class Watched:
    """A page, and whatever went wrong on it."""

    page: Page
    host: str
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{self.page.url}: {message.text}")

    def _asked(self, request: Request) -> None:
        if urlsplit(request.url).netloc != self.host and not request.url.startswith("data:"):
            self.foreign.append(request.url)

    async def judge(self, name: str) -> None:
        """In light and dark, at a desk and on a phone: a picture of each, and what axe finds."""
        await self.page.evaluate(AXE.read_text())
        for scheme, (width, height) in _LOOKS:
            await self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            await self.page.set_viewport_size({"width": width, "height": height})
            await self.page.screenshot(path=ARTIFACTS / f"{name}-{scheme}-{width}.png")
            self.judged += [f"{name}, {scheme}, {width}: {fault}" for fault in await _faults(self.page)]
        await self.page.set_viewport_size({"width": DESK[0], "height": DESK[1]})
        await self.page.emulate_media(color_scheme="light")

    async def measure(self, name: str) -> None:
        """At a desk and on a phone: whether all of it is on the screen."""
        for width, height in (DESK, PHONE):
            await self.page.set_viewport_size({"width": width, "height": height})
            if await _too_wide(self.page):
                await self.page.screenshot(path=ARTIFACTS / f"{name}-{width}.png")
                self.judged.append(f"{name}, {width}: wider than the screen")


async def _faults(page: Page) -> list[str]:
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [fault for fault in found["violations"] if fault["impact"] in ("serious", "critical")]
    faults = [f"{fault['id']} {[node['html'][:100] for node in fault['nodes'][:3]]}" for fault in serious]
    return [*faults, "wider than the screen"] if await _too_wide(page) else faults


async def _too_wide(page: Page) -> bool:
    return bool(await page.evaluate("document.documentElement.scrollWidth > innerWidth"))
