"""The SDK's client of an MCP server that wants OAuth, with a person who signs in when it is asked to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.support.oidc_provider import Person

CALLBACK = "http://127.0.0.1:33418/callback"
"""Nobody listens there: the person reads the address to which the provider redirects."""


@dataclass
class MemoryTokens:
    """What the client stores: nothing before the first sign-in."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@dataclass
class _Browser:
    person: Person
    redirects: list[str] = field(default_factory=list)

    async def open(self, authorization_url: str) -> None:
        self.redirects.append(await asyncio.to_thread(self.person.authorize, authorization_url))

    async def read_callback(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(**dict(parse_qsl(urlsplit(self.redirects.pop()).query)))


@asynccontextmanager
async def connect_with_oauth(url: str, person: Person, storage: MemoryTokens | None = None) -> AsyncIterator[Client]:
    """Connect as an agent does that knows only the address of the server."""
    browser = _Browser(person)
    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(CALLBACK)], client_name="An agent")
    auth = OAuthClientProvider(url, metadata, storage or MemoryTokens(), browser.open, browser.read_callback)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=30, verify=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client
