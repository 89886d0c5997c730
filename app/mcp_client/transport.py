"""The one way out to users' servers: guarded, pinned, without redirects, with a limit on what comes back.

The SDK takes an HTTP client, and an exception out of one request would end the whole session, for every call that is
under way on it. So nothing is raised here: what went wrong is noted on the `Exchange` of the call that it happened to,
and the SDK gets an answer that it takes for a failure.
"""

import asyncio
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import httpx2

from app.errors import ServerUnreachable, UrlNotAllowed
from app.mcp_client.url_guard import Guard, Target

_PIECE = 64 * 1024
_GETS_APART_S = 1.0
_SESSION = "mcp-session-id"


class Exchange:
    """One request to a server and what became of it, as seen from the wire."""

    def __init__(self) -> None:
        self.sent = False
        """Its first byte may have left: from here on nobody knows what the server has read."""
        self.failure: ServerUnreachable | None = None
        self.failed = asyncio.Event()
        self.status = 0

    def fail(self, failure: ServerUnreachable) -> None:
        self.failure = failure
        self.failed.set()


# The SDK sends each request in the context of whoever asked for it.
current_exchange: ContextVar[Exchange | None] = ContextVar("current_exchange", default=None)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Of one session with one server: its address is looked up once and kept."""

    def __init__(self, guard: Guard, target: Target, max_bytes: int) -> None:
        self._guard = guard
        self._target = target
        self._max_bytes = max_bytes
        self._pinned: str | None = None
        self._next_get = 0.0
        self._inner = httpx2.AsyncHTTPTransport(verify=guard.tls, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = current_exchange.get() or Exchange()
        try:
            response = await self._send(request, exchange)
            return await self._checked(request, response, exchange)
        except (httpx2.TransportError, UrlNotAllowed, ServerUnreachable) as error:
            exchange.fail(_explained(error))
            return httpx2.Response(503)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _send(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        if self._guard.target(str(request.url)) != self._target:
            raise UrlNotAllowed("the server sent us to another place than its own")
        await self._pace(request)
        addresses = [self._pinned] if self._pinned else list(await self._guard.addresses(self._target))
        while True:
            address = addresses.pop(0)
            try:
                response = await self._inner.handle_async_request(self._to(address, request, exchange))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if not addresses:
                    raise
            else:
                self._pinned = address
                return response

    async def _pace(self, request: httpx2.Request) -> None:
        """The SDK opens a stream of events anew as often, and as soon, as the server wishes."""
        if request.method == "GET":
            now = time.monotonic()
            turn = max(now, self._next_get)
            self._next_get = turn + _GETS_APART_S
            await asyncio.sleep(turn - now)

    def _to(self, address: str, request: httpx2.Request, exchange: Exchange) -> httpx2.Request:
        async def watch(event: str, info: dict[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                await self._check_peer(info["return_value"])
            elif event.endswith("send_request_headers.started"):
                exchange.sent = True

        # the certificate and the Host header are still those of the name
        extensions = {**request.extensions, "sni_hostname": self._target.host, "trace": watch}
        return httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions=extensions,
        )

    async def _check_peer(self, stream: Any) -> None:
        """Whatever was asked for: this is the address that we are really connected to."""
        peer = stream.get_extra_info("server_addr")
        try:
            if peer is None:
                raise httpx2.ConnectError("the server hung up at once")
            self._guard.check_address(self._target, str(peer[0]))
        except (httpx2.ConnectError, UrlNotAllowed):
            await stream.aclose()
            raise

    async def _checked(self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange) -> httpx2.Response:
        exchange.status = response.status_code
        headers = response.headers
        encoding = headers.get("content-encoding", "identity").lower()
        if response.has_redirect_location or encoding not in _ENCODINGS:
            await response.aclose()
            raise _unusable(response)
        if (refusal := _refusal(request, response)) is not None:
            exchange.fail(refusal)
        # a stream of events may go on for hours; its single events are bounded by the SDK
        endless = request.method == "GET" and headers.get("content-type", "").startswith("text/event-stream")
        stream = _Bounded(response.stream, None if endless else self._max_bytes, encoding != "identity", exchange)
        kept = [(name, value) for name, value in headers.multi_items() if name not in _OF_THE_WIRE]
        return httpx2.Response(response.status_code, headers=kept, stream=stream, extensions=response.extensions)


_ENCODINGS = frozenset({"identity", "gzip", "deflate"})
_OF_THE_WIRE = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class _Bounded(httpx2.AsyncByteStream):
    """The body, inflated a piece at a time and counted after that: a small bomb stays small."""

    def __init__(self, stream: Any, limit: int | None, inflate: bool, exchange: Exchange) -> None:
        self._stream = stream
        self._left = limit
        self._inflater = zlib.decompressobj(wbits=47) if inflate else None
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                for piece in self._inflated(chunk):
                    self._count(piece)
                    yield piece
                    # one chunk may hold a thousand pieces: others want their turn in between
                    await asyncio.sleep(0)
        except (httpx2.TransportError, zlib.error, ServerUnreachable) as error:
            failure = _explained(error)
            self._exchange.fail(failure)
            raise httpx2.StreamError(failure.message) from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _inflated(self, chunk: bytes) -> Iterator[bytes]:
        if self._inflater is None:
            yield chunk
            return
        while chunk:
            yield self._inflater.decompress(chunk, _PIECE)
            chunk = self._inflater.unconsumed_tail
            if self._inflater.unused_data:  # zlib would keep all that follows the end, uncounted
                raise ServerUnreachable("encoding", "the server's answer goes on after its compressed part")

    def _count(self, piece: bytes) -> None:
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise ServerUnreachable("too_large", "the server's answer is larger than we take")


def _unusable(response: httpx2.Response) -> ServerUnreachable:
    if response.has_redirect_location:
        return ServerUnreachable("redirect", "the server redirects, which is not followed: register where it leads to")
    return ServerUnreachable("encoding", "the server's answer is encoded in a way that was not asked for")


def _refusal(request: httpx2.Request, response: httpx2.Response) -> ServerUnreachable | None:
    """Noted, while the SDK gets the answer itself: what an older server says to a newer question is such a refusal."""
    status = response.status_code
    if status in (401, 403):
        return ServerUnreachable("unauthorized", f"the server refuses our credentials (status {status})")
    if status == 404 and _SESSION in request.headers:
        return ServerUnreachable("session_gone", "the server has forgotten the session")
    # JSON may be an error in the protocol's own words, which the SDK reads
    if status >= 400 and not response.headers.get("content-type", "").lower().startswith("application/json"):
        return ServerUnreachable(f"status_{status}", f"the server answered with status {status}")
    return None


def _explained(error: Exception) -> ServerUnreachable:
    match error:
        case ServerUnreachable():
            return error
        case UrlNotAllowed():
            return ServerUnreachable("url_not_allowed", error.message)
        case httpx2.TimeoutException():
            return ServerUnreachable("timeout", "the server did not answer in time")
        case zlib.error():
            return ServerUnreachable("encoding", "the server's answer cannot be decompressed")
        case httpx2.ConnectError() if _is_tls(error):
            return ServerUnreachable("tls", "no trusted TLS connection can be made with the server")
        case httpx2.ConnectError():
            return ServerUnreachable("refused", "no connection can be made with the server")
        case _:
            return ServerUnreachable("closed", "the connection with the server broke")


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
