"""Tests of one session with one server: the handshake, listing, calls, and every way in which they can fail."""

import asyncio
import json
import logging
import math
import time
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import ServerUnreachable, ToolFailed, ToolTimedOut
from app.indexing.parsing import parse_listing
from app.mcp_client import connection
from tests.support.factories import tool
from tests.support.mcp_pool import make_endpoint, running_pool, wait_until, within
from tests.support.mcp_server import (
    FakeMcpServer,
    Fault,
    Json,
    drop,
    hang,
    listener,
    malformed_json,
    oversized_result,
    raw_result,
    running_mcp_server,
    status,
    truncated_sse,
    wrong_content_type,
)

pytestmark = pytest.mark.usefixtures("no_event_loop_errors")

CANARY = "canary-5f2c"


def rpc_methods(server: FakeMcpServer) -> list[str | None]:
    return [request.rpc_method for request in server.requests]


def count_handshakes(server: FakeMcpServer) -> int:
    """Return the number of sessions that were opened."""
    method = "server/discover" if server.era == "modern" else "initialize"
    return rpc_methods(server).count(method)


def parse_text(result: Json) -> Any:
    return json.loads(result["content"][0]["text"])


def scripted_answers(**answers: Json) -> ASGIApp:
    """Answer these methods with these results or errors as JSON, and all other methods with 202."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request = scope["received"]
        scripted_answer = answers.get((request.rpc_method or "").replace("/", "_"))
        response = Response(status_code=202)
        if scripted_answer is not None:
            response = JSONResponse({"jsonrpc": "2.0", "id": request.rpc["id"], **scripted_answer})
        await response(scope, receive, send)

    return answer


def raise_error(code: int, message: str = "") -> Callable[[Json], Json]:
    def fail(_: Json) -> Json:
        raise MCPError(code, message)

    return fail


def append_and_answer(values: list[Any], value: Any) -> Json:
    """Append the value and return an empty result."""
    values.append(value)
    return {"content": []}


async def wait_for_broken_stream() -> None:
    """Wait until the client has noticed that a stream is broken. The other end is already closed, so a few iterations
    of the event loop are enough."""
    for _ in range(10):
        await asyncio.sleep(0.005)


VERSIONS = {"modern": "2026-07-28", "legacy": "2025-11-25"}


async def test_a_tool_is_listed_and_called_in_the_newest_common_protocol(server: FakeMcpServer) -> None:
    definition = tool("echo", "says it", title="Echo", annotations={"readOnlyHint": True}, _meta={"a": [1, None]})
    server.tools = [definition]
    async with running_pool(server) as mcp_pool:
        server_endpoint = make_endpoint(server, headers={"X-Our-Key": "sesame"})
        assert await mcp_pool.list_tools(server_endpoint) == [definition]
        assert parse_text(await mcp_pool.call_tool(server_endpoint, "echo", {"path": "a"}, 60)) == {"path": "a"}
    assert server.calls == [("echo", {"path": "a"})]
    assert all(request.headers["x-our-key"] == "sesame" for request in server.requests)
    versions = {request.headers.get("mcp-protocol-version") for request in server.requests[-3:]}
    negotiated = [
        request.params.get("protocolVersion") for request in server.requests if request.rpc_method == "initialize"
    ]
    assert {*versions, *negotiated} - {None} == {VERSIONS[server.era]}


async def test_a_result_is_returned_as_the_server_sent_it(server: FakeMcpServer) -> None:
    result = {
        "content": [
            {"type": "image", "data": "aGk=", "mimeType": "image/png", "annotations": {"audience": ["user"]}},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
            {"type": "text", "text": "ü\u202e"},
        ],
        "structuredContent": {"deep": [{"er": None}]},
        "isError": True,
        "_meta": {"cost": 1},
    }
    server.on_call["echo"] = lambda _: result
    async with running_pool(server) as mcp_pool:
        received = await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60)
    # servers of the newer protocol add their identity
    assert {**received, "_meta": {"cost": received["_meta"]["cost"]}} == result


async def test_progress_is_reported_in_order(server: FakeMcpServer) -> None:
    server.progress["echo"] = 3
    reports: list[Any] = []

    async def append_report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    server.stalled.add("echo")  # else the result could overtake progress, which comes on another stream
    async with running_pool(server) as mcp_pool:
        calling = asyncio.create_task(mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60, append_report))
        await wait_until(lambda: len(reports) == 3)
        server.stalled.clear()
        await calling
        assert reports == [(step, 3, f"step {step}") for step in (1, 2, 3)]
        await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60)
        assert len(reports) == 3


async def test_a_failing_progress_callback_does_not_fail_the_call(mcp: FakeMcpServer) -> None:
    mcp.tools, mcp.progress = [tool("echo")], {"echo": 1}

    async def raise_in_callback(progress: float, total: float | None, message: str | None) -> None:
        raise RuntimeError(CANARY)

    async with running_pool(mcp) as mcp_pool:
        assert parse_text(await mcp_pool.call_tool(make_endpoint(mcp), "echo", {"a": 1}, 60, raise_in_callback)) == {
            "a": 1
        }


async def test_every_page_is_followed(server: FakeMcpServer) -> None:
    server.tools = [tool(f"tool_{number}") for number in range(7)]
    server.page_size = 2
    async with running_pool(server) as mcp_pool:
        assert await mcp_pool.list_tools(make_endpoint(server)) == server.tools
    assert rpc_methods(server).count("tools/list") == 4


async def test_a_listing_with_a_repeated_cursor_fails(server: FakeMcpServer) -> None:
    server.cursors = "repeat"
    async with running_pool(server) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(server))
    assert failure.value.cause == "endless_listing"
    assert rpc_methods(server).count("tools/list") == 2


async def test_a_listing_without_end_fails(mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    mcp.cursors = "endless"
    monkeypatch.setattr(connection, "_MAX_PAGES", 20)
    async with running_pool(mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(mcp))
    assert failure.value.cause == "endless_listing"
    assert rpc_methods(mcp).count("tools/list") == 20


async def test_a_listing_stops_at_twice_the_tool_limit(mcp: FakeMcpServer) -> None:
    mcp.cursors = "endless"
    mcp.tools = [tool("a"), tool("b")]
    async with running_pool(mcp, max_tools=5) as mcp_pool:
        assert len(await mcp_pool.list_tools(make_endpoint(mcp))) == 12
    assert rpc_methods(mcp).count("tools/list") == 6


async def test_a_page_that_fails_fails_the_listing(server: FakeMcpServer) -> None:
    server.tools = [tool(f"tool_{number}") for number in range(4)]
    server.page_size, server.fail_page = 2, 2
    async with running_pool(server) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(server))
        assert (failure.value.cause, "-32603" in failure.value.message) == ("server_error", True)
        assert "cannot be read" not in failure.value.message
        server.fail_page = None
        assert await mcp_pool.list_tools(make_endpoint(server)) == server.tools


DISCOVERED = {"supportedVersions": ["2026-07-28"], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
INITIALIZED = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "bare", "version": "1"}}
NOT_FOUND = {"error": {"code": -32601, "message": "Method not found"}}


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_server_without_tools_need_not_implement_tools_list(mcp: FakeMcpServer, era: str) -> None:
    handshake = {"server_discover": {"result": {**DISCOVERED, "capabilities": {}}}}
    if era == "legacy":
        handshake = {"server_discover": NOT_FOUND, "initialize": {"result": {**INITIALIZED, "capabilities": {}}}}
    mcp.fault = Fault(scripted_answers(**handshake, tools_list=NOT_FOUND))
    async with running_pool(mcp) as mcp_pool:
        assert await mcp_pool.list_tools(make_endpoint(mcp)) == []


async def test_a_server_that_declares_tools_and_answers_404_is_not_taken_for_empty(mcp: FakeMcpServer) -> None:
    """A gateway's "not found" reads like an unknown method."""
    mcp.tools = [tool("echo")]
    async with running_pool(mcp) as mcp_pool:
        assert await mcp_pool.list_tools(make_endpoint(mcp)) == mcp.tools
        mcp.fault = Fault(JSONResponse({"detail": "Not Found"}, 404))
        with pytest.raises(ServerUnreachable):
            await mcp_pool.list_tools(make_endpoint(mcp))


INVALID_LIST = (
    b'{"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": [{"name": "a"}], "nextCursor": ["%s"]}'
)

BAD_ANSWERS: dict[str, tuple[ASGIApp, str]] = {
    "malformed_json": (malformed_json, "protocol"),
    "wrong_content_type": (wrong_content_type, "protocol"),
    "status_202_only": (Response(status_code=202), "protocol"),
    "not_mcp": (raw_result(INVALID_LIST % CANARY.encode()), "protocol"),
    "nested_too_deeply": (raw_result(b"[" * 5000 + b"]" * 5000), "protocol"),
    "half_sse": (truncated_sse, "closed"),
    "drop": (drop, "closed"),
    "oversized": (oversized_result(megabytes=2), "too_large"),
    "401": (status(401, CANARY), "unauthorized"),
    "403": (JSONResponse({"detail": CANARY}, 403), "unauthorized"),
    "404": (status(404, CANARY), "status_404"),
    "429": (status(429, CANARY), "status_429"),
    "500": (status(500, CANARY), "status_500"),
    "503": (JSONResponse({"detail": CANARY}, 503), "status_503"),
}


@pytest.mark.parametrize(("answer", "cause"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_bad_listing_has_its_cause_and_its_content_is_not_quoted(
    mcp: FakeMcpServer, answer: ASGIApp, cause: str
) -> None:
    mcp.tools = [tool("echo")]
    async with running_pool(mcp) as mcp_pool:
        mcp.fault = Fault(answer, on={"tools/list"})
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(mcp))
        assert failure.value.cause == cause
        assert CANARY not in "".join(traceback.format_exception(failure.value))
        mcp.fault = None
        assert await mcp_pool.list_tools(make_endpoint(mcp)) == mcp.tools


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(malformed_json, "protocol"), (drop, "closed"), (status(404), "session_gone"), (status(500), "status_500")],
)
async def test_a_bad_listing_in_a_session_has_its_cause(legacy_mcp: FakeMcpServer, answer: ASGIApp, cause: str) -> None:
    async with running_pool(legacy_mcp) as mcp_pool:
        legacy_mcp.fault = Fault(answer, on={"tools/list"})
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(legacy_mcp))
    assert failure.value.cause == cause


async def test_an_invalid_listing_is_rejected_with_the_path_of_the_error(mcp: FakeMcpServer) -> None:
    mcp.fault = Fault(raw_result(INVALID_LIST % CANARY.encode()), on={"tools/list"})
    async with running_pool(mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable, match=r"not valid MCP: .*nextCursor") as failure:
            await mcp_pool.list_tools(make_endpoint(mcp))
    assert (failure.value.cause, CANARY in failure.value.message) == ("protocol", False)


async def test_a_tool_result_that_looks_like_a_tool_list_is_not_filtered(server: FakeMcpServer) -> None:
    server.tools = [tool("echo")]
    server.on_call["echo"] = lambda _: {"content": [], "tools": [7]}
    async with running_pool(server) as mcp_pool:
        result = await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 30.0)
    assert "toolscout" not in str(result)


async def test_invalid_tools_are_listed_unchanged_after_the_valid_ones(server: FakeMcpServer) -> None:
    broken: list[Any] = [{"name": "a", "inputSchema": 7}, "b", {"name": "c", "inputSchema": {"type": "strin"}}]
    server.tools = [broken[0], tool("echo"), *broken[1:], tool("last")]
    async with running_pool(server) as mcp_pool:
        listed = await mcp_pool.list_tools(make_endpoint(server))
    assert [listed_tool["name"] for listed_tool in listed[:2]] == ["echo", "last"]
    assert listed[2:] == broken


@pytest.mark.parametrize(("answer", "cause"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_failed_handshake_has_its_cause(mcp: FakeMcpServer, answer: ASGIApp, cause: str) -> None:
    mcp.fault = Fault(answer)
    async with running_pool(mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(mcp))
    assert failure.value.cause == cause
    assert CANARY not in failure.value.message
    assert "tools/list" not in rpc_methods(mcp)


BAD_SSE_ANSWERS: dict[str, tuple[ASGIApp, str]] = {
    "wrong_content_type": (wrong_content_type, "protocol"),
    "empty_stream": (StreamingResponse(iter(()), media_type="text/event-stream"), "protocol"),
    "drop": (drop, "closed"),
    "401": (status(401), "unauthorized"),
    "404": (status(404), "status_404"),
    "500": (JSONResponse({}, 500), "status_500"),
}


@pytest.mark.parametrize(("answer", "cause"), BAD_SSE_ANSWERS.values(), ids=BAD_SSE_ANSWERS.keys())
async def test_a_failed_sse_stream_has_its_cause(sse_mcp: FakeMcpServer, answer: ASGIApp, cause: str) -> None:
    sse_mcp.fault = Fault(answer, on={"GET"})
    async with running_pool(sse_mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(sse_mcp))
    assert failure.value.cause == cause


async def test_an_sse_endpoint_on_another_port_is_not_used(sse_mcp: FakeMcpServer) -> None:
    with listener() as elsewhere:
        endpoint_event = f"event: endpoint\ndata: http://127.0.0.1:{elsewhere.port}/messages\n\n"
        sse_mcp.fault = Fault(StreamingResponse(iter([endpoint_event]), media_type="text/event-stream"), on={"GET"})
        async with running_pool(sse_mcp, elsewhere.port, connect_s=0.3) as mcp_pool:
            with pytest.raises(ServerUnreachable):
                await mcp_pool.list_tools(make_endpoint(sse_mcp))
        assert elsewhere.connects == 0


@pytest.mark.parametrize(("code", "cause"), [(400, "status_400"), (401, "unauthorized"), (503, "status_503")])
async def test_a_request_that_an_sse_server_rejects_fails_immediately(
    sse_mcp: FakeMcpServer, code: int, cause: str
) -> None:
    async with running_pool(sse_mcp) as mcp_pool:
        sse_mcp.fault = Fault(JSONResponse({"detail": "no"}, code), on={"tools/list"})
        with within(2), pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(sse_mcp))
    assert failure.value.cause == cause


async def test_nan_becomes_null_in_a_result_and_is_kept_in_a_listing(
    streamable: FakeMcpServer,
) -> None:
    """JSON has no NaN, but many servers write it. The result of a finished call is still useful; a tool definition with
    NaN is refused by the indexer."""
    listed = b'{"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": '
    listed += b'[{"name": "a", "inputSchema": {"type": "object", "maximum": NaN}}]}'
    called = b'{"resultType": "complete", "content": [], "structuredContent": {"a": NaN, "b": [-Infinity, 1]}}'
    async with running_pool(streamable) as mcp_pool:
        streamable.fault = Fault(raw_result(listed), on={"tools/list"})
        [found] = await mcp_pool.list_tools(make_endpoint(streamable))
        assert math.isnan(found["inputSchema"]["maximum"])
        streamable.fault = Fault(raw_result(called), on={"tools/call"})
        result = await mcp_pool.call_tool(make_endpoint(streamable), "echo", {}, 60)
        assert result["structuredContent"] == {"a": None, "b": [None, 1]}


@pytest.mark.parametrize("cut", [1, 7, 1_000])
async def test_half_an_emoji_in_an_event_makes_neither_a_listing_nor_a_result_unreadable(
    streamable: FakeMcpServer, cut: int
) -> None:
    """Most servers answer with a stream of events; a chunk may end inside of an escape."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request = scope["received"]
        result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} | {
            "tools/list": {"tools": [tool("cut", "An owl \ud83e"), tool("echo", "An owl \U0001f989")]},
            "tools/call": {"content": [{"type": "text", "text": "An owl \udd89\n"}]},
        }[request.rpc_method]
        event = f"data: {json.dumps({'jsonrpc': '2.0', 'id': request.rpc['id'], 'result': result})}\n\n"
        chunks = iter([event[start : start + cut] for start in range(0, len(event), cut)])
        await StreamingResponse(chunks, media_type="text/event-stream")(scope, receive, send)

    async with running_pool(streamable) as mcp_pool:
        streamable.fault = Fault(answer, on={"tools/list", "tools/call"})
        listing = parse_listing(await mcp_pool.list_tools(make_endpoint(streamable)), max_tools=10)
        assert [(each.name, each.description) for each in listing.definitions] == [("echo", "An owl 🦉")]
        assert [(each.name, "surrogate" in each.reason) for each in listing.refused] == [("cut", True)]
        result = await mcp_pool.call_tool(make_endpoint(streamable), "echo", {}, 60)
        assert result["content"] == [{"type": "text", "text": "An owl \ufffd\n"}]


async def test_a_server_that_does_not_complete_the_handshake_in_time_fails(server: FakeMcpServer) -> None:
    server.fault = Fault(hang)
    async with running_pool(server, connect_s=0.2) as mcp_pool:
        with within(1), pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60)
        assert failure.value.cause == "timeout"
        server.fault = None
    async with running_pool(server) as mcp_pool:
        assert await mcp_pool.list_tools(make_endpoint(server))


async def test_a_listing_has_a_deadline_for_all_its_pages(server: FakeMcpServer) -> None:
    server.tools = [tool(f"tool_{number}") for number in range(10)]
    server.page_size = 1
    async with running_pool(server, list_s=1.0) as mcp_pool:
        await mcp_pool.call_tool(make_endpoint(server), "tool_1", {}, 60)
        server.latency_s = 0.25
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(server))
        assert failure.value.cause == "timeout"
        assert server.listings == 1
    server.latency_s = 0.0
    async with running_pool(server) as mcp_pool:
        assert len(await mcp_pool.list_tools(make_endpoint(server))) == 10


async def test_a_call_that_times_out_has_an_unknown_outcome(server: FakeMcpServer) -> None:
    server.stalled.add("echo")
    async with running_pool(server) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(server))
        with within(3), pytest.raises(ToolTimedOut) as failure:
            await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 2)
        assert failure.value.outcome == "unknown"
        server.stalled.clear()
        assert parse_text(await mcp_pool.call_tool(make_endpoint(server), "echo", {"a": 1}, 60)) == {"a": 1}
    assert len(server.calls) == 2


async def test_a_server_that_stops_reading_does_not_delay_timeouts(server: FakeMcpServer) -> None:
    """Nor if the cancellation hangs, behind which the SDK would queue later messages."""
    async with running_pool(server) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(server))
        server.fault = Fault(hang)
        calls = [mcp_pool.call_tool(make_endpoint(server), "echo", {}, 0.2) for _ in range(3)]
        with within(1.5):
            failures = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(failure) for failure in failures] == [ToolTimedOut] * 3
        server.fault = None
        with within(2):
            assert parse_text(await mcp_pool.call_tool(make_endpoint(server), "echo", {"a": 1}, 60)) == {"a": 1}


async def truncated_json(scope: Scope, receive: Receive, send: Send) -> None:
    async def first_half() -> AsyncIterator[bytes]:
        yield b'{"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "te'
        scope["cut"]()

    await StreamingResponse(first_half(), media_type="application/json")(scope, receive, send)


LOST_ANSWERS: dict[str, ASGIApp] = {
    "drop": drop,
    "half_json": truncated_json,
    "half_sse": truncated_sse,
    "sse_without_events": Response(b"", media_type="text/event-stream"),
    "sse_with_malformed_json": Response(f"data: {{{CANARY}\n\n", media_type="text/event-stream"),
    "malformed_json": malformed_json,
    "wrong_content_type": wrong_content_type,
    "not_mcp": raw_result(b'{"resultType": "complete", "content": "%s"}' % CANARY.encode()),
    "status_202": Response(status_code=202),
    "oversized": oversized_result(megabytes=2),
    "500": status(500),
    "502": JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "gone"}}, 502),
    "400": status(400),
    "408": status(408),
    "400_with_json_rpc_error": JSONResponse(
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "quota"}}, 400
    ),
}


@pytest.mark.parametrize("answer", LOST_ANSWERS.values(), ids=LOST_ANSWERS.keys())
async def test_a_call_that_may_have_reached_the_server_is_never_sent_again(
    streamable: FakeMcpServer, answer: ASGIApp
) -> None:
    """Not even on an existing connection, which could have died unnoticed."""
    async with running_pool(streamable) as mcp_pool:
        assert parse_text(await mcp_pool.call_tool(make_endpoint(streamable), "echo", {"n": 0}, 60)) == {"n": 0}
        streamable.requests.clear()
        streamable.fault = Fault(answer, on={"tools/call"})
        with within(3), pytest.raises(ToolFailed, match=r"it may have run|the tool ran") as failure:
            await mcp_pool.call_tool(make_endpoint(streamable), "echo", {"n": 1}, 60)
        assert failure.value.outcome == "unknown"
        assert CANARY not in "".join(traceback.format_exception(failure.value))
    assert streamable.calls == [("echo", {"n": 1})]


async def test_a_call_over_sse_is_never_sent_again(sse_mcp: FakeMcpServer) -> None:
    sse_mcp.tools, sse_mcp.delays = [tool("echo")], {"echo": 30}
    async with running_pool(sse_mcp) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(sse_mcp))
        calling = asyncio.create_task(mcp_pool.call_tool(make_endpoint(sse_mcp), "echo", {"n": 1}, 60))
        await wait_until(lambda: sse_mcp.calls)
        sse_mcp.cut_connections()
        with within(3), pytest.raises(ToolFailed) as failure:
            await calling
        assert failure.value.outcome == "unknown"
        sse_mcp.fault = Fault(drop, on={"tools/call"})
        with within(3), pytest.raises(ToolFailed) as failure:
            await mcp_pool.call_tool(make_endpoint(sse_mcp), "echo", {"n": 2}, 60)
        assert failure.value.outcome == "unknown"
    assert sse_mcp.calls == [("echo", {"n": 1}), ("echo", {"n": 2})]


@pytest.mark.parametrize("code", [401, 404])
async def test_a_stream_that_cannot_be_resumed_leaves_the_outcome_unknown(
    legacy_mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The SDK resumes a broken stream by GET. If the server rejects the GET, it has not rejected the call."""
    monkeypatch.setattr("app.mcp_client.transport._MIN_GET_INTERVAL_S", 0.02)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response: ASGIApp = status(code)
        if scope["received"].rpc_method == "tools/call":
            events = iter(["id: 1\nretry: 1\ndata:\n\n"])
            response = StreamingResponse(events, media_type="text/event-stream")
        await response(scope, receive, send)

    async with running_pool(legacy_mcp) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(legacy_mcp))
        await wait_until(lambda: legacy_mcp.streams)
        legacy_mcp.fault = Fault(answer, on={"tools/call", "GET"})
        with pytest.raises(ToolFailed) as failure:
            await mcp_pool.call_tool(make_endpoint(legacy_mcp), "echo", {}, 60)
    assert failure.value.outcome == "unknown"
    assert len(legacy_mcp.calls) == 1
    assert [request.headers.get("last-event-id") for request in legacy_mcp.requests].count("1") > 0


@pytest.mark.parametrize("code", [202, 404])
async def test_a_rejected_answer_to_a_server_request_does_not_fail_the_call(
    streamable: FakeMcpServer, code: int
) -> None:
    """The server pings during the call and rejects the answer; the call goes on."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request = scope["received"]
        response: ASGIApp = status(code)
        if request.rpc_method == "tools/call":
            response = StreamingResponse(ping_first(request.rpc["id"]), media_type="text/event-stream")
        await response(scope, receive, send)

    async def ping_first(call_id: int) -> AsyncIterator[str]:
        ping = {"jsonrpc": "2.0", "id": 99, "method": "ping"}
        yield f"data: {json.dumps(ping)}\n\n"
        await wait_until(lambda: streamable.requests[-1].rpc.get("id") == 99)
        result = {"jsonrpc": "2.0", "id": call_id, "result": {"resultType": "complete", "content": []}}
        yield f"data: {json.dumps(result)}\n\n"

    async with running_pool(streamable) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(streamable))
        streamable.fault = Fault(answer, on={"tools/call", "POST"})
        assert await mcp_pool.call_tool(make_endpoint(streamable), "echo", {}, 60) == {"content": []}
    assert len(streamable.calls) == 1


async def test_a_server_that_does_not_listen_is_unreachable(server: FakeMcpServer) -> None:
    async with running_pool(1) as mcp_pool:
        missing_endpoint = make_endpoint(server, url="http://127.0.0.1:1/mcp")
        for _ in range(2):
            with pytest.raises(ServerUnreachable) as failure:
                await mcp_pool.call_tool(missing_endpoint, "echo", {}, 60)
            assert failure.value.cause == "refused"


@pytest.mark.parametrize(
    ("transport", "era"), [("streamable_http", "modern"), ("streamable_http", "legacy"), ("sse", "legacy")]
)
async def test_a_restarted_server_is_connected_again_and_each_call_runs_once(transport: Any, era: Any) -> None:
    """Also if many concurrent calls notice that their session is gone."""
    with running_mcp_server(transport, era) as server:
        server.tools = [tool("echo")]
        async with running_pool(server) as mcp_pool:
            server_endpoint = make_endpoint(server)
            await mcp_pool.list_tools(server_endpoint)
            server.stop()
            await wait_for_broken_stream()
            with pytest.raises(ServerUnreachable) as failure:
                await mcp_pool.call_tool(server_endpoint, "echo", {}, 60)
            assert failure.value.cause == "refused"
            server.start()
            await mcp_pool.list_tools(server_endpoint)
            server.stop()
            server.start()
            await wait_for_broken_stream()
            server.requests.clear()
            ran: list[int] = []
            server.on_call["echo"] = lambda arguments: append_and_answer(ran, arguments["n"])
            await asyncio.gather(*[mcp_pool.call_tool(server_endpoint, "echo", {"n": n}, 60) for n in range(20)])
    assert sorted(ran) == list(range(20))
    assert count_handshakes(server) == (0 if era == "modern" else 1)


async def test_a_session_that_the_server_no_longer_knows_is_opened_again(legacy_mcp: FakeMcpServer) -> None:
    """Many servers report this with status 400 and their own error instead of 404."""
    legacy_mcp.tools = [tool("echo")]
    unknown = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "No valid session ID provided"}}
    async with running_pool(legacy_mcp) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(legacy_mcp))
        legacy_mcp.fault = Fault(JSONResponse(unknown, 400), on={"tools/call"}, times=1)
        assert parse_text(await mcp_pool.call_tool(make_endpoint(legacy_mcp), "echo", {"n": 1}, 60)) == {"n": 1}
        assert count_handshakes(legacy_mcp) == 2
        legacy_mcp.fault = Fault(JSONResponse(unknown, 400), on={"tools/call"})
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.call_tool(make_endpoint(legacy_mcp), "echo", {"n": 2}, 60)
        assert failure.value.cause == "session_gone"


async def test_an_error_from_the_server_fails_the_call_and_keeps_the_session(server: FakeMcpServer) -> None:
    server.on_call["echo"] = raise_error(-32042, "not today" + "!" * 1000)
    async with running_pool(server) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(server))
        for _ in range(3):
            with pytest.raises(ToolFailed, match="-32042: not today") as failure:
                await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60)
            assert failure.value.outcome == "failed"
            assert len(failure.value.message) < 600
    assert (len(server.calls), count_handshakes(server)) == (3, 1)


async def test_an_error_that_may_mean_a_lost_connection_has_an_unknown_outcome_and_is_quoted(
    server: FakeMcpServer,
) -> None:
    server.on_call["echo"] = raise_error(-32000, "quota used up")
    async with running_pool(server) as mcp_pool:
        with pytest.raises(ToolFailed, match="quota used up") as failure:
            await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60)
    assert (failure.value.outcome, len(server.calls)) == ("unknown", 1)


async def test_a_tool_that_asks_for_input_fails_without_a_dialogue(mcp: FakeMcpServer) -> None:
    schema = {"type": "object", "properties": {}}
    elicitation = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": schema}}
    mcp.on_call["echo"] = lambda _: {"resultType": "input_required", "inputRequests": {"sure": elicitation}}
    async with running_pool(mcp) as mcp_pool:
        with pytest.raises(ToolFailed, match="asks the user for input") as failure:
            await mcp_pool.call_tool(make_endpoint(mcp), "echo", {}, 60)
    assert (failure.value.outcome, len(mcp.calls)) == ("failed", 1)


REGION = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


async def test_arguments_that_the_server_requires_as_headers_are_sent_as_headers(mcp: FakeMcpServer) -> None:
    """The server rejects the first attempt unread, because only the list of tools names the headers."""
    mcp.tools = [{"name": "deploy", "inputSchema": REGION}]
    ran: list[Json] = []
    mcp.on_call["deploy"] = lambda arguments: append_and_answer(ran, arguments)
    async with running_pool(mcp) as mcp_pool:
        for _ in range(2):
            await mcp_pool.call_tool(make_endpoint(mcp), "deploy", {"region": "eu"}, 60)
    assert ran == [{"region": "eu"}] * 2
    assert [
        request.headers.get("mcp-param-region") for request in mcp.requests if request.rpc_method == "tools/call"
    ] == [
        None,
        "eu",
        "eu",
    ]
    assert (mcp.listings, count_handshakes(mcp)) == (1, 1)


async def test_a_header_mismatch_is_an_ordinary_error_in_the_older_protocol(legacy_mcp: FakeMcpServer) -> None:
    legacy_mcp.on_call["echo"] = raise_error(-32020, "another meaning")
    async with running_pool(legacy_mcp) as mcp_pool:
        with pytest.raises(ToolFailed, match="-32020"):
            await mcp_pool.call_tool(make_endpoint(legacy_mcp), "echo", {}, 60)
    assert len(legacy_mcp.calls) == 1


async def test_concurrent_calls_share_a_session_and_fail_independently(server: FakeMcpServer) -> None:
    """One of twenty calls fails and one times out; the others succeed."""
    server.tools = [tool("echo"), tool("slow"), tool("broken")]
    server.on_call["broken"] = raise_error(-32603)
    server.stalled |= {"echo", "slow"}
    async with running_pool(server) as mcp_pool:
        server_endpoint = make_endpoint(server)
        await mcp_pool.list_tools(server_endpoint)
        calls = [("slow", {}, 3), ("broken", {}, 60), *(("echo", {"n": n}, 60) for n in range(18))]
        slow, broken, *others = [asyncio.create_task(mcp_pool.call_tool(server_endpoint, *call)) for call in calls]
        await wait_until(lambda: len(server.calls) == 20)
        with pytest.raises(ToolTimedOut):
            await slow
        with pytest.raises(ToolFailed):
            await broken
        server.stalled.clear()
        assert [parse_text(result) for result in await asyncio.gather(*others)] == [{"n": n} for n in range(18)]
    assert count_handshakes(server) == 1


@pytest.mark.parametrize("answer", [drop, status(401), oversized_result(megabytes=2)], ids=["drop", "401", "oversized"])
async def test_a_call_that_loses_its_http_connection_does_not_affect_other_calls(
    streamable: FakeMcpServer, answer: ASGIApp
) -> None:
    streamable.stalled.add("echo")
    async with running_pool(streamable) as mcp_pool:
        server_endpoint = make_endpoint(streamable)
        await mcp_pool.list_tools(server_endpoint)
        others = [asyncio.create_task(mcp_pool.call_tool(server_endpoint, "echo", {"n": n}, 60)) for n in range(5)]
        await wait_until(lambda: len(streamable.calls) == 5)
        streamable.fault = Fault(answer, on={"tools/call"})
        with pytest.raises((ToolFailed, ServerUnreachable)):
            await mcp_pool.call_tool(server_endpoint, "echo", {}, 60)
        streamable.stalled.clear()
        assert [parse_text(result) for result in await asyncio.gather(*others)] == [{"n": n} for n in range(5)]


async def test_a_cancelled_call_is_cancelled_on_the_server_and_the_session_stays_open(
    server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CANCEL_TIMEOUT_S", 10)
    server.tools, server.delays = [tool("echo"), tool("slow")], {"slow": 30}
    async with running_pool(server) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(server))
        calling = asyncio.create_task(mcp_pool.call_tool(make_endpoint(server), "slow", {}, 30))
        await wait_until(lambda: server.calls)
        calling.cancel()
        with within(1), pytest.raises(asyncio.CancelledError):
            await calling
        if server.era == "legacy":
            await wait_until(lambda: "notifications/cancelled" in rpc_methods(server))
        assert parse_text(await mcp_pool.call_tool(make_endpoint(server), "echo", {"a": 1}, 60)) == {"a": 1}
    assert count_handshakes(server) == 1


async def test_a_cancelled_call_closes_its_stream_in_the_newer_protocol(mcp: FakeMcpServer) -> None:
    disconnected = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await hang(scope, receive, send)
        disconnected.set()

    async with running_pool(mcp) as mcp_pool:
        mcp.fault = Fault(answer, on={"tools/call"})
        calling = asyncio.create_task(mcp_pool.call_tool(make_endpoint(mcp), "echo", {}, 30))
        await wait_until(lambda: mcp.calls)
        assert not disconnected.is_set()
        calling.cancel()
        await wait_until(disconnected.is_set)
        await asyncio.gather(calling, return_exceptions=True)


async def test_a_change_of_the_tool_list_is_notified_once(server: FakeMcpServer) -> None:
    notified: list[Any] = []
    async with running_pool(server) as mcp_pool:
        mcp_pool.on_tools_changed = notified.append
        server_endpoint = make_endpoint(server)
        await mcp_pool.list_tools(server_endpoint)
        await wait_until(lambda: server.streams)
        server.announce_change()
        await wait_until(lambda: notified)
        await asyncio.sleep(0.05)
        assert notified == [server_endpoint]
        server.announce_change()
        await wait_until(lambda: len(notified) == 2)


async def test_a_broken_notification_stream_does_not_affect_calls(server: FakeMcpServer) -> None:
    async with running_pool(server) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(server))
        await wait_until(lambda: server.streams)
        server.cut_connections()
        await wait_until(lambda: not server.streams)
        await wait_for_broken_stream()
        assert parse_text(await mcp_pool.call_tool(make_endpoint(server), "echo", {"a": 1}, 60)) == {"a": 1}
    assert len(server.calls) == 1


async def test_unreadable_messages_are_not_logged(streamable: FakeMcpServer, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK logs messages that it cannot read, and they may contain anything."""
    unreadable: list[ASGIApp] = [
        Response(f'{{"jsonrpc": "2.0", "{CANARY}": ', media_type="application/json"),
        StreamingResponse(iter([f"data: {{{CANARY}\n\n"]), media_type="text/event-stream"),
        Response(CANARY, media_type=f"text/{CANARY}"),
        raw_result(b'{"resultType": "complete", "content": "%s", "tools": "%s"}' % ((CANARY.encode(),) * 2)),
        status(500, CANARY, {"X-Canary": CANARY}),
    ]
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "toolscout")
    async with running_pool(streamable) as mcp_pool:
        server_endpoint = make_endpoint(streamable, headers={"Authorization": f"Bearer {CANARY}"})
        for answer in unreadable:
            await mcp_pool.call_tool(server_endpoint, "echo", {"argument": CANARY}, 60)
            streamable.fault = Fault(answer, on={"tools/call", "tools/list"})
            with pytest.raises(ToolFailed):
                await mcp_pool.call_tool(server_endpoint, "echo", {"argument": CANARY}, 60)
            with pytest.raises(ServerUnreachable):
                await mcp_pool.list_tools(server_endpoint)
            streamable.fault = None
    our_records = [record for record in caplog.records if record.threadName != "fake-mcp-server"]
    logging.getLogger("toolscout.here").debug(CANARY)
    assert [record.getMessage() for record in caplog.records if record.name == "toolscout.here"] == [CANARY]
    assert CANARY not in "\n".join(logging.Formatter().format(record) for record in our_records)


async def test_a_404_without_a_session_leaves_the_outcome_unknown(
    mcp: FakeMcpServer,
) -> None:
    mcp.tools = [tool("echo")]
    async with running_pool(mcp) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(mcp))
        mcp.fault = Fault(status(404), on={"tools/call"})
        with pytest.raises(ToolFailed) as failure:
            await mcp_pool.call_tool(make_endpoint(mcp), "echo", {}, 60)
        assert failure.value.outcome == "unknown"
    assert len(mcp.calls) == 1


async def test_the_size_limit_applies_to_all_pages_together(mcp: FakeMcpServer) -> None:
    mcp.tools = [tool(f"tool_{n}", "x" * 30_000) for n in range(20)]
    mcp.page_size = 1
    async with running_pool(mcp, max_bytes=100_000) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(mcp))
        assert failure.value.cause == "too_large"
        mcp.tools = mcp.tools[:2]
        assert len(await mcp_pool.list_tools(make_endpoint(mcp))) == 2


async def test_a_stream_that_ends_immediately_is_reopened_at_a_limited_rate(legacy_mcp: FakeMcpServer) -> None:
    async def end_immediately(scope: Scope, receive: Receive, send: Send) -> None:
        events = iter(["retry: 0\nid: 1\ndata: \n\n"])
        await StreamingResponse(events, media_type="text/event-stream")(scope, receive, send)

    legacy_mcp.tools = [tool("echo")]
    legacy_mcp.fault = Fault(end_immediately, on={"GET"})
    async with running_pool(legacy_mcp) as mcp_pool:
        started = time.monotonic()
        await mcp_pool.list_tools(make_endpoint(legacy_mcp))
        await asyncio.sleep(0.5)
    assert [request.method for request in legacy_mcp.requests].count("GET") <= 2 + int(time.monotonic() - started)


async def test_a_lost_subscription_is_renewed_and_counts_as_a_change(mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("echo")]
    notified: list[object] = []
    await wait_until(lambda: mcp.streams == 0)  # streams of the previous test
    async with running_pool(mcp) as mcp_pool:
        mcp_pool.on_tools_changed = notified.append
        await mcp_pool.list_tools(make_endpoint(mcp))
        await wait_until(lambda: mcp.streams == 1)
        mcp.cut_connections()
        await wait_until(lambda: mcp.streams == 0)
        await wait_until(lambda: notified)
        assert mcp.streams == 1
