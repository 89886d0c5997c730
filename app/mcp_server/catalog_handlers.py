"""The meta-tools that list servers and tools, and show a tool's definition."""

from collections.abc import Mapping

from app.catalog.definitions import ToolDefinitionView, list_server_definitions, list_server_summaries
from app.catalog.tool_keys import read_tool, read_tools, require_visible_key
from app.errors import NotFound, ToolscoutError
from app.mcp_server import responses, tool_results
from app.mcp_server.tool_call import ToolCall
from app.text.strict_json import Json

_PAGE_SIZE = 100


async def list_servers(call: ToolCall) -> Json:
    async with call.container.database.transaction(call.scope.user_id) as session:

        async def read() -> Json:
            return responses.render_servers(await list_server_summaries(session, call.scope))

        return await call.container.listing_cache.get_list(session, call.scope, (), read)


async def list_tools(call: ToolCall) -> Json:
    server, after = call.arguments["server"], call.arguments.get("cursor", "")
    async with call.container.database.transaction(call.scope.user_id) as session:

        async def read() -> Json:
            definitions = await list_server_definitions(session, call.scope, server, after, _PAGE_SIZE + 1)
            if not definitions and not after:
                raise NotFound(f"no server named {server!r} has a tool that you may use: call list_servers")
            page = definitions[:_PAGE_SIZE]
            return tool_results.render_tool_list(page, page[-1].name if len(definitions) > _PAGE_SIZE else None)

        return await call.container.listing_cache.get_list(session, call.scope, (server, after), read)


async def get_tool_details(call: ToolCall) -> Json:
    if "toolKeys" in call.arguments:
        async with call.container.database.transaction(call.scope.user_id) as session:
            found = await read_tools(session, call.scope, list(dict.fromkeys(call.arguments["toolKeys"])))
        return tool_results.render_many_details(*split_found(found))
    async with call.container.database.transaction(call.scope.user_id) as session:
        given_key = call.arguments["toolKey"]
        tool_id = await require_visible_key(session, call.scope, given_key)

        async def read() -> Json:
            return tool_results.render_details(await read_tool(session, call.scope, tool_id, given_key))

        return await call.container.listing_cache.get_details(session, call.scope, tool_id, read)


def split_found(
    found: Mapping[str, ToolDefinitionView | ToolscoutError],
) -> tuple[list[ToolDefinitionView], dict[str, ToolscoutError]]:
    """Return the tools, each once, and the errors by key."""
    tools = {tool.tool_id: tool for tool in found.values() if isinstance(tool, ToolDefinitionView)}
    return list(tools.values()), {key: error for key, error in found.items() if isinstance(error, ToolscoutError)}
