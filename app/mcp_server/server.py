"""The SDK's MCP server with the meta-tools. It is stateless: any replica can answer any request."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import Receive, Scope, Send

from app import __version__
from app.auth.permissions import Caller
from app.catalog.projects import get_project
from app.catalog.visibility import Scope as CatalogScope
from app.container import Container
from app.errors import AuthorizationRequired, InvalidInput, ToolscoutError
from app.mcp_server import elicitation, responses
from app.mcp_server.cancellation import CallCancelled, CallId, RunningCalls
from app.mcp_server.contents import read_contents
from app.mcp_server.meta_tools import MetaTool
from app.mcp_server.tool_call import ToolCall
from app.mcp_types import Dialogue
from app.observability.logging import request_id
from app.text.strict_json import Json

logger = logging.getLogger("toolscout.mcp")

REQUEST_CONTEXT = "toolscout.mcp_request_context"
_INSTRUCTIONS = "Find a tool with tool_discovery, then run it with tool_execute."
_LIST_TTL_MS = 300_000
"""A server that the user connects is named in the list after at most this time."""
_DIALOGUE_CAPABILITIES = frozenset({"elicitation", "sampling", "roots"})

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True)
class McpRequestContext:
    """What the handler of a message needs of its authenticated HTTP request. It is passed on in the ASGI scope."""

    container: Container
    caller: Caller
    session: str
    running_calls: RunningCalls

    def call_id(self, rpc_id: str | int | None) -> CallId:
        return self.caller.actor, self.caller.require_user().id, self.session, rpc_id


class MetaServer:
    """A server with a fixed set of meta-tools. Only a description differs between users; see `contents`."""

    def __init__(self, tools: Sequence[MetaTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._server: Server[Any] = Server(
            "toolscout",
            version=__version__,
            instructions=_INSTRUCTIONS,
            cache_hints={"tools/list": CacheHint(_LIST_TTL_MS, "private")},
            get_tool_input_schema=self._get_input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._server.middleware[:] = [_log_rejected_results]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request. It has a session manager of its own, so that whatever it starts ends with it."""
        manager = StreamableHTTPSessionManager(self._server, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    def _get_input_schema(self, name: str) -> Json | None:
        return self._tools[name].definition["inputSchema"] if name in self._tools else None

    async def _list_tools(self, context: Context, _params: Any) -> types.ListToolsResult:
        request = _get_request(context)
        container, user = request.container, request.caller.require_user()
        project_id = await _resolve_project(request, _get_meta(context).get("projectId"))
        scope = CatalogScope(user.id, container.model.id, project_id=project_id)
        contents = await read_contents(container, scope, user.catalog_version)
        definitions = [tool.describe(contents) for tool in self._tools.values()]
        return types.ListToolsResult.model_validate({"tools": definitions})

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> Any:
        request = _get_request(context)
        call_id = request.call_id(context.request_id)
        try:
            return await request.running_calls.run(call_id, self._run_tool(context, params, request))
        except CallCancelled as error:
            raise MCPError(REQUEST_CANCELLED, "the call was cancelled") from error

    async def _run_tool(
        self, context: Context, params: types.CallToolRequestParams, request: McpRequestContext
    ) -> Json:
        tool, outcome = self._tools.get(params.name), "failed"
        if tool is None:
            raise MCPError(
                types.INVALID_PARAMS, f"unknown tool {params.name!r}; the tools are {', '.join(self._tools)}"
            )
        try:
            result = await tool.run(await _make_tool_call(context, params, request))
            outcome = "succeeded"
        except AuthorizationRequired as error:
            result = _ask_to_sign_in(context, request, error)
        except ToolscoutError as error:
            result = responses.render_error(error)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as error:  # boundary of the interface: the caller gets no internals
            logger.exception("unexpected error")
            message = f"unexpected error; it is in the log with request id {request_id.get()}"
            raise MCPError(types.INTERNAL_ERROR, message) from error
        finally:
            request.container.metrics.mcp_calls.labels(tool.name, outcome).inc()
        if not _is_modern(context):
            result = responses.adapt_to_older_clients(result)
        return {"resultType": "complete", **result}


async def _log_rejected_results(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Log a result of ours that the SDK rejects. The SDK's own logs are off, because they may quote messages."""
    try:
        return await call_next(ctx)
    except MCPError as error:
        if error.code == types.INTERNAL_ERROR and error.__cause__ is None:
            logger.error("the SDK rejected a result", extra={"method": ctx.method})
        raise


async def _make_tool_call(
    context: Context, params: types.CallToolRequestParams, request: McpRequestContext
) -> ToolCall:
    meta = _get_meta(context)
    return ToolCall(
        container=request.container,
        caller=request.caller,
        project_id=await _resolve_project(request, meta.get("projectId")),
        arguments=params.arguments or {},
        on_progress=partial(_report_progress, context) if "progressToken" in meta else None,
        dialogue=_make_dialogue(context) if _is_modern(context) else None,
    )


def _ask_to_sign_in(context: Context, request: McpRequestContext, error: AuthorizationRequired) -> Json:
    """Ask once: a user who was asked and has not signed in reads the link in words."""
    if error.authorization_url is not None:
        if not _is_modern(context) and elicitation.is_marked(request.session):
            raise elicitation.make_sign_in_error(error)
        dialogue, was_asked = _make_dialogue(context), elicitation.has_sign_in_response(_get_responses(context))
        if _is_modern(context) and elicitation.can_open_urls(dialogue.capabilities) and not was_asked:
            return elicitation.make_sign_in_request(error, dialogue)
    return responses.render_error(error)


async def _resolve_project(request: McpRequestContext, requested: Any) -> str | None:
    """`_meta.projectId` narrows the scope of a call; it cannot leave the project of the URL or the key.

    Clients with a fixed set of fields send an empty one for none.
    """
    if requested is None or requested == "":
        return request.caller.resolve_project(None)
    if not isinstance(requested, str):
        raise InvalidInput("_meta.projectId must be a string")
    project_id = request.caller.resolve_project(requested)
    user = request.caller.require_user()
    async with request.container.database.transaction(user.id) as session:
        return (await get_project(session, user.id, project_id or requested)).id


def _get_request(context: Context) -> McpRequestContext:
    assert context.request is not None  # noqa: S101 requests come only over HTTP
    request: McpRequestContext = context.request.scope[REQUEST_CONTEXT]
    return request


def _get_meta(context: Context) -> Json:
    return (context.params or {}).get("_meta") or {}


def _make_dialogue(context: Context) -> Dialogue:
    declared = context.session.client_capabilities
    capabilities = {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)
    return Dialogue(
        capabilities={name: value for name, value in capabilities.items() if name in _DIALOGUE_CAPABILITIES},
        responses=elicitation.remove_sign_in_response(_get_responses(context)),
        state=(context.params or {}).get("requestState"),
    )


def _get_responses(context: Context) -> Json | None:
    """Return the user's answers to what an earlier result of this call has asked for."""
    return (context.params or {}).get("inputResponses")


def _is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


async def _report_progress(context: Context, report: Json) -> None:
    await context.session.report_progress(**report)
