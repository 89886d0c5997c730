"""Tests of usage counts: every call that may have run is read_counts with its outcome, and no other call is."""

from collections.abc import Awaitable, Callable

import httpx
import pytest

from app.container import Container
from tests.support.calls import assert_ok, stopped_server
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, drop
from tests.support.usage import uses

STRICT = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


class CallScenario:
    def __init__(self, container: Container, user: TestUser, mcp: FakeMcpServer) -> None:
        self.container, self.user, self.mcp = container, user, mcp

    async def run(self, **fields: object) -> httpx.Response:
        key = (await self.user.tools())["read"]["id"]
        body = {"tool_key": key, "arguments": {"path": "a"}, **fields}
        return await self.user.http.post("/execute", json=body)

    async def read_counts(self) -> dict[str, int]:
        await self.container.usage_counters.flush()
        counts = await uses(self.container.database, self.user.id)
        return counts.get((await self.user.tools())["read"]["id"], {})


@pytest.fixture
async def scenario(container: Container, user: TestUser, mcp: FakeMcpServer) -> CallScenario:
    mcp.tools = [tool("read", inputSchema=STRICT)]
    await user.connect(mcp)
    return CallScenario(container, user, mcp)


async def test_a_successful_call_is_counted_as_a_success(scenario: CallScenario) -> None:
    assert_ok(await scenario.run())
    assert await scenario.read_counts() == {"called": 1, "succeeded": 1}


async def test_a_result_with_is_error_is_counted_as_a_failure(scenario: CallScenario) -> None:
    scenario.mcp.on_call["read"] = lambda _: {"content": [], "isError": True}
    assert_ok(await scenario.run())
    assert await scenario.read_counts() == {"called": 1, "failed": 1}


async def test_a_call_with_an_unknown_outcome_is_counted_as_a_failure(scenario: CallScenario) -> None:
    scenario.mcp.fault = Fault(drop, on=["tools/call"])
    assert_problem(await scenario.run(), 502, "TOOL_EXECUTION_ERROR")
    assert await scenario.read_counts() == {"called": 1, "failed": 1}


async def _call_with_invalid_arguments(scenario: CallScenario) -> None:
    assert_problem(await scenario.run(arguments={}), 422, "TOOL_VALIDATION_ERROR")


async def _call_missing_tool(scenario: CallScenario) -> None:
    assert_problem(await scenario.run(tool_key="nothing"), 404, "TOOL_NOT_FOUND")


async def _call_unreachable_server(scenario: CallScenario) -> None:
    with stopped_server(scenario.mcp):
        assert_problem(await scenario.run(), 502, "SERVER_CONNECTION_ERROR")


@pytest.mark.parametrize("call", [_call_with_invalid_arguments, _call_missing_tool, _call_unreachable_server])
async def test_a_call_that_never_reached_a_server_is_not_counted(
    scenario: CallScenario, call: Callable[[CallScenario], Awaitable[None]]
) -> None:
    await call(scenario)
    assert await scenario.read_counts() == {}
    assert_ok(await scenario.run())
    assert await scenario.read_counts() == {"called": 1, "succeeded": 1}


async def test_a_replayed_call_is_not_counted_again(scenario: CallScenario) -> None:
    key = (await scenario.user.tools())["read"]["id"]
    body = {"tool_key": key, "arguments": {"path": "a"}}
    for _ in range(2):
        assert_ok(await scenario.user.http.post("/execute", json=body, headers={"Idempotency-Key": "k"}))
    assert len(scenario.mcp.calls) == 1
    assert await scenario.read_counts() == {"called": 1, "succeeded": 1}
