"""Every call that may have run is counted with its outcome, and nothing that cannot have."""

from collections.abc import Awaitable, Callable

import httpx
import pytest

from app.container import Container
from tests.integration.execution.test_execute import stopped
from tests.support.calls import failed, succeeded
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, drop
from tests.support.usage import uses

STRICT = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


class World:
    def __init__(self, container: Container, user: TestUser, mcp: FakeMcpServer) -> None:
        self.container, self.user, self.mcp = container, user, mcp

    async def run(self, **fields: object) -> httpx.Response:
        key = (await self.user.tools())["read"]["id"]
        body = {"tool_key": key, "arguments": {"path": "a"}, **fields}
        return await self.user.http.post("/execute", json=body)

    async def counted(self) -> dict[str, int]:
        await self.container.usage_counters.flush()
        counts = await uses(self.container.database, self.user.id)
        return counts.get((await self.user.tools())["read"]["id"], {})


@pytest.fixture
async def world(container: Container, user: TestUser, mcp: FakeMcpServer) -> World:
    mcp.tools = [tool("read", inputSchema=STRICT)]
    await user.connect(mcp)
    return World(container, user, mcp)


async def test_a_call_that_went_well_is_a_success(world: World) -> None:
    succeeded(await world.run())
    assert await world.counted() == {"called": 1, "succeeded": 1}


async def test_a_call_that_says_it_failed_is_a_failure(world: World) -> None:
    world.mcp.on_call["read"] = lambda _: {"content": [], "isError": True}
    succeeded(await world.run())
    assert await world.counted() == {"called": 1, "failed": 1}


async def test_a_call_whose_outcome_is_unknown_is_a_failure(world: World) -> None:
    world.mcp.fault = Fault(drop, on=["tools/call"])
    failed(await world.run(), 502, "TOOL_EXECUTION_ERROR")
    assert await world.counted() == {"called": 1, "failed": 1}


async def _with_wrong_arguments(world: World) -> None:
    failed(await world.run(arguments={}), 422, "TOOL_VALIDATION_ERROR")


async def _of_what_is_not_there(world: World) -> None:
    failed(await world.run(tool_key="nothing"), 404, "TOOL_NOT_FOUND")


async def _at_a_server_that_is_away(world: World) -> None:
    with stopped(world.mcp):
        failed(await world.run(), 502, "SERVER_CONNECTION_ERROR")


@pytest.mark.parametrize("call", [_with_wrong_arguments, _of_what_is_not_there, _at_a_server_that_is_away])
async def test_what_never_reached_a_server_is_no_call(world: World, call: Callable[[World], Awaitable[None]]) -> None:
    await call(world)
    assert await world.counted() == {}
    succeeded(await world.run())
    assert await world.counted() == {"called": 1, "succeeded": 1}


async def test_an_answer_that_is_given_again_is_no_second_call(world: World) -> None:
    key = (await world.user.tools())["read"]["id"]
    body = {"tool_key": key, "arguments": {"path": "a"}}
    for _ in range(2):
        succeeded(await world.user.http.post("/execute", json=body, headers={"Idempotency-Key": "k"}))
    assert len(world.mcp.calls) == 1
    assert await world.counted() == {"called": 1, "succeeded": 1}
