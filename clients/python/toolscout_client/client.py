"""The two clients: `Toolscout` blocks, `AsyncToolscout` is for asyncio. Both have the endpoints of `resources.py`."""

from copy import copy
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import httpx

from toolscout_client.reports import CatalogResource, ReportResource
from toolscout_client.resources import (
    Categories,
    ChatResource,
    Conversations,
    Keys,
    Projects,
    Registry,
    RulesResource,
    Runs,
    Servers,
    SharedServers,
    Tools,
    Users,
)
from toolscout_client.transport import AsyncTransport, SyncTransport, TransportT

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
RETRIES = 3
_KEEPALIVE_S = 3.0
"""Shorter than servers keep connections, so that no request is sent on a connection that the server is closing."""


class _Client(ChatResource[TransportT], CatalogResource[TransportT], ReportResource[TransportT]):
    def for_user(self, user_id: str) -> Self:
        """Return a client that acts for this user, with a service or an admin key.

        Both clients share their connections: closing one closes the other.
        """
        client = copy(self)
        client._transport = replace(self._transport, user_id=user_id)
        return client

    @property
    def user_id(self) -> str | None:
        """The user that `for_user` has named; None leaves the user to the key."""
        return self._transport.user_id

    @property
    def conversations(self) -> Conversations[TransportT]:
        return Conversations(self._transport)

    @property
    def servers(self) -> Servers[TransportT]:
        return Servers(self._transport)

    @property
    def shared_servers(self) -> SharedServers[TransportT]:
        return SharedServers(self._transport)

    @property
    def registry(self) -> Registry[TransportT]:
        return Registry(self._transport)

    @property
    def runs(self) -> Runs[TransportT]:
        return Runs(self._transport)

    @property
    def tools(self) -> Tools[TransportT]:
        return Tools(self._transport)

    @property
    def categories(self) -> Categories[TransportT]:
        return Categories(self._transport)

    @property
    def rules(self) -> RulesResource[TransportT]:
        return RulesResource(self._transport)

    @property
    def projects(self) -> Projects[TransportT]:
        return Projects(self._transport)

    @property
    def users(self) -> Users[TransportT]:
        return Users(self._transport)

    @property
    def keys(self) -> Keys[TransportT]:
        return Keys(self._transport)


class Toolscout(_Client[SyncTransport]):
    """The blocking client: `Toolscout("http://127.0.0.1:8000", key)`. `httpx_options` are passed to `httpx.Client`:
    `verify`, `proxy` and others."""

    def __init__(
        self, url: str, key: str, *, timeout: float = TIMEOUT_S, retries: int = RETRIES, **httpx_options: Any
    ) -> None:
        super().__init__(SyncTransport(httpx.Client(**_httpx_options(url, key, timeout), **httpx_options), retries))

    def close(self) -> None:
        self._transport.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncToolscout(_Client[AsyncTransport]):
    """The client for asyncio."""

    def __init__(
        self, url: str, key: str, *, timeout: float = TIMEOUT_S, retries: int = RETRIES, **httpx_options: Any
    ) -> None:
        super().__init__(
            AsyncTransport(httpx.AsyncClient(**_httpx_options(url, key, timeout), **httpx_options), retries)
        )

    async def close(self) -> None:
        await self._transport.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _httpx_options(url: str, key: str, timeout: float) -> dict[str, Any]:
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {key}", "User-Agent": f"toolscout-client/{_version()}"},
        "timeout": httpx.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT_S)),
        "limits": httpx.Limits(keepalive_expiry=_KEEPALIVE_S),
    }


def _version() -> str:
    try:
        return version("toolscout-client")
    except PackageNotFoundError:  # used without being installed
        return "0"
