"""One MCP session with one server, through the SDK. The SDK's errors are translated here and in `outcomes`."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import httpx2
from mcp import Client, MCPError
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
    ServerCapabilities,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, TypeAdapter, ValidationError

from app import __version__
from app.errors import ServerUnreachable, ToolFailed, ToolTimedOut
from app.mcp_client.message_filter import restore_invalid_tools
from app.mcp_client.outcomes import (
    UNREADABLE,
    OutcomeUnknown,
    Request,
    classify_failure,
    error_text,
    retrieve_exception,
    wrap_streams,
)
from app.mcp_client.sdk_transport import open_transport
from app.mcp_client.stderr_tail import StderrTail
from app.mcp_client.stdio_servers import StdioServerRegistry
from app.mcp_client.surrogates import LONE_SURROGATE, show_replacement
from app.mcp_client.transport import Exchange, current_exchange
from app.mcp_client.url_guard import Guard
from app.mcp_types import Dialogue, Endpoint, ToolList
from app.text.strict_json import Json

logger = logging.getLogger("toolscout.upstream")

T = TypeVar("T")

OnProgress = ProgressFnT
OnToolsChanged = Callable[[Endpoint], None]

INPUT_REQUIRED = "input_required"

_MAX_PAGES = 1_000
_MIN_SUBSCRIBE_PAUSE_S = 1.0
_MAX_SUBSCRIBE_PAUSE_S = 60.0
_CLOSE_TIMEOUT_S = 1.5
# The SDK stops a program in steps that take up to 6.5 s; cancelling them would leave the program running.
_STDIO_CLOSE_TIMEOUT_S = 8.0
_CANCEL_TIMEOUT_S = 0.5
_CALL_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)
_CANNOT_ANSWER = "the tool asks the user for input, which this caller cannot answer"
_CLIENT_INFO = Implementation(name="toolscout", version=__version__)

# The SSE transport is older than the newest protocol and supports only the older handshake. A stdio program may exit
# on a request before that handshake, so it gets a second attempt.
_HANDSHAKE_MODES = {"sse": ["legacy"], "stdio": ["auto", "legacy"]}

# The SDK logs the content of messages that it cannot read or write.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Limits:
    connect_s: float
    list_s: float
    max_bytes: int
    max_tools: int


class Connection:
    """Runs its session in a task of its own: the SDK requires that the task which opens a session also closes it."""

    def __init__(
        self,
        endpoint: Endpoint,
        guard: Guard,
        stdio_servers: StdioServerRegistry,
        limits: Limits,
        on_tools_changed: OnToolsChanged,
    ) -> None:
        self.endpoint = endpoint
        """The pool replaces it by one with a newer access token."""
        self._guard = guard
        self._stdio_servers = stdio_servers
        self.limits = limits
        self._on_tools_changed = on_tools_changed
        self._connected: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._close_requested = asyncio.Event()
        self._handshake = Exchange()
        self._session_task: asyncio.Task[None] | None = None
        self._stuck = False
        self._protocol_version: str | None = None
        self.capabilities = ServerCapabilities()
        """What the server declares, once the connection is open."""
        self._stderr = StderrTail()

    @property
    def is_alive(self) -> bool:
        is_running = self._session_task is not None and not self._session_task.done()
        return is_running and not self._close_requested.is_set() and not self._stuck

    async def open(self) -> None:
        """Open the session. Call it once, and call `close` afterwards even if it fails."""
        if not self._connected.done():
            self._session_task = asyncio.create_task(self._run_session())
            self._session_task.add_done_callback(retrieve_exception)
        try:
            async with asyncio.timeout(self.limits.connect_s):
                await asyncio.shield(self._connected)
        except TimeoutError as error:
            raise ServerUnreachable("timeout", "the server did not answer in time") from error

    async def close(self) -> None:
        """Let the session end; cancel it if that takes too long. Call it once."""
        self._close_requested.set()
        is_opening = not self._connected.done()
        self._fail_to_open(ServerUnreachable("closed", "the connection was closed before it was established"))
        if self._session_task is None:
            return
        if is_opening:
            self._session_task.cancel()
        timeout_s = _STDIO_CLOSE_TIMEOUT_S if self.endpoint.transport == "stdio" else _CLOSE_TIMEOUT_S
        await asyncio.wait({self._session_task}, timeout=timeout_s)
        self._session_task.cancel()
        await asyncio.wait({self._session_task}, timeout=_CANCEL_TIMEOUT_S)

    async def list_tools(self) -> ToolList:
        """Return the tools of all pages. Every failure is a `ServerUnreachable`: listing again does no harm."""
        try:
            async with asyncio.timeout(self.limits.list_s):
                return await self._list_all_pages()
        except TimeoutError as error:
            raise ServerUnreachable("timeout", "the server did not list its tools in time") from error
        except OutcomeUnknown as error:
            raise error.failure from error
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND and self.capabilities.tools is None:
                return ToolList([])  # a server without tools need not implement tools/list
            raise ServerUnreachable(
                "server_error", f"the server answered tools/list with error {error.code}"
            ) from error
        except ValidationError as error:
            paths = "; ".join(".".join(map(str, item["loc"])) for item in error.errors()[:3])
            # "from None": the cause quotes what the server sent.
            raise ServerUnreachable("protocol", f"the server's list of tools is not valid MCP: {paths}") from None

    async def _list_all_pages(self) -> ToolList:
        tools: list[Json] = []
        ttls_ms: list[int] = []
        is_public = self._is_modern  # an older server does not know what these fields mean
        cursor: str | None = None
        seen_cursors: set[str] = set()
        bytes_left = self.limits.max_bytes
        for _ in range(_MAX_PAGES):
            page = await self.request(partial(self.client.list_tools, cursor=cursor))
            # Not dumped as JSON, which would silently turn values that JSON cannot represent into null.
            tools += [tool.model_dump(by_alias=True, exclude_unset=True) for tool in page.tools]
            tools += restore_invalid_tools(page.meta)
            ttls_ms.append(page.ttl_ms)
            is_public &= page.cache_scope == "public"
            bytes_left -= len(page.model_dump_json())
            if bytes_left < 0:
                raise ServerUnreachable("too_large", "the server's list of tools is too large")
            cursor = page.next_cursor
            # The indexer refuses the tools above the limit one by one; twice the limit is enough for that.
            if cursor is None or len(tools) > 2 * self.limits.max_tools:
                # 0 also stands for a server that says nothing
                ttl_s = min(ttls_ms) / 1000 if self._is_modern else 0
                return ToolList(tools, ttl_s or None, is_public)
            if cursor in seen_cursors:
                raise ServerUnreachable("endless_listing", "the server's list of tools repeats a cursor")
            seen_cursors.add(cursor)
        raise ServerUnreachable("endless_listing", f"the server's list of tools has more than {_MAX_PAGES} pages")

    async def call_tool(
        self,
        name: str,
        arguments: Json,
        timeout_s: float,
        on_progress: OnProgress | None = None,
        dialogue: Dialogue | None = None,
    ) -> Json:
        """Send the call once. Raise `ServerUnreachable`, or `ToolFailed` with what is known about the outcome.

        With a dialogue the result may be a question to the user.
        """
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._send_call(name, arguments, on_progress, dialogue)
        except TimeoutError as error:
            raise ToolTimedOut("the tool did not answer in time; it may have run", outcome="unknown") from error
        except OutcomeUnknown as error:
            raise ToolFailed(f"{error.detail}; it may have run", outcome="unknown") from error
        except MCPError as error:
            if error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
                raise ToolFailed(_CANNOT_ANSWER, outcome="failed") from error
            message = f"the server answered with error {error.code}: {error_text(error)}"
            raise ToolFailed(message, outcome="failed") from error
        except ValidationError:
            raise ToolFailed("the tool ran, but the server's answer is not valid MCP", outcome="unknown") from None
        answer = dump_result(result)
        if isinstance(result, InputRequiredResult):
            if dialogue is None or not can_answer(dialogue, result):
                raise ToolFailed(_CANNOT_ANSWER, outcome="failed")
            return answer | {"resultType": INPUT_REQUIRED}
        answer.pop("resultType", None)
        return answer

    async def _send_call(
        self, name: str, arguments: Json, on_progress: OnProgress | None, dialogue: Dialogue | None
    ) -> CallToolResult | InputRequiredResult:
        # Not `Client.call_tool`: it lists all tools first, to validate the result, which is not our task.
        answers = {} if dialogue is None else {"inputResponses": dialogue.responses, "requestState": dialogue.state}
        request = CallToolRequest(
            params=CallToolRequestParams.model_validate({"name": name, "arguments": arguments} | answers)
        )
        capabilities = None if dialogue is None else dialogue.capabilities

        async def send() -> CallToolResult | InputRequiredResult:
            return await self.client.session.send_request(request, _CALL_RESULT, progress_callback=on_progress)

        try:
            return await self.request(send, capabilities)
        except MCPError as error:
            if error.code != HEADER_MISMATCH or not self._is_modern:
                raise
        # The server rejected the call unread: some arguments must be sent as headers. The SDK learns which ones from
        # the list of tools.
        with suppress(MCPError, ValidationError, OutcomeUnknown, ServerUnreachable):
            await self._list_all_pages()
        return await self.request(send, capabilities)

    @property
    def _is_modern(self) -> bool:
        return self._protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def client(self) -> Client:
        return self._connected.result()

    async def request(self, send: Callable[[], Coroutine[Any, Any, T]], capabilities: Json | None = None) -> T:
        """Wait for the result, for a failure that the HTTP transport has noticed, or for the end of the session."""
        assert self._session_task is not None  # noqa: S101 `open` was called
        exchange = Request(capabilities)
        token = current_exchange.set(exchange)
        sending = asyncio.create_task(send())
        sending.add_done_callback(retrieve_exception)
        current_exchange.reset(token)
        failing = asyncio.create_task(exchange.failed.wait())
        try:
            await asyncio.wait({sending, failing, self._session_task}, return_when=asyncio.FIRST_COMPLETED)
            error = sending.exception() if sending.done() else None
            if sending.done() and error is None and exchange.failure is None:
                return sending.result()
            raise classify_failure(exchange, error, modern=self._is_modern)
        finally:
            failing.cancel()
            await self._cancel_request(sending)

    async def _cancel_request(self, sending: asyncio.Task[Any]) -> None:
        """Cancel the request; the SDK then notifies the server. If the SDK cannot, because an earlier message hangs,
        no other message gets through either, and the connection is not used again."""
        sending.cancel()
        try:
            await asyncio.wait({sending}, timeout=_CANCEL_TIMEOUT_S)
        finally:
            self._stuck |= sending.cancel()

    async def _run_session(self) -> None:
        current_exchange.set(self._handshake)
        failure = ServerUnreachable("closed", "the server closed the connection immediately")
        for mode in _HANDSHAKE_MODES.get(self.endpoint.transport, ["auto"]):
            try:
                await self._hold_session(mode)
            except Exception as error:  # noqa: BLE001 boundary of the SDK: any error ends this session only
                failure = self._explain_failure(error)
            if self._connected.done() or failure.cause != "closed":
                break
        if self._stderr.text and not self._connected.done():
            extra = {"server": self.endpoint.server_name, "stderr": self._stderr.text}
            logger.warning("stdio server failed to start", extra=extra)
        self._fail_to_open(failure)

    async def _hold_session(self, mode: str) -> None:
        """Keep the session open until `close` is called."""
        async with (
            open_transport(
                lambda: self.endpoint,
                self._guard,
                self._stdio_servers,
                self._stderr,
                connect_s=self.limits.connect_s,
                max_bytes=self.limits.max_bytes,
            ) as transport,
            Client(
                wrap_streams(transport, lambda: self._protocol_version),
                mode=mode,
                cache=None,
                client_info=_CLIENT_INFO,
                message_handler=self._on_message,
            ) as client,
        ):
            # Kept, because the SDK does not know them any more once a session has ended.
            self._protocol_version = client.protocol_version
            self.capabilities = client.server_capabilities
            if not self._connected.done():
                self._connected.set_result(client)
            watching = asyncio.create_task(self._watch_tool_changes(client))
            try:
                await self._close_requested.wait()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    def _fail_to_open(self, failure: ServerUnreachable) -> None:
        if not self._connected.done():
            self._connected.set_exception(failure)
            self._connected.exception()  # retrieved, because nobody may be waiting any more

    def _explain_failure(self, error: Exception) -> ServerUnreachable:
        if self._handshake.failure is not None:
            return self._handshake.failure
        if (status := self._handshake.status) >= 400:
            return ServerUnreachable(f"status_{status}", f"the server answered with status {status}")
        match _first_exception(error):
            case ServerUnreachable() as known:
                return known
            case MCPError(code=code) if code in UNREADABLE:
                return ServerUnreachable("protocol", f"the server did not answer in valid MCP (error {code})")
            case MCPError(code=code) if code != CONNECTION_CLOSED:
                return ServerUnreachable("server_error", f"the server answered the handshake with error {code}")
            case OSError():
                return ServerUnreachable("refused", "the server's program cannot be started: run `toolscout doctor`")
            case ValueError() | RuntimeError() | httpx2.SSEError():
                return ServerUnreachable("protocol", "the server does not speak a supported version of MCP")
        return ServerUnreachable("closed", "the server closed the connection immediately")

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_tools_changed(self.endpoint)

    async def _watch_tool_changes(self, client: Client) -> None:
        """Subscribe to changes of the tool list, which the newest protocol requires. `_on_message` receives them."""
        tools = client.server_capabilities.tools
        if not self._is_modern or tools is None or not tools.list_changed:
            return
        pause_s, is_first = _MIN_SUBSCRIBE_PAUSE_S, True
        while True:
            with suppress(MCPError, SubscriptionLost, TimeoutError):
                async with client.listen(tools_list_changed=True) as changes:
                    if not is_first:
                        # The list may have changed while there was no subscription.
                        self._on_tools_changed(self.endpoint)
                    async for _ in changes:
                        pass
            await asyncio.sleep(pause_s)
            pause_s, is_first = min(2 * pause_s, _MAX_SUBSCRIBE_PAUSE_S), False


def dump_result(result: BaseModel) -> Json:
    """Return the result as the server sent it, with a visible replacement for what is no character."""
    answer: Json = result.model_dump(by_alias=True, mode="json", exclude_unset=True)
    is_readable = LONE_SURROGATE not in result.model_dump_json(by_alias=True, exclude_unset=True)
    return answer if is_readable else show_replacement(answer)


def can_answer(dialogue: Dialogue, question: InputRequiredResult) -> bool:
    """Return whether the caller declares every capability that the question needs: the first part of its methods."""
    methods = [request.method for request in (question.input_requests or {}).values()]
    return all(method.partition("/")[0] in dialogue.capabilities for method in methods)


def _first_exception(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
