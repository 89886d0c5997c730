"""How a request to a server ended, as far as that can be known.

Three endings are told apart: the server answered; nothing reached it, or it turned the request away
(`ServerUnreachable`); nobody knows (`Interrupted`). Only the second may ever be tried again by itself. Where the SDK
lost an answer it makes up an error, which looks like one of the server's: here they are told apart.
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

from app.errors import ServerUnreachable
from app.mcp_client.message_filter import Inbox
from app.mcp_client.transport import Exchange, current_exchange
from app.text.invisible import remove_hidden
from app.text.strict_json import Json

_MAX_WORDS = 500
UNREADABLE = (INVALID_REQUEST, PARSE_ERROR)
"""By these the SDK says that it made nothing of an answer."""

_SESSION_UNKNOWN = (INVALID_REQUEST, CONNECTION_CLOSED)
# causes that prove that nothing was run, also of a request that was sent: in doubt a status proves nothing
_REFUSALS = frozenset(
    {"unauthorized", "session_gone", "redirect", "url_not_allowed"}
    | {f"status_{status}" for status in (405, 406, 413, 415, 429)}
)
_OF_SESSIONS = re.compile("session|initializ", re.IGNORECASE)


class OutcomeUnknown(Exception):
    """The request may have reached the server, and no usable answer came: because of `failure`.

    `words` are for the one who asked alone: they may be the server's.
    """

    def __init__(self, failure: ServerUnreachable, words: str | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.words = words or failure.message


def error_text(error: MCPError) -> str:
    """The server's own: they go to whoever asked, and into logs."""
    return remove_hidden(error.message[:_MAX_WORDS])


class Request(Exchange):
    """The exchange of one request alone, not of what else is sent on its behalf: that it is cancelled, answers to what
    the server asks meanwhile, attempts to take up a broken stream again."""

    def __init__(self, declared: Json | None = None) -> None:
        super().__init__()
        self.declared = declared
        """What the one on whose behalf it is sent can do; the SDK says the same of everybody in a session."""
        self.handed_over = False
        """The SDK's transport has it: whatever happens to the session, it may still be sent."""
        self.departed = False


def classify_failure(request: Request, error: BaseException | None, *, modern: bool) -> BaseException:
    """What to raise for a request that has ended without a result: with this error, or with none."""
    if request.failure is not None:
        return _failed(request, request.failure)
    if isinstance(error, ValidationError):
        return error
    if isinstance(error, MCPError):
        return _instead_of(error, request, modern) or error
    return _session_ended(request)


def _failed(request: Request, failure: ServerUnreachable) -> Exception:
    if not request.sent or failure.cause in _REFUSALS:
        return failure
    return OutcomeUnknown(failure)


def _session_ended(request: Request, words: str | None = None) -> Exception:
    """Of which the wire knows nothing."""
    broken = ServerUnreachable("closed", "the connection with the server broke")
    return OutcomeUnknown(broken, words) if request.handed_over else broken


def _instead_of(error: MCPError, request: Request, modern: bool) -> Exception | None:
    """What has happened, where the error is one that the SDK made up for want of an answer. In doubt it is."""
    code, status = error.code, request.status
    if status >= 500:
        words = f"the server answered with status {status} (error {code}: {error_text(error)})"
        return OutcomeUnknown(ServerUnreachable(f"status_{status}", f"the server answered with status {status}"), words)
    if status == 400 and code in _SESSION_UNKNOWN and not modern and _OF_SESSIONS.search(error.message):
        return ServerUnreachable("session_gone", "the server has forgotten the session")
    if 0 < status < 400 and code in UNREADABLE:
        return OutcomeUnknown(ServerUnreachable("protocol", f"the server did not answer in valid MCP (error {code})"))
    if code == CONNECTION_CLOSED:  # which some servers use for any error
        return _session_ended(request, f"no usable answer came (error {code}: {error_text(error)})")
    return None


class _Outbox:
    """The SDK's way out to its transport, with a note of what was handed over."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, item: Any, /) -> None:
        request = current_exchange.get()
        if not isinstance(request, Request):
            await self._stream.send(item)
            return
        if request.declared is not None:
            _declare(item.message, request.declared)
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


def _declare(message: Any, capabilities: Json) -> None:
    if isinstance(message, JSONRPCRequest) and message.params is not None:
        meta = message.params.get("_meta", {})
        if CLIENT_CAPABILITIES_META_KEY in meta:
            meta[CLIENT_CAPABILITIES_META_KEY] = {**meta[CLIENT_CAPABILITIES_META_KEY], **capabilities}


@asynccontextmanager
async def wrap_streams(
    transport: AbstractAsyncContextManager[Any], version: Callable[[], str | None]
) -> AsyncIterator[tuple[Inbox, _Outbox]]:
    async with transport as (read, write):
        yield Inbox(read, version), _Outbox(write)


async def on_request(_: httpx2.Request) -> None:
    """Before each HTTP request. The first that is sent for a `Request` is it; all others are none of its business."""
    request = current_exchange.get()
    if isinstance(request, Request):
        if request.departed:
            current_exchange.set(None)
        request.departed = True


async def on_response(response: httpx2.Response) -> None:
    exchange, status = current_exchange.get(), response.status_code
    if exchange is not None and exchange.failure is None and status >= 400:
        exchange.fail(ServerUnreachable(f"status_{status}", f"the server answered with status {status}"))


def seen(task: asyncio.Task[Any]) -> None:
    """Its error is known, also where nobody waits for it any more."""
    _ = task.cancelled() or task.exception()
