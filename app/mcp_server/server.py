"""The SDK's server in front of the meta-tools. It keeps nothing between requests: any replica can answer any."""

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
from app.container import Container
from app.errors import InvalidInput, ToolscoutError
from app.mcp_server import responses
from app.mcp_server.cancellation import EndedByName, Name, RunningCalls
from app.mcp_server.tools import MetaTool, ToolCall
from app.observability.metrics import request_id
from app.text.strict_json import Dialogue, Json

logger = logging.getLogger("toolscout.mcp")

REQUEST_CONTEXT = "toolscout.visit"
_INSTRUCTIONS = "Find a tool with tool_discovery, then run it with tool_execute."
_LIST_KEPT_MS = 3_600_000
_ANSWERABLE = frozenset({"elicitation", "sampling", "roots"})

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True)
class McpRequestContext:
    """An HTTP request that was let in: put into its scope, where what handles its message finds it."""

    container: Container
    caller: Caller
    session: str
    running: RunningCalls

    def name(self, number: str | int | None) -> Name:
        return self.caller.actor, self.caller.require_user().id, self.session, number


class MetaServer:
    """A fixed set of meta-tools, for everybody the same bytes."""

    def __init__(self, tools: Sequence[MetaTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._listing = types.ListToolsResult.model_validate({"tools": [tool.definition for tool in tools]})
        self._server: Server[Any] = Server(
            "toolscout",
            version=__version__,
            instructions=_INSTRUCTIONS,
            cache_hints={"tools/list": CacheHint(_LIST_KEPT_MS, "public")},
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._server.middleware[:] = [_noting_refusals]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A manager for each request: what one starts ends with it."""
        manager = StreamableHTTPSessionManager(self._server, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    def _input_schema(self, name: str) -> Json | None:
        return self._tools[name].definition["inputSchema"] if name in self._tools else None

    async def _list_tools(self, _context: Context, _params: Any) -> types.ListToolsResult:
        return self._listing

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> Any:
        assert context.request is not None  # noqa: S101 the only way in is HTTP
        visit: McpRequestContext = context.request.scope[REQUEST_CONTEXT]
        try:
            return await visit.running.run(visit.name(context.request_id), self._answered(context, params, visit))
        except EndedByName as error:
            raise MCPError(REQUEST_CANCELLED, "the call was taken back") from error

    async def _answered(self, context: Context, params: types.CallToolRequestParams, visit: McpRequestContext) -> Json:
        tool, outcome = self._tools.get(params.name), "failed"
        if tool is None:
            raise MCPError(
                types.INVALID_PARAMS, f"there is no tool {params.name!r}: there are {', '.join(self._tools)}"
            )
        try:
            result = await tool.answer(await _asked(context, params, visit))
            outcome = "succeeded"
        except ToolscoutError as error:
            result = responses.failure(error)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as error:  # the door's boundary: whatever it is, the caller gets no trace of it
            logger.exception("unexpected error")
            told = f"an unexpected error; the log has it under {request_id.get()}"
            raise MCPError(types.INTERNAL_ERROR, told) from error
        finally:
            visit.container.metrics.mcp_calls.labels(tool.name, outcome).inc()
        return {
            "resultType": "complete",
            **(result if _is_modern(context) else responses.fit_for_older_clients(result)),
        }


async def _noting_refusals(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Of an answer that the SDK itself takes for wrong nobody else would know: it may quote what it logs, so that its
    own logs are switched off."""
    try:
        return await call_next(ctx)
    except MCPError as error:
        if error.code == types.INTERNAL_ERROR and error.__cause__ is None:
            logger.error("the SDK refused an answer of ours", extra={"method": ctx.method})
        raise


async def _asked(context: Context, params: types.CallToolRequestParams, visit: McpRequestContext) -> ToolCall:
    meta: Json = (context.params or {}).get("_meta") or {}
    return ToolCall(
        container=visit.container,
        caller=visit.caller,
        project_id=await _project(visit, meta.get("projectId")),
        arguments=params.arguments or {},
        tell=partial(_tell, context) if "progressToken" in meta else None,
        dialogue=_dialogue(context) if _is_modern(context) else None,
    )


async def _project(visit: McpRequestContext, named: Any) -> str | None:
    """What `_meta.projectId` names narrows: it never leads out of the project that one is in."""
    if named is None:
        return visit.caller.resolve_project(None)
    if not isinstance(named, str):
        raise InvalidInput("_meta.projectId must be a string")
    project_id = visit.caller.resolve_project(named)
    user = visit.caller.require_user()
    async with visit.container.database.transaction(user.id) as session:
        return (await get_project(session, user.id, project_id or named)).id


def _dialogue(context: Context) -> Dialogue:
    declared = context.session.client_capabilities
    capabilities = {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)
    params = context.params or {}
    return Dialogue(
        capabilities={name: value for name, value in capabilities.items() if name in _ANSWERABLE},
        responses=params.get("inputResponses"),
        state=params.get("requestState"),
    )


def _is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


async def _tell(context: Context, report: Json) -> None:
    await context.session.report_progress(**report)
