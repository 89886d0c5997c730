"""Renders every error as `application/problem+json`, the same shape for ours and for the framework's."""

import logging
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import InvalidInput, ToolscoutError
from app.observability.logging import request_id

logger = logging.getLogger("toolscout.api")

_OF_THE_FRAMEWORK = {
    404: ("not_found", "there is nothing at this path; /docs shows those that there are"),
    405: ("method_not_allowed", "this path does not take that method; /docs shows which it takes"),
}


class Problem(BaseModel):
    """RFC 9457, with a stable `code` to program against."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str = Field(examples=["invalid_input"])
    request_id: str | None = None
    errors: list[dict[str, Any]] | None = None
    outcome: str | None = Field(None, description="of a tool: `failed`, or `unknown` where it may have run")
    cause: str | None = Field(None, description="why a server cannot be used, in one stable word")


PROBLEM_RESPONSE: dict[str, Any] = {
    "description": "What is wrong, with a stable `code`",
    "content": {"application/problem+json": {"schema": Problem.model_json_schema()}},
}


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ToolscoutError, _ours)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _framework)


def problem(error: ToolscoutError) -> Response:
    return _response(problem_body(error), error.headers)


def problem_body(error: ToolscoutError) -> dict[str, Any]:
    body = _body(error.status, error.code, error.title, error.message) | error.members
    return body if error.errors is None else body | {"errors": error.errors}


async def _ours(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ToolscoutError)  # noqa: S101 registered for nothing else
    return problem(error)


async def _validation(_request: Request, error: Exception) -> Response:
    """Where and why, but not what: the input is the user's own and may be long or secret."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 registered for nothing else
    errors = [_shown(item) for item in error.errors()]
    places = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in errors[:5])
    return problem(InvalidInput(places, errors=errors))


def _shown(item: Mapping[str, Any]) -> dict[str, Any]:
    if item["type"] == "json_invalid":
        return {"loc": ["body"], "msg": item["ctx"]["error"], "type": item["type"]}
    if item["type"] in ("model_attributes_type", "model_type"):
        return {"loc": list(item["loc"]), "msg": "Input should be an object", "type": item["type"]}
    return {"loc": list(item["loc"]), "msg": item["msg"].removeprefix("Value error, "), "type": item["type"]}


async def _framework(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 registered for nothing else
    title = str(error.detail)
    code, detail = _OF_THE_FRAMEWORK.get(error.status_code, ("bad_request", title))
    return _response(_body(error.status_code, code, title, detail), error.headers)


class UnhandledErrorMiddleware:
    """What nobody foresaw: logged with the request's id, answered without a word about it.

    A layer of our own, inside the one that gives requests their id: the framework's stands outside of it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:  # the door's boundary: whatever it is, the caller gets a problem and no trace of it
            logger.exception("unexpected error")
            if begun:
                raise
            unknown = ToolscoutError("an unexpected error; the log has it under this request's id")
            await problem(unknown)(scope, receive, send)


def _body(status: int, code: str, title: str, detail: str) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": request_id.get(),
    }


def _response(body: Mapping[str, Any], headers: Mapping[str, str] | None) -> Response:
    return Response(
        orjson.dumps(body, default=str),
        body["status"],
        headers=dict(headers or {}),
        media_type="application/problem+json",
    )
