"""Tests of calls during a shutdown: the caller learns that the tool may have run, and the outcome is recorded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.calls import Json, assert_ok, connect_with_tools, list_executions, wait_for_calls
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.events import parse_events
from tests.support.mcp_client import MODES, Mode, connect_client, get_error
from tests.support.mcp_server import FakeMcpServer
from tests.support.usage import uses

pytestmark = pytest.mark.no_retry


@pytest.fixture
async def shutdown(container: Container) -> AsyncIterator[asyncio.Event]:
    yield container.shutdown
    container.shutdown.clear()
    container.draining.clear()


@pytest.fixture
async def work(user: TestUser, mcp: FakeMcpServer) -> str:
    """The key of a tool that never answers."""
    await connect_with_tools(user, mcp, "work")
    mcp.stalled.add("work")
    key: str = (await user.tools())["work"]["id"]
    return key


async def await_during_shutdown(call: Awaitable[Any], mcp: FakeMcpServer, shutdown: asyncio.Event) -> Any:
    """Shut down after the call has reached the server, and return the response of the call."""
    running = asyncio.ensure_future(call)
    await wait_for_calls(mcp)
    shutdown.set()
    return await asyncio.wait_for(running, 30)


def assert_outcome_unknown(problem: Json) -> None:
    message = problem.get("detail") or problem["message"]
    assert "the service is shutting down" in message
    assert "the tool may have run" in message
    assert (problem["code"], problem["outcome"]) == ("TOOL_EXECUTION_ERROR", "unknown")


async def test_a_rest_call_is_answered_audited_and_counted(
    user: TestUser, container: Container, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    answer = await await_during_shutdown(user.http.post("/execute", json={"tool_key": work}), mcp, shutdown)
    assert_outcome_unknown(assert_problem(answer, 502, "TOOL_EXECUTION_ERROR"))
    assert await list_executions(container, user.id) == [("TOOL_EXECUTION_ERROR", work)]
    await container.usage_counters.flush()
    assert (await uses(container.database, user.id))[work] == {"called": 1, "failed": 1}
    assert len(mcp.calls) == 1


async def test_a_streamed_call_ends_with_an_error_event(
    user: TestUser, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    call = user.http.post("/execute", json={"tool_key": work}, headers={"Accept": "text/event-stream"})
    [(kind, problem)] = parse_events((await await_during_shutdown(call, mcp, shutdown)).text.splitlines())
    assert kind == "error"
    assert_outcome_unknown(problem)


@pytest.mark.parametrize("mode", MODES)
async def test_an_mcp_call_is_answered_as_a_failed_tool(
    user: TestUser, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event, address: str, mode: Mode
) -> None:
    async with connect_client(f"{address}/mcp", user.key, mode) as client:
        result = await await_during_shutdown(client.call_tool("tool_execute", {"toolKey": work}), mcp, shutdown)
    assert result.is_error
    assert_outcome_unknown(get_error(result))


async def test_a_repeated_call_gets_the_same_error_and_the_tool_never_runs_again(
    user: TestUser, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    def call() -> Awaitable[httpx.Response]:
        return user.http.post("/execute", json={"tool_key": work}, headers={"Idempotency-Key": "k"})

    first = assert_problem(await await_during_shutdown(call(), mcp, shutdown), 502, "TOOL_EXECUTION_ERROR")
    shutdown.clear()
    mcp.stalled.clear()
    again = assert_problem(await call(), 502, "TOOL_EXECUTION_ERROR")
    assert_outcome_unknown(again)
    assert again["detail"] == first["detail"]
    assert len(mcp.calls) == 1


async def test_a_call_that_has_not_started_is_not_run_and_can_be_repeated(
    user: TestUser, container: Container, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    mcp.stalled.clear()
    shutdown.set()
    headers = {"Idempotency-Key": "k"}
    assert_problem(await user.http.post("/execute", json={"tool_key": work}, headers=headers), 503, "unavailable")
    assert mcp.calls == []
    shutdown.clear()
    assert_ok(await user.http.post("/execute", json={"tool_key": work}, headers=headers))
    assert len(mcp.calls) == 1
    await container.usage_counters.flush()
    assert (await uses(container.database, user.id))[work] == {"called": 1, "succeeded": 1}


async def test_a_call_that_ends_before_the_shutdown_is_answered(
    user: TestUser, container: Container, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    running = asyncio.ensure_future(user.http.post("/execute", json={"tool_key": work}))
    await wait_for_calls(mcp)
    container.draining.set()
    mcp.stalled.clear()
    assert_ok(await running)
    assert not shutdown.is_set()
