"""The 200 tools of the conversation: those of five public MCP servers, and of seven of the demo's invented ones."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import orjson

Json = dict[str, Any]

_DEMO = Path(__file__).parents[2] / "app/demo/catalogue.json"
_PUBLIC = Path(__file__).parent / "public_servers.json.gz"
_LEFT_OUT = "codehub"
"""The demo's imitation of GitHub, since there is the real one."""


def read_servers() -> dict[str, list[Json]]:
    """Return the tools, as MCP defines them, by the name of their server."""
    demo = orjson.loads(_DEMO.read_bytes())["servers"]
    public = orjson.loads(gzip.decompress(_PUBLIC.read_bytes()))["servers"]
    return {server["name"]: server["tools"] for server in (*public, *demo) if server["name"] != _LEFT_OUT}


def push_servers(client: httpx.Client) -> dict[str, str]:
    """Register the servers for the user of this client, with their tools. Return their ids by name."""
    ids = {}
    for name, tools in read_servers().items():
        body = {"name": name, "transport": "push"}
        ids[name] = client.post("/servers", json=body).raise_for_status().json()["id"]
        push_tools(client, ids[name], tools)
    return ids


def push_tools(client: httpx.Client, server_id: str, tools: list[Json]) -> None:
    run = client.put(f"/servers/{server_id}/tools", params={"wait": True}, json={"tools": tools})
    assert run.raise_for_status().json()["state"] == "succeeded", run.text


def list_definitions(api_format: str) -> list[Json]:
    """Return all tools as a client without Toolscout sends them, with the server's name where two have one name."""
    servers = read_servers()
    counts = Counter(tool["name"] for tools in servers.values() for tool in tools)
    named = [
        (tool["name"] if counts[tool["name"]] == 1 else f"{server}_{tool['name']}", tool)
        for server, tools in servers.items()
        for tool in tools
    ]
    if api_format == "anthropic":
        return [
            {"name": name, "description": tool["description"], "input_schema": tool["inputSchema"]}
            for name, tool in named
        ]
    return [
        {
            "type": "function",
            "name": name,
            "description": tool["description"],
            "parameters": tool["inputSchema"],
            "strict": False,
        }
        for name, tool in named
    ]
