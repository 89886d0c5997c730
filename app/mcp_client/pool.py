"""A pool of connections to users' servers: opened when first needed, shared, and closed when idle."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from app.errors import RequestRejected, ServerUnreachable, ToolFailed, Unavailable
from app.mcp_client.connection import Connection, Limits, OnProgress, OnToolsChanged
from app.mcp_client.content import ContentKind, ContentList, ContentRequest, list_content, request_content
from app.mcp_client.outcomes import suggest_sse
from app.mcp_client.stdio_servers import StdioServerRegistry
from app.mcp_client.url_guard import Guard
from app.mcp_types import Dialogue, Endpoint, ToolList, Transport
from app.text.strict_json import Json

T = TypeVar("T")

_REAP_INTERVAL_S = 5.0

MAX_SHARE = 0.8
"""How much of the pool the connections of one user may take: one request can use several servers, and a changed server
gets a new connection while calls still use the old one."""

_STALE = frozenset({"closed", "refused", "session_gone"})
"""Causes of failure on an existing connection after the server has restarted."""
_STALE_FOR_LISTING = _STALE | {"status_400", "status_404"}
"""Listing twice does no harm, so less certain signs are enough."""


@dataclass(eq=False)
class _Entry:
    """The connection to one server. All callers that need it share the `opening` task."""

    connection: Connection
    opening: asyncio.Task[None]
    users: int = 0
    idle_since: float = 0.0

    def is_usable_for(self, endpoint: Endpoint) -> bool:
        if self.connection.endpoint.config_version != endpoint.config_version:
            return False
        if self.connection.endpoint.credential_version and not endpoint.credential_version:
            return False  # the credentials have been withdrawn
        return not self.opening.done() or self.connection.is_alive


class McpPool:
    def __init__(
        self, guard: Guard, stdio_servers: StdioServerRegistry, limits: Limits, *, idle_s: float, max_connections: int
    ) -> None:
        self.guard = guard
        self.stdio_servers = stdio_servers
        self._limits = limits
        self._idle_s = idle_s
        self._max_connections = max_connections
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._retired: set[_Entry] = set()
        """No longer in `_entries`, but still used by calls that may finish."""
        self._closing: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None
        self._is_closed = False
        self.on_tools_changed: OnToolsChanged = lambda _endpoint: None

    def start(self) -> None:
        self._reaper = asyncio.create_task(self._run_reaper())

    async def aclose(self) -> None:
        self._is_closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait({self._reaper})
        for entry in [*self._entries.values(), *self._retired]:
            self._close(entry)
        self._entries.clear()
        if self._closing:
            await asyncio.wait(self._closing)
        self.guard.close()

    def reconfigure(
        self,
        allowed: Iterable[str],
        stdio_servers: StdioServerRegistry,
        limits: Limits,
        *,
        idle_s: float,
        max_connections: int,
    ) -> None:
        """Use other lists and limits from now on.

        Connections for which the operator's lists say something else now are no longer used. Running calls may finish.
        """
        entries = list(self._entries.values())
        permits = [self._find_permit(entry) for entry in entries]
        self.guard.allow(allowed)
        self.stdio_servers = stdio_servers
        self._limits, self._idle_s, self._max_connections = limits, idle_s, max_connections
        for entry, permit in zip(entries, permits, strict=True):
            entry.connection.limits = limits
            if self._find_permit(entry) != permit:
                self._retire(entry)

    def _find_permit(self, entry: _Entry) -> object:
        """Return what the lists say about a connection: its program, or whether its host and port are listed."""
        endpoint = entry.connection.endpoint
        if endpoint.transport == "stdio":
            return self.stdio_servers.programs.get(endpoint.server_name)
        return endpoint.url is not None and self.guard.is_listed(endpoint.url)

    async def check(self, user_id: str, transport: Transport, name: str, url: str | None) -> None:
        """Raise `InvalidInput` or `UrlNotAllowed` unless the user may register such a server.

        Call it outside of any transaction, because it resolves host names.
        """
        if transport == "stdio":
            self.stdio_servers.check(name, user_id)
        if url is not None:
            await self.guard.check(url, user_id)

    async def list_tools(self, endpoint: Endpoint) -> list[Json]:
        return (await self.fetch_tool_list(endpoint)).tools

    async def fetch_tool_list(self, endpoint: Endpoint) -> ToolList:
        try:
            return await self._with_one_reconnect(
                endpoint, lambda connection: connection.list_tools(), stale=_STALE_FOR_LISTING
            )
        except ServerUnreachable as error:
            if (explained := suggest_sse(error, endpoint.transport)) is None:
                raise
            raise explained from error

    async def call_tool(
        self,
        endpoint: Endpoint,
        name: str,
        arguments: Json,
        timeout_s: float,
        on_progress: OnProgress | None = None,
        dialogue: Dialogue | None = None,
    ) -> Json:
        """Call the tool. `timeout_s` covers the handshake and the call."""
        deadline = asyncio.get_running_loop().time() + timeout_s

        def call(connection: Connection) -> Awaitable[Json]:
            remaining_s = deadline - asyncio.get_running_loop().time()
            return connection.call_tool(name, arguments, remaining_s, on_progress, dialogue)

        return await self._with_one_reconnect(endpoint, call, stale=_STALE, deadline=deadline)

    async def list_content(self, endpoint: Endpoint, kind: ContentKind, max_items: int) -> ContentList:
        """Return the server's resources, templates of resources, or prompts."""
        return await self._with_one_reconnect(
            endpoint, lambda connection: list_content(connection, kind, max_items), stale=_STALE_FOR_LISTING
        )

    async def request_content(
        self, endpoint: Endpoint, request: ContentRequest, timeout_s: float, dialogue: Dialogue | None = None
    ) -> Json:
        """Read a resource or get a prompt. `timeout_s` covers the handshake and the request."""
        deadline = asyncio.get_running_loop().time() + timeout_s

        def send(connection: Connection) -> Awaitable[Json]:
            remaining_s = deadline - asyncio.get_running_loop().time()
            return request_content(connection, request, remaining_s, dialogue)

        return await self._with_one_reconnect(endpoint, send, stale=_STALE_FOR_LISTING, deadline=deadline)

    def forget(self, user_id: str, server_id: str) -> None:
        """Stop using the connection of a server that was changed or deleted. Running calls may finish."""
        entry = self._entries.get((user_id, server_id))
        if entry is not None:
            self._retire(entry)

    def forget_user(self, user_id: str) -> None:
        for owner, server_id in list(self._entries):
            if owner == user_id:
                self.forget(owner, server_id)

    async def _with_one_reconnect(
        self,
        endpoint: Endpoint,
        operation: Callable[[Connection], Awaitable[T]],
        *,
        stale: Collection[str],
        deadline: float | None = None,
    ) -> T:
        """Run the operation; reconnect once if an existing connection fails for a `stale` cause.

        An existing connection may have died unnoticed. A failure of a new connection is real.
        """
        entry, is_new = await self._acquire(endpoint, deadline)
        try:
            return await self._run(entry, operation)
        except ServerUnreachable as error:
            if is_new or error.cause not in stale:
                raise
        entry, _ = await self._acquire(endpoint, deadline)
        return await self._run(entry, operation)

    async def _run(self, entry: _Entry, operation: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await operation(entry.connection)
        except BaseException as error:
            # The session may be damaged; a new connection is cheaper than finding out.
            if not _leaves_session_intact(error):
                self._retire(entry)
            raise
        finally:
            self._release(entry)

    async def _acquire(self, endpoint: Endpoint, deadline: float | None) -> tuple[_Entry, bool]:
        """Return an open connection, and whether it is new."""
        entry = self._entries.get(_key(endpoint))
        is_new = entry is None or not entry.is_usable_for(endpoint)
        if entry is None or is_new:
            if entry is not None:
                self._retire(entry)
            entry = self._open(endpoint)
        elif endpoint.credential_version > entry.connection.endpoint.credential_version:
            entry.connection.endpoint = endpoint
        entry.users += 1
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(entry.opening)
        except TimeoutError as error:
            self._release(entry)
            raise ServerUnreachable("timeout", "the server did not complete the handshake in time") from error
        except BaseException:
            self._release(entry)
            raise
        return entry, is_new

    def _release(self, entry: _Entry) -> None:
        entry.users -= 1
        entry.idle_since = time.monotonic()
        if entry.users == 0 and entry in self._retired:
            self._close(entry)

    def _open(self, endpoint: Endpoint) -> _Entry:
        if self._is_closed:
            raise ServerUnreachable("closed", "Toolscout is shutting down")
        self._evict_if_full(endpoint.user_id)
        connection = Connection(endpoint, self.guard, self.stdio_servers, self._limits, self._notify_tools_changed)
        opening = asyncio.create_task(connection.open())
        entry = self._entries[_key(endpoint)] = _Entry(connection, opening, idle_since=time.monotonic())
        opening.add_done_callback(lambda task: self._on_opened(entry, task))
        return entry

    def _on_opened(self, entry: _Entry, opening: asyncio.Task[None]) -> None:
        """Retire a connection that failed to open, even if nobody is waiting for it any more."""
        if opening.cancelled() or opening.exception() is not None:
            self._retire(entry)

    def _notify_tools_changed(self, endpoint: Endpoint) -> None:
        self.on_tools_changed(endpoint)

    def _evict_if_full(self, user_id: str) -> None:
        """Make room for a connection of the user: by one of the user's own if these have their share."""
        connections = [*self._entries.values(), *self._retired]
        own = sum(entry.connection.endpoint.user_id == user_id for entry in connections)
        has_share = own >= math.ceil(self._max_connections * MAX_SHARE)
        if not has_share and len(connections) < self._max_connections:
            return
        idle = [
            entry
            for (owner, _), entry in self._entries.items()
            if entry.users == 0 and (owner == user_id or not has_share)
        ]
        if not idle:
            whose = "of your servers" if has_share else "servers"
            raise Unavailable(f"too many {whose} are in use at once; try again shortly")
        self._retire(min(idle, key=lambda entry: entry.idle_since))

    def _retire(self, entry: _Entry) -> None:
        """Remove the entry from the pool; close it once nobody uses it."""
        key = _key(entry.connection.endpoint)
        if self._entries.get(key) is not entry:
            return
        del self._entries[key]
        if entry.users:
            self._retired.add(entry)
        else:
            self._close(entry)

    def _close(self, entry: _Entry) -> None:
        self._retired.discard(entry)
        closing = asyncio.create_task(_close_connection(entry))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _run_reaper(self) -> None:
        while True:
            await asyncio.sleep(min(_REAP_INTERVAL_S, self._idle_s))
            self._reap(time.monotonic() - self._idle_s)

    def _reap(self, idle_before: float) -> None:
        for entry in list(self._entries.values()):
            is_idle = entry.idle_since < idle_before or not entry.is_usable_for(entry.connection.endpoint)
            if entry.users == 0 and is_idle:
                self._retire(entry)


def _key(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.user_id, endpoint.server_id


def _leaves_session_intact(error: BaseException) -> bool:
    """The server has answered, or the caller has stopped waiting."""
    if isinstance(error, asyncio.CancelledError | RequestRejected):
        return True
    return isinstance(error, ToolFailed) and error.outcome == "failed"


async def _close_connection(entry: _Entry) -> None:
    await entry.connection.close()
    await asyncio.wait({entry.opening})
