"""The HTTP transport to users' servers: guarded, pinned to one address, without redirects, with a size limit.

The SDK ends the whole session, with all its running calls, when one HTTP request raises an exception. So this transport
raises nothing: it notes the failure on the `Exchange` of the call that the request belongs to, and returns an error
response to the SDK.
"""

import asyncio
import re
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from app.errors import AuthorizationRequired, ServerUnreachable, UrlNotAllowed
from app.mcp_client.sse_endpoint import EndpointStream
from app.mcp_client.surrogates import LoneSurrogateFilter
from app.mcp_client.url_guard import Guard, Target

_CHUNK_BYTES = 64 * 1024
_MIN_GET_INTERVAL_S = 1.0
_SESSION_HEADER = "mcp-session-id"
_ENCODINGS = frozenset({"identity", "gzip", "deflate"})
_ENCODING_HEADERS = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})


_BEARER = re.compile(r"(^|,)\s*bearer\b", re.IGNORECASE)
_MORE_RIGHTS = (
    "this call needs more rights than you have given: sign in again with POST /servers/{id}/connect, or Connect in the "
    "console"
)

SignIn = Literal["unknown", "own_headers", "token"]
"""What we send: nothing, headers that the user has stored, or a token from a sign-in. A server that rejects stored
headers does not ask for a sign-in: they are wrong, or have expired."""


class Exchange:
    """One request to a server and its outcome, as seen by the HTTP transport."""

    def __init__(self) -> None:
        self.sent = False
        """The first byte may have left: from here on nobody knows what the server has read."""
        self.failure: ServerUnreachable | None = None
        self.failed = asyncio.Event()
        self.status = 0

    def fail(self, failure: ServerUnreachable) -> None:
        self.failure = failure
        self.failed.set()


# The SDK sends each request in the context of its caller.
current_exchange: ContextVar[Exchange | None] = ContextVar("current_exchange", default=None)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """The transport of one session with one server: its host name is resolved once."""

    def __init__(
        self,
        guard: Guard,
        target: Target,
        user_id: str,
        max_bytes: int,
        sse_url: str | None = None,
        get_sign_in: Callable[[], SignIn] = lambda: "unknown",
    ) -> None:
        """
        - `sse_url`: the server's URL if it speaks the SSE transport, which names an endpoint for messages.
        - `get_sign_in` tells what a rejection of our credentials means.
        """
        self._guard = guard
        self._target = target
        self._user_id = user_id
        self._max_bytes = max_bytes
        self._sse_url = sse_url
        self._get_sign_in = get_sign_in
        self._pinned_address: str | None = None
        self._next_get_at = 0.0
        self._inner = httpx2.AsyncHTTPTransport(verify=guard.tls, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = current_exchange.get() or Exchange()
        try:
            response = await self._send(request, exchange)
            return await self._check_response(request, response, exchange)
        except (httpx2.TransportError, UrlNotAllowed, ServerUnreachable) as error:
            exchange.fail(_translate_error(error))
            return httpx2.Response(503)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _send(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        if self._guard.parse_url(str(request.url)) != self._target:
            raise UrlNotAllowed("the server directed a request to another host or port")
        await self._delay_get(request)
        pinned = self._pinned_address
        addresses = [pinned] if pinned else list(await self._guard.resolve(self._target, self._user_id))
        while True:
            address = addresses.pop(0)
            try:
                response = await self._inner.handle_async_request(self._address_request(address, request, exchange))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if not addresses:
                    raise
            else:
                self._pinned_address = address
                return response

    async def _delay_get(self, request: httpx2.Request) -> None:
        """Limit the rate of GETs: the SDK reopens an event stream as often as the server ends it."""
        if request.method == "GET":
            now = time.monotonic()
            send_at = max(now, self._next_get_at)
            self._next_get_at = send_at + _MIN_GET_INTERVAL_S
            await asyncio.sleep(send_at - now)

    def _address_request(self, address: str, request: httpx2.Request, exchange: Exchange) -> httpx2.Request:
        """Return the request with the address in place of the host name."""

        async def trace(event: str, info: dict[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                await self._check_peer(info["return_value"])
            elif event.endswith("send_request_headers.started"):
                exchange.sent = True

        # The certificate and the Host header are still those of the host name.
        extensions = {**request.extensions, "sni_hostname": self._target.host, "trace": trace}
        return httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions=extensions,
        )

    async def _check_peer(self, stream: Any) -> None:
        """Check the address that we are actually connected to, whatever address was requested."""
        peer = stream.get_extra_info("server_addr")
        try:
            if peer is None:
                raise httpx2.ConnectError("the server closed the connection immediately")
            self._guard.check_address(self._target, str(peer[0]))
        except (httpx2.ConnectError, UrlNotAllowed):
            await stream.aclose()
            raise

    async def _check_response(
        self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange
    ) -> httpx2.Response:
        exchange.status = response.status_code
        headers = response.headers
        encoding = headers.get("content-encoding", "identity").lower()
        if response.has_redirect_location or encoding not in _ENCODINGS:
            await response.aclose()
            raise _describe_unusable(response)
        if (failure := _find_error_status(request, response, self._get_sign_in())) is not None:
            exchange.fail(failure)
        # An event stream may last for hours; the SDK limits the size of its single events.
        is_event_stream = request.method == "GET" and headers.get("content-type", "").startswith("text/event-stream")
        limit = None if is_event_stream else self._max_bytes
        stream: httpx2.AsyncByteStream = _LimitedStream(response.stream, limit, encoding != "identity", exchange)
        if is_event_stream and self._sse_url is not None:
            stream = EndpointStream(stream, self._sse_url, exchange.fail)
        # as bytes: what servers send need not be ASCII
        remaining = [(name, value) for name, value in headers.raw if name.lower() not in _ENCODING_HEADERS]
        return httpx2.Response(response.status_code, headers=remaining, stream=stream, extensions=response.extensions)


class _LimitedStream(httpx2.AsyncByteStream):
    """The response body, decompressed in small chunks and counted afterwards, so that a zip bomb does no harm."""

    def __init__(self, stream: Any, limit: int | None, compressed: bool, exchange: Exchange) -> None:
        self._stream = stream
        self._bytes_left = limit
        self._decompressor = zlib.decompressobj(wbits=47) if compressed else None
        self._surrogates = LoneSurrogateFilter()
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._stream:
                for chunk in self._decompress(data):
                    self._count(chunk)
                    yield self._surrogates.feed(chunk)
                    # Compressed data may expand to a thousand chunks: let other tasks run in between.
                    await asyncio.sleep(0)
            yield self._surrogates.flush()
        except (httpx2.TransportError, zlib.error, ServerUnreachable) as error:
            failure = _translate_error(error)
            self._exchange.fail(failure)
            raise httpx2.StreamError(failure.message) from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _decompress(self, data: bytes) -> Iterator[bytes]:
        if self._decompressor is None:
            yield data
            return
        while data:
            yield self._decompressor.decompress(data, _CHUNK_BYTES)
            data = self._decompressor.unconsumed_tail
            if self._decompressor.unused_data:  # zlib would collect all further data, uncounted
                raise ServerUnreachable("encoding", "the server's answer has data after its compressed part")

    def _count(self, chunk: bytes) -> None:
        if self._bytes_left is not None:
            self._bytes_left -= len(chunk)
            if self._bytes_left < 0:
                raise ServerUnreachable("too_large", "the server's answer is too large")


def _describe_unusable(response: httpx2.Response) -> ServerUnreachable:
    if response.has_redirect_location:
        message = "the server redirects, and redirects are not followed: register the URL that it redirects to"
        return ServerUnreachable("redirect", message)
    return ServerUnreachable("encoding", "the server's answer has a content encoding that was not requested")


def _find_error_status(request: httpx2.Request, response: httpx2.Response, sign_in: SignIn) -> ServerUnreachable | None:
    """Return the failure for an error status. It is only noted, and the SDK still gets the response: an older server
    answers the newer handshake with such a status."""
    status = response.status_code
    if status in (401, 403):
        if (challenge := find_challenge(response, sign_in)) is not None:
            return challenge
        message = f"the server rejected the credentials (status {status})"
        return ServerUnreachable("unauthorized", message, http_status=status)
    if status == 404 and _SESSION_HEADER in request.headers:
        return ServerUnreachable("session_gone", "the server no longer knows the session")
    # JSON may be a JSON-RPC error, which the SDK reads.
    if status >= 400 and not response.headers.get("content-type", "").lower().startswith("application/json"):
        return ServerUnreachable(f"status_{status}", f"the server answered with status {status}")
    return None


def find_challenge(response: httpx2.Response, sign_in: SignIn) -> AuthorizationRequired | None:
    """Return the error if the server asks for a sign-in, or for a token with more rights (RFC 6750, RFC 9728)."""
    if sign_in == "own_headers":
        return None
    challenges = response.headers.get("www-authenticate", "")
    is_bearer = _BEARER.search(challenges) is not None
    scope = extract_scope_from_www_auth(response)
    if response.status_code == 403:
        needs_more = is_bearer and extract_field_from_www_auth(response, "error") == "insufficient_scope"
        return AuthorizationRequired(_MORE_RIGHTS, required_scope=scope, http_status=403) if needs_more else None
    asks = is_bearer or sign_in == "token"
    return AuthorizationRequired(required_scope=scope, http_status=401) if asks else None


def _translate_error(error: Exception) -> ServerUnreachable:
    match error:
        case ServerUnreachable():
            return error
        case UrlNotAllowed():
            return ServerUnreachable("url_not_allowed", error.message)
        case httpx2.TimeoutException():
            return ServerUnreachable("timeout", "the server did not answer in time")
        case zlib.error():
            return ServerUnreachable("encoding", "the server's answer cannot be decompressed")
        case httpx2.ConnectError() if _is_tls_error(error):
            return ServerUnreachable("tls", "no trusted TLS connection to the server can be made")
        case httpx2.ConnectError():
            return ServerUnreachable("refused", "no connection to the server can be made")
        case _:
            return ServerUnreachable("closed", "the connection to the server was lost")


def _is_tls_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
