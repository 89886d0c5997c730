"""Who gets which connection, when it is made, and when it goes."""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import ServerUnreachable, ToolFailed, Unavailable
from app.mcp_client import connection
from app.mcp_client.pool import McpPool
from tests.support.factories import tool
from tests.support.mcp_pool import endpoint, reaching, until, within
from tests.support.mcp_server import FakeMcpServer, Fault, drop, hang, listener, running_mcp_server, status

pytestmark = pytest.mark.usefixtures("nothing_forgotten")


def sessions(server: FakeMcpServer) -> int:
    """Begun so far; only the older protocol has such a thing."""
    return [request.rpc_method for request in server.requests].count("initialize")


def farewells(server: FakeMcpServer) -> int:
    return [request.method for request in server.requests].count("DELETE")


@pytest.fixture
def server(legacy_mcp: FakeMcpServer) -> FakeMcpServer:
    """Its sessions can be counted, from the first word to the farewell."""
    legacy_mcp.tools = [tool("echo")]
    return legacy_mcp


def behind(gate: asyncio.Event, answer: ASGIApp) -> ASGIApp:
    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await until(gate.is_set)
        await answer(scope, receive, send)

    return wait


async def done(scope: Scope, receive: Receive, send: Send) -> None:
    result = {"content": [{"type": "text", "text": "done"}]}
    await JSONResponse({"jsonrpc": "2.0", "id": scope["received"].rpc["id"], "result": result})(scope, receive, send)


@asynccontextmanager
async def calling(mcp_pool: McpPool, server: FakeMcpServer, **where: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """A call is under way inside, and ends after."""
    gate = asyncio.Event()
    server.fault = Fault(behind(gate, done), on={"tools/call"})
    task = asyncio.create_task(mcp_pool.call_tool(endpoint(server, **where), "echo", {}, 60))
    await until(lambda: server.calls)
    server.fault = None
    try:
        yield task
    finally:
        gate.set()


# The first thing that a server is asked; whoever does not know the question is asked the older one.
FIRST_WORD = {"server/discover"}
OLDER = status(405)


async def test_nothing_is_connected_before_it_is_needed(server: FakeMcpServer) -> None:
    async with reaching(server) as mcp_pool:
        await asyncio.sleep(0.05)
        assert server.requests == []
        await mcp_pool.list_tools(endpoint(server))
        assert sessions(server) == 1


async def test_a_server_has_one_session_for_all_that_is_asked_of_it(server: FakeMcpServer) -> None:
    async with reaching(server) as mcp_pool:
        for _ in range(3):
            await mcp_pool.list_tools(endpoint(server))
            await mcp_pool.call_tool(endpoint(server), "echo", {}, 60)
        assert (sessions(server), farewells(server)) == (1, 0)
    assert (sessions(server), farewells(server)) == (1, 1)


async def test_those_who_come_first_together_connect_once(server: FakeMcpServer) -> None:
    async with reaching(server) as mcp_pool:
        listed = await asyncio.gather(*[mcp_pool.list_tools(endpoint(server)) for _ in range(20)])
    assert listed == [server.tools] * 20
    assert sessions(server) == 1


async def test_nobody_shares_a_session_with_another_user_or_server(server: FakeMcpServer) -> None:
    async with reaching(server) as mcp_pool:
        for where in ({}, {"user_id": "other"}, {"server_id": "another"}, {}):
            await mcp_pool.list_tools(endpoint(server, **where))
    assert sessions(server) == 3


async def test_a_changed_server_is_connected_anew_and_its_old_session_ends(server: FakeMcpServer) -> None:
    async with reaching(server) as mcp_pool:
        await mcp_pool.list_tools(endpoint(server, config_version=1))
        await mcp_pool.list_tools(endpoint(server, config_version=2, headers={"X-Key": "new"}))
        await until(lambda: farewells(server) == 1)
        await mcp_pool.list_tools(endpoint(server, config_version=2))
    assert sessions(server) == 2
    assert server.requests[-2].headers["x-key"] == "new"


@pytest.mark.parametrize("change", ["forgotten", "changed"])
async def test_what_is_under_way_with_a_server_that_changes_may_end(server: FakeMcpServer, change: str) -> None:
    """Its outcome would else be unknown, for no reason at all."""
    async with reaching(server) as mcp_pool:
        async with calling(mcp_pool, server) as call:
            if change == "forgotten":
                mcp_pool.forget("someone", "a-server")
            await mcp_pool.list_tools(endpoint(server, config_version=2))
            assert farewells(server) == 0
        assert (await call)["content"]
        await until(lambda: farewells(server) == 1)
        assert sessions(server) == 2


async def test_a_server_that_is_forgotten_while_it_is_connected_still_answers_those_who_wait(
    server: FakeMcpServer,
) -> None:
    """They must not be taken for cancelled."""
    gate = asyncio.Event()
    server.fault = Fault(behind(gate, OLDER), on=FIRST_WORD)
    async with reaching(server) as mcp_pool:
        listing = asyncio.create_task(mcp_pool.list_tools(endpoint(server)))
        await until(lambda: server.requests)
        mcp_pool.forget("someone", "a-server")
        gate.set()
        assert await listing == server.tools
        await until(lambda: farewells(server) == 1)


async def test_forgetting_a_server_that_is_not_connected_does_nothing(server: FakeMcpServer) -> None:
    async with reaching(server) as mcp_pool:
        mcp_pool.forget("someone", "a-server")
        mcp_pool.forget("someone", "a-server")
        assert await mcp_pool.list_tools(endpoint(server))


async def test_a_user_who_is_forgotten_leaves_no_connection_and_others_keep_theirs(server: FakeMcpServer) -> None:
    async with reaching(server) as mcp_pool:
        for user_id, server_id in (("someone", "a"), ("someone", "b"), ("another", "a")):
            await mcp_pool.list_tools(endpoint(server, user_id=user_id, server_id=server_id))
        mcp_pool.forget_user("someone")
        await until(lambda: farewells(server) == 2)
        await mcp_pool.list_tools(endpoint(server, user_id="another", server_id="a"))
        assert sessions(server) == 3


async def test_idle_connections_are_closed_and_used_ones_are_not(server: FakeMcpServer) -> None:
    async with reaching(server, idle_s=0.15) as mcp_pool:
        async with calling(mcp_pool, server) as call:
            await mcp_pool.list_tools(endpoint(server, server_id="another"))
            await until(lambda: farewells(server) == 1)
            await mcp_pool.list_tools(endpoint(server))
            assert not call.done()
            assert sessions(server) == 2
        await call
        await until(lambda: farewells(server) == 2)
        assert await mcp_pool.list_tools(endpoint(server))
        assert sessions(server) == 3


async def test_the_longest_idle_connection_makes_room_for_another(server: FakeMcpServer) -> None:
    async with reaching(server, max_connections=2) as mcp_pool:
        for server_id in ("a", "b", "a", "c"):
            await mcp_pool.list_tools(endpoint(server, server_id=server_id))
        await until(lambda: farewells(server) == 1)
        await mcp_pool.list_tools(endpoint(server, server_id="a"))
        assert sessions(server) == 3
        await mcp_pool.list_tools(endpoint(server, server_id="b"))
        assert sessions(server) == 4


async def test_when_all_connections_are_in_use_another_is_told_to_come_again(server: FakeMcpServer) -> None:
    async with reaching(server, max_connections=1) as mcp_pool:
        async with calling(mcp_pool, server) as call:
            for retired in (False, True):
                if retired:
                    mcp_pool.forget("someone", "a-server")
                with pytest.raises(Unavailable):
                    await mcp_pool.list_tools(endpoint(server, server_id="another"))
        await call
        assert await mcp_pool.list_tools(endpoint(server, server_id="another"))


async def test_where_connecting_fails_all_who_wait_are_told_why(server: FakeMcpServer) -> None:
    gate = asyncio.Event()
    server.fault = Fault(behind(gate, drop))
    async with reaching(server) as mcp_pool:
        listings = [asyncio.create_task(mcp_pool.list_tools(endpoint(server))) for _ in range(5)]
        await until(lambda: server.requests)
        gate.set()
        failures = await asyncio.gather(*listings, return_exceptions=True)
        assert [getattr(failure, "cause", failure) for failure in failures] == ["closed"] * 5
        assert [request.rpc_method for request in server.requests] == ["server/discover", "initialize"]
        server.fault = None
        assert await mcp_pool.list_tools(endpoint(server)) == server.tools


async def test_one_who_goes_while_connecting_leaves_the_others_and_the_connection_alone(server: FakeMcpServer) -> None:
    gate = asyncio.Event()
    server.fault = Fault(behind(gate, OLDER), on=FIRST_WORD)
    async with reaching(server) as mcp_pool:
        first, second = [asyncio.create_task(mcp_pool.list_tools(endpoint(server))) for _ in range(2)]
        await until(lambda: server.requests)
        first.cancel()
        await asyncio.wait({first})
        assert first.cancelled()
        gate.set()
        assert await second == server.tools
        assert sessions(server) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_when_all_go_while_connecting_nothing_is_left_over(server: FakeMcpServer, fails: bool) -> None:
    gate = asyncio.Event()
    server.fault = Fault(behind(gate, drop)) if fails else Fault(behind(gate, OLDER), on=FIRST_WORD)
    async with reaching(server) as mcp_pool:
        listing = asyncio.create_task(mcp_pool.list_tools(endpoint(server)))
        await until(lambda: server.requests)
        [place] = mcp_pool._places.values()
        listing.cancel()
        await asyncio.wait({listing})
        gate.set()
        await until(place.opening.done)
        if not fails:
            mcp_pool._reap(time.monotonic())
            await until(lambda: farewells(server) == 1)
        await until(lambda: not mcp_pool._places)
        server.fault = None
        assert await mcp_pool.list_tools(endpoint(server)) == server.tools


async def test_a_connection_that_failed_someone_gets_no_new_users(server: FakeMcpServer) -> None:
    """Those who are on it end what they began; whatever is broken of it breaks nothing else."""
    async with reaching(server) as mcp_pool:
        async with calling(mcp_pool, server) as call:
            server.fault = Fault(drop, on={"tools/call"})
            with pytest.raises(ToolFailed):
                await mcp_pool.call_tool(endpoint(server), "echo", {}, 60)
            server.fault = None
            await mcp_pool.list_tools(endpoint(server))
            assert sessions(server) == 2
            assert farewells(server) == 0
        assert (await call)["content"]
        await until(lambda: farewells(server) == 1)


async def test_closing_ends_what_is_under_way_and_begins_nothing_new(server: FakeMcpServer) -> None:
    async with reaching(server) as mcp_pool:
        await mcp_pool.list_tools(endpoint(server))
        server.fault = Fault(hang, on={"tools/list", "tools/call"})
        listing = asyncio.create_task(mcp_pool.list_tools(endpoint(server)))
        call = asyncio.create_task(mcp_pool.call_tool(endpoint(server), "echo", {}, 60))
        await until(lambda: server.listings == 2 and server.calls)
        with within(2):
            await mcp_pool.aclose()
        with pytest.raises(ServerUnreachable) as failure:
            await listing
        assert failure.value.cause == "closed"
        with pytest.raises(ToolFailed) as unknown:
            await call
        assert unknown.value.outcome == "unknown"
        with pytest.raises(ServerUnreachable, match="stopping"):
            await mcp_pool.list_tools(endpoint(server))
    assert sessions(server) == 1


async def test_closing_while_connecting_tells_those_who_wait(server: FakeMcpServer) -> None:
    server.fault = Fault(hang)
    async with reaching(server) as mcp_pool:
        listing = asyncio.create_task(mcp_pool.list_tools(endpoint(server)))
        await until(lambda: server.requests)
        just_begun = asyncio.create_task(mcp_pool.list_tools(endpoint(server, server_id="another")))
        await asyncio.sleep(0)
        with within(1):
            await mcp_pool.aclose()
        for task in (listing, just_begun):
            with pytest.raises(ServerUnreachable) as failure:
                await task
            assert failure.value.cause == "closed"


async def test_closing_does_not_wait_for_servers_that_do_not_say_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_CLOSING_S", 1.0)
    async with AsyncExitStack() as stack:
        servers = [stack.enter_context(running_mcp_server(era="legacy")) for _ in range(3)]
        async with reaching(*servers) as mcp_pool:
            await asyncio.gather(*[mcp_pool.list_tools(endpoint(each, server_id=str(each.port))) for each in servers])
            for each in servers:
                each.fault = Fault(hang)
            with within(1.5):
                await mcp_pool.aclose()
            assert all(each.requests[-1].method == "DELETE" for each in servers)


async def test_fifty_servers_that_hang_do_not_hold_up_one_that_does_not(server: FakeMcpServer) -> None:
    with listener() as silent:
        async with reaching(server, silent.port, connect_s=60) as mcp_pool:
            url = f"http://127.0.0.1:{silent.port}/mcp"
            hanging = [endpoint(server, url=url, server_id=f"hanging-{n}") for n in range(50)]
            waiting = [asyncio.create_task(mcp_pool.list_tools(each)) for each in hanging]
            await until(lambda: silent.connects == 50)
            with within(1):
                assert await mcp_pool.list_tools(endpoint(server)) == server.tools
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            with within(2):
                await asyncio.wait(waiting)


def test_it_all_works_on_the_event_loop_that_the_service_runs_on(server: FakeMcpServer, mcp: FakeMcpServer) -> None:
    async def ask() -> None:
        async with reaching(server, mcp) as mcp_pool:
            assert await mcp_pool.list_tools(endpoint(server)) == server.tools
            assert await mcp_pool.call_tool(endpoint(server), "echo", {}, 60)
            assert await mcp_pool.list_tools(endpoint(mcp, server_id="another")) == []

    with ThreadPoolExecutor(1) as elsewhere:  # here, there is a loop already
        elsewhere.submit(uvloop.run, ask()).result(60)
    assert (sessions(server), farewells(server)) == (1, 1)


async def test_the_time_for_a_call_includes_the_handshake(server: FakeMcpServer) -> None:
    server.fault = Fault(hang)
    async with reaching(server) as mcp_pool:
        with within(2), pytest.raises(ServerUnreachable) as failed:
            await mcp_pool.call_tool(endpoint(server), "echo", {}, 0.2)
        assert failed.value.cause == "timeout"
    assert server.calls == []
    server.fault = None
    async with reaching(server) as mcp_pool:
        await mcp_pool.call_tool(endpoint(server), "echo", {}, 60)
    assert len(server.calls) == 1
