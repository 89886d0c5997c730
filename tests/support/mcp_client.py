"""Clients for the MCP endpoint: the SDK's client in both protocols, and bare JSON-RPC messages."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY, CallToolResult, TextContent
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from app.mcp_server.responses import ERROR_META

Json = dict[str, Any]
Mode = Literal["auto", "legacy"]

MODES: list[Mode] = ["auto", "legacy"]
"""The newest protocol and the older handshake."""
# plain http needs no certificates, and loading those of the system takes longer than most tests
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
ACCEPT = "application/json, text/event-stream"


@asynccontextmanager
async def connect_client(url: str, key: str, mode: Mode = "auto", **options: Any) -> AsyncIterator[Client]:
    """Connect to the whole address, such as `{address}/mcp`."""
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30, verify=_NO_CERTIFICATES) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


def make_message(method: str, params: Json | None = None, *, request_id: int | str = 1) -> Json:
    """Return a JSON-RPC request as a client of the newest protocol sends it."""
    meta = {PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION, CLIENT_CAPABILITIES_META_KEY: {}}
    given = params or {}
    complete = {**given, "_meta": {**meta, **given.get("_meta", {})}}
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": complete}


def make_headers(body: Json) -> dict[str, str]:
    headers = {"Accept": ACCEPT, "MCP-Protocol-Version": LATEST_MODERN_VERSION, "Mcp-Method": body["method"]}
    name = body["params"].get("name")
    return headers if name is None else headers | {"Mcp-Name": name}


OLDER_HEADERS = {"Accept": ACCEPT, "MCP-Protocol-Version": LATEST_HANDSHAKE_VERSION}


async def send_message(http: httpx.AsyncClient, body: Json, path: str = "/mcp", **headers: str) -> httpx.Response:
    return await http.post(path, json=body, headers=make_headers(body) | headers)


async def call_meta_tool(
    http: httpx.AsyncClient, name: str, arguments: Json, path: str = "/mcp", **params: Any
) -> Json:
    """Call a meta-tool with a bare message and return its result."""
    body = make_message("tools/call", {"name": name, "arguments": arguments, **params})
    answer = await send_message(http, body, path)
    assert answer.status_code == 200, answer.text
    result: Json = answer.json()["result"]
    return result


def get_text(result: CallToolResult | Json) -> str:
    if isinstance(result, CallToolResult):
        [block] = result.content
        assert isinstance(block, TextContent)
        return block.text
    [only] = result["content"]
    text: str = only["text"]
    return text


def get_error(result: CallToolResult | Json) -> Json:
    """Return the machine-readable part of an error result."""
    fields = result.model_dump(by_alias=True) if isinstance(result, CallToolResult) else result
    assert fields["isError"] is True, fields
    error: Json = fields["_meta"][ERROR_META]
    return error
