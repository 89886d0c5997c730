"""What comes in over HTTP is bounded and strict before any route sees it."""

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import problem
from app.errors import InvalidInput, PayloadTooLarge, ToolscoutError, UnsupportedMediaType
from app.text.strict_json import parse_json

MAX_BODY_BYTES = 1024 * 1024
MAX_PUSH_BYTES = 16 * 1024 * 1024

_LENGTH = re.compile(r"^[0-9]{1,18}$")
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class BodySizeLimitMiddleware:
    """Reads the body up to its limit and no byte further; counted on the stream, whatever Content-Length claims."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] in _BODILESS and not _has_nul(scope)):
            await self._app(scope, receive, send)
            return
        try:
            if _has_nul(scope):
                raise InvalidInput("the address holds a NUL character")
            body = await _read(receive, _limit(scope), Headers(scope=scope).get("content-length"))
        except ToolscoutError as error:
            await problem(error)(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)


def _has_nul(scope: Scope) -> bool:
    return "\0" in scope["path"] or b"%00" in scope["query_string"]


def _limit(scope: Scope) -> int:
    pushed = scope["method"] == "PUT" and scope["path"].endswith("/tools")
    return MAX_PUSH_BYTES if pushed or scope["path"] == "/catalog/search" else MAX_BODY_BYTES


async def _read(receive: Receive, limit: int, announced: str | None) -> bytes:
    too_large = PayloadTooLarge(f"the body may have at most {limit // 1024} KiB")
    if announced is not None and _LENGTH.match(announced) and int(announced) > limit:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return parse_json(await self.body())
        except InvalidInput as error:
            # the one error that FastAPI passes on from here with its message
            raise json.JSONDecodeError(error.message, "", 0) from error


def require_json(request: Request) -> None:
    if "json" not in request.headers.get("content-type", "").lower():
        raise UnsupportedMediaType("send JSON, with the header `Content-Type: application/json`")


class StrictRoute(APIRoute):
    """Parses bodies with our own strict JSON reader: the default one answers 500 to a lone surrogate or NaN."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        takes_body = self.body_field is not None

        async def strict(request: Request) -> Response:
            if takes_body:
                require_json(request)
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict
