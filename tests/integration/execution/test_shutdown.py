"""A service that stops tells whoever waits for a tool that it may have run, at every door, and writes it down."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import httpx
import pytest

from app.container import Container
from tests.integration.execution.test_execute import offer
from tests.support.calls import Json, executions, failed, succeeded
from tests.support.clients import TestUser
from tests.support.events import events_of
from tests.support.mcp_client import MODES, Mode, client_at, error_of
from tests.support.mcp_server import FakeMcpServer
from tests.support.usage import uses
from tests.support.worker_steps import until

pytestmark = pytest.mark.no_retry


@pytest.fixture
async def shutdown(container: Container) -> AsyncIterator[asyncio.Event]:
    yield container.shutdown
    container.shutdown.clear()
    container.draining.clear()


@pytest.fixture
async def work(user: TestUser, mcp: FakeMcpServer) -> str:
    """The key of a tool that does not end."""
    await offer(user, mcp, "work")
    mcp.stalled.add("work")
    key: str = (await user.tools())["work"]["id"]
    return key


async def given_up(call: Awaitable[Any], mcp: FakeMcpServer, shutdown: asyncio.Event) -> Any:
    """What the call answers when the service leaves after it has reached the server."""
    running = asyncio.ensure_future(call)

    async def reached() -> bool:
        return len(mcp.calls) == 1

    await until(reached)
    shutdown.set()
    return await asyncio.wait_for(running, 30)


def is_unknown(problem: Json) -> bool:
    words = problem.get("detail") or problem["message"]
    assert "the service is being stopped" in words
    assert "it may have run" in words
    return (problem["code"], problem["outcome"]) == ("TOOL_EXECUTION_ERROR", "unknown")


async def test_a_call_over_rest_is_told_written_down_and_counted(
    user: TestUser, container: Container, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    answer = await given_up(user.http.post("/execute", json={"tool_key": work}), mcp, shutdown)
    assert is_unknown(failed(answer, 502, "TOOL_EXECUTION_ERROR"))
    assert await executions(container, user.id) == [("TOOL_EXECUTION_ERROR", work)]
    await container.usage_counters.flush()
    assert (await uses(container.database, user.id))[work] == {"called": 1, "failed": 1}
    assert len(mcp.calls) == 1


async def test_a_call_that_is_watched_ends_with_an_event(
    user: TestUser, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    call = user.http.post("/execute", json={"tool_key": work}, headers={"Accept": "text/event-stream"})
    [(kind, problem)] = events_of((await given_up(call, mcp, shutdown)).text.splitlines())
    assert kind == "error"
    assert is_unknown(problem)


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_over_mcp_is_told_as_a_tool_that_failed(
    user: TestUser, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event, address: str, mode: Mode
) -> None:
    async with client_at(f"{address}/mcp", user.key, mode) as client:
        result = await given_up(client.call_tool("tool_execute", {"toolKey": work}), mcp, shutdown)
    assert result.is_error
    assert is_unknown(error_of(result))


async def test_whoever_repeats_it_elsewhere_is_told_the_same_and_it_never_runs_again(
    user: TestUser, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    def call() -> Awaitable[httpx.Response]:
        return user.http.post("/execute", json={"tool_key": work}, headers={"Idempotency-Key": "k"})

    first = failed(await given_up(call(), mcp, shutdown), 502, "TOOL_EXECUTION_ERROR")
    shutdown.clear()
    mcp.stalled.clear()
    again = failed(await call(), 502, "TOOL_EXECUTION_ERROR")
    assert is_unknown(again)
    assert again["detail"] == first["detail"]
    assert len(mcp.calls) == 1


async def test_what_has_not_begun_by_then_is_not_begun_and_may_be_repeated(
    user: TestUser, container: Container, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    mcp.stalled.clear()
    shutdown.set()
    headers = {"Idempotency-Key": "k"}
    failed(await user.http.post("/execute", json={"tool_key": work}, headers=headers), 503, "unavailable")
    assert mcp.calls == []
    shutdown.clear()
    succeeded(await user.http.post("/execute", json={"tool_key": work}, headers=headers))
    assert len(mcp.calls) == 1
    await container.usage_counters.flush()
    assert (await uses(container.database, user.id))[work] == {"called": 1, "succeeded": 1}


async def test_a_call_that_ends_before_then_is_answered(
    user: TestUser, container: Container, mcp: FakeMcpServer, work: str, shutdown: asyncio.Event
) -> None:
    running = asyncio.ensure_future(user.http.post("/execute", json={"tool_key": work}))

    async def reached() -> bool:
        return len(mcp.calls) == 1

    await until(reached)
    container.draining.set()
    mcp.stalled.clear()
    succeeded(await running)
    assert not shutdown.is_set()
