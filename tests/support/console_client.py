"""A browser without a window: keeps the cookie, sends forms with the token that the last page gave."""

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


class Visitor:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.token = ""

    async def sign_in(self, key: str, user_id: str = "", **fields: str) -> httpx.Response:
        answer = await self.http.post("/console/sign-in", data={"key": key, "user_id": user_id, **fields})
        if answer.status_code == 303:
            await self.see("/console")
        return answer

    async def see(self, path: str, status: int = 200, **query: Any) -> str:
        """The page, wherever redirects lead."""
        answer = await self.http.get(path, params=query or None, follow_redirects=True)
        assert answer.status_code == status, answer.text
        if (token := _TOKEN.search(answer.text)) is not None:
            self.token = token[1]
        return answer.text

    async def send(self, path: str, **fields: Any) -> httpx.Response:
        return await self.http.post(path, data={"csrf": self.token, **fields})

    async def ask(self, path: str, **fields: Any) -> httpx.Response:
        """As the script does: for a part of a page."""
        headers = {"X-Fragment": "1", "X-CSRF-Token": self.token}
        return await self.http.post(path, data=fields, headers=headers)


@asynccontextmanager
async def visitor_of(container: Container, key: str, user_id: str = "") -> AsyncIterator[Visitor]:
    async with open_client(container) as http:
        visitor = Visitor(http)
        answer = await visitor.sign_in(key, user_id)
        assert answer.status_code == 303, answer.text
        yield visitor


def error_in(page: str) -> str:
    found = _ALERT.search(page)
    return html.unescape(found[1]) if found else ""
