"""Speaking to the MCP door: with the real client in either protocol, and with bare messages."""

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
"""The newest protocol, and the older handshake."""
# plain http needs none, and to load those of the system takes longer than most tests
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
ACCEPT = "application/json, text/event-stream"


@asynccontextmanager
async def client_at(url: str, key: str, mode: Mode = "auto", **options: Any) -> AsyncIterator[Client]:
    """`url` is the whole address, such as `{address}/mcp`."""
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30, verify=_NO_CERTIFICATES) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


def message(method: str, params: Json | None = None, *, number: int | str = 1) -> Json:
    """As a client of the newest protocol sends it."""
    meta = {PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION, CLIENT_CAPABILITIES_META_KEY: {}}
    given = params or {}
    sent = {**given, "_meta": {**meta, **given.get("_meta", {})}}
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": sent}


def headers_for(body: Json) -> dict[str, str]:
    headers = {"Accept": ACCEPT, "MCP-Protocol-Version": LATEST_MODERN_VERSION, "Mcp-Method": body["method"]}
    name = body["params"].get("name")
    return headers if name is None else headers | {"Mcp-Name": name}


OLDER_HEADERS = {"Accept": ACCEPT, "MCP-Protocol-Version": LATEST_HANDSHAKE_VERSION}


async def sent(http: httpx.AsyncClient, body: Json, path: str = "/mcp", **headers: str) -> httpx.Response:
    return await http.post(path, json=body, headers=headers_for(body) | headers)


async def called(http: httpx.AsyncClient, name: str, arguments: Json, path: str = "/mcp", **params: Any) -> Json:
    """The result of a meta-tool, through a bare message."""
    body = message("tools/call", {"name": name, "arguments": arguments, **params})
    answer = await sent(http, body, path)
    assert answer.status_code == 200, answer.text
    result: Json = answer.json()["result"]
    return result


def text_of(result: CallToolResult | Json) -> str:
    if isinstance(result, CallToolResult):
        [block] = result.content
        assert isinstance(block, TextContent)
        return block.text
    [only] = result["content"]
    text: str = only["text"]
    return text


def error_of(result: CallToolResult | Json) -> Json:
    """What a program learns of a result that is an error of ours."""
    told = result.model_dump(by_alias=True) if isinstance(result, CallToolResult) else result
    assert told["isError"] is True, told
    error: Json = told["_meta"][ERROR_META]
    return error
