"""An MCP server whose tool does nothing, so that a benchmark measures only the overhead of a call."""

import sys

import uvicorn
from mcp.server import MCPServer

server = MCPServer("echo", log_level="WARNING")


@server.tool()
def echo(text: str) -> str:
    """Return the text."""
    return text


if __name__ == "__main__":
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
