"""Tests of the fake MCP server that other tests rely on. The client here is the SDK's."""

import asyncio
import gc
import json
import socket
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.subscriptions import SubscriptionLost, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequestParams, ElicitResult, ImageContent, TextContent, ToolListChangedNotification
from starlette.types import ASGIApp

from tests.support.factories import tool
from tests.support.mcp_server import (
    FakeMcpServer,
    Fault,
    drop,
    gzip_bomb,
    hang,
    listener,
    malformed_json,
    oversized_result,
    raw_result,
    redirect,
    running_mcp_server,
    status,
    truncated_sse,
    wrong_content_type,
)

KINDS = [(transport, era) for transport in ("streamable_http", "sse") for era in ("modern", "legacy")]
VERSIONS = {"modern": "2026-07-28", "legacy": "2025-11-25"}


@pytest.fixture(scope="module", autouse=True)
def _collect_garbage() -> Iterator[None]:
    """Resources that were left open warn here and not in a test of another module."""
    yield
    gc.collect()


@pytest.fixture(params=KINDS, ids="-".join)
def server(request: pytest.FixtureRequest) -> Iterator[FakeMcpServer]:
    with running_mcp_server(*request.param) as fake:
        fake.tools = [tool("read"), tool("write"), tool("move")]
        yield fake


@pytest.fixture(params=["modern", "legacy"])
def streamable(request: pytest.FixtureRequest) -> Iterator[FakeMcpServer]:
    with running_mcp_server(era=request.param) as fake:
        fake.tools = [tool("read")]
        yield fake


@asynccontextmanager
async def connect(server: FakeMcpServer, **options: Any) -> AsyncIterator[Client]:
    """List the tools once, or the SDK does so at the first call."""
    target: Any = sse_client(server.url) if server.transport == "sse" else server.url
    async with Client(target, read_timeout_seconds=60, **options) as client:
        await client.list_tools()
        yield client


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 the condition changes in another thread
            await asyncio.sleep(0.005)


async def call(client: Client, name: str = "read", **arguments: Any) -> str:
    content = (await client.call_tool(name, arguments)).content[0]
    assert isinstance(content, TextContent)
    return content.text


async def test_the_server_speaks_the_protocol_of_its_era(server: FakeMcpServer) -> None:
    async with connect(server) as client:
        assert client.protocol_version == VERSIONS[server.era]
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.tools.list_changed
        assert json.loads(await call(client, path="a")) == {"path": "a"}
    assert server.calls == [("read", {"path": "a"})]
    assert server.listings == 1
    assert (server.era == "legacy") == ("initialize" in [request.rpc_method for request in server.requests])


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_only_the_legacy_server_over_http_has_a_session(era: Any) -> None:
    with running_mcp_server(era=era) as server:
        async with connect(server):
            pass
        last = server.requests[-1]
    assert ("mcp-session-id" in last.headers) == (era == "legacy")
    assert last.path == "/mcp"


async def test_a_modern_server_also_answers_a_legacy_client() -> None:
    with running_mcp_server(era="modern") as server:
        async with Client(server.url, mode="legacy") as client:
            assert client.protocol_version == VERSIONS["legacy"]


async def test_tools_are_paged_and_can_be_changed_at_run_time(server: FakeMcpServer) -> None:
    async with connect(server, cache=None) as client:
        server.page_size = 2
        first = await client.list_tools()
        second = await client.list_tools(cursor=first.next_cursor)
        assert [[found.name for found in page.tools] for page in (first, second)] == [["read", "write"], ["move"]]
        assert second.next_cursor is None
        server.tools = [tool("new")]
        assert [found.name for found in (await client.list_tools()).tools] == ["new"]
    assert server.listings == 3


async def test_cursors_can_repeat_or_never_end_and_pages_can_fail(server: FakeMcpServer) -> None:
    async with connect(server) as client:
        for cursors, distinct in (("repeat", False), ("endless", True)):
            server.cursors = cursors  # type: ignore[assignment]
            pages = [await client.list_tools()]
            pages += [await client.list_tools(cursor=pages[0].next_cursor)]
            pages += [await client.list_tools(cursor=pages[1].next_cursor)]
            assert all(page.next_cursor and len(page.tools) == 3 for page in pages)
            assert all((a.next_cursor != b.next_cursor) == distinct for a, b in pairwise(pages))
        server.fail_page = 2
        with pytest.raises(MCPError, match="page 2"):
            await client.list_tools(cursor="2")


async def test_a_tool_is_sent_exactly_as_it_was_configured() -> None:
    """Also if the SDK's server would drop a field or reject the list."""
    invalid_tools: list[dict[str, Any]] = [
        {"name": 7, "surprise": None},
        {"inputSchema": "none"},
        {"name": "\u202e\x1b[2J"},
    ]
    with running_mcp_server() as server:
        server.tools = invalid_tools
        meta: dict[str, Any] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
        meta["io.modelcontextprotocol/clientCapabilities"] = {}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
        async with httpx2.AsyncClient(headers=headers) as http:
            answer = await http.post(server.url, json=body)
    assert answer.json()["result"]["tools"] == invalid_tools
    assert server.requests[0].body == answer.request.content
    assert (server.requests[0].method, server.requests[0].rpc_method) == ("POST", "tools/list")


def return_image(arguments: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]
    return {"content": content, "structuredContent": arguments, "isError": True}


def raise_error(arguments: dict[str, Any]) -> dict[str, Any]:
    raise MCPError(-32042, "not today", {"why": "rain"})


async def test_a_tool_answers_as_it_was_configured(server: FakeMcpServer) -> None:
    server.on_call = {"write": return_image, "move": raise_error}
    async with connect(server) as client:
        result = await client.call_tool("write", {"a": 1})
        assert isinstance(result.content[0], ImageContent)
        assert (result.structured_content, result.is_error) == ({"a": 1}, True)
        with pytest.raises(MCPError, match="not today") as refusal:
            await client.call_tool("move", {})
        assert (refusal.value.code, refusal.value.data) == (-32042, {"why": "rain"})
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("gone", {})
    assert [name for name, _ in server.calls] == ["write", "move", "gone"]


async def test_a_tool_reports_progress_and_can_be_delayed(server: FakeMcpServer) -> None:
    server.progress["read"] = 3
    server.stalled = {"read"}
    steps: list[float] = []

    async def append_step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with connect(server) as client:
        calling = asyncio.create_task(client.call_tool("read", {}, progress_callback=append_step))
        await wait_until(lambda: len(steps) == 3)
        assert not calling.done()
        server.stalled, server.delays["read"] = set(), 0.2
        await calling
        assert steps == [1, 2, 3]
        started = time.monotonic()
        await client.call_tool("read", {})
        assert time.monotonic() - started >= 0.2


async def test_a_stalled_tool_waits_until_it_is_released_or_cancelled(server: FakeMcpServer) -> None:
    server.stalled = {"read", "write"}
    async with connect(server) as client:
        released, cancelled = [asyncio.create_task(call(client, name)) for name in ("read", "write")]
        await wait_until(lambda: len(server.calls) == 2)
        cancelled.cancel()
        await wait_until(lambda: server.cancelled_calls)
        assert not released.done()
        server.stalled = set()
        assert await released == "{}"
    assert server.cancelled_calls == ["write"]


async def test_a_legacy_server_can_ask_the_user() -> None:
    async def answer(_context: Any, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept" if params.message == "Sure?" else "decline")

    with running_mcp_server(era="legacy") as server:
        server.tools, server.questions = [tool("read")], {"read": "Sure?"}
        async with connect(server, elicitation_callback=answer) as client:
            assert not (await client.call_tool("read", {})).is_error
        async with connect(server) as client:
            refused = await client.call_tool("read", {})
    assert refused.is_error
    assert isinstance(refused.content[0], TextContent)
    assert "not supported" in refused.content[0].text


async def test_a_change_is_announced_to_subscribers(server: FakeMcpServer) -> None:
    received: list[object] = []

    async def append_message(message: object) -> None:
        received.append(message)

    async with connect(server, message_handler=append_message) as client:
        if server.era == "modern":
            async with client.listen(tools_list_changed=True) as changes:
                assert server.streams == 1
                server.announce_change()
                assert await anext(aiter(changes)) == ToolsListChanged()
        else:
            await wait_until(lambda: server.streams)
            server.announce_change()
            await wait_until(lambda: received)
            assert isinstance(received[0], ToolListChangedNotification)
    await wait_until(lambda: not server.streams)
    server.announce_change()


FAULTS = {
    "status-401": (status(401, headers={"WWW-Authenticate": "Bearer"}), "error response"),
    "status-404": (status(404), "Not Found"),
    "status-503": (status(503), "error response"),
    "malformed_json": (malformed_json, "Failed to parse"),
    "wrong_content_type": (wrong_content_type, "Unexpected content type"),
    "truncated_sse": (truncated_sse, "ended without a response"),
    "too_deep": (raw_result(b"[" * 5000 + b"]" * 5000), "recursion limit"),
}


@pytest.mark.parametrize(("answer", "error"), FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_applies_to_its_method_only_and_as_often_as_configured(answer: ASGIApp, error: str) -> None:
    with running_mcp_server() as server:
        server.tools = [tool("read")]
        async with connect(server, cache=None) as client:
            server.fault = Fault(answer, on={"tools/call"}, times=1)
            await client.list_tools()
            with pytest.raises(MCPError, match=error):
                await call(client, n=1)
            await call(client, n=2)
    assert server.calls == [("read", {"n": 1}), ("read", {"n": 2})]


async def test_a_call_is_received_in_full_before_its_connection_is_dropped(streamable: FakeMcpServer) -> None:
    async def call_once() -> None:
        async with connect(streamable) as client:
            streamable.fault = Fault(drop, on={"tools/call"})
            await call(client, n=1)

    with pytest.raises(ExceptionGroup) as dropped:
        await call_once()
    assert dropped.group_contains(httpx2.RemoteProtocolError)
    assert streamable.calls == [("read", {"n": 1})]


async def test_a_hanging_server_never_answers(streamable: FakeMcpServer) -> None:
    async with connect(streamable) as client:
        streamable.fault = Fault(hang, on={"tools/call"})
        with pytest.raises(MCPError, match="timed out"):
            await client.call_tool("read", {}, read_timeout_seconds=0.2)


async def test_a_stream_can_be_cut_while_the_server_keeps_running() -> None:
    with running_mcp_server() as server:
        async with connect(server) as client:
            async with client.listen(tools_list_changed=True) as changes:
                server.cut_connections()
                with pytest.raises(SubscriptionLost):
                    await anext(aiter(changes))
            await client.list_tools()


async def test_the_server_stops_immediately_even_if_requests_hang(server: FakeMcpServer) -> None:
    server.delays["read"] = 60
    server.fault = Fault(hang, on={"write"})
    async with httpx2.AsyncClient(timeout=60) as http:
        hanging = asyncio.create_task(http.post(server.url, json={"method": "write"}))
        calling = asyncio.create_task(call_in_own_connection(server))
        await wait_until(lambda: {"write", "tools/call"} <= {request.rpc_method for request in server.requests})
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 30
        await asyncio.gather(hanging, calling, return_exceptions=True)
        assert isinstance(hanging.exception(), httpx2.RemoteProtocolError)


async def call_in_own_connection(server: FakeMcpServer) -> None:
    async with connect(server) as client:
        await client.call_tool("read", {}, read_timeout_seconds=1)


async def test_latency_delays_each_answer(server: FakeMcpServer) -> None:
    async with connect(server) as client:
        server.latency_s = 0.2
        started = time.monotonic()
        await call(client)
        assert time.monotonic() - started >= 0.2


async def test_a_redirect_is_followed_only_by_clients_that_follow_redirects(streamable: FakeMcpServer) -> None:
    with listener() as elsewhere:
        async with connect(streamable) as client:
            streamable.fault = Fault(redirect(f"http://127.0.0.1:{elsewhere.port}/mcp"), on={"tools/call"})
            with pytest.raises(MCPError, match="not followed"):
                await call(client)
        assert elsewhere.connects == 0
        streamable.fault = Fault(redirect(f"http://127.0.0.1:{elsewhere.port}/mcp"))
        async with httpx2.AsyncClient(follow_redirects=True, timeout=60) as http:
            following = asyncio.create_task(http.post(streamable.url))
            await wait_until(lambda: elsewhere.connects == 1)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_an_answer_can_be_huge_and_compressed(streamable: FakeMcpServer) -> None:
    async with connect(streamable) as client:
        streamable.fault = Fault(oversized_result(megabytes=3))
        assert (await client.call_tool("read", {})).content == []
    streamable.fault = Fault(gzip_bomb(megabytes=50))
    async with httpx2.AsyncClient(timeout=60) as http, http.stream("POST", streamable.url, json={"id": 7}) as answer:
        compressed = b"".join([chunk async for chunk in answer.aiter_raw()])
    assert len(compressed) < 100_000
    assert len(zlib.decompress(compressed, wbits=zlib.MAX_WBITS | 16)) > 50_000_000


async def test_a_restarted_server_keeps_its_port_and_tools_but_no_sessions(streamable: FakeMcpServer) -> None:
    url = streamable.url
    async with connect(streamable, cache=None) as client:
        streamable.stop()
        async with httpx2.AsyncClient(timeout=60) as http:
            with pytest.raises(httpx2.ConnectError):
                await http.get(url)
        streamable.start()
        assert streamable.url == url
        if streamable.era == "modern":
            assert [found.name for found in (await client.list_tools()).tools] == ["read"]
        else:
            with pytest.raises(MCPError, match="Session not found"):
                await client.list_tools()


def test_the_server_runs_without_an_event_loop_in_the_test() -> None:
    with running_mcp_server() as server:
        socket.create_connection(("127.0.0.1", server.port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_counts_connections(host: str) -> None:
    with listener(host) as bare:
        assert bare.connects == 0
        with socket.create_connection((host, bare.port)), socket.create_connection((host, bare.port)):
            assert bare.connects == 2
        assert bare.connects == 2
