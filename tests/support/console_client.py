"""A client of the console without a browser: it keeps the cookie and submits forms with the token of the last page."""

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from app.container import Container
from tests.support.clients import open_client

_TOKEN = re.compile(r'<meta name="csrf-token" content="([^"]+)">')
_ALERT = re.compile(r'role="alert">.*?<span>(.*?)</span>', re.DOTALL)


class ConsoleClient:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.token = ""

    async def sign_in(self, key: str, user_id: str = "", **fields: str) -> httpx.Response:
        response = await self.http.post("/console/sign-in", data={"key": key, "user_id": user_id, **fields})
        if response.status_code == 303:
            await self.get_page("/console")
        return response

    async def get_page(self, path: str, status: int = 200, **query: Any) -> str:
        """Return the page, after redirects."""
        response = await self.http.get(path, params=query or None, follow_redirects=True)
        assert response.status_code == status, response.text
        if (token := _TOKEN.search(response.text)) is not None:
            self.token = token[1]
        return response.text

    async def submit(self, path: str, **fields: Any) -> httpx.Response:
        return await self.http.post(path, data={"csrf": self.token, **fields})

    async def fetch_fragment(self, path: str, **fields: Any) -> httpx.Response:
        """Request a part of a page, as the script does."""
        headers = {"X-Fragment": "1", "X-CSRF-Token": self.token}
        return await self.http.post(path, data=fields, headers=headers)


@asynccontextmanager
async def open_console(container: Container, key: str, user_id: str = "") -> AsyncIterator[ConsoleClient]:
    async with open_client(container) as http:
        console = ConsoleClient(http)
        response = await console.sign_in(key, user_id)
        assert response.status_code == 303, response.text
        yield console


def find_error(page: str) -> str:
    match = _ALERT.search(page)
    return html.unescape(match[1]) if match else ""
