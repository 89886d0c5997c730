"""Routes that parse request bodies with our strict JSON reader."""

import json
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from app.api.problems import invalid_input
from app.errors import InvalidInput, UnsupportedMediaType
from app.text.strict_json import parse_json
from app.text.suggestions import describe_unknown_name, suggest_name

_MAX_SUGGESTIONS = 5


class StrictRoute(APIRoute):
    """A route that answers 415 to a body that is not JSON, and 422 to lone surrogates, NaN and Infinity.

    FastAPI's own reader would answer 500 to these. A misspelt query parameter is 422 too: the caller of `?serverid=…`
    would take the tools of all servers for those of one. Other unknown parameters are ignored, as FastAPI does it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        has_body = self.body_field is not None
        is_optional = self.body_field is not None and not self.body_field.field_info.is_required()
        parameters = list(_query_parameters(self.dependant))

        async def handle_strictly(request: Request) -> Response:
            if request.scope["query_string"]:
                _reject_misspelt_parameters(request, parameters)
            if has_body and not (is_optional and not has_content(request)):
                require_json(request)
            return await handler(_StrictRequest(request.scope, request.receive))

        return handle_strictly


def _query_parameters(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _query_parameters(dependency)


def _reject_misspelt_parameters(request: Request, known: Collection[str]) -> None:
    unknown = [name for name in request.query_params if name not in known][:_MAX_SUGGESTIONS]
    errors = [
        {"loc": ["query", name], "msg": describe_unknown_name("parameter", name, known), "type": "extra_forbidden"}
        for name in unknown
        if suggest_name(name, known) is not None
    ]
    if errors:
        raise invalid_input(errors)


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return parse_json(await self.body())
        except InvalidInput as error:
            # the only error whose message FastAPI passes on from here
            raise json.JSONDecodeError(error.message, "", 0) from error


def has_content(request: Request) -> bool:
    headers = request.headers
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def require_json(request: Request) -> None:
    if "json" not in request.headers.get("content-type", "").lower():
        raise UnsupportedMediaType("send JSON, with the header `Content-Type: application/json`")
