"""Checks the `endpoint` event of the SSE transport: where a server wants its messages to be sent.

The SDK refuses another origin, too, but then waits for a reader that does not exist yet, until the connection times
out. The same happens if the stream breaks before that event. An `SSEError` ends it at once.
"""

import re
from collections.abc import AsyncIterator, Callable
from urllib.parse import urljoin, urlsplit

import httpx2

from app.errors import ServerUnreachable

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_MAX_EVENT_BYTES = 64 * 1024


class EndpointStream(httpx2.AsyncByteStream):
    """The event stream of a server, checked until the `endpoint` event has come."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, url: str, on_failure: Callable[[ServerUnreachable], None]
    ) -> None:
        self._stream = stream
        self._url = url
        self._on_failure = on_failure
        self._unfinished = b""
        self._is_checked = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                if not self._is_checked:
                    self._check(chunk)
                yield chunk
        except (httpx2.StreamError, ServerUnreachable) as error:
            if self._is_checked:
                raise
            if isinstance(error, ServerUnreachable):
                self._on_failure(error)
            raise httpx2.SSEError("the event stream failed before its endpoint was known") from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _check(self, chunk: bytes) -> None:
        *events, self._unfinished = _EVENT_END.split(self._unfinished + chunk)
        if len(self._unfinished) > _MAX_EVENT_BYTES:
            raise ServerUnreachable("too_large", "the server's first event is too large")
        for event in events:
            if (endpoint := find_endpoint(event)) is not None:
                if not is_same_origin(self._url, endpoint):
                    raise ServerUnreachable(
                        "url_not_allowed",
                        "the server wants messages to be sent to another origin (scheme, host or port) than that of "
                        "its URL: register the URL that the server has for itself, or configure the server's own URL",
                    )
                self._is_checked = True
                return


def find_endpoint(event: bytes) -> str | None:
    """Return the URL of an `endpoint` event, and None for other events."""
    fields = [line.partition(b":") for line in event.splitlines()]
    values = [(name, value.removeprefix(b" ")) for name, _, value in fields]
    names = [value for name, value in values if name == b"event"]
    if names[-1:] != [b"endpoint"]:
        return None
    return b"\n".join(value for name, value in values if name == b"data").decode(errors="replace")


def is_same_origin(url: str, endpoint: str) -> bool:
    """Compare as the SDK does. `endpoint` may be relative to the URL."""
    try:
        own, other = urlsplit(url), urlsplit(urljoin(url, endpoint))
    except ValueError:
        return False
    return (own.scheme, own.netloc) == (other.scheme, other.netloc)
