"""The tools of a weather service on the fake MCP server, for tests that let a model call tools which really run."""

from typing import Any

from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer

Json = dict[str, Any]

MESSAGE = "what's the weather in Oslo tomorrow?"
DELETE_MESSAGE = "delete the weather station in Oslo"

_PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
FORECAST = tool("get_forecast", "The expected weather at a place for the coming days: rain, wind.", inputSchema=_PLACE)
MAIL = tool("send_mail", "Sends a mail to somebody.")
DELETE_STATION = tool(
    "delete_station",
    "Delete the weather station of a place.",
    inputSchema=_PLACE,
    annotations={"destructiveHint": True},
)


def add_weather_tools(mcp: FakeMcpServer) -> FakeMcpServer:
    """`get_forecast` and `delete_station` succeed, and `send_mail` reports a failure."""
    mcp.tools = [FORECAST, MAIL, DELETE_STATION]
    mcp.on_call["get_forecast"] = lambda arguments: _text(f"{arguments['place']}: snow")
    mcp.on_call["delete_station"] = lambda arguments: _text(f"deleted {arguments['place']}")
    mcp.on_call["send_mail"] = lambda _: _text("no such address") | {"isError": True}
    return mcp


def _text(text: str) -> Json:
    return {"content": [{"type": "text", "text": text}]}
