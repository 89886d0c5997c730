"""Render every error, ours and the framework's, as `application/problem+json`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.errors import InvalidInput, ToolscoutError
from app.observability.logging import request_id
from app.schemas.base import locate_error

_MAX_SUGGESTIONS = 20
"""In one answer: each costs time, and a body may have thousands of unknown fields."""
_FRAMEWORK_ERRORS = {
    404: ("not_found", "there is no such path; /docs lists those that exist"),
    405: ("method_not_allowed", "this path does not support that method; /docs lists those that it supports"),
}


class Problem(BaseModel):
    """An error as in RFC 9457, with a stable `code` for programs."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str = Field(examples=["invalid_input"])
    request_id: str | None = None
    errors: list[dict[str, Any]] | None = None
    outcome: str | None = Field(None, description="of a tool call: `failed`, or `unknown` if the tool may have run")
    cause: str | None = Field(None, description="why an MCP server or the registry cannot be used, as one stable word")
    server: str | None = Field(None, description="of a tool call: the name of the tool's server")
    authorization_url: str | None = Field(
        None, description="of `AUTHORIZATION_REQUIRED`: where the user's browser signs in to the tool's server"
    )
    expires_at: datetime | None = Field(None, description="how long the link, or the token, is valid")
    choices: list[dict[str, Any]] | None = Field(
        None, description="if several tools have the name: the `tool_key` and the `name` of each, as `SERVER.TOOL`"
    )
    tool: str | None = Field(None, description="of a tool call: the tool's name")
    confirmation_token: str | None = Field(
        None, description="of `CONFIRMATION_REQUIRED`: send the same call with it once the user has confirmed"
    )


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ToolscoutError, _handle_toolscout_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_framework_error)


def problem_response(error: ToolscoutError) -> Response:
    return _make_response(problem_body(error), error.headers)


def problem_body(error: ToolscoutError) -> dict[str, Any]:
    body = _make_body(error.status, error.code, error.title, error.message) | error.all_members
    return body if error.errors is None else body | {"errors": error.errors}


async def _handle_toolscout_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ToolscoutError)  # noqa: S101 registered for nothing else
    return problem_response(error)


async def _handle_validation_error(_request: Request, error: Exception) -> Response:
    """Tell where and why the input is invalid, without repeating it: it may be long or secret."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 registered for nothing else
    errors = [
        _render_validation_error(item, suggest=position < _MAX_SUGGESTIONS)
        for position, item in enumerate(error.errors())
    ]
    return problem_response(invalid_input(errors))


def invalid_input(errors: Sequence[Mapping[str, Any]]) -> InvalidInput:
    """Return an error whose message contains the first five of `errors`."""
    places = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in errors[:5])
    return InvalidInput(places, errors=errors)


def _render_validation_error(item: Mapping[str, Any], *, suggest: bool) -> dict[str, Any]:
    if item["type"] == "json_invalid":
        return {"loc": ["body"], "msg": item["ctx"]["error"], "type": item["type"]}
    if item["type"] in ("model_attributes_type", "model_type"):
        return {"loc": list(item["loc"]), "msg": "Input should be an object", "type": item["type"]}
    if suggest and item["type"] == "extra_forbidden" and "ctx" in item:  # an `Input` adds itself as the context
        message = item["ctx"]["model"].describe_unknown_field(str(item["loc"][-1]))
        return {"loc": list(item["loc"]), "msg": message, "type": item["type"]}
    return {"loc": list(locate_error(item)), "msg": item["msg"].removeprefix("Value error, "), "type": item["type"]}


async def _handle_framework_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 registered for nothing else
    title = str(error.detail)
    code, detail = _FRAMEWORK_ERRORS.get(error.status_code, ("bad_request", title))
    return _make_response(_make_body(error.status_code, code, title, detail), error.headers)


def _make_body(status: int, code: str, title: str, detail: str) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": request_id.get(),
    }


def _make_response(body: Mapping[str, Any], headers: Mapping[str, str] | None) -> Response:
    return Response(
        orjson.dumps(body, default=str),
        body["status"],
        headers=dict(headers or {}),
        media_type="application/problem+json",
    )
