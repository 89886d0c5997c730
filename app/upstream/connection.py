"""One MCP session with one server, through the SDK. The only file that knows the SDK, and where its errors end.

Three endings of a request are told apart: the server answered; nothing reached it (`ServerUnreachable`); nobody knows
(`Interrupted`). Only the second may ever be tried again by itself.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from app import __version__
from app.errors import ServerUnreachable, ToolFailed, ToolTimedOut, UrlNotAllowed
from app.protocol import Endpoint, Json
from app.upstream.guard import Guard
from app.upstream.operators import OperatorsServers
from app.upstream.transport import Exchange, GuardedTransport, current_exchange

T = TypeVar("T")

OnProgress = ProgressFnT
OnToolsChanged = Callable[[Endpoint], None]

_MAX_PAGES = 1_000
_CLOSING_S = 3.0
_CALL_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)
_IDENTITY = Implementation(name="toolscout", version=__version__)

# What the SDK logs of messages that it cannot read holds the messages themselves.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Limits:
    connect_s: float
    list_s: float
    max_bytes: int
    max_tools: int


class Interrupted(Exception):
    """The request may have reached the server, and its answer never came."""


class Connection:
    """Held by a task of its own: what the SDK opens must be closed by the task that opened it."""

    def __init__(
        self,
        endpoint: Endpoint,
        guard: Guard,
        operators: OperatorsServers,
        limits: Limits,
        on_tools_changed: OnToolsChanged,
    ) -> None:
        self.endpoint = endpoint
        self._guard = guard
        self._operators = operators
        self._limits = limits
        self._on_tools_changed = on_tools_changed
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._exchange = Exchange()
        self._holder: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._holder is not None and not self._holder.done() and not self._closing.is_set()

    async def open(self) -> None:
        self._holder = asyncio.create_task(self._hold())
        try:
            async with asyncio.timeout(self._limits.connect_s):
                await asyncio.shield(self._opened)
        except TimeoutError as error:
            await self.close()
            raise ServerUnreachable("timeout", "the server did not answer in time") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Politely, and if that takes too long, not."""
        self._closing.set()
        if self._holder is None:
            return
        await asyncio.wait({self._holder}, timeout=_CLOSING_S if self._opened.done() else 0)
        self._holder.cancel()
        await asyncio.gather(self._holder, return_exceptions=True)

    async def list_tools(self) -> list[Json]:
        """Every page. Raises `ServerUnreachable`, whatever goes wrong: asking again does no harm."""
        try:
            async with asyncio.timeout(self._limits.list_s):
                return await self._pages()
        except TimeoutError as error:
            raise ServerUnreachable("timeout", "the server did not list its tools in time") from error
        except Interrupted as error:
            raise ServerUnreachable("closed", "the connection broke while the tools were listed") from error
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                return []  # a server without tools need not know the question
            raise ServerUnreachable(
                "server_error", f"the server answered the listing with error {error.code}"
            ) from error
        except ValidationError as error:
            places = "; ".join(".".join(map(str, item["loc"])) for item in error.errors()[:3])
            raise ServerUnreachable("protocol", f"the server's list of tools is not valid MCP: {places}") from error

    async def _pages(self) -> list[Json]:
        tools: list[Json] = []
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(_MAX_PAGES):
            page = await self._ask(self._client.list_tools(cursor=cursor))
            tools += [tool.model_dump(by_alias=True, mode="json", exclude_unset=True) for tool in page.tools]
            cursor = page.next_cursor
            # beyond the limit tools are refused one by one, but there is an end to that too
            if cursor is None or len(tools) > 2 * self._limits.max_tools:
                return tools
            if cursor in seen:
                raise ServerUnreachable("endless_listing", "the server's pages lead in a circle")
            seen.add(cursor)
        raise ServerUnreachable("endless_listing", f"the server's list has not ended after {_MAX_PAGES} pages")

    async def call_tool(
        self, name: str, arguments: Json, timeout_s: float, on_progress: OnProgress | None = None
    ) -> Json:
        """Sent once. Raises `ServerUnreachable`, or `ToolFailed` with what is known of the outcome."""
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._call(name, arguments, on_progress)
        except TimeoutError as error:
            raise ToolTimedOut(f"no answer within {timeout_s:g} s; it may have run", outcome="unknown") from error
        except Interrupted as error:
            raise ToolFailed(
                "the connection broke before the answer came; it may have run", outcome="unknown"
            ) from error
        except MCPError as error:
            raise ToolFailed(
                f"the server answered with error {error.code}: {error.message}", outcome="failed"
            ) from error
        except ValidationError as error:
            raise ToolFailed("it ran, but the server's answer is not valid MCP", outcome="unknown") from error
        if isinstance(result, InputRequiredResult):
            raise ToolFailed("the tool asks its user for more input, which cannot be passed on here", outcome="failed")
        return result.model_dump(by_alias=True, mode="json", exclude_unset=True, exclude={"result_type"})

    async def _call(
        self, name: str, arguments: Json, on_progress: OnProgress | None
    ) -> CallToolResult | InputRequiredResult:
        # Not the client's own `call_tool`: it lists all tools first, to judge a result that is not ours to judge.
        params = CallToolRequestParams(name=name, arguments=arguments)

        def send() -> Coroutine[Any, Any, CallToolResult | InputRequiredResult]:
            request = CallToolRequest(params=params)
            return self._client.session.send_request(request, _CALL_RESULT, progress_callback=on_progress)

        try:
            return await self._ask(send())
        except MCPError as error:
            if error.code != HEADER_MISMATCH:
                raise
        # The server turned the call away unread: some of its arguments belong into headers, which the listing tells.
        await self._pages()
        return await self._ask(send())

    @property
    def _client(self) -> Client:
        return self._opened.result()

    async def _ask(self, request: Coroutine[Any, Any, T]) -> T:
        """Ends with the answer, with what the wire knows to have gone wrong, or with the session."""
        assert self._holder is not None  # noqa: S101 it was opened
        exchange = Exchange()
        token = current_exchange.set(exchange)
        asking = asyncio.create_task(request)
        current_exchange.reset(token)
        failing = asyncio.create_task(exchange.failed.wait())
        try:
            await asyncio.wait({asking, failing, self._holder}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and exchange.failure is None:
                return _answered(asking, exchange)
            raise _unanswered(exchange)
        finally:
            failing.cancel()
            asking.cancel()
            await asyncio.gather(asking, failing, return_exceptions=True)

    async def _hold(self) -> None:
        current_exchange.set(self._exchange)
        try:
            async with self._transport() as transport, self._session(transport) as client:
                self._opened.set_result(client)
                watching = asyncio.create_task(self._watch(client))
                try:
                    await self._closing.wait()
                finally:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
        except Exception as error:  # noqa: BLE001 the SDK's boundary: whatever ends a session ends it for us alone
            if not self._opened.done():
                self._opened.set_exception(self._why_not(error))
                self._opened.exception()  # seen, also where nobody waits any more

    def _session(self, transport: Any) -> Client:
        # older than the newer protocol, the SSE transport knows only the handshake
        mode = "legacy" if self.endpoint.transport == "sse" else "auto"
        return Client(transport, mode=mode, cache=None, client_info=_IDENTITY, message_handler=self._on_message)

    def _why_not(self, error: Exception) -> ServerUnreachable:
        if self._exchange.failure is not None:
            return self._exchange.failure
        if (status := self._exchange.status) >= 400:
            return ServerUnreachable(f"status_{status}", f"the server answered with status {status}")
        match _first(error):
            case ServerUnreachable() as known:
                return known
            case MCPError(code=code) if code != CONNECTION_CLOSED:
                return ServerUnreachable("server_error", f"the server answered the handshake with error {code}")
            case OSError():
                return ServerUnreachable("refused", "the server's program cannot be started")
            case ValidationError() | RuntimeError():
                return ServerUnreachable("protocol", "the server does not speak a version of MCP that we know")
        return ServerUnreachable("closed", "the server ended the connection at once")

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
        if self.endpoint.transport == "stdio":
            program = self._operators.program(self.endpoint.server_name)
            command, *arguments = program.argv
            parameters = StdioServerParameters(command=command, args=arguments, env=dict(program.env))
            with _nowhere() as nowhere:
                yield stdio_client(parameters, errlog=nowhere)
            return
        url = self.endpoint.url or ""
        async with self._http_client(url) as client:
            if self.endpoint.transport == "sse":
                yield sse_client(url, httpx_client_factory=lambda *_args, **_kwargs: client)
            else:
                yield streamable_http_client(url, http_client=client, max_sse_event_size=self._limits.max_bytes)

    def _http_client(self, url: str) -> httpx2.AsyncClient:
        try:
            target = self._guard.target(url)
        except UrlNotAllowed as error:
            raise ServerUnreachable("url_not_allowed", error.message) from error
        return httpx2.AsyncClient(
            transport=GuardedTransport(self._guard, target, self._limits.max_bytes),
            headers={"User-Agent": f"toolscout/{__version__}", "Accept-Encoding": "gzip", **self.endpoint.headers},
            # a call may take its time, and a stream of events for ever: deadlines are set above, for what is asked
            timeout=httpx2.Timeout(None, connect=self._limits.connect_s),
            trust_env=False,
        )

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_tools_changed(self.endpoint)

    async def _watch(self, client: Client) -> None:
        """The newer protocol tells of changes only to those who listen."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        with suppress(MCPError, SubscriptionLost, TimeoutError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._on_tools_changed(self.endpoint)


def _answered(asking: asyncio.Task[T], exchange: Exchange) -> T:
    error = asking.exception()
    # what the SDK says when a session ends is no answer, and neither is a broken server's page
    if isinstance(error, MCPError) and (error.code == CONNECTION_CLOSED or exchange.status >= 500):
        raise Interrupted from error
    return asking.result()


_REFUSALS = ("unauthorized", "session_gone", "redirect", "url_not_allowed", "dns", "status_4")


def _unanswered(exchange: Exchange) -> Exception:
    failure = exchange.failure
    if failure is not None and (not exchange.sent or failure.cause.startswith(_REFUSALS)):
        return failure
    return Interrupted()


def _nowhere() -> TextIO:
    """For what a program writes beside its answers: it may hold what it was sent."""
    return Path(os.devnull).open("w")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
