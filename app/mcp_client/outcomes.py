"""Find out how a request to a server ended.

There are three outcomes: the server answered; the request did not reach the server, or the server rejected it unread
(`ServerUnreachable`); or nobody can know (`OutcomeUnknown`). Only a request of the second kind may be sent again
automatically. When the SDK loses an answer it makes up an error that looks like one from the server; this module tells
the two apart.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

import anyio
import httpx2
from mcp import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CONNECTION_CLOSED, INVALID_REQUEST, PARSE_ERROR, JSONRPCRequest
from pydantic import ValidationError

from app.errors import AUTHORIZATION_REQUIRED, ServerUnreachable
from app.mcp_client.message_filter import FilteredReadStream
from app.mcp_client.transport import Exchange, current_exchange
from app.mcp_types import Transport
from app.text.invisible import remove_hidden
from app.text.strict_json import Json

_MAX_ERROR_TEXT = 500
UNREADABLE = (INVALID_REQUEST, PARSE_ERROR)
"""Codes with which the SDK reports an answer that it cannot read."""

_SESSION_UNKNOWN = (INVALID_REQUEST, CONNECTION_CLOSED)
# Causes that prove that nothing was run even though the request was sent. Other statuses prove nothing.
_REJECTED_UNREAD = frozenset(
    {"unauthorized", AUTHORIZATION_REQUIRED, "session_gone", "redirect", "url_not_allowed"}
    | {f"status_{status}" for status in (405, 406, 413, 415, 429)}
)
_MENTIONS_SESSION = re.compile("session|initializ", re.IGNORECASE)


class OutcomeUnknown(Exception):
    """The request may have reached the server, and no usable answer came because of `failure`.

    `detail` may quote the server, so it is for the caller only and is not stored.
    """

    def __init__(self, failure: ServerUnreachable, detail: str | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.detail = detail or failure.message


def suggest_sse(failure: ServerUnreachable, transport: Transport) -> ServerUnreachable | None:
    """Return the failure of a listing with a hint, if the server may speak only the older transport."""
    if transport != "streamable_http" or failure.cause not in ("status_404", "status_405"):
        return None
    hint = "check the URL; an older server may need the transport `sse`"
    return ServerUnreachable(failure.cause, f"{failure.message}: {hint}")


def error_text(error: MCPError) -> str:
    """Return the server's error message, shortened and without invisible characters: it is shown and logged."""
    return remove_hidden(error.message[:_MAX_ERROR_TEXT])


class Request(Exchange):
    """The exchange of one request, without what else the SDK sends for it: its cancellation, answers to the server's
    own requests, attempts to resume a broken stream."""

    def __init__(self, capabilities: Json | None = None) -> None:
        super().__init__()
        self.capabilities = capabilities
        """The capabilities of the caller of this request; the SDK declares the same ones for a whole session."""
        self.handed_over = False
        """The SDK's transport has the request: it may be sent, whatever happens to the session."""
        self.http_started = False


def classify_failure(request: Request, error: BaseException | None, *, modern: bool) -> BaseException:
    """Return the exception to raise for a request without a result. `error` is what the SDK raised, if anything."""
    if request.failure is not None:
        if not request.sent or request.failure.cause in _REJECTED_UNREAD:
            return request.failure
        return OutcomeUnknown(request.failure)
    if isinstance(error, ValidationError):
        return error
    if isinstance(error, MCPError):
        return _classify_sdk_error(error, request, modern) or error
    return _connection_lost(request)


def _connection_lost(request: Request, detail: str | None = None) -> Exception:
    """The session ended, and the HTTP transport has not noticed a failure."""
    lost = ServerUnreachable("closed", "the connection to the server was lost")
    return OutcomeUnknown(lost, detail) if request.handed_over else lost


def _classify_sdk_error(error: MCPError, request: Request, modern: bool) -> Exception | None:
    """Return what has happened if the SDK made the error up for lack of an answer, and None if the server sent it. In
    doubt the SDK made it up."""
    code, status = error.code, request.status
    if status >= 500:
        message = f"the server answered with status {status}"
        detail = f"{message} (error {code}: {error_text(error)})"
        return OutcomeUnknown(ServerUnreachable(f"status_{status}", message), detail)
    if status == 400 and code in _SESSION_UNKNOWN and not modern and _MENTIONS_SESSION.search(error.message):
        return ServerUnreachable("session_gone", "the server no longer knows the session")
    if 0 < status < 400 and code in UNREADABLE:
        return OutcomeUnknown(ServerUnreachable("protocol", f"the server did not answer in valid MCP (error {code})"))
    if code == CONNECTION_CLOSED:  # some servers use this code for any error
        return _connection_lost(request, f"no usable answer came (error {code}: {error_text(error)})")
    return None


class _TrackedWriteStream:
    """Wraps the stream to which the SDK writes messages, and marks each request that was handed over."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, item: Any, /) -> None:
        request = current_exchange.get()
        if not isinstance(request, Request):
            await self._stream.send(item)
            return
        if request.capabilities is not None:
            _declare_capabilities(item.message, request.capabilities)
        before, request.handed_over = request.handed_over, True
        try:
            await self._stream.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            request.handed_over = before
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _declare_capabilities(message: Any, capabilities: Json) -> None:
    if isinstance(message, JSONRPCRequest) and message.params is not None:
        meta = message.params.get("_meta", {})
        if CLIENT_CAPABILITIES_META_KEY in meta:
            meta[CLIENT_CAPABILITIES_META_KEY] = {**meta[CLIENT_CAPABILITIES_META_KEY], **capabilities}


@asynccontextmanager
async def wrap_streams(
    transport: AbstractAsyncContextManager[Any], get_version: Callable[[], str | None]
) -> AsyncIterator[tuple[FilteredReadStream, _TrackedWriteStream]]:
    async with transport as (read, write):
        yield FilteredReadStream(read, get_version), _TrackedWriteStream(write)


async def on_request(_: httpx2.Request) -> None:
    """Event hook before each HTTP request: only the first one that is sent for a `Request` counts as its exchange."""
    request = current_exchange.get()
    if isinstance(request, Request):
        if request.http_started:
            current_exchange.set(None)
        request.http_started = True


async def on_response(response: httpx2.Response) -> None:
    """Event hook after each HTTP response: an error status fails the exchange."""
    exchange, status = current_exchange.get(), response.status_code
    if exchange is not None and exchange.failure is None and status >= 400:
        exchange.fail(ServerUnreachable(f"status_{status}", f"the server answered with status {status}"))


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Done callback: retrieve the exception of a task that may have nobody awaiting it, or asyncio logs it."""
    _ = task.cancelled() or task.exception()
