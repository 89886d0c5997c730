"""The steps of a sign-in to a user's server, as a backend and a browser take them."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from app.container import Container
from tests.support.authorization_server import AuthorizationServer
from tests.support.checks import finished_run
from tests.support.clients import TestUser, open_client
from tests.support.protected_server import ProtectedServer

Json = dict[str, Any]


@dataclass(frozen=True)
class SignIn:
    service: Container
    user: TestUser
    authorization: AuthorizationServer
    protected: ProtectedServer

    async def add_server(self, name: str = "notes", **fields: Any) -> str:
        """Register the protected server, and wait until it was listed."""
        server_id = await self.user.add_server(name, transport="streamable_http", url=self.protected.url, **fields)
        await self.finish_runs(server_id)
        return server_id

    async def start(self, server_id: str, **body: Any) -> str:
        answer = await self.user.http.post(f"/servers/{server_id}/connect", json=body)
        assert answer.status_code == 200, answer.text
        url: str = answer.json()["authorization_url"]
        return url

    async def come_back(self, callback_url: str, service: Container | None = None) -> httpx.Response:
        """Open the address as a browser does that has no key."""
        parts = urlsplit(callback_url)
        async with open_client(service or self.service) as browser:
            return await browser.get(f"{parts.path}?{parts.query}", headers={"Accept": "text/html"})

    async def connect(self, server_id: str | None = None) -> str:
        """Register the server unless it is given, sign in to it, and wait until it was listed. Return its id."""
        server_id = server_id or await self.add_server()
        answer = await self.come_back(self.authorization.approve(await self.start(server_id)))
        assert answer.status_code == 200, answer.text
        await self.finish_runs(server_id)
        return server_id

    async def finish_runs(self, server_id: str) -> Json:
        """Wait for the newest run of the server, and return it."""
        runs = (await self.user.http.get(f"/servers/{server_id}/runs")).json()["items"]
        return await finished_run(self.user.http, runs[0]["id"])

    async def get_server(self, server_id: str) -> Json:
        server: Json = (await self.user.http.get(f"/servers/{server_id}")).json()
        return server

    async def age_token(self, seconds: int) -> None:
        """Let so much of the tokens' lifetime pass."""
        statement = (
            "UPDATE server_connections SET expires_at = expires_at - make_interval(secs => %(s)s), "
            "refreshed_at = refreshed_at - make_interval(secs => %(s)s) WHERE user_id = %(user_id)s"
        )
        async with self.service.database.transaction(self.user.id) as session:
            await session.rows(statement, {"s": seconds, "user_id": self.user.id})
