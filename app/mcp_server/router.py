"""MCP over streamable HTTP: who asks, whether it is a message at all, and on to the SDK."""

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
from app.mcp_server.server import REQUEST_CONTEXT, McpRequestContext, MetaServer
from app.mcp_server.tools import ALL_TOOLS, TWO_TOOLS
from app.observability.metrics import request_id
from app.text.strict_json import Json, parse_json

_SESSION_HEADER = "mcp-session-id"
_CANCELLED = "notifications/cancelled"
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "A JSON-RPC response, or events that end with one"},
    202: {"description": "A notification was taken"},
    421: {"description": "The `Host` is not one of ours"},
}


def mcp_router() -> APIRouter:
    """Each tool declares what it needs; whoever comes in may at least discover."""
    router = APIRouter(tags=["mcp"], dependencies=[Depends(check_host_and_origin)], route_class=_McpRoute)
    running = RunningCalls()
    two, full = MetaServer(TWO_TOOLS), MetaServer(ALL_TOOLS)

    @router.post("/mcp", responses=_RESPONSES)
    async def mcp(request: Request, caller: DiscoverCaller, container: ContainerDep) -> Response:
        """Two tools: `tool_discovery` and `tool_execute`."""
        return await _answer(two, request, McpRequestContext(container, caller, _session(request), running))

    @router.post("/mcp/full", responses=_RESPONSES)
    async def full_mcp(request: Request, caller: DiscoverCaller, container: ContainerDep) -> Response:
        """Besides them `list_servers`, `list_tools`, `get_tool_details` and `search_tools`."""
        return await _answer(full, request, McpRequestContext(container, caller, _session(request), running))

    @router.post("/projects/{project_id}/mcp", responses=_RESPONSES)
    async def project_mcp(
        project_id: str, request: Request, caller: DiscoverCaller, container: ContainerDep
    ) -> Response:
        """The same two, within a project."""
        return await mcp(request, await _confined(container, caller, project_id), container)

    @router.post("/projects/{project_id}/mcp/full", responses=_RESPONSES)
    async def full_project_mcp(
        project_id: str, request: Request, caller: DiscoverCaller, container: ContainerDep
    ) -> Response:
        """All six, within a project."""
        return await full_mcp(request, await _confined(container, caller, project_id), container)

    return router


async def _confined(container: Container, caller: Caller, project_id: str) -> Caller:
    """As if the key were bound to the project."""
    user, confined_to = caller.require_user(), caller.resolve_project(project_id)
    async with container.database.transaction(user.id) as session:
        await get_project(session, user.id, project_id)
    return replace(caller, project_id=confined_to)


def _session(request: Request) -> str:
    return request.headers.get(_SESSION_HEADER) or str(uuid.uuid4())


async def _answer(server: MetaServer, request: Request, visit: McpRequestContext) -> Response:
    visit.caller.require_user()
    body = await request.body()
    try:
        message = parse_json(body)
    except InvalidInput as error:
        return _refused(PARSE_ERROR, error.message)
    if (wrong := _what_is_wrong(message)) is not None:
        return _refused(INVALID_REQUEST, wrong)
    if message.get("method") == _CANCELLED:
        _cancel(visit, message.get("params") or {})
    named = visit.session if message.get("method") == "initialize" else None
    return _Answer(server, visit, body, named)


def _what_is_wrong(message: Any) -> str | None:
    """What the SDK would find wrong too, and tell with more words about itself than about the message."""
    if not isinstance(message, dict):
        return "send one JSON-RPC message: an object, not a list of them"
    if message.get("jsonrpc") != "2.0":
        return 'a JSON-RPC message says "jsonrpc": "2.0"'
    if not isinstance(message.get("params"), dict | None):
        return "`params` must be an object"
    if type(message.get("id", "")) not in (str, int):
        return "`id` must be a string or an integer"
    if not isinstance(message.get("method"), str):
        return "`method` must be a string (nobody was asked anything, so a response is out of place)"
    return None


class _McpRoute(APIRoute):
    """Tells errors as JSON-RPC does: of any other body a client shows its user nothing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await handler(request)
            except ToolscoutError as error:
                code = INVALID_REQUEST if error.status < 500 else INTERNAL_ERROR
                return _refused(code, error.message, error)

        return told


def _refused(code: int, message: str, error: ToolscoutError | None = None) -> Response:
    told: Json = {"code": code, "message": message}
    status, headers = (400, {}) if error is None else (error.status, error.headers)
    if error is not None:
        told["data"] = {"code": error.code, "request_id": request_id.get()}
    body = {"jsonrpc": "2.0", "id": None, "error": told}
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def _cancel(visit: McpRequestContext, params: Json) -> None:
    """The newer protocol ends a call by closing its stream. In the older one the word for it comes as a request of its
    own, and only the session that it names tells whose call is meant."""
    number = params.get("requestId")
    if type(number) in (str, int):  # to Python true is an integer
        visit.running.cancel(visit.name(number))


class _Answer(Response):
    """What the SDK sends. `named` is the session's name, told to a client that begins one."""

    def __init__(self, server: MetaServer, visit: McpRequestContext, body: bytes, named: str | None) -> None:
        super().__init__()
        self._server, self._visit, self._received, self._named = server, visit, body, named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting: list[Message] = [{"type": "http.request", "body": self._received, "more_body": False}]

        async def receive_again() -> Message:
            return waiting.pop() if waiting else await receive()

        async def send_named(message: Message) -> None:
            if self._named is not None and message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_SESSION_HEADER] = self._named
            await send(message)

        await self._server.handle({**scope, REQUEST_CONTEXT: self._visit}, receive_again, send_named)
