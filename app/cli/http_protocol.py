"""uvicorn's HTTP protocol with deadlines: no connection is held open by a client that neither sends nor reads.

uvicorn itself closes only connections that are idle between two requests. Here a connection is also closed

- if the headers of a request do not arrive in time, or are larger than 64 KiB,
- if the client does not read the response,
- if the rest of a body does not arrive soon after its request was answered (without a valid key it is not read),
- if it waits for a request longer than others do, while too many connections wait.
"""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_LINGER_S = 2.0
"""How long the rest of a body is read, and dropped, after the response. Closing at once would make the kernel reset the
connection, and the client might lose the response."""
_STALLED_S = 3.0
"""How long a client may neither send nor read while the service stops."""
_MAX_HEAD_BYTES = 64 * 1024
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: 56\r\n\r\nthe headers of a request may have at most 64 KiB in all\n"
)
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_MIN_WAITING = 64
_MAX_WAITING = 20_000


class ConnectionLimits:
    """What the connections of a server share: the deadlines, and the connections that wait for a request."""

    def __init__(self, head_timeout_s: float, write_timeout_s: float, max_waiting: int | None = None) -> None:
        """By default half of the files that this process may open can be connections that wait."""
        self.head_timeout_s = head_timeout_s
        self.write_timeout_s = write_timeout_s
        self._max_waiting = max_waiting or _default_max_waiting()
        self._waiting: dict[DeadlineProtocol, None] = {}
        """Ordered: the one that has waited longest is the first."""

    def add_waiting(self, connection: "DeadlineProtocol") -> None:
        """Close the connection that has waited longest if there are too many: its client sends requests rarely."""
        self._waiting[connection] = None
        if len(self._waiting) > self._max_waiting:
            longest = next(iter(self._waiting))
            del self._waiting[longest]  # at once: others may come before it is closed
            longest.abort()

    def discard_waiting(self, connection: "DeadlineProtocol") -> None:
        self._waiting.pop(connection, None)


def _default_max_waiting() -> int:
    max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if max_files == resource.RLIM_INFINITY:
        return _MAX_WAITING
    return min(_MAX_WAITING, max(_MIN_WAITING, max_files // 2))


class DeadlineProtocol(HttpToolsProtocol):
    def __init__(self, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._is_in_head = False
        self._head_bytes = 0
        self._closes_after_response = False
        self._head_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._linger_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limits.add_waiting(self)
        self._start_head_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.discard_waiting(self)
        for timer in (self._head_deadline, self._write_deadline, self._linger_deadline):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        # The parser joins the pieces of a header again and again, which takes long for a large one.
        self._head_bytes = self._head_bytes + len(data) if was_in_head and self._is_in_head else 0
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse_head()
            return
        if self._head_deadline is None and self._is_between_requests and self._linger_deadline is None:
            self._start_head_deadline()  # these bytes are the beginning of another request

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None
        self._limits.discard_waiting(self)
        super().on_headers_complete()
        if not self.cycle.keep_alive and any(name in _BODY_HEADERS for name, _ in self.headers):
            # uvicorn would close at once, with the rest of the body unread
            self.cycle.keep_alive = self._closes_after_response = True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_write_deadline()  # it is closed when the client has read what is left
        elif self._is_between_requests and self.cycle.more_body:
            self._linger_deadline = self.loop.call_later(_LINGER_S, self.abort)
        elif self._is_between_requests and self._closes_after_response:
            self._close()
        elif self._is_between_requests:
            self._limits.add_waiting(self)
            if self._is_in_head and self._head_deadline is None:
                self._start_head_deadline()  # the beginning of the next request came with this one

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._linger_deadline is not None:
            self._linger_deadline.cancel()
            self._linger_deadline = None
            if self._closes_after_response:
                self._close()
            else:
                self._limits.add_waiting(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start_write_deadline()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(_STALLED_S, self._abort_if_stalled)

    def _close(self) -> None:
        self.transport.close()
        self._start_write_deadline()

    def _refuse_head(self) -> None:
        if self._is_between_requests:
            self.transport.write(_HEAD_TOO_LARGE)
            self._close()
        else:  # the beginning of a second request, while the first is answered
            self.abort()

    def abort(self) -> None:
        self.transport.abort()

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _start_head_deadline(self) -> None:
        self._head_deadline = self.loop.call_later(self._limits.head_timeout_s, self._on_head_deadline)

    def _start_write_deadline(self) -> None:
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(self._limits.write_timeout_s, self.abort)

    def _on_head_deadline(self) -> None:
        self._head_deadline = None
        if self._is_between_requests:
            self.abort()
        else:  # the beginning of a second request, while the first is answered
            self._start_head_deadline()

    def _abort_if_stalled(self) -> None:
        is_unread = self.flow.write_paused or self.transport.is_closing()
        is_unsent = self.cycle is not None and self.cycle.more_body
        if self in self.connections and (is_unread or is_unsent):
            self.abort()
