"""An MCP server with a tool that does nothing, so that what is measured is the way to it."""

import sys

import uvicorn
from mcp.server import MCPServer

server = MCPServer("echo")


@server.tool()
def echo(text: str) -> str:
    """Gives back the text."""
    return text


if __name__ == "__main__":
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
