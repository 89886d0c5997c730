"""The meta-tools that list servers and tools, and show a tool's definition."""

from app.catalog.definitions import list_server_definitions, list_server_summaries
from app.catalog.tool_keys import read_tool, require_visible_key
from app.errors import NotFound
from app.mcp_server import responses
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
            return responses.render_tool_list(page, page[-1].name if len(definitions) > _PAGE_SIZE else None)

        return await call.container.listing_cache.get_list(session, call.scope, (server, after), read)


async def get_tool_details(call: ToolCall) -> Json:
    async with call.container.database.transaction(call.scope.user_id) as session:
        given_key = call.arguments["toolKey"]
        tool_id = await require_visible_key(session, call.scope, given_key)

        async def read() -> Json:
            return responses.render_details(await read_tool(session, call.scope, tool_id, given_key))

        return await call.container.listing_cache.get_details(session, call.scope, tool_id, read)
