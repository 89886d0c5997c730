"""Connections to users' servers: made when first needed, shared, closed when idle."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from app.errors import ServerUnreachable
from app.protocol import Endpoint, Json
from app.upstream.connection import Connection, Limits, OnProgress, OnToolsChanged
from app.upstream.guard import Guard
from app.upstream.operators import OperatorsServers

T = TypeVar("T")

_REAP_EVERY_S = 5.0


@dataclass
class _Place:
    """What the pool knows of one server; `opening` is shared by all who wait for it."""

    connection: Connection
    opening: asyncio.Task[None]
    users: int = 0
    idle_since: float = 0.0


class Upstream:
    def __init__(
        self, guard: Guard, operators: OperatorsServers, limits: Limits, *, idle_s: float, max_connections: int
    ) -> None:
        self.guard = guard
        self.operators = operators
        self._limits = limits
        self._idle_s = idle_s
        self._max_connections = max_connections
        self._places: dict[tuple[str, str], _Place] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None
        self.on_tools_changed: OnToolsChanged = lambda _endpoint: None

    def start(self) -> None:
        self._reaper = asyncio.create_task(self._reap_for_ever())

    async def aclose(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        for key in list(self._places):
            self._drop(key)
        await asyncio.gather(*self._closing, return_exceptions=True)
        self.guard.close()

    async def list_tools(self, endpoint: Endpoint) -> list[Json]:
        return await self._with_one_reconnect(endpoint, lambda connection: connection.list_tools())

    async def call_tool(
        self, endpoint: Endpoint, name: str, arguments: Json, timeout_s: float, on_progress: OnProgress | None = None
    ) -> Json:
        return await self._with_one_reconnect(
            endpoint, lambda connection: connection.call_tool(name, arguments, timeout_s, on_progress)
        )

    def forget(self, user_id: str, server_id: str) -> None:
        """After a server was changed or deleted: what was told to its old address is at an end."""
        self._drop((user_id, server_id))

    async def _with_one_reconnect(self, endpoint: Endpoint, deed: Callable[[Connection], Awaitable[T]]) -> T:
        """A connection from before may have died without our noticing. A new one that fails is the truth."""
        place, is_new = await self._take(endpoint)
        try:
            return await self._use(place, deed)
        except ServerUnreachable:
            if is_new:
                raise
        place, _ = await self._take(endpoint)
        return await self._use(place, deed)

    async def _use(self, place: _Place, deed: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await deed(place.connection)
        except BaseException:
            # Which part of the session is still sound is not worth finding out, unless others are using it.
            if place.users == 1 or not place.connection.alive:
                self._drop(_key(place.connection.endpoint), place)
            raise
        finally:
            place.users -= 1
            place.idle_since = time.monotonic()

    async def _take(self, endpoint: Endpoint) -> tuple[_Place, bool]:
        key = _key(endpoint)
        place = self._places.get(key)
        is_new = place is None or not _usable(place, endpoint)
        if place is None or is_new:
            self._drop(key)
            place = self._places[key] = self._begin(endpoint)
        place.users += 1
        try:
            await asyncio.shield(place.opening)
        except BaseException:
            place.users -= 1
            if place.opening.done():
                self._drop(key, place)
            raise
        return place, is_new

    def _begin(self, endpoint: Endpoint) -> _Place:
        self._make_room()
        connection = Connection(endpoint, self.guard, self.operators, self._limits, self._tools_changed)
        opening = asyncio.create_task(connection.open())
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen, though all have gone
        return _Place(connection, opening, idle_since=time.monotonic())

    def _tools_changed(self, endpoint: Endpoint) -> None:
        self.on_tools_changed(endpoint)

    def _make_room(self) -> None:
        if len(self._places) < self._max_connections:
            return
        idle = [(place.idle_since, key) for key, place in self._places.items() if place.users == 0]
        if not idle:
            raise ServerUnreachable("busy", "too many servers are in use at once; try again shortly")
        self._drop(min(idle)[1])

    def _drop(self, key: tuple[str, str], only: _Place | None = None) -> None:
        place = self._places.get(key)
        if place is None or (only is not None and place is not only):
            return
        del self._places[key]
        closing = asyncio.create_task(_closed(place))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _reap_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(_REAP_EVERY_S, self._idle_s))
            self._reap(time.monotonic() - self._idle_s)

    def _reap(self, before: float) -> None:
        for key, place in list(self._places.items()):
            if place.users == 0 and (place.idle_since < before or not place.connection.alive):
                self._drop(key, place)


def _key(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.user_id, endpoint.server_id


def _usable(place: _Place, endpoint: Endpoint) -> bool:
    if place.connection.endpoint.config_version != endpoint.config_version:
        return False
    return not place.opening.done() or place.connection.alive


async def _closed(place: _Place) -> None:
    place.opening.cancel()
    await asyncio.gather(place.opening, return_exceptions=True)
    await place.connection.close()
