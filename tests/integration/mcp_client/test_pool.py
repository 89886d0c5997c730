"""Tests of the connection pool: which calls share a connection, when it is opened, and when it is closed."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.errors import ServerUnreachable, ToolFailed, Unavailable
from app.mcp_client import connection
from app.mcp_client.pool import McpPool
from tests.support.factories import tool
from tests.support.mcp_pool import make_endpoint, running_pool, wait_until, within
from tests.support.mcp_server import (
    FakeMcpServer,
    Fault,
    drop,
    hang,
    listener,
    respond_after,
    running_mcp_server,
    status,
)

pytestmark = pytest.mark.usefixtures("no_event_loop_errors")


def count_sessions(server: FakeMcpServer) -> int:
    """Return the number of sessions opened so far; only the older protocol has sessions."""
    return [request.rpc_method for request in server.requests].count("initialize")


def count_closed_sessions(server: FakeMcpServer) -> int:
    return [request.method for request in server.requests].count("DELETE")


@pytest.fixture
def server(legacy_mcp: FakeMcpServer) -> FakeMcpServer:
    """A server whose opened and closed sessions can be counted."""
    legacy_mcp.tools = [tool("echo")]
    return legacy_mcp


async def done(scope: Scope, receive: Receive, send: Send) -> None:
    result = {"content": [{"type": "text", "text": "done"}]}
    await JSONResponse({"jsonrpc": "2.0", "id": scope["received"].rpc["id"], "result": result})(scope, receive, send)


@asynccontextmanager
async def running_call(
    mcp_pool: McpPool, server: FakeMcpServer, **endpoint_fields: Any
) -> AsyncIterator[asyncio.Task[Any]]:
    """A call runs during the block and ends after it."""
    gate = threading.Event()
    server.fault = Fault(respond_after(gate, done), on={"tools/call"})
    task = asyncio.create_task(mcp_pool.call_tool(make_endpoint(server, **endpoint_fields), "echo", {}, 60))
    await wait_until(lambda: server.calls)
    server.fault = None
    try:
        yield task
    finally:
        gate.set()


# The first request of a session. A server that rejects it gets the older handshake.
FIRST_METHOD = {"server/discover"}
REJECT = status(405)


async def test_no_connection_is_opened_before_it_is_needed(server: FakeMcpServer) -> None:
    async with running_pool(server) as mcp_pool:
        await asyncio.sleep(0.05)
        assert server.requests == []
        await mcp_pool.list_tools(make_endpoint(server))
        assert count_sessions(server) == 1


async def test_all_requests_to_a_server_share_one_session(server: FakeMcpServer) -> None:
    async with running_pool(server) as mcp_pool:
        for _ in range(3):
            await mcp_pool.list_tools(make_endpoint(server))
            await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60)
        assert (count_sessions(server), count_closed_sessions(server)) == (1, 0)
    assert (count_sessions(server), count_closed_sessions(server)) == (1, 1)


async def test_concurrent_first_requests_connect_once(server: FakeMcpServer) -> None:
    async with running_pool(server) as mcp_pool:
        listed = await asyncio.gather(*[mcp_pool.list_tools(make_endpoint(server)) for _ in range(20)])
    assert listed == [server.tools] * 20
    assert count_sessions(server) == 1


async def test_sessions_are_not_shared_between_users_or_servers(server: FakeMcpServer) -> None:
    async with running_pool(server) as mcp_pool:
        for endpoint_fields in ({}, {"user_id": "other"}, {"server_id": "another"}, {}):
            await mcp_pool.list_tools(make_endpoint(server, **endpoint_fields))
    assert count_sessions(server) == 3


async def test_a_changed_server_gets_a_new_session_and_its_old_one_is_closed(server: FakeMcpServer) -> None:
    async with running_pool(server) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(server, config_version=1))
        await mcp_pool.list_tools(make_endpoint(server, config_version=2, headers={"X-Key": "new"}))
        await wait_until(lambda: count_closed_sessions(server) == 1)
        await mcp_pool.list_tools(make_endpoint(server, config_version=2))
    assert count_sessions(server) == 2
    assert server.requests[-2].headers["x-key"] == "new"


@pytest.mark.parametrize("change", ["forget", "new_config_version"])
async def test_running_calls_finish_when_their_server_changes(server: FakeMcpServer, change: str) -> None:
    """Cutting them off would make their outcome unknown for no reason."""
    async with running_pool(server) as mcp_pool:
        async with running_call(mcp_pool, server) as call:
            if change == "forget":
                mcp_pool.forget("someone", "a-server")
            await mcp_pool.list_tools(make_endpoint(server, config_version=2))
            assert count_closed_sessions(server) == 0
        assert (await call)["content"]
        await wait_until(lambda: count_closed_sessions(server) == 1)
        assert count_sessions(server) == 2


async def test_forgetting_a_server_during_the_handshake_does_not_fail_waiting_requests(
    server: FakeMcpServer,
) -> None:
    """They must not look cancelled."""
    gate = threading.Event()
    server.fault = Fault(respond_after(gate, REJECT), on=FIRST_METHOD)
    async with running_pool(server) as mcp_pool:
        listing = asyncio.create_task(mcp_pool.list_tools(make_endpoint(server)))
        await wait_until(lambda: server.requests)
        mcp_pool.forget("someone", "a-server")
        gate.set()
        assert await listing == server.tools
        await wait_until(lambda: count_closed_sessions(server) == 1)


async def test_forgetting_a_server_that_is_not_connected_does_nothing(server: FakeMcpServer) -> None:
    async with running_pool(server) as mcp_pool:
        mcp_pool.forget("someone", "a-server")
        mcp_pool.forget("someone", "a-server")
        assert await mcp_pool.list_tools(make_endpoint(server))


async def test_forgetting_a_user_closes_the_connections_of_that_user_only(server: FakeMcpServer) -> None:
    async with running_pool(server) as mcp_pool:
        for user_id, server_id in (("someone", "a"), ("someone", "b"), ("another", "a")):
            await mcp_pool.list_tools(make_endpoint(server, user_id=user_id, server_id=server_id))
        mcp_pool.forget_user("someone")
        await wait_until(lambda: count_closed_sessions(server) == 2)
        await mcp_pool.list_tools(make_endpoint(server, user_id="another", server_id="a"))
        assert count_sessions(server) == 3


async def test_idle_connections_are_closed_and_busy_ones_are_not(server: FakeMcpServer) -> None:
    async with running_pool(server, idle_s=0.15) as mcp_pool:
        async with running_call(mcp_pool, server) as call:
            await mcp_pool.list_tools(make_endpoint(server, server_id="another"))
            await wait_until(lambda: count_closed_sessions(server) == 1)
            await mcp_pool.list_tools(make_endpoint(server))
            assert not call.done()
            assert count_sessions(server) == 2
        await call
        await wait_until(lambda: count_closed_sessions(server) == 2)
        assert await mcp_pool.list_tools(make_endpoint(server))
        assert count_sessions(server) == 3


async def test_the_longest_idle_connection_is_evicted(server: FakeMcpServer) -> None:
    async with running_pool(server, max_connections=2) as mcp_pool:
        for server_id in ("a", "b", "a", "c"):
            await mcp_pool.list_tools(make_endpoint(server, server_id=server_id))
        await wait_until(lambda: count_closed_sessions(server) == 1)
        await mcp_pool.list_tools(make_endpoint(server, server_id="a"))
        assert count_sessions(server) == 3
        await mcp_pool.list_tools(make_endpoint(server, server_id="b"))
        assert count_sessions(server) == 4


async def test_a_full_pool_without_idle_connections_is_unavailable(server: FakeMcpServer) -> None:
    async with running_pool(server, max_connections=1) as mcp_pool:
        async with running_call(mcp_pool, server) as call:
            for retired in (False, True):
                if retired:
                    mcp_pool.forget("someone", "a-server")
                with pytest.raises(Unavailable):
                    await mcp_pool.list_tools(make_endpoint(server, server_id="another"))
        await call
        assert await mcp_pool.list_tools(make_endpoint(server, server_id="another"))


async def test_one_user_does_not_fill_the_pool_for_the_others(server: FakeMcpServer) -> None:
    gate = threading.Event()
    server.fault = Fault(respond_after(gate, done), on={"tools/call"})
    async with running_pool(server, max_connections=5) as mcp_pool:
        endpoints = [make_endpoint(server, server_id=server_id) for server_id in "abcd"]
        calls = [asyncio.create_task(mcp_pool.call_tool(each, "echo", {}, 60)) for each in endpoints]
        await wait_until(lambda: len(server.calls) == len(calls))
        for retired in (False, True):
            if retired:  # connections that are still in use count, too
                mcp_pool.forget_user("someone")
            with pytest.raises(Unavailable, match="of your servers"):
                await mcp_pool.list_tools(make_endpoint(server, server_id="another"))
        assert await mcp_pool.list_tools(make_endpoint(server, user_id="somebody else"))
        gate.set()
        await asyncio.gather(*calls)
        assert await mcp_pool.list_tools(make_endpoint(server, server_id="another"))


async def test_a_failed_handshake_fails_all_waiting_requests_with_its_cause(server: FakeMcpServer) -> None:
    gate = threading.Event()
    server.fault = Fault(respond_after(gate, drop))
    async with running_pool(server) as mcp_pool:
        listings = [asyncio.create_task(mcp_pool.list_tools(make_endpoint(server))) for _ in range(5)]
        await wait_until(lambda: server.requests)
        gate.set()
        failures = await asyncio.gather(*listings, return_exceptions=True)
        assert [getattr(failure, "cause", failure) for failure in failures] == ["closed"] * 5
        assert [request.rpc_method for request in server.requests] == ["server/discover", "initialize"]
        server.fault = None
        assert await mcp_pool.list_tools(make_endpoint(server)) == server.tools


async def test_a_request_cancelled_during_the_handshake_does_not_affect_the_others(server: FakeMcpServer) -> None:
    gate = threading.Event()
    server.fault = Fault(respond_after(gate, REJECT), on=FIRST_METHOD)
    async with running_pool(server) as mcp_pool:
        first, second = [asyncio.create_task(mcp_pool.list_tools(make_endpoint(server))) for _ in range(2)]
        await wait_until(lambda: server.requests)
        first.cancel()
        await asyncio.wait({first})
        assert first.cancelled()
        gate.set()
        assert await second == server.tools
        assert count_sessions(server) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_a_connection_whose_requests_were_all_cancelled_is_cleaned_up(server: FakeMcpServer, fails: bool) -> None:
    gate = threading.Event()
    server.fault = Fault(respond_after(gate, drop)) if fails else Fault(respond_after(gate, REJECT), on=FIRST_METHOD)
    async with running_pool(server) as mcp_pool:
        listing = asyncio.create_task(mcp_pool.list_tools(make_endpoint(server)))
        await wait_until(lambda: server.requests)
        [entry] = mcp_pool._entries.values()
        listing.cancel()
        await asyncio.wait({listing})
        gate.set()
        await wait_until(entry.opening.done)
        if not fails:
            mcp_pool._reap(time.monotonic())
            await wait_until(lambda: count_closed_sessions(server) == 1)
        await wait_until(lambda: not mcp_pool._entries)
        server.fault = None
        assert await mcp_pool.list_tools(make_endpoint(server)) == server.tools


async def test_a_connection_on_which_a_call_failed_gets_no_new_calls(server: FakeMcpServer) -> None:
    """Its running calls finish."""
    async with running_pool(server) as mcp_pool:
        async with running_call(mcp_pool, server) as call:
            server.fault = Fault(drop, on={"tools/call"})
            with pytest.raises(ToolFailed):
                await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60)
            server.fault = None
            await mcp_pool.list_tools(make_endpoint(server))
            assert count_sessions(server) == 2
            assert count_closed_sessions(server) == 0
        assert (await call)["content"]
        await wait_until(lambda: count_closed_sessions(server) == 1)


async def test_closing_ends_running_calls_and_rejects_new_ones(server: FakeMcpServer) -> None:
    async with running_pool(server) as mcp_pool:
        await mcp_pool.list_tools(make_endpoint(server))
        server.fault = Fault(hang, on={"tools/list", "tools/call"})
        listing = asyncio.create_task(mcp_pool.list_tools(make_endpoint(server)))
        call = asyncio.create_task(mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60))
        await wait_until(lambda: server.listings == 2 and server.calls)
        with within(2):
            await mcp_pool.aclose()
        with pytest.raises(ServerUnreachable) as failure:
            await listing
        assert failure.value.cause == "closed"
        with pytest.raises(ToolFailed) as unknown:
            await call
        assert unknown.value.outcome == "unknown"
        with pytest.raises(ServerUnreachable, match="shutting down"):
            await mcp_pool.list_tools(make_endpoint(server))
    assert count_sessions(server) == 1


async def test_closing_during_the_handshake_fails_waiting_requests(server: FakeMcpServer) -> None:
    server.fault = Fault(hang)
    async with running_pool(server) as mcp_pool:
        listing = asyncio.create_task(mcp_pool.list_tools(make_endpoint(server)))
        await wait_until(lambda: server.requests)
        just_started = asyncio.create_task(mcp_pool.list_tools(make_endpoint(server, server_id="another")))
        await asyncio.sleep(0)
        with within(1):
            await mcp_pool.aclose()
        for task in (listing, just_started):
            with pytest.raises(ServerUnreachable) as failure:
                await task
            assert failure.value.cause == "closed"


async def test_closing_does_not_wait_for_servers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_S", 1.0)
    async with AsyncExitStack() as stack:
        servers = [stack.enter_context(running_mcp_server(era="legacy")) for _ in range(3)]
        async with running_pool(*servers) as mcp_pool:
            await asyncio.gather(
                *[mcp_pool.list_tools(make_endpoint(server, server_id=str(server.port))) for server in servers]
            )
            for server in servers:
                server.fault = Fault(hang)
            with within(1.5):
                await mcp_pool.aclose()
            assert all(server.requests[-1].method == "DELETE" for server in servers)


async def test_fifty_hanging_servers_do_not_delay_another_server(server: FakeMcpServer) -> None:
    with listener() as silent:
        async with running_pool(server, silent.port, connect_s=60) as mcp_pool:
            url = f"http://127.0.0.1:{silent.port}/mcp"
            hanging = [make_endpoint(server, url=url, server_id=f"hanging-{n}") for n in range(50)]
            waiting = [asyncio.create_task(mcp_pool.list_tools(endpoint)) for endpoint in hanging]
            await wait_until(lambda: silent.connects == 50)
            with within(1):
                assert await mcp_pool.list_tools(make_endpoint(server)) == server.tools
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            with within(2):
                await asyncio.wait(waiting)


def test_the_pool_works_on_uvloop(server: FakeMcpServer, mcp: FakeMcpServer) -> None:
    async def use_pool() -> None:
        async with running_pool(server, mcp) as mcp_pool:
            assert await mcp_pool.list_tools(make_endpoint(server)) == server.tools
            assert await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60)
            assert await mcp_pool.list_tools(make_endpoint(mcp, server_id="another")) == []

    with ThreadPoolExecutor(1) as thread:  # this thread already has an event loop
        thread.submit(uvloop.run, use_pool()).result(60)
    assert (count_sessions(server), count_closed_sessions(server)) == (1, 1)


async def test_the_timeout_of_a_call_includes_the_handshake(server: FakeMcpServer) -> None:
    server.fault = Fault(hang)
    async with running_pool(server) as mcp_pool:
        with within(2), pytest.raises(ServerUnreachable) as failure:
            await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 0.2)
        assert failure.value.cause == "timeout"
    assert server.calls == []
    server.fault = None
    async with running_pool(server) as mcp_pool:
        await mcp_pool.call_tool(make_endpoint(server), "echo", {}, 60)
    assert len(server.calls) == 1


HINT = "an older server may need the transport `sse`"


async def test_an_sse_server_that_is_listed_over_streamable_http_gets_a_hint(sse_mcp: FakeMcpServer) -> None:
    sse_mcp.tools = [tool("echo")]
    async with running_pool(sse_mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable) as caught:
            await mcp_pool.list_tools(make_endpoint(sse_mcp, transport="streamable_http"))
        assert caught.value.cause in ("status_404", "status_405")
        assert caught.value.message.endswith(HINT)
        assert len(await mcp_pool.list_tools(make_endpoint(sse_mcp))) == 1


@pytest.mark.parametrize(("code", "hinted"), [(404, True), (405, True), (403, False), (500, False)])
async def test_only_statuses_that_speak_for_another_transport_get_the_hint(
    server: FakeMcpServer, code: int, hinted: bool
) -> None:
    server.fault = Fault(status(code, body="a text of the server"))
    async with running_pool(server) as mcp_pool:
        with pytest.raises(ServerUnreachable) as caught:
            await mcp_pool.list_tools(make_endpoint(server))
    assert (HINT in caught.value.message) == hinted
    assert "a text of the server" not in caught.value.message


async def test_an_sse_server_gets_no_hint(sse_mcp: FakeMcpServer) -> None:
    sse_mcp.fault = Fault(status(404))
    async with running_pool(sse_mcp) as mcp_pool:
        with pytest.raises(ServerUnreachable) as caught:
            await mcp_pool.list_tools(make_endpoint(sse_mcp))
    assert HINT not in caught.value.message
