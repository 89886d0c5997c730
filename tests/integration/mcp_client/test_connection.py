"""What one session with one server does, from the first handshake to whatever can go wrong."""

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
from app.mcp_client import connection
from tests.support.factories import tool
from tests.support.mcp_pool import endpoint, reaching, until, within
from tests.support.mcp_server import (
    FakeMcpServer,
    Fault,
    Json,
    drop,
    half_sse,
    hang,
    listener,
    malformed_json,
    oversized,
    running_mcp_server,
    status,
    verbatim,
    wrong_content_type,
)

pytestmark = pytest.mark.usefixtures("nothing_forgotten")

CANARY = "canary-5f2c"


def rpc_methods(server: FakeMcpServer) -> list[str | None]:
    return [request.rpc_method for request in server.requests]


def handshakes(server: FakeMcpServer) -> int:
    """Sessions begun."""
    method = "server/discover" if server.era == "modern" else "initialize"
    return rpc_methods(server).count(method)


def text_of(result: Json) -> Any:
    return json.loads(result["content"][0]["text"])


def scripted(**answers: Json) -> ASGIApp:
    """Answers these methods with these results or errors, as a plain JSON server would; all others with 202."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request = scope["received"]
        known = answers.get((request.rpc_method or "").replace("/", "_"))
        response = Response(status_code=202)
        if known is not None:
            response = JSONResponse({"jsonrpc": "2.0", "id": request.rpc["id"], **known})
        await response(scope, receive, send)

    return answer


def error(code: int, message: str = "") -> Callable[[Json], Json]:
    def fail(_: Json) -> Json:
        raise MCPError(code, message)

    return fail


def noted(notes: list[Any], what: Any) -> Json:
    """The result of a tool that only keeps a list."""
    notes.append(what)
    return {"content": []}


async def noticed() -> None:
    """That a stream has broken. Until then nobody can tell what has still gone through it. The other end is closed
    already: what it takes is a few turns of the loop, and no time."""
    for _ in range(10):
        await asyncio.sleep(0.005)


VERSIONS = {"modern": "2026-07-28", "legacy": "2025-11-25"}


async def test_a_tool_is_listed_and_called_in_the_newest_protocol_that_both_know(server: FakeMcpServer) -> None:
    described = tool("echo", "says it", title="Echo", annotations={"readOnlyHint": True}, _meta={"a": [1, None]})
    server.tools = [described]
    async with reaching(server) as mcp_pool:
        where = endpoint(server, headers={"X-Our-Key": "sesame"})
        assert await mcp_pool.list_tools(where) == [described]
        assert text_of(await mcp_pool.call_tool(where, "echo", {"path": "a"}, 60)) == {"path": "a"}
    assert server.calls == [("echo", {"path": "a"})]
    assert all(request.headers["x-our-key"] == "sesame" for request in server.requests)
    versions = {request.headers.get("mcp-protocol-version") for request in server.requests[-3:]}
    agreed = [
        request.params.get("protocolVersion") for request in server.requests if request.rpc_method == "initialize"
    ]
    assert {*versions, *agreed} - {None} == {VERSIONS[server.era]}


async def test_a_result_comes_as_the_server_sent_it(server: FakeMcpServer) -> None:
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
    async with reaching(server) as mcp_pool:
        got = await mcp_pool.call_tool(endpoint(server), "echo", {}, 60)
    # a server of the newer protocol adds who it is
    assert {**got, "_meta": {"cost": got["_meta"]["cost"]}} == result


async def test_progress_is_passed_on_in_order(server: FakeMcpServer) -> None:
    server.progress["echo"] = 3
    reports: list[Any] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    server.stalled.add("echo")  # what is said on one stream may overtake what was said on another
    async with reaching(server) as mcp_pool:
        calling = asyncio.create_task(mcp_pool.call_tool(endpoint(server), "echo", {}, 60, note))
        await until(lambda: len(reports) == 3)
        server.stalled.clear()
        await calling
        assert reports == [(step, 3, f"step {step}") for step in (1, 2, 3)]
        await mcp_pool.call_tool(endpoint(server), "echo", {}, 60)
        assert len(reports) == 3


async def test_what_hears_of_progress_may_fail_without_harm(mcp: FakeMcpServer) -> None:
    mcp.tools, mcp.progress = [tool("echo")], {"echo": 1}

    async def stumble(progress: float, total: float | None, message: str | None) -> None:
        raise RuntimeError(CANARY)

    async with reaching(mcp) as mcp_pool:
        assert text_of(await mcp_pool.call_tool(endpoint(mcp), "echo", {"a": 1}, 60, stumble)) == {"a": 1}


async def test_every_page_is_followed(server: FakeMcpServer) -> None:
    server.tools = [tool(f"tool_{number}") for number in range(7)]
    server.page_size = 2
    async with reaching(server) as mcp_pool:
        assert await mcp_pool.list_tools(endpoint(server)) == server.tools
    assert rpc_methods(server).count("tools/list") == 4


async def test_pages_that_lead_in_a_circle_are_left(server: FakeMcpServer) -> None:
    server.cursors = "repeat"
    async with reaching(server) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(server))
    assert failure.value.cause == "endless_listing"
    assert rpc_methods(server).count("tools/list") == 2


async def test_pages_without_end_are_left(mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    mcp.cursors = "endless"
    monkeypatch.setattr(connection, "_MAX_PAGES", 20)
    async with reaching(mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(mcp))
    assert failure.value.cause == "endless_listing"
    assert rpc_methods(mcp).count("tools/list") == 20


async def test_of_far_too_many_tools_only_enough_are_read_to_say_so(mcp: FakeMcpServer) -> None:
    mcp.cursors = "endless"
    mcp.tools = [tool("a"), tool("b")]
    async with reaching(mcp, max_tools=5) as mcp_pool:
        assert len(await mcp_pool.list_tools(endpoint(mcp))) == 12
    assert rpc_methods(mcp).count("tools/list") == 6


async def test_a_page_that_fails_fails_the_listing(server: FakeMcpServer) -> None:
    server.tools = [tool(f"tool_{number}") for number in range(4)]
    server.page_size, server.fail_page = 2, 2
    async with reaching(server) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(server))
        assert (failure.value.cause, "-32603" in failure.value.message) == ("server_error", True)
        assert "cannot be read" not in failure.value.message
        server.fail_page = None
        assert await mcp_pool.list_tools(endpoint(server)) == server.tools


DISCOVERED = {"supportedVersions": ["2026-07-28"], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
INITIALIZED = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "bare", "version": "1"}}
NOT_FOUND = {"error": {"code": -32601, "message": "Method not found"}}


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_server_without_tools_need_not_know_the_question(mcp: FakeMcpServer, era: str) -> None:
    handshake = {"server_discover": {"result": {**DISCOVERED, "capabilities": {}}}}
    if era == "legacy":
        handshake = {"server_discover": NOT_FOUND, "initialize": {"result": {**INITIALIZED, "capabilities": {}}}}
    mcp.fault = Fault(scripted(**handshake, tools_list=NOT_FOUND))
    async with reaching(mcp) as mcp_pool:
        assert await mcp_pool.list_tools(endpoint(mcp)) == []


async def test_a_server_that_promised_tools_and_has_lost_its_way_does_not_seem_empty(mcp: FakeMcpServer) -> None:
    """What a gateway says of a page it does not have reads like an unknown method."""
    mcp.tools = [tool("echo")]
    async with reaching(mcp) as mcp_pool:
        assert await mcp_pool.list_tools(endpoint(mcp)) == mcp.tools
        mcp.fault = Fault(JSONResponse({"detail": "Not Found"}, 404))
        with pytest.raises(ServerUnreachable):
            await mcp_pool.list_tools(endpoint(mcp))


NO_LIST = (
    b'{"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": [{"name": "a"}], "nextCursor": ["%s"]}'
)

UNUSABLE: dict[str, tuple[ASGIApp, str]] = {
    "malformed_json": (malformed_json, "protocol"),
    "wrong_content_type": (wrong_content_type, "protocol"),
    "nothing_but_a_receipt": (Response(status_code=202), "protocol"),
    "not_mcp": (verbatim(NO_LIST % CANARY.encode()), "protocol"),
    "far_too_deep": (verbatim(b"[" * 5000 + b"]" * 5000), "protocol"),
    "half_sse": (half_sse, "closed"),
    "drop": (drop, "closed"),
    "oversized": (oversized(megabytes=2), "too_large"),
    "401": (status(401, CANARY), "unauthorized"),
    "403": (JSONResponse({"detail": CANARY}, 403), "unauthorized"),
    "404": (status(404, CANARY), "status_404"),
    "429": (status(429, CANARY), "status_429"),
    "500": (status(500, CANARY), "status_500"),
    "503": (JSONResponse({"detail": CANARY}, 503), "status_503"),
}


@pytest.mark.parametrize(("answer", "cause"), UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_an_unusable_listing_has_its_cause_and_keeps_its_content_to_itself(
    mcp: FakeMcpServer, answer: ASGIApp, cause: str
) -> None:
    mcp.tools = [tool("echo")]
    async with reaching(mcp) as mcp_pool:
        mcp.fault = Fault(answer, on={"tools/list"})
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(mcp))
        assert failure.value.cause == cause
        assert CANARY not in "".join(traceback.format_exception(failure.value))
        mcp.fault = None
        assert await mcp_pool.list_tools(endpoint(mcp)) == mcp.tools


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(malformed_json, "protocol"), (drop, "closed"), (status(404), "session_gone"), (status(500), "status_500")],
)
async def test_an_unusable_listing_in_a_session_has_its_cause(
    legacy_mcp: FakeMcpServer, answer: ASGIApp, cause: str
) -> None:
    async with reaching(legacy_mcp) as mcp_pool:
        legacy_mcp.fault = Fault(answer, on={"tools/list"})
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(legacy_mcp))
    assert failure.value.cause == cause


async def test_a_list_that_is_not_mcp_is_refused_with_the_place_of_the_error(mcp: FakeMcpServer) -> None:
    mcp.fault = Fault(verbatim(NO_LIST % CANARY.encode()), on={"tools/list"})
    async with reaching(mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable, match=r"not valid MCP: .*nextCursor") as failure:
            await mcp_pool.list_tools(endpoint(mcp))
    assert (failure.value.cause, CANARY in failure.value.message) == ("protocol", False)


async def test_an_answer_of_a_tool_that_looks_like_a_list_of_tools_is_left_alone(server: FakeMcpServer) -> None:
    server.tools = [tool("echo")]
    server.on_call["echo"] = lambda _: {"content": [], "tools": [7]}
    async with reaching(server) as mcp_pool:
        answered = await mcp_pool.call_tool(endpoint(server), "echo", {}, 30.0)
    assert "toolscout" not in str(answered)


async def test_tools_that_are_not_mcp_come_as_they_are_behind_those_that_are(server: FakeMcpServer) -> None:
    broken: list[Any] = [{"name": "a", "inputSchema": 7}, "b", {"name": "c", "inputSchema": {"type": "strin"}}]
    server.tools = [broken[0], tool("echo"), *broken[1:], tool("last")]
    async with reaching(server) as mcp_pool:
        listed = await mcp_pool.list_tools(endpoint(server))
    assert [each["name"] for each in listed[:2]] == ["echo", "last"]
    assert listed[2:] == broken


@pytest.mark.parametrize(("answer", "cause"), UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_an_unusable_handshake_has_its_cause(mcp: FakeMcpServer, answer: ASGIApp, cause: str) -> None:
    mcp.fault = Fault(answer)
    async with reaching(mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(mcp))
    assert failure.value.cause == cause
    assert CANARY not in failure.value.message
    assert "tools/list" not in rpc_methods(mcp)


SSE_UNUSABLE: dict[str, tuple[ASGIApp, str]] = {
    "wrong_content_type": (wrong_content_type, "protocol"),
    "nothing_at_all": (StreamingResponse(iter(()), media_type="text/event-stream"), "protocol"),
    "drop": (drop, "closed"),
    "401": (status(401), "unauthorized"),
    "404": (status(404), "status_404"),
    "500": (JSONResponse({}, 500), "status_500"),
}


@pytest.mark.parametrize(("answer", "cause"), SSE_UNUSABLE.values(), ids=SSE_UNUSABLE.keys())
async def test_a_stream_that_is_none_has_its_cause(sse_mcp: FakeMcpServer, answer: ASGIApp, cause: str) -> None:
    sse_mcp.fault = Fault(answer, on={"GET"})
    async with reaching(sse_mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(sse_mcp))
    assert failure.value.cause == cause


async def test_a_stream_that_sends_us_elsewhere_is_not_followed(sse_mcp: FakeMcpServer) -> None:
    with listener() as elsewhere:
        lure = f"event: endpoint\ndata: http://127.0.0.1:{elsewhere.port}/messages\n\n"
        sse_mcp.fault = Fault(StreamingResponse(iter([lure]), media_type="text/event-stream"), on={"GET"})
        async with reaching(sse_mcp, elsewhere.port, connect_s=0.3) as mcp_pool:
            with pytest.raises(ServerUnreachable):
                await mcp_pool.list_tools(endpoint(sse_mcp))
        assert elsewhere.connects == 0


@pytest.mark.parametrize(("code", "cause"), [(400, "status_400"), (401, "unauthorized"), (503, "status_503")])
async def test_what_is_refused_over_the_older_transport_is_not_waited_for(
    sse_mcp: FakeMcpServer, code: int, cause: str
) -> None:
    async with reaching(sse_mcp) as mcp_pool:
        sse_mcp.fault = Fault(JSONResponse({"detail": "no"}, code), on={"tools/list"})
        with within(2), pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(sse_mcp))
    assert failure.value.cause == cause


async def test_not_a_number_is_read_as_nothing_in_a_result_and_left_as_it_is_in_a_list(
    streamable: FakeMcpServer,
) -> None:
    """JSON has no NaN, but many a server writes it; a result that has been worked for is not thrown away for it, while
    a tool is refused, by whoever reads the list."""
    listed = b'{"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": '
    listed += b'[{"name": "a", "inputSchema": {"type": "object", "maximum": NaN}}]}'
    called = b'{"resultType": "complete", "content": [], "structuredContent": {"a": NaN, "b": [-Infinity, 1]}}'
    async with reaching(streamable) as mcp_pool:
        streamable.fault = Fault(verbatim(listed), on={"tools/list"})
        [found] = await mcp_pool.list_tools(endpoint(streamable))
        assert math.isnan(found["inputSchema"]["maximum"])
        streamable.fault = Fault(verbatim(called), on={"tools/call"})
        result = await mcp_pool.call_tool(endpoint(streamable), "echo", {}, 60)
        assert result["structuredContent"] == {"a": None, "b": [None, 1]}


async def test_a_server_that_does_not_shake_hands_in_time_is_given_up(server: FakeMcpServer) -> None:
    server.fault = Fault(hang)
    async with reaching(server, connect_s=0.2) as mcp_pool:
        with within(1), pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.call_tool(endpoint(server), "echo", {}, 60)
        assert failure.value.cause == "timeout"
        server.fault = None
    async with reaching(server) as mcp_pool:
        assert await mcp_pool.list_tools(endpoint(server))


async def test_a_listing_has_a_deadline_for_all_its_pages(server: FakeMcpServer) -> None:
    server.tools = [tool(f"tool_{number}") for number in range(10)]
    server.page_size = 1
    async with reaching(server, list_s=2.0) as mcp_pool:
        await mcp_pool.call_tool(endpoint(server), "tool_1", {}, 60)
        server.latency_s = 0.5
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(server))
        assert failure.value.cause == "timeout"
        assert server.listings == 1
    server.latency_s = 0.0
    async with reaching(server) as mcp_pool:
        assert len(await mcp_pool.list_tools(endpoint(server))) == 10


async def test_a_call_has_a_deadline_after_which_nobody_knows(server: FakeMcpServer) -> None:
    server.stalled.add("echo")
    async with reaching(server) as mcp_pool:
        await mcp_pool.list_tools(endpoint(server))
        with within(3), pytest.raises(ToolTimedOut) as failure:
            await mcp_pool.call_tool(endpoint(server), "echo", {}, 2)
        assert failure.value.outcome == "unknown"
        server.stalled.clear()
        assert text_of(await mcp_pool.call_tool(endpoint(server), "echo", {"a": 1}, 60)) == {"a": 1}
    assert len(server.calls) == 2


async def test_a_server_that_takes_nothing_any_more_holds_up_no_deadline(server: FakeMcpServer) -> None:
    """Not even by letting the farewell hang, behind which the SDK would keep whatever comes next."""
    async with reaching(server) as mcp_pool:
        await mcp_pool.list_tools(endpoint(server))
        server.fault = Fault(hang)
        calls = [mcp_pool.call_tool(endpoint(server), "echo", {}, 0.2) for _ in range(3)]
        with within(1.5):
            failures = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(failure) for failure in failures] == [ToolTimedOut] * 3
        server.fault = None
        with within(2):
            assert text_of(await mcp_pool.call_tool(endpoint(server), "echo", {"a": 1}, 60)) == {"a": 1}


async def half_json(scope: Scope, receive: Receive, send: Send) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b'{"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "te'
        scope["cut"]()

    await StreamingResponse(half(), media_type="application/json")(scope, receive, send)


LOST: dict[str, ASGIApp] = {
    "drop": drop,
    "half_json": half_json,
    "half_sse": half_sse,
    "sse_that_ends": Response(b"", media_type="text/event-stream"),
    "sse_of_rubbish": Response(f"data: {{{CANARY}\n\n", media_type="text/event-stream"),
    "malformed_json": malformed_json,
    "wrong_content_type": wrong_content_type,
    "not_mcp": verbatim(b'{"resultType": "complete", "content": "%s"}' % CANARY.encode()),
    "receipt": Response(status_code=202),
    "oversized": oversized(megabytes=2),
    "500": status(500),
    "502": JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "gone"}}, 502),
    "400": status(400),
    "408": status(408),
    "400_of_its_own": JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "quota"}}, 400),
}


@pytest.mark.parametrize("answer", LOST.values(), ids=LOST.keys())
async def test_a_call_that_may_have_reached_the_server_is_never_repeated(
    streamable: FakeMcpServer, answer: ASGIApp
) -> None:
    """Not even where the connection is one from before, which could have died unnoticed."""
    async with reaching(streamable) as mcp_pool:
        assert text_of(await mcp_pool.call_tool(endpoint(streamable), "echo", {"n": 0}, 60)) == {"n": 0}
        streamable.requests.clear()
        streamable.fault = Fault(answer, on={"tools/call"})
        with within(3), pytest.raises(ToolFailed, match=r"it may have run|it ran") as failure:
            await mcp_pool.call_tool(endpoint(streamable), "echo", {"n": 1}, 60)
        assert failure.value.outcome == "unknown"
        assert CANARY not in "".join(traceback.format_exception(failure.value))
    assert streamable.calls == [("echo", {"n": 1})]


async def test_a_call_over_the_older_transport_is_never_repeated_either(sse_mcp: FakeMcpServer) -> None:
    sse_mcp.tools, sse_mcp.delays = [tool("echo")], {"echo": 30}
    async with reaching(sse_mcp) as mcp_pool:
        await mcp_pool.list_tools(endpoint(sse_mcp))
        calling = asyncio.create_task(mcp_pool.call_tool(endpoint(sse_mcp), "echo", {"n": 1}, 60))
        await until(lambda: sse_mcp.calls)
        sse_mcp.cut_connections()
        with within(3), pytest.raises(ToolFailed) as failure:
            await calling
        assert failure.value.outcome == "unknown"
        sse_mcp.fault = Fault(drop, on={"tools/call"})
        with within(3), pytest.raises(ToolFailed) as failure:
            await mcp_pool.call_tool(endpoint(sse_mcp), "echo", {"n": 2}, 60)
        assert failure.value.outcome == "unknown"
    assert sse_mcp.calls == [("echo", {"n": 1}), ("echo", {"n": 2})]


@pytest.mark.parametrize("code", [401, 404])
async def test_a_stream_that_cannot_be_taken_up_again_does_not_make_the_call_unsent(
    legacy_mcp: FakeMcpServer, code: int
) -> None:
    """The SDK asks for the rest of a broken stream by GET. What is refused there is not the call."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response: ASGIApp = status(code)
        if scope["received"].rpc_method == "tools/call":
            begun = iter(["id: 1\nretry: 1\ndata:\n\n"])
            response = StreamingResponse(begun, media_type="text/event-stream")
        await response(scope, receive, send)

    async with reaching(legacy_mcp) as mcp_pool:
        await mcp_pool.list_tools(endpoint(legacy_mcp))
        await until(lambda: legacy_mcp.streams)
        legacy_mcp.fault = Fault(answer, on={"tools/call", "GET"})
        with pytest.raises(ToolFailed) as failure:
            await mcp_pool.call_tool(endpoint(legacy_mcp), "echo", {}, 60)
    assert failure.value.outcome == "unknown"
    assert len(legacy_mcp.calls) == 1
    assert [request.headers.get("last-event-id") for request in legacy_mcp.requests].count("1") > 0


@pytest.mark.parametrize("code", [202, 404])
async def test_what_the_server_asks_meanwhile_is_not_taken_for_the_call(streamable: FakeMcpServer, code: int) -> None:
    """It asks whether we are there, and does not like our answer: the call goes on all the same."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request = scope["received"]
        response: ASGIApp = status(code)
        if request.rpc_method == "tools/call":
            response = StreamingResponse(asking_first(request.rpc["id"]), media_type="text/event-stream")
        await response(scope, receive, send)

    async def asking_first(call_id: int) -> AsyncIterator[str]:
        ping = {"jsonrpc": "2.0", "id": 99, "method": "ping"}
        yield f"data: {json.dumps(ping)}\n\n"
        await until(lambda: streamable.requests[-1].rpc.get("id") == 99)
        result = {"jsonrpc": "2.0", "id": call_id, "result": {"resultType": "complete", "content": []}}
        yield f"data: {json.dumps(result)}\n\n"

    async with reaching(streamable) as mcp_pool:
        await mcp_pool.list_tools(endpoint(streamable))
        streamable.fault = Fault(answer, on={"tools/call", "POST"})
        assert await mcp_pool.call_tool(endpoint(streamable), "echo", {}, 60) == {"content": []}
    assert len(streamable.calls) == 1


async def test_a_server_that_is_not_there_was_not_reached(server: FakeMcpServer) -> None:
    async with reaching(1) as mcp_pool:
        away = endpoint(server, url="http://127.0.0.1:1/mcp")
        for _ in range(2):
            with pytest.raises(ServerUnreachable) as failure:
                await mcp_pool.call_tool(away, "echo", {}, 60)
            assert failure.value.cause == "refused"


@pytest.mark.parametrize(
    ("transport", "era"), [("streamable_http", "modern"), ("streamable_http", "legacy"), ("sse", "legacy")]
)
async def test_a_restarted_server_is_connected_again_and_each_call_runs_once(transport: Any, era: Any) -> None:
    """Also where many calls notice at once that their session is gone."""
    with running_mcp_server(transport, era) as server:
        server.tools = [tool("echo")]
        async with reaching(server) as mcp_pool:
            where = endpoint(server)
            await mcp_pool.list_tools(where)
            server.stop()
            await noticed()
            with pytest.raises(ServerUnreachable) as failure:
                await mcp_pool.call_tool(where, "echo", {}, 60)
            assert failure.value.cause == "refused"
            server.start()
            await mcp_pool.list_tools(where)
            server.stop()
            server.start()
            await noticed()
            server.requests.clear()
            ran: list[int] = []
            server.on_call["echo"] = lambda arguments: noted(ran, arguments["n"])
            await asyncio.gather(*[mcp_pool.call_tool(where, "echo", {"n": n}, 60) for n in range(20)])
    assert sorted(ran) == list(range(20))
    assert handshakes(server) == (0 if era == "modern" else 1)


async def test_a_session_that_a_server_knows_no_more_is_begun_anew(legacy_mcp: FakeMcpServer) -> None:
    """Many servers say so with 400 and an error of their own, in place of 404."""
    legacy_mcp.tools = [tool("echo")]
    unknown = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "No valid session ID provided"}}
    async with reaching(legacy_mcp) as mcp_pool:
        await mcp_pool.list_tools(endpoint(legacy_mcp))
        legacy_mcp.fault = Fault(JSONResponse(unknown, 400), on={"tools/call"}, times=1)
        assert text_of(await mcp_pool.call_tool(endpoint(legacy_mcp), "echo", {"n": 1}, 60)) == {"n": 1}
        assert handshakes(legacy_mcp) == 2
        legacy_mcp.fault = Fault(JSONResponse(unknown, 400), on={"tools/call"})
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.call_tool(endpoint(legacy_mcp), "echo", {"n": 2}, 60)
        assert failure.value.cause == "session_gone"


async def test_an_error_that_the_server_sends_is_a_failure_and_leaves_the_session_alone(server: FakeMcpServer) -> None:
    server.on_call["echo"] = error(-32042, "not today" + "!" * 1000)
    async with reaching(server) as mcp_pool:
        await mcp_pool.list_tools(endpoint(server))
        for _ in range(3):
            with pytest.raises(ToolFailed, match="-32042: not today") as failure:
                await mcp_pool.call_tool(endpoint(server), "echo", {}, 60)
            assert failure.value.outcome == "failed"
            assert len(failure.value.message) < 600
    assert (len(server.calls), handshakes(server)) == (3, 1)


async def test_an_error_that_could_be_a_broken_connection_is_taken_for_one_but_quoted(server: FakeMcpServer) -> None:
    server.on_call["echo"] = error(-32000, "quota used up")
    async with reaching(server) as mcp_pool:
        with pytest.raises(ToolFailed, match="quota used up") as failure:
            await mcp_pool.call_tool(endpoint(server), "echo", {}, 60)
    assert (failure.value.outcome, len(server.calls)) == ("unknown", 1)


async def test_a_tool_that_asks_for_more_input_gets_a_plain_no(mcp: FakeMcpServer) -> None:
    schema = {"type": "object", "properties": {}}
    elicitation = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": schema}}
    mcp.on_call["echo"] = lambda _: {"resultType": "input_required", "inputRequests": {"sure": elicitation}}
    async with reaching(mcp) as mcp_pool:
        with pytest.raises(ToolFailed, match="asks its user for more input") as failure:
            await mcp_pool.call_tool(endpoint(mcp), "echo", {}, 60)
    assert (failure.value.outcome, len(mcp.calls)) == ("failed", 1)


REGION = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


async def test_arguments_that_belong_into_headers_are_put_there(mcp: FakeMcpServer) -> None:
    """The server refuses the first attempt unread, for only its listing could have told."""
    mcp.tools = [{"name": "deploy", "inputSchema": REGION}]
    ran: list[Json] = []
    mcp.on_call["deploy"] = lambda arguments: noted(ran, arguments)
    async with reaching(mcp) as mcp_pool:
        for _ in range(2):
            await mcp_pool.call_tool(endpoint(mcp), "deploy", {"region": "eu"}, 60)
    assert ran == [{"region": "eu"}] * 2
    assert [
        request.headers.get("mcp-param-region") for request in mcp.requests if request.rpc_method == "tools/call"
    ] == [
        None,
        "eu",
        "eu",
    ]
    assert (mcp.listings, handshakes(mcp)) == (1, 1)


async def test_only_the_newer_protocol_turns_calls_away_for_their_headers(legacy_mcp: FakeMcpServer) -> None:
    legacy_mcp.on_call["echo"] = error(-32020, "whatever that means here")
    async with reaching(legacy_mcp) as mcp_pool:
        with pytest.raises(ToolFailed, match="-32020"):
            await mcp_pool.call_tool(endpoint(legacy_mcp), "echo", {}, 60)
    assert len(legacy_mcp.calls) == 1


async def test_calls_at_once_share_a_session_and_no_misfortune(server: FakeMcpServer) -> None:
    """Of twenty, one fails and one takes too long; the others never know."""
    server.tools = [tool("echo"), tool("slow"), tool("broken")]
    server.on_call["broken"] = error(-32603)
    server.stalled |= {"echo", "slow"}
    async with reaching(server) as mcp_pool:
        where = endpoint(server)
        await mcp_pool.list_tools(where)
        calls = [("slow", {}, 3), ("broken", {}, 60), *(("echo", {"n": n}, 60) for n in range(18))]
        slow, broken, *others = [asyncio.create_task(mcp_pool.call_tool(where, *call)) for call in calls]
        await until(lambda: len(server.calls) == 20)
        with pytest.raises(ToolTimedOut):
            await slow
        with pytest.raises(ToolFailed):
            await broken
        server.stalled.clear()
        assert [text_of(result) for result in await asyncio.gather(*others)] == [{"n": n} for n in range(18)]
    assert handshakes(server) == 1


@pytest.mark.parametrize("answer", [drop, status(401), oversized(megabytes=2)], ids=["drop", "401", "oversized"])
async def test_a_call_whose_wire_breaks_breaks_no_other(streamable: FakeMcpServer, answer: ASGIApp) -> None:
    streamable.stalled.add("echo")
    async with reaching(streamable) as mcp_pool:
        where = endpoint(streamable)
        await mcp_pool.list_tools(where)
        others = [asyncio.create_task(mcp_pool.call_tool(where, "echo", {"n": n}, 60)) for n in range(5)]
        await until(lambda: len(streamable.calls) == 5)
        streamable.fault = Fault(answer, on={"tools/call"})
        with pytest.raises((ToolFailed, ServerUnreachable)):
            await mcp_pool.call_tool(where, "echo", {}, 60)
        streamable.stalled.clear()
        assert [text_of(result) for result in await asyncio.gather(*others)] == [{"n": n} for n in range(5)]


async def test_a_cancelled_call_is_cancelled_at_the_server_and_the_session_goes_on(
    server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_FAREWELL_S", 10)
    server.tools, server.delays = [tool("echo"), tool("slow")], {"slow": 30}
    async with reaching(server) as mcp_pool:
        await mcp_pool.list_tools(endpoint(server))
        calling = asyncio.create_task(mcp_pool.call_tool(endpoint(server), "slow", {}, 30))
        await until(lambda: server.calls)
        calling.cancel()
        with within(1), pytest.raises(asyncio.CancelledError):
            await calling
        if server.era == "legacy":
            await until(lambda: "notifications/cancelled" in rpc_methods(server))
        assert text_of(await mcp_pool.call_tool(endpoint(server), "echo", {"a": 1}, 60)) == {"a": 1}
    assert handshakes(server) == 1


async def test_in_the_newer_protocol_a_cancelled_call_closes_its_stream(mcp: FakeMcpServer) -> None:
    gone = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await hang(scope, receive, send)
        gone.set()

    async with reaching(mcp) as mcp_pool:
        mcp.fault = Fault(answer, on={"tools/call"})
        calling = asyncio.create_task(mcp_pool.call_tool(endpoint(mcp), "echo", {}, 30))
        await until(lambda: mcp.calls)
        assert not gone.is_set()
        calling.cancel()
        await until(gone.is_set)
        await asyncio.gather(calling, return_exceptions=True)


async def test_a_change_of_the_tools_is_heard_of_once(server: FakeMcpServer) -> None:
    heard: list[Any] = []
    async with reaching(server) as mcp_pool:
        mcp_pool.on_tools_changed = heard.append
        where = endpoint(server)
        await mcp_pool.list_tools(where)
        await until(lambda: server.streams)
        server.announce_change()
        await until(lambda: heard)
        await asyncio.sleep(0.05)
        assert heard == [where]
        server.announce_change()
        await until(lambda: len(heard) == 2)


async def test_a_stream_of_announcements_that_breaks_takes_nothing_with_it(server: FakeMcpServer) -> None:
    async with reaching(server) as mcp_pool:
        await mcp_pool.list_tools(endpoint(server))
        await until(lambda: server.streams)
        server.cut_connections()
        await until(lambda: not server.streams)
        await noticed()
        assert text_of(await mcp_pool.call_tool(endpoint(server), "echo", {"a": 1}, 60)) == {"a": 1}
    assert len(server.calls) == 1


async def test_what_cannot_be_read_is_not_logged(streamable: FakeMcpServer, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK likes to log the messages that it stumbles over, and those may hold anything."""
    rubbish: list[ASGIApp] = [
        Response(f'{{"jsonrpc": "2.0", "{CANARY}": ', media_type="application/json"),
        StreamingResponse(iter([f"data: {{{CANARY}\n\n"]), media_type="text/event-stream"),
        Response(CANARY, media_type=f"text/{CANARY}"),
        verbatim(b'{"resultType": "complete", "content": "%s", "tools": "%s"}' % ((CANARY.encode(),) * 2)),
        status(500, CANARY, {"X-Canary": CANARY}),
    ]
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "toolscout")
    async with reaching(streamable) as mcp_pool:
        where = endpoint(streamable, headers={"Authorization": f"Bearer {CANARY}"})
        for answer in rubbish:
            await mcp_pool.call_tool(where, "echo", {"argument": CANARY}, 60)
            streamable.fault = Fault(answer, on={"tools/call", "tools/list"})
            with pytest.raises(ToolFailed):
                await mcp_pool.call_tool(where, "echo", {"argument": CANARY}, 60)
            with pytest.raises(ServerUnreachable):
                await mcp_pool.list_tools(where)
            streamable.fault = None
    ours = [record for record in caplog.records if record.threadName != "fake-mcp-server"]
    logging.getLogger("toolscout.here").debug(CANARY)
    assert [record.getMessage() for record in caplog.records if record.name == "toolscout.here"] == [CANARY]
    assert CANARY not in "\n".join(logging.Formatter().format(record) for record in ours)


async def test_a_page_that_is_missing_is_no_sign_that_a_session_was_lost_where_there_is_none(
    mcp: FakeMcpServer,
) -> None:
    mcp.tools = [tool("echo")]
    async with reaching(mcp) as mcp_pool:
        await mcp_pool.list_tools(endpoint(mcp))
        mcp.fault = Fault(status(404), on={"tools/call"})
        with pytest.raises(ToolFailed) as failure:
            await mcp_pool.call_tool(endpoint(mcp), "echo", {}, 60)
        assert failure.value.outcome == "unknown"
    assert len(mcp.calls) == 1


async def test_pages_that_are_each_small_enough_may_be_too_much_together(mcp: FakeMcpServer) -> None:
    mcp.tools = [tool(f"tool_{n}", "x" * 30_000) for n in range(20)]
    mcp.page_size = 1
    async with reaching(mcp, max_bytes=100_000) as mcp_pool:
        with pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(endpoint(mcp))
        assert failure.value.cause == "too_large"
        mcp.tools = mcp.tools[:2]
        assert len(await mcp_pool.list_tools(endpoint(mcp))) == 2


async def test_a_stream_that_ends_at_once_is_not_opened_as_often_as_the_server_likes(legacy_mcp: FakeMcpServer) -> None:
    async def hasty(scope: Scope, receive: Receive, send: Send) -> None:
        events = iter(["retry: 0\nid: 1\ndata: \n\n"])
        await StreamingResponse(events, media_type="text/event-stream")(scope, receive, send)

    legacy_mcp.tools = [tool("echo")]
    legacy_mcp.fault = Fault(hasty, on={"GET"})
    async with reaching(legacy_mcp) as mcp_pool:
        began = time.monotonic()
        await mcp_pool.list_tools(endpoint(legacy_mcp))
        await asyncio.sleep(0.5)
    assert [request.method for request in legacy_mcp.requests].count("GET") <= 2 + int(time.monotonic() - began)


async def test_who_listened_listens_again_and_takes_the_gap_for_a_change(mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("echo")]
    heard: list[object] = []
    await until(lambda: mcp.streams == 0)  # those of the test before
    async with reaching(mcp) as mcp_pool:
        mcp_pool.on_tools_changed = heard.append
        await mcp_pool.list_tools(endpoint(mcp))
        await until(lambda: mcp.streams == 1)
        mcp.cut_connections()
        await until(lambda: mcp.streams == 0)
        await until(lambda: heard)
        assert mcp.streams == 1
