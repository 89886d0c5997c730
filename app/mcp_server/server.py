"""The SDK's MCP server with the meta-tools. It is stateless: any replica can answer any request."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from app import __version__
from app.catalog.visibility import Scope as CatalogScope
from app.errors import AuthorizationRequired, ToolscoutError
from app.mcp_server import responses
from app.mcp_server.contents import read_contents
from app.mcp_server.meta_tools import MetaTool
from app.mcp_server.request_context import (
    Context,
    McpRequestContext,
    count_call,
    get_meta,
    get_request_context,
    is_modern,
    make_dialogue,
    make_rpc_error,
    make_sign_in_request,
    resolve_project,
    run_cancellable,
)
from app.mcp_server.tool_call import ToolCall
from app.text.strict_json import Json

logger = logging.getLogger("toolscout.mcp")

_INSTRUCTIONS = "Find a tool with tool_discovery, then run it with tool_execute."
_LIST_TTL_MS = 300_000
"""A server that the user connects is named in the list after at most this time."""


class MetaServer:
    """A server with a fixed set of meta-tools. Only a description differs between users; see `contents`."""

    def __init__(self, tools: Sequence[MetaTool], handlers: Mapping[str, Any] | None = None) -> None:
        """`handlers` of other messages, by the names of the SDK's parameters."""
        self._tools = {tool.name: tool for tool in tools}
        self._server: Server[Any] = Server(
            "toolscout",
            version=__version__,
            instructions=_INSTRUCTIONS,
            cache_hints={"tools/list": CacheHint(_LIST_TTL_MS, "private")},
            get_tool_input_schema=self._get_input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            **(handlers or {}),
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
        request = get_request_context(context)
        try:
            with count_call(request, "tools/list"):
                return await self._describe_tools(context, request)
        except ToolscoutError as error:
            raise make_rpc_error(error) from error

    async def _describe_tools(self, context: Context, request: McpRequestContext) -> types.ListToolsResult:
        container, user = request.container, request.caller.require_user()
        project_id = await resolve_project(request, get_meta(context).get("projectId"))
        scope = CatalogScope(user.id, container.model.id, project_id=project_id)
        contents = await read_contents(container, scope, user.catalog_version)
        definitions = [tool.describe(contents) for tool in self._tools.values()]
        return types.ListToolsResult.model_validate({"tools": definitions})

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> Any:
        request = get_request_context(context)
        return await run_cancellable(context, request, self._run_tool(context, params, request))

    async def _run_tool(
        self, context: Context, params: types.CallToolRequestParams, request: McpRequestContext
    ) -> Json:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(
                types.INVALID_PARAMS, f"unknown tool {params.name!r}; the tools are {', '.join(self._tools)}"
            )
        try:
            with count_call(request, tool.name):
                result = await tool.run(await _make_tool_call(context, params, request))
        except AuthorizationRequired as error:
            result = make_sign_in_request(context, request, error) or responses.render_error(error)
        except ToolscoutError as error:
            result = responses.render_error(error)
        if not is_modern(context):
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
    meta = get_meta(context)
    return ToolCall(
        container=request.container,
        caller=request.caller,
        project_id=await resolve_project(request, meta.get("projectId")),
        arguments=params.arguments or {},
        on_progress=partial(_report_progress, context) if "progressToken" in meta else None,
        dialogue=make_dialogue(context) if is_modern(context) else None,
    )


async def _report_progress(context: Context, report: Json) -> None:
    await context.session.report_progress(**report)
