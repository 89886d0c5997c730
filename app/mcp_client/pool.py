"""Connections to users' servers: made when first needed, shared, closed when idle."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from app.errors import ServerUnreachable, ToolFailed, Unavailable
from app.mcp_client.connection import Connection, Limits, OnProgress, OnToolsChanged
from app.mcp_client.stdio_servers import StdioServerRegistry
from app.mcp_client.url_guard import Guard
from app.mcp_types import Dialogue, Endpoint, Transport
from app.text.strict_json import Json

T = TypeVar("T")

_REAP_EVERY_S = 5.0

_STALE = frozenset({"closed", "refused", "session_gone"})
"""What a server's restart looks like from a connection that was made before."""
_STALE_FOR_LISTINGS = _STALE | {"status_400", "status_404"}
"""Asking for a list twice does no harm, so that less certain signs will do."""


@dataclass(eq=False)
class _Entry:
    """What the pool knows of one server; `opening` is shared by all who wait for it."""

    connection: Connection
    opening: asyncio.Task[None]
    users: int = 0
    idle_since: float = 0.0


class McpPool:
    def __init__(
        self, guard: Guard, operators: StdioServerRegistry, limits: Limits, *, idle_s: float, max_connections: int
    ) -> None:
        self.guard = guard
        self.operators = operators
        self._limits = limits
        self._idle_s = idle_s
        self._max_connections = max_connections
        self._places: dict[tuple[str, str], _Entry] = {}
        self._retired: set[_Entry] = set()
        """Out of place, but those who are using them may end what they are doing."""
        self._closing: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None
        self._stopped = False
        self.on_tools_changed: OnToolsChanged = lambda _endpoint: None

    def start(self) -> None:
        self._reaper = asyncio.create_task(self._reap_for_ever())

    async def aclose(self) -> None:
        self._stopped = True
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait({self._reaper})
        for place in [*self._places.values(), *self._retired]:
            self._close(place)
        self._places.clear()
        if self._closing:
            await asyncio.wait(self._closing)
        self.guard.close()

    async def check(self, transport: Transport, name: str, url: str | None) -> None:
        """Before a server is stored; outside of any transaction, since names are looked up."""
        if transport == "stdio":
            self.operators.check(name)
        if url is not None:
            await self.guard.check(url)

    async def list_tools(self, endpoint: Endpoint) -> list[Json]:
        return await self._with_one_reconnect(
            endpoint, lambda connection: connection.list_tools(), stale=_STALE_FOR_LISTINGS
        )

    async def call_tool(
        self,
        endpoint: Endpoint,
        name: str,
        arguments: Json,
        timeout_s: float,
        on_progress: OnProgress | None = None,
        dialogue: Dialogue | None = None,
    ) -> Json:
        """`timeout_s` is for all of it: whoever waits does not care whether for the handshake or for the tool."""
        deadline = asyncio.get_running_loop().time() + timeout_s

        def call(connection: Connection) -> Awaitable[Json]:
            left_s = deadline - asyncio.get_running_loop().time()
            return connection.call_tool(name, arguments, left_s, on_progress, dialogue)

        return await self._with_one_reconnect(endpoint, call, stale=_STALE, deadline=deadline)

    def forget(self, user_id: str, server_id: str) -> None:
        """After a server was changed or deleted: what is under way may end, nothing else begins on that connection."""
        place = self._places.get((user_id, server_id))
        if place is not None:
            self._retire(place)

    def forget_user(self, user_id: str) -> None:
        for owner, server_id in list(self._places):
            if owner == user_id:
                self.forget(owner, server_id)

    async def _with_one_reconnect(
        self,
        endpoint: Endpoint,
        deed: Callable[[Connection], Awaitable[T]],
        *,
        stale: Collection[str],
        deadline: float | None = None,
    ) -> T:
        """A connection from before may have died without our noticing. A new one that fails is the truth."""
        place, is_new = await self._take(endpoint, deadline)
        try:
            return await self._use(place, deed)
        except ServerUnreachable as error:
            if is_new or error.cause not in stale:
                raise
        place, _ = await self._take(endpoint, deadline)
        return await self._use(place, deed)

    async def _use(self, place: _Entry, deed: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await deed(place.connection)
        except BaseException as error:
            # Which part of the session is still sound is not worth finding out.
            if not _leaves_it_sound(error):
                self._retire(place)
            raise
        finally:
            self._leave(place)

    async def _take(self, endpoint: Endpoint, deadline: float | None) -> tuple[_Entry, bool]:
        place = self._places.get(_key(endpoint))
        is_new = place is None or not _usable(place, endpoint)
        if place is None or is_new:
            if place is not None:
                self._retire(place)
            place = self._begin(endpoint)
        place.users += 1
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(place.opening)
        except TimeoutError as error:
            self._leave(place)
            raise ServerUnreachable("timeout", "the server did not shake hands in time") from error
        except BaseException:
            self._leave(place)
            raise
        return place, is_new

    def _leave(self, place: _Entry) -> None:
        place.users -= 1
        place.idle_since = time.monotonic()
        if place.users == 0 and place in self._retired:
            self._close(place)

    def _begin(self, endpoint: Endpoint) -> _Entry:
        if self._stopped:
            raise ServerUnreachable("closed", "Toolscout is stopping")
        self._make_room()
        connection = Connection(endpoint, self.guard, self.operators, self._limits, self._tools_changed)
        opening = asyncio.create_task(connection.open())
        place = self._places[_key(endpoint)] = _Entry(connection, opening, idle_since=time.monotonic())
        opening.add_done_callback(lambda task: self._check_opened(place, task))
        return place

    def _check_opened(self, place: _Entry, opening: asyncio.Task[None]) -> None:
        """Also where all who waited for it have gone."""
        if opening.cancelled() or opening.exception() is not None:
            self._retire(place)

    def _tools_changed(self, endpoint: Endpoint) -> None:
        self.on_tools_changed(endpoint)

    def _make_room(self) -> None:
        if len(self._places) + len(self._retired) < self._max_connections:
            return
        idle = [place for place in self._places.values() if place.users == 0]
        if not idle:
            raise Unavailable("too many servers are in use at once; try again shortly")
        self._retire(min(idle, key=lambda place: place.idle_since))

    def _retire(self, place: _Entry) -> None:
        key = _key(place.connection.endpoint)
        if self._places.get(key) is not place:
            return
        del self._places[key]
        if place.users:
            self._retired.add(place)
        else:
            self._close(place)

    def _close(self, place: _Entry) -> None:
        self._retired.discard(place)
        closing = asyncio.create_task(_closed(place))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _reap_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(_REAP_EVERY_S, self._idle_s))
            self._reap(time.monotonic() - self._idle_s)

    def _reap(self, before: float) -> None:
        for place in list(self._places.values()):
            if place.users == 0 and (place.idle_since < before or not _usable(place, place.connection.endpoint)):
                self._retire(place)


def _key(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.user_id, endpoint.server_id


def _usable(place: _Entry, endpoint: Endpoint) -> bool:
    if place.connection.endpoint.config_version != endpoint.config_version:
        return False
    return not place.opening.done() or place.connection.alive


def _leaves_it_sound(error: BaseException) -> bool:
    """The server has answered, or nobody has waited for its answer."""
    return isinstance(error, asyncio.CancelledError) or (isinstance(error, ToolFailed) and error.outcome == "failed")


async def _closed(place: _Entry) -> None:
    await place.connection.close()
    await asyncio.wait({place.opening})
