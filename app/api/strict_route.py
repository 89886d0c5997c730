"""Routes that parse request bodies with our strict JSON reader."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from app.errors import InvalidInput, UnsupportedMediaType
from app.text.strict_json import parse_json


class StrictRoute(APIRoute):
    """A route that answers 415 to a body that is not JSON, and 422 to lone surrogates, NaN and Infinity.

    FastAPI's own reader would answer 500 to these.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        has_body = self.body_field is not None

        async def handle_strictly(request: Request) -> Response:
            if has_body:
                require_json(request)
            return await handler(_StrictRequest(request.scope, request.receive))

        return handle_strictly


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return parse_json(await self.body())
        except InvalidInput as error:
            # the only error whose message FastAPI passes on from here
            raise json.JSONDecodeError(error.message, "", 0) from error


def require_json(request: Request) -> None:
    if "json" not in request.headers.get("content-type", "").lower():
        raise UnsupportedMediaType("send JSON, with the header `Content-Type: application/json`")
