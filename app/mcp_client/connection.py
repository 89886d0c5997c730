"""One MCP session with one server, through the SDK, whose errors end here and in `endings`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

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
    MISSING_REQUIRED_CLIENT_CAPABILITY,
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
from app.mcp_client.message_filter import restore_invalid_tools
from app.mcp_client.outcomes import (
    UNREADABLE,
    OutcomeUnknown,
    Request,
    classify_failure,
    error_text,
    on_request,
    on_response,
    seen,
    wrap_streams,
)
from app.mcp_client.stderr_tail import StderrTail, capture_stderr
from app.mcp_client.stdio_servers import StdioServerRegistry
from app.mcp_client.transport import Exchange, GuardedTransport, current_exchange
from app.mcp_client.url_guard import Guard
from app.mcp_types import Dialogue, Endpoint
from app.text.strict_json import Json

logger = logging.getLogger("toolscout.upstream")

T = TypeVar("T")

OnProgress = ProgressFnT
OnToolsChanged = Callable[[Endpoint], None]

_MAX_PAGES = 1_000
_LISTEN_AGAIN_S = 1.0
_LISTEN_AGAIN_AT_LAST_S = 60.0
_CLOSING_S = 1.5
# The SDK ends a program that stays by steps, which take it up to 6.5 s; broken off, they would leave it running.
_STOPPING_S = 8.0
_FAREWELL_S = 0.5
_CALL_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)
_ASKS_FOR_MORE = "the tool asks its user for more input, which cannot be passed on here"
INPUT_REQUIRED = "input_required"
_IDENTITY = Implementation(name="toolscout", version=__version__)

# The SSE transport is older than the newer protocol and knows only the handshake. A program may end when it is asked
# anything before that, so it gets a second chance.
_GREETINGS = {"sse": ["legacy"], "stdio": ["auto", "legacy"]}

# What the SDK logs of messages that it cannot read, or write, holds the messages themselves.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Limits:
    connect_s: float
    list_s: float
    max_bytes: int
    max_tools: int


class Connection:
    """Held by a task of its own: what the SDK opens must be closed by the task that opened it."""

    def __init__(
        self,
        endpoint: Endpoint,
        guard: Guard,
        operators: StdioServerRegistry,
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
        self._stuck = False
        self._version: str | None = None
        self._offers_tools = False
        self._program_said: StderrTail | None = None

    @property
    def alive(self) -> bool:
        holding = self._holder is not None and not self._holder.done()
        return holding and not self._closing.is_set() and not self._stuck

    async def open(self) -> None:
        """Once. Whether it succeeds or not, `close` must follow."""
        if not self._opened.done():
            self._holder = asyncio.create_task(self._hold())
            self._holder.add_done_callback(seen)
        try:
            async with asyncio.timeout(self._limits.connect_s):
                await asyncio.shield(self._opened)
        except TimeoutError as error:
            raise ServerUnreachable("timeout", "the server did not answer in time") from error

    async def close(self) -> None:
        """Politely, and if that takes too long, not. Once."""
        self._closing.set()
        opening = not self._opened.done()
        self._fail_to_open(ServerUnreachable("closed", "the connection was given up"))
        if self._holder is None:
            return
        if opening:
            self._holder.cancel()
        await asyncio.wait({self._holder}, timeout=_STOPPING_S if self.endpoint.transport == "stdio" else _CLOSING_S)
        self._holder.cancel()
        await asyncio.wait({self._holder}, timeout=_FAREWELL_S)

    async def list_tools(self) -> list[Json]:
        """Every page. Raises `ServerUnreachable`, whatever goes wrong: asking again does no harm."""
        try:
            async with asyncio.timeout(self._limits.list_s):
                return await self._pages()
        except TimeoutError as error:
            raise ServerUnreachable("timeout", "the server did not list its tools in time") from error
        except OutcomeUnknown as error:
            raise error.failure from error
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND and not self._offers_tools:
                return []  # a server without tools need not know the question
            raise ServerUnreachable(
                "server_error", f"the server answered the listing with error {error.code}"
            ) from error
        except ValidationError as error:
            places = "; ".join(".".join(map(str, item["loc"])) for item in error.errors()[:3])
            # without its cause, which quotes what the server sent
            raise ServerUnreachable("protocol", f"the server's list of tools is not valid MCP: {places}") from None

    async def _pages(self) -> list[Json]:
        tools: list[Json] = []
        cursor: str | None = None
        cursors: set[str] = set()
        left = self._limits.max_bytes
        for _ in range(_MAX_PAGES):
            page = await self._ask(partial(self._client.list_tools, cursor=cursor))
            # not as JSON, which would quietly turn what JSON cannot carry into null
            tools += [tool.model_dump(by_alias=True, exclude_unset=True) for tool in page.tools]
            tools += restore_invalid_tools(page.meta)
            left -= len(page.model_dump_json())
            if left < 0:
                raise ServerUnreachable("too_large", "the server's list of tools is larger than we take")
            cursor = page.next_cursor
            # beyond the limit tools are refused one by one, but there is an end to that too
            if cursor is None or len(tools) > 2 * self._limits.max_tools:
                return tools
            if cursor in cursors:
                raise ServerUnreachable("endless_listing", "the server's pages lead in a circle")
            cursors.add(cursor)
        raise ServerUnreachable("endless_listing", f"the server's list has not ended after {_MAX_PAGES} pages")

    async def call_tool(
        self,
        name: str,
        arguments: Json,
        timeout_s: float,
        on_progress: OnProgress | None = None,
        dialogue: Dialogue | None = None,
    ) -> Json:
        """Sent once. Raises `ServerUnreachable`, or `ToolFailed` with what is known of the outcome. In a dialogue the
        answer may be a question."""
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._call(name, arguments, on_progress, dialogue)
        except TimeoutError as error:
            raise ToolTimedOut("no answer came in time; it may have run", outcome="unknown") from error
        except OutcomeUnknown as error:
            raise ToolFailed(f"{error.words}; it may have run", outcome="unknown") from error
        except MCPError as error:
            if error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
                raise ToolFailed(_ASKS_FOR_MORE, outcome="failed") from error
            raise ToolFailed(
                f"the server answered with error {error.code}: {error_text(error)}", outcome="failed"
            ) from error
        except ValidationError:
            raise ToolFailed("it ran, but the server's answer is not valid MCP", outcome="unknown") from None
        if isinstance(result, InputRequiredResult):
            if dialogue is None or not _answerable(result, dialogue):
                raise ToolFailed(_ASKS_FOR_MORE, outcome="failed")
            return result.model_dump(by_alias=True, mode="json", exclude_unset=True) | {"resultType": INPUT_REQUIRED}
        return result.model_dump(by_alias=True, mode="json", exclude_unset=True, exclude={"result_type"})

    async def _call(
        self, name: str, arguments: Json, on_progress: OnProgress | None, dialogue: Dialogue | None
    ) -> CallToolResult | InputRequiredResult:
        # Not the client's own `call_tool`: it lists all tools first, to judge a result that is not ours to judge.
        answers = {} if dialogue is None else {"inputResponses": dialogue.responses, "requestState": dialogue.state}
        request = CallToolRequest(
            params=CallToolRequestParams.model_validate({"name": name, "arguments": arguments} | answers)
        )
        declared = None if dialogue is None else dialogue.capabilities

        async def send() -> CallToolResult | InputRequiredResult:
            return await self._client.session.send_request(request, _CALL_RESULT, progress_callback=on_progress)

        try:
            return await self._ask(send, declared)
        except MCPError as error:
            if error.code != HEADER_MISMATCH or not self._modern:
                raise
        # The server turned the call away unread: some of its arguments belong into headers, which the listing tells.
        with suppress(MCPError, ValidationError, OutcomeUnknown, ServerUnreachable):
            await self._pages()
        return await self._ask(send, declared)

    @property
    def _modern(self) -> bool:
        return self._version in MODERN_PROTOCOL_VERSIONS

    @property
    def _client(self) -> Client:
        return self._opened.result()

    async def _ask(self, request: Callable[[], Awaitable[T]], declared: Json | None = None) -> T:
        """Ends with the answer, with what the wire knows to have gone wrong, or with the session."""
        assert self._holder is not None  # noqa: S101 it was opened
        exchange = Request(declared)
        token = current_exchange.set(exchange)
        asking = asyncio.create_task(_awaited(request))
        asking.add_done_callback(seen)
        current_exchange.reset(token)
        failing = asyncio.create_task(exchange.failed.wait())
        try:
            await asyncio.wait({asking, failing, self._holder}, return_when=asyncio.FIRST_COMPLETED)
            error = asking.exception() if asking.done() else None
            if asking.done() and error is None and exchange.failure is None:
                return asking.result()
            raise classify_failure(exchange, error, modern=self._modern)
        finally:
            failing.cancel()
            await self._let_go(asking)

    async def _let_go(self, asking: asyncio.Task[Any]) -> None:
        """The SDK tells the server that nobody waits any more. Where it cannot, because something sent before hangs,
        nothing else will get through either."""
        asking.cancel()
        try:
            await asyncio.wait({asking}, timeout=_FAREWELL_S)
        finally:
            self._stuck |= asking.cancel()

    async def _hold(self) -> None:
        current_exchange.set(self._exchange)
        failure = ServerUnreachable("closed", "the server ended the connection at once")
        for mode in _GREETINGS.get(self.endpoint.transport, ["auto"]):
            try:
                await self._keep_session(mode)
            except Exception as error:  # noqa: BLE001 the SDK's boundary: whatever ends a session ends it for us alone
                failure = self._why_not(error)
            if self._opened.done() or failure.cause != "closed":
                break
        if self._program_said is not None and self._program_said.text and not self._opened.done():
            said = {"server": self.endpoint.server_name, "said": self._program_said.text}
            logger.warning("a program in TOOLSCOUT_STDIO_SERVERS does not start", extra=said)
        self._fail_to_open(failure)

    async def _keep_session(self, mode: str) -> None:
        async with self._transport() as transport, self._session(transport, mode) as client:
            self._meet(client)
            watching = asyncio.create_task(self._watch(client))
            try:
                await self._closing.wait()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    def _meet(self, client: Client) -> None:
        # kept, for of a session that has ended the SDK knows nothing more
        self._version = client.protocol_version
        self._offers_tools = client.server_capabilities.tools is not None
        if not self._opened.done():
            self._opened.set_result(client)

    def _fail_to_open(self, failure: ServerUnreachable) -> None:
        if not self._opened.done():
            self._opened.set_exception(failure)
            self._opened.exception()  # seen, also where nobody waits any more

    def _session(self, transport: Any, mode: str) -> Client:
        transport = wrap_streams(transport, lambda: self._version)
        return Client(transport, mode=mode, cache=None, client_info=_IDENTITY, message_handler=self._on_message)

    def _why_not(self, error: Exception) -> ServerUnreachable:
        if self._exchange.failure is not None:
            return self._exchange.failure
        if (status := self._exchange.status) >= 400:
            return ServerUnreachable(f"status_{status}", f"the server answered with status {status}")
        match _first(error):
            case ServerUnreachable() as known:
                return known
            case MCPError(code=code) if code in UNREADABLE:
                return ServerUnreachable("protocol", f"the server did not answer in valid MCP (error {code})")
            case MCPError(code=code) if code != CONNECTION_CLOSED:
                return ServerUnreachable("server_error", f"the server answered the handshake with error {code}")
            case OSError():
                return ServerUnreachable("refused", "the server's program cannot be started: see `toolscout doctor`")
            case ValueError() | RuntimeError() | httpx2.SSEError():
                return ServerUnreachable("protocol", "the server does not speak a version of MCP that we know")
        return ServerUnreachable("closed", "the server ended the connection at once")

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
        if self.endpoint.transport == "stdio":
            program = self._operators.program(self.endpoint.server_name)
            command, *arguments = program.argv
            parameters = StdioServerParameters(command=command, args=arguments, env=dict(program.env))
            with capture_stderr() as words:
                try:
                    yield stdio_client(parameters, errlog=words.stream)
                finally:
                    self._program_said = words
            return
        url = self.endpoint.url or ""
        if self.endpoint.transport == "sse":
            yield sse_client(url, httpx_client_factory=lambda *_args, **_kwargs: self._http_client(url))
            return
        async with self._http_client(url) as client:
            yield streamable_http_client(url, http_client=client, max_sse_event_size=self._limits.max_bytes)

    def _http_client(self, url: str) -> httpx2.AsyncClient:
        try:
            target = self._guard.target(url)
        except UrlNotAllowed as error:
            raise ServerUnreachable("url_not_allowed", error.message) from error
        # over the SSE transport the answer to a POST is but a receipt, and the SDK leaves a refusal unread
        hooks = [on_response] if self.endpoint.transport == "sse" else []
        headers = httpx2.Headers({"User-Agent": f"toolscout/{__version__}", "Accept-Encoding": "gzip"})
        headers.update(self.endpoint.headers)  # whichever way the user wrote their names
        return httpx2.AsyncClient(
            transport=GuardedTransport(self._guard, target, self._limits.max_bytes),
            headers=headers,
            # a call may take its time, and a stream of events for ever: deadlines are set above, for what is asked
            timeout=httpx2.Timeout(None, connect=self._limits.connect_s),
            event_hooks={"request": [on_request], "response": hooks},
            trust_env=False,
        )

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_tools_changed(self.endpoint)

    async def _watch(self, client: Client) -> None:
        """The newer protocol tells of changes only to those who listen. What is told comes as any other message."""
        tools = client.server_capabilities.tools
        if not self._modern or tools is None or not tools.list_changed:
            return
        pause_s, missed = _LISTEN_AGAIN_S, False
        while True:
            with suppress(MCPError, SubscriptionLost, TimeoutError):
                async with client.listen(tools_list_changed=True) as changes:
                    if missed:
                        self._on_tools_changed(self.endpoint)  # or not: nobody was there to hear it
                    async for _ in changes:
                        pass
            await asyncio.sleep(pause_s)
            pause_s, missed = min(2 * pause_s, _LISTEN_AGAIN_AT_LAST_S), True


def _answerable(asked: InputRequiredResult, dialogue: Dialogue) -> bool:
    """Whether the caller has declared every capability that it would need, as a method's first word names it."""
    methods = [request.method for request in (asked.input_requests or {}).values()]
    return all(method.partition("/")[0] in dialogue.capabilities for method in methods)


async def _awaited(request: Callable[[], Awaitable[T]]) -> T:
    return await request()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
