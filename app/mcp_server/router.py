"""The MCP endpoint over streamable HTTP: authenticate, check that the body is a JSON-RPC message, call the SDK."""

import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from app.auth.permissions import Caller
from app.catalog.projects import get_project
from app.container import Container
from app.dependencies import ContainerDep, DiscoverCaller, check_host_and_origin
from app.errors import InvalidInput, ToolscoutError
from app.mcp_server.cancellation import RunningCalls
from app.mcp_server.elicitation import can_open_urls, mark_session
from app.mcp_server.meta_tools import ALL_TOOLS, BASIC_TOOLS
from app.mcp_server.passthrough_handlers import PASSTHROUGH_HANDLERS
from app.mcp_server.request_context import REQUEST_CONTEXT, McpRequestContext
from app.mcp_server.server import MetaServer
from app.observability.logging import request_id
from app.text.strict_json import Json, parse_json

_SESSION_HEADER = "mcp-session-id"
_CANCELLED = "notifications/cancelled"
_JSON_RPC = {"type": "object", "description": "a JSON-RPC 2.0 message of MCP", "additionalProperties": True}
_ERROR = {
    "description": "A JSON-RPC error; a problem if the request was refused before it was read",
    "content": {
        "application/json": {"schema": _JSON_RPC},
        "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}},
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A JSON-RPC response, or an event stream that ends with one",
        "content": {
            "application/json": {"schema": _JSON_RPC},
            "text/event-stream": {"schema": {"type": "string", "description": "server-sent events: JSON-RPC messages"}},
        },
    },
    202: {"description": "A notification was accepted"},
    "4XX": _ERROR,
    "5XX": _ERROR,
}
_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": _JSON_RPC}}}}


def mcp_router() -> APIRouter:
    """Every caller needs the permission to discover; each meta-tool declares the permission that it needs."""
    router = APIRouter(tags=["mcp"], dependencies=[Depends(check_host_and_origin)], route_class=_McpRoute)
    running_calls = RunningCalls()
    basic_server, full_server = MetaServer(BASIC_TOOLS), MetaServer(ALL_TOOLS, PASSTHROUGH_HANDLERS)

    @router.post("/mcp", response_class=Response, responses=_RESPONSES, openapi_extra=_BODY)
    async def mcp(request: Request, caller: DiscoverCaller, container: ContainerDep) -> Response:
        """Two tools: `tool_discovery` and `tool_execute`."""
        context = McpRequestContext(container, caller, _get_session(request), running_calls)
        return await _handle(basic_server, request, context)

    @router.post("/mcp/full", response_class=Response, responses=_RESPONSES, openapi_extra=_BODY)
    async def mcp_full(request: Request, caller: DiscoverCaller, container: ContainerDep) -> Response:
        """The two tools of `/mcp`, `list_servers`, `list_tools`, `get_tool_details` and `search_tools`, and resources
        and prompts of the servers."""
        context = McpRequestContext(container, caller, _get_session(request), running_calls)
        return await _handle(full_server, request, context)

    @router.post("/projects/{project_id}/mcp", response_class=Response, responses=_RESPONSES, openapi_extra=_BODY)
    async def mcp_project(
        project_id: str, request: Request, caller: DiscoverCaller, container: ContainerDep
    ) -> Response:
        """The same two tools, scoped to a project."""
        return await mcp(request, await _bind_to_project(container, caller, project_id), container)

    @router.post("/projects/{project_id}/mcp/full", response_class=Response, responses=_RESPONSES, openapi_extra=_BODY)
    async def mcp_project_full(
        project_id: str, request: Request, caller: DiscoverCaller, container: ContainerDep
    ) -> Response:
        """All six tools, and the resources and prompts, scoped to a project."""
        return await mcp_full(request, await _bind_to_project(container, caller, project_id), container)

    return router


async def _bind_to_project(container: Container, caller: Caller, project_id: str) -> Caller:
    """Return the caller as if its key were bound to the project."""
    user, bound_id = caller.require_user(), caller.resolve_project(project_id)
    async with container.database.transaction(user.id) as session:
        await get_project(session, user.id, project_id)
    return replace(caller, project_id=bound_id)


def _get_session(request: Request) -> str:
    return request.headers.get(_SESSION_HEADER) or str(uuid.uuid4())


async def _handle(server: MetaServer, request: Request, context: McpRequestContext) -> Response:
    context.caller.require_user()  # raises unless a user was named
    body = await request.body()
    try:
        message = parse_json(body)
    except InvalidInput as error:
        return _render_error(PARSE_ERROR, error.message)
    if (problem := _find_problem(message)) is not None:
        return _render_error(INVALID_REQUEST, problem)
    if message.get("method") == _CANCELLED:
        _cancel_call(context, message.get("params") or {})
    new_session = _start_session(context, message) if message.get("method") == "initialize" else None
    return _SdkResponse(server, context, body, new_session)


def _start_session(context: McpRequestContext, message: Json) -> str:
    """Return the id of a new session. It says that the client can open URLs for the user, because an older client
    declares its capabilities only once, and any replica may answer its next request."""
    capabilities = (message.get("params") or {}).get("capabilities")
    return mark_session(context.session) if can_open_urls(capabilities) else context.session


def _find_problem(message: Any) -> str | None:
    """Say why this is not a JSON-RPC message. The SDK would reject it too, but with details of its own internals."""
    if not isinstance(message, dict):
        return "send one JSON-RPC message, as an object; batches are not supported"
    if message.get("jsonrpc") != "2.0":
        return '`jsonrpc` must be "2.0"'
    if not isinstance(message.get("params"), dict | None):
        return "`params` must be an object"
    if type(message.get("id", "")) not in (str, int):
        return "`id` must be a string or an integer"
    if not isinstance(message.get("method"), str):
        return "`method` must be a string; responses are not accepted, because the server sends no requests"
    return None


class _McpRoute(APIRoute):
    """Render errors as JSON-RPC: MCP clients do not show any other body to their users."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except ToolscoutError as error:
                code = INVALID_REQUEST if error.status < 500 else INTERNAL_ERROR
                return _render_error(code, error.message, error)

        return handle


def _render_error(code: int, message: str, error: ToolscoutError | None = None) -> Response:
    rpc_error: Json = {"code": code, "message": message}
    status, headers = (400, {}) if error is None else (error.status, error.headers)
    if error is not None:
        rpc_error["data"] = {"code": error.code, "request_id": request_id.get()}
    body = {"jsonrpc": "2.0", "id": None, "error": rpc_error}
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def _cancel_call(context: McpRequestContext, params: Json) -> None:
    """In the newer protocol a client cancels a call by closing its stream. In the older one it sends a notification in
    a request of its own, and only the session id tells whose call is meant."""
    rpc_id = params.get("requestId")
    if type(rpc_id) in (str, int):  # not isinstance: a bool is an int
        context.running_calls.cancel(context.call_id(rpc_id))


class _SdkResponse(Response):
    """The response that the SDK sends. `new_session` is the id of a session that begins with it."""

    def __init__(self, server: MetaServer, context: McpRequestContext, body: bytes, new_session: str | None) -> None:
        super().__init__()
        self._server, self._context, self._request_body, self._new_session = server, context, body, new_session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pending: list[Message] = [{"type": "http.request", "body": self._request_body, "more_body": False}]

        async def receive_body_again() -> Message:
            return pending.pop() if pending else await receive()

        async def send_with_session(message: Message) -> None:
            if self._new_session is not None and message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_SESSION_HEADER] = self._new_session
            await send(message)

        await self._server.handle({**scope, REQUEST_CONTEXT: self._context}, receive_body_again, send_with_session)
