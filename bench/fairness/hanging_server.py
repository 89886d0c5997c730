"""An MCP server whose tool never answers: `python -m bench.fairness.hanging_server PORT`."""

import asyncio
import sys

import uvicorn
from mcp.server import MCPServer

server = MCPServer("hanging", log_level="WARNING")


@server.tool()
async def hang() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


if __name__ == "__main__":
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
