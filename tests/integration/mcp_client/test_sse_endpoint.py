"""The endpoint that a server of the SSE transport names: refused at once on another origin."""

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import ServerUnreachable
from tests.support.factories import tool
from tests.support.mcp_pool import make_endpoint, running_pool, within
from tests.support.mcp_server import FakeMcpServer, Fault, hang, listener, truncated_sse


def name_endpoint(*chunks: bytes) -> ASGIApp:
    """Send these parts of an event stream, and keep it open."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await hang(scope, receive, send)

    return answer


async def fail_to_list(server: FakeMcpServer, answer: ASGIApp) -> ServerUnreachable:
    server.fault = Fault(answer, on={"GET"})
    async with running_pool(server, connect_s=600) as mcp_pool:
        with within(3), pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.list_tools(make_endpoint(server))
        server.fault, server.tools = None, [tool("fine")]
        assert await mcp_pool.list_tools(make_endpoint(server)) == server.tools
    return failure.value


@pytest.mark.parametrize("split", [1, 9, 20, 40])
async def test_an_endpoint_on_another_origin_fails_at_once(sse_mcp: FakeMcpServer, split: int) -> None:
    with listener() as other:
        event = f": hello\r\n\r\nevent: endpoint\r\ndata: http://127.0.0.1:{other.port}/messages\r\n\r\n".encode()
        failure = await fail_to_list(sse_mcp, name_endpoint(event[:split], event[split:]))
        assert other.connects == 0
    assert failure.cause == "url_not_allowed"
    assert "another origin" in failure.message
    assert str(other.port) not in failure.message, "the message is stored, and must not quote the server"
    assert not failure.retryable


async def test_a_stream_that_breaks_before_its_endpoint_fails_at_once(sse_mcp: FakeMcpServer) -> None:
    assert (await fail_to_list(sse_mcp, truncated_sse)).cause == "closed"


async def test_an_endless_first_event_fails_at_once(sse_mcp: FakeMcpServer) -> None:
    failure = await fail_to_list(sse_mcp, name_endpoint(b"event: endpoint\ndata: /", b"a" * 100_000))
    assert failure.cause == "too_large"
