"""Limits the size of request bodies, and rejects addresses that hold a NUL character."""

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import problem_response
from app.errors import InvalidInput, PayloadTooLarge, ToolscoutError

MAX_BODY_BYTES = 1024 * 1024
MAX_PUSH_BYTES = 16 * 1024 * 1024

_CONTENT_LENGTH = re.compile(r"^[0-9]{1,18}$")
_BODILESS_METHODS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class BodySizeLimitMiddleware:
    """Reads the body up to its limit and no further.

    The bytes are counted on the stream: a client may send no Content-Length, or a wrong one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] in _BODILESS_METHODS and not _has_nul(scope)):
            await self._app(scope, receive, send)
            return
        try:
            if _has_nul(scope):
                raise InvalidInput("the address holds a NUL character")
            body = await _read_body(receive, _max_bytes(scope), Headers(scope=scope).get("content-length"))
        except ToolscoutError as error:
            await problem_response(error)(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)


def _has_nul(scope: Scope) -> bool:
    return "\0" in scope["path"] or b"%00" in scope["query_string"]


def _max_bytes(scope: Scope) -> int:
    is_push = scope["method"] == "PUT" and scope["path"].endswith("/tools")
    return MAX_PUSH_BYTES if is_push or scope["path"] == "/catalog/search" else MAX_BODY_BYTES


async def _read_body(receive: Receive, max_bytes: int, content_length: str | None) -> bytes:
    too_large = PayloadTooLarge(f"the body may have at most {max_bytes // 1024} KiB")
    if content_length is not None and _CONTENT_LENGTH.match(content_length) and int(content_length) > max_bytes:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body as one message, then whatever follows."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again
