"""Users of a service who sign in to a server of theirs, on the pages of a real authorization server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from app.container import Container
from tests.support.clients import TestUser, new_user, open_client
from tests.support.oidc_provider import Person
from tests.support.worker_steps import until

Json = dict[str, Any]

PUBLIC_URL = "http://127.0.0.1:8000"
"""Nobody listens there: `Account.finish` opens the address in the test's process."""
BACKEND = "https://chat.example.com"
OPERATOR_CLIENT = {"client_id": "toolscout", "client_secret": "a-secret-of-the-operator"}


def get_query(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


@dataclass(frozen=True)
class Account:
    """A user, one of their servers, and the person who signs in to it."""

    user: TestUser
    person: Person
    server_id: str
    browser: httpx.AsyncClient
    """It has no key."""

    async def start(self, **body: Any) -> str:
        """Begin a sign-in and return where the browser goes."""
        answer = await self.user.http.post(f"/servers/{self.server_id}/connect", json=body)
        assert answer.status_code == 200, answer.text
        url: str = answer.json()["authorization_url"]
        return url

    async def authorize(self, authorization_url: str) -> str:
        """Sign in and consent, and return the address to which the browser is sent."""
        return await asyncio.to_thread(self.person.authorize, authorization_url)

    async def open(self, url: str) -> httpx.Response:
        """Open a page of the service in the browser, at its public address."""
        parts = urlsplit(url)
        return await self.browser.get(f"{parts.path}?{parts.query}")

    async def finish(self, callback: str) -> httpx.Response:
        """Open the address to which the authorization server has sent the browser."""
        return await self.open(callback)

    async def sign_in(self) -> httpx.Response:
        """Sign in, and wait until the tools of the server are indexed."""
        answer = await self.finish(await self.authorize(await self.start()))
        await self.wait_for_status("connected")
        return answer

    async def read_server(self) -> Json:
        answer = await self.user.http.get(f"/servers/{self.server_id}")
        assert answer.status_code == 200, answer.text
        server: Json = answer.json()
        return server

    async def wait_for_status(self, status: str) -> Json:
        """Wait until no run is under way and the server has this status."""

        async def look() -> Json | None:
            runs = (await self.user.http.get(f"/servers/{self.server_id}/runs")).json()["items"]
            server = await self.read_server()
            is_idle = all(run["finished_at"] is not None for run in runs)
            return server if is_idle and server["status"] == status else None

        return await until(look)

    async def expire_token(self, container: Container) -> None:
        """Let the access token end now, as far as Toolscout knows."""
        statement = "UPDATE server_connections SET expires_at = now() - interval '1 s' WHERE user_id = %(user)s"
        async with container.database.system_transaction() as session:
            assert await session.rows(f"{statement} RETURNING server_id", {"user": self.user.id})

    async def execute(self, tool: str = "list_notes", **arguments: Any) -> httpx.Response:
        return await self.user.execute(tool, arguments)


@asynccontextmanager
async def new_account(container: Container, url: str, account: str, **fields: Any) -> AsyncIterator[Account]:
    """Create a user who has registered the server at this URL, and wait until it was asked for its tools once."""
    async with new_user(container) as user, open_client(container) as browser:
        server_id = await user.add_server("notes", transport="streamable_http", url=url, **fields)
        created = Account(user, Person(account), server_id, browser)
        await created.wait_for_status("needs_authorization")
        yield created
