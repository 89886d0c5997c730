"""Reads request bodies, with a limit of their size and a deadline."""

import asyncio
import re

from starlette.types import Message, Receive, Scope

from app.errors import ClientDisconnected, PayloadTooLarge, RequestTimeout

MAX_BODY_BYTES = 1024 * 1024
MAX_PUSH_BYTES = 16 * 1024 * 1024
MAX_UNKNOWN_BYTES = 64 * 1024
"""For callers without a key: of theirs only the form of the sign-in page is read."""

_MIN_BYTES_PER_S = 64 * 1024
_CONTENT_LENGTH = re.compile(rb"^[0-9]{1,18}$")
_BODILESS_METHODS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


def has_body(scope: Scope) -> bool:
    return scope["method"] not in _BODILESS_METHODS


def _max_bytes(scope: Scope) -> int:
    is_push = scope["method"] == "PUT" and scope["path"].endswith("/tools")
    return MAX_PUSH_BYTES if is_push or scope["path"] == "/catalog/search" else MAX_BODY_BYTES


async def read_body(scope: Scope, receive: Receive, timeout_s: float, max_bytes: int | None = None) -> bytes:
    """Read the body up to its limit and no further.

    The bytes are counted on the stream: a client may send no Content-Length, or a wrong one. The deadline moves by a
    second for each 64 KiB, so that a large body may take its time and a client that sends byte by byte may not.
    """
    max_bytes = max_bytes or _max_bytes(scope)
    _check_content_length(scope, max_bytes)
    body, has_more = bytearray(), True
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        async with asyncio.timeout_at(deadline) as timeout:
            while has_more and len(body) <= max_bytes:
                part, has_more = await _receive_part(receive)
                body += part
                if has_more:
                    timeout.reschedule(deadline + len(body) / _MIN_BYTES_PER_S)
    except TimeoutError as error:
        raise RequestTimeout("the body did not arrive in time; send it again") from error
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return bytes(body)


async def _receive_part(receive: Receive) -> tuple[bytes, bool]:
    """Return a part of the body, and whether there is more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected("the client disconnected before it had sent its whole body")
    return message.get("body", b""), message.get("more_body", False)


def _check_content_length(scope: Scope, max_bytes: int) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and _CONTENT_LENGTH.match(value) and int(value) > max_bytes:
            raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body may have at most {max_bytes // 1024} KiB")


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body as one message, then whatever follows."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again


def hide_body(receive: Receive) -> Receive:
    """Return a `receive` that yields an empty body and then waits until the client is gone."""
    pending: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive_nothing() -> Message:
        if pending:
            return pending.pop()
        while (message := await receive())["type"] != "http.disconnect":
            pass
        return message

    return receive_nothing
