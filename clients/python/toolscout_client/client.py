"""The two clients: `Toolscout` blocks, `AsyncToolscout` is awaited. What they offer is in `rooms.py`, for both."""

from copy import copy
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import httpx

from toolscout_client.calling import Awaiting, Blocking, W
from toolscout_client.rooms import Conversation, Keys, Projects, RuleBook, Runs, Servers, Tools, Users

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
RETRIES = 3
_KEPT_ALIVE_S = 3.0
"""Less than servers do, so that nothing is sent into a connection that is being closed at the other end."""


class _Client(Conversation[W]):
    def for_user(self, user_id: str) -> Self:
        """The same client, acting for this user, with a service or an admin key. Connections are shared: whoever
        closes one closes all."""
        other = copy(self)
        other._way = replace(self._way, user_id=user_id)
        return other

    @property
    def servers(self) -> Servers[W]:
        return Servers(self._way)

    @property
    def runs(self) -> Runs[W]:
        return Runs(self._way)

    @property
    def tools(self) -> Tools[W]:
        return Tools(self._way)

    @property
    def rules(self) -> RuleBook[W]:
        return RuleBook(self._way)

    @property
    def projects(self) -> Projects[W]:
        return Projects(self._way)

    @property
    def users(self) -> Users[W]:
        return Users(self._way)

    @property
    def keys(self) -> Keys[W]:
        return Keys(self._way)


class Toolscout(_Client[Blocking]):
    """`Toolscout("http://127.0.0.1:8000", key)`, and what `httpx.Client` takes besides: `verify`, `proxy`, …"""

    def __init__(
        self, url: str, key: str, *, timeout: float = TIMEOUT_S, retries: int = RETRIES, **httpx_options: Any
    ) -> None:
        super().__init__(Blocking(httpx.Client(**_options(url, key, timeout), **httpx_options), retries))

    def close(self) -> None:
        self._way.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncToolscout(_Client[Awaiting]):
    """The same, for asyncio."""

    def __init__(
        self, url: str, key: str, *, timeout: float = TIMEOUT_S, retries: int = RETRIES, **httpx_options: Any
    ) -> None:
        super().__init__(Awaiting(httpx.AsyncClient(**_options(url, key, timeout), **httpx_options), retries))

    async def close(self) -> None:
        await self._way.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _options(url: str, key: str, timeout: float) -> dict[str, Any]:
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {key}", "User-Agent": f"toolscout-client/{_version()}"},
        "timeout": httpx.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT_S)),
        "limits": httpx.Limits(keepalive_expiry=_KEPT_ALIVE_S),
    }


def _version() -> str:
    try:
        return version("toolscout-client")
    except PackageNotFoundError:  # used from its folder
        return "0"
