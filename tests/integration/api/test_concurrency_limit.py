"""Concurrency limit: 503 or 429 with Retry-After beyond it; health endpoints are exempt."""

import asyncio

from tests.support.checks import assert_problem
from tests.support.clients import new_user
from tests.support.factories import OpenService, outbound_allow, tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.worker_steps import until


async def test_beyond_its_capacity_a_process_answers_503_until_there_is_room(
    open_service: OpenService, mcp: FakeMcpServer
) -> None:
    settings = {"max_in_flight": 2, "outbound_allow": outbound_allow(mcp)}
    async with open_service(**settings) as service, new_user(service) as user:
        mcp.tools, mcp.stalled = [tool("work")], {"work"}
        await user.connect(mcp)
        key = (await user.tools())["work"]["id"]
        calls = [asyncio.create_task(user.http.post("/execute", json={"tool_key": key})) for _ in range(2)]

        async def both_run() -> bool:
            return len(mcp.calls) == 2

        await until(both_run)
        refused = await user.http.get("/tools")
        assert_problem(refused, 503, "unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await user.http.get(path)).status_code == 200
        metrics = (await user.http.get("/metrics")).text
        assert "toolscout_requests_in_flight 2.0" in metrics
        assert 'toolscout_requests_refused_total{reason="overloaded"} 1.0' in metrics
        mcp.stalled = set()
        assert [(await call).status_code for call in calls] == [200, 200]
        assert (await user.http.get("/tools")).status_code == 200
        assert "toolscout_requests_in_flight 0.0" in (await user.http.get("/metrics")).text


async def test_one_user_does_not_fill_a_process_for_the_others(open_service: OpenService, mcp: FakeMcpServer) -> None:
    settings = {"max_in_flight": 5, "outbound_allow": outbound_allow(mcp)}
    async with open_service(**settings) as service, new_user(service) as greedy, new_user(service) as other:
        mcp.tools, mcp.stalled = [tool("work")], {"work"}
        await greedy.connect(mcp)
        key = (await greedy.tools())["work"]["id"]
        calls = [asyncio.create_task(greedy.http.post("/execute", json={"tool_key": key})) for _ in range(4)]

        async def all_run() -> bool:
            return len(mcp.calls) == len(calls)

        await until(all_run)
        refused = await greedy.http.get("/tools")
        assert_problem(refused, 429, "rate_limited")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await other.http.get("/tools")).status_code == 200
        mcp.stalled = set()
        assert [(await call).status_code for call in calls] == [200] * 4
        assert (await greedy.http.get("/tools")).status_code == 200
