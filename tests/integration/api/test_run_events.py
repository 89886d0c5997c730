"""Watching a run as server-sent events, over a real socket."""

import asyncio
import json
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx

from tests.support.checks import assert_problem, finished_run
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, respond_after, status

Json = dict[str, Any]


@asynccontextmanager
async def watch(address: str, user: TestUser, run_id: str) -> AsyncIterator[AsyncIterator[tuple[str, Json]]]:
    """Yield the events of the run as they arrive."""
    headers = {"Authorization": f"Bearer {user.key}"}
    async with (
        httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client,
        client.stream("GET", f"/runs/{run_id}/events") as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield parse_events(answer)


async def parse_events(answer: httpx.Response) -> AsyncIterator[tuple[str, Json]]:
    kind = ""
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


async def all_events(address: str, user: TestUser, run_id: str) -> list[tuple[str, Json]]:
    async with asyncio.timeout(60), watch(address, user, run_id) as events:
        return [each async for each in events]


async def request_reindex(user: TestUser, server_id: str) -> str:
    run_id: str = (await user.http.post(f"/servers/{server_id}/reindex")).json()["id"]
    return run_id


async def test_progress_is_sent_during_the_run_and_the_run_at_its_end(
    address: str, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("read", "Reads a file.")]
    server_id = await user.connect(mcp)
    mcp.stalled.add("tools/list")
    run_id = await request_reindex(user, server_id)
    async with asyncio.timeout(60), watch(address, user, run_id) as events:
        kind, first = await anext(events)
        assert (kind, first["id"], first["finished_at"]) == ("progress", run_id, None)
        current = (await user.http.get(f"/runs/{run_id}")).json()
        assert current["finished_at"] is None, "the event arrived only after the run had finished"
        mcp.stalled.clear()
        rest = [each async for each in events]
    assert [kind for kind, _ in rest[:-1]] == ["progress"] * (len(rest) - 1)
    kind, last = rest[-1]
    assert (kind, last["state"]) == ("run", "succeeded")
    assert last == (await user.http.get(f"/runs/{run_id}")).json()
    states = [first["state"], *(run["state"] for _, run in rest)]
    assert states == sorted(states, key=["queued", "running", "succeeded"].index)


async def test_every_event_differs_from_the_one_before(address: str, user: TestUser) -> None:
    tools = [tool(f"tool_{number}", f"Does {uuid.uuid4().hex}.") for number in range(80)]
    answer = await user.http.put(f"/servers/{await user.add_server()}/tools", json={"tools": tools})
    runs = [run for _, run in await all_events(address, user, answer.json()["id"])]
    assert all(before != after for before, after in pairwise(runs))
    done = [run["progress"]["done"] for run in runs]
    assert done == sorted(done)
    assert (done[-1], runs[-1]["counts"]["added"]) == (80, 80)


async def test_a_finished_run_is_sent_once(address: str, user: TestUser) -> None:
    run = await user.push(await user.add_server(), [tool("read")])
    assert await all_events(address, user, run["id"]) == [("run", run)]


async def test_a_failed_run_is_sent_with_its_cause(address: str, user: TestUser, mcp: FakeMcpServer) -> None:
    server_id = await user.connect(mcp)
    gate = threading.Event()
    mcp.fault = Fault(respond_after(gate, status(401)))
    async with asyncio.timeout(60), watch(address, user, await request_reindex(user, server_id)) as events:
        assert (await anext(events))[0] == "progress"
        gate.set()
        *_, (kind, last) = [each async for each in events]
    assert (kind, last["state"], last["error"]["cause"]) == ("run", "failed", "unauthorized")


async def test_the_stream_ends_when_the_runs_server_is_deleted(
    address: str, user: TestUser, mcp: FakeMcpServer
) -> None:
    server_id = await user.connect(mcp)
    mcp.stalled.add("tools/list")
    async with asyncio.timeout(60), watch(address, user, await request_reindex(user, server_id)) as events:
        assert (await anext(events))[0] == "progress"
        assert (await user.http.delete(f"/servers/{server_id}")).status_code == 204
        assert {kind async for kind, _ in events} <= {"progress"}
    mcp.stalled.clear()


async def test_a_run_of_another_user_is_not_found(user: TestUser, other_user: TestUser) -> None:
    run = await user.push(await user.add_server(), [tool("read")])
    for run_id in (run["id"], str(uuid.uuid4())):
        assert_problem(await other_user.http.get(f"/runs/{run_id}/events"), 404)
    assert (await user.http.get(f"/runs/{run['id']}/events")).status_code == 200


async def test_an_admin_watches_a_run_by_its_id_without_naming_the_user(
    user: TestUser, admin: httpx.AsyncClient
) -> None:
    run = await user.push(await user.add_server(), [tool("read")])
    answer = await admin.get(f"/runs/{run['id']}/events")
    assert answer.text.startswith("event: run\ndata: ")
    assert json.loads(answer.text.partition("data: ")[2]) == run


async def test_a_client_that_disconnects_does_not_affect_the_run(
    address: str, user: TestUser, mcp: FakeMcpServer
) -> None:
    server_id = await user.connect(mcp)
    mcp.tools = [tool("read")]
    mcp.stalled.add("tools/list")
    run_id = await request_reindex(user, server_id)
    async with watch(address, user, run_id) as events:
        assert (await anext(events))[0] == "progress"
    mcp.stalled.clear()
    assert (await finished_run(user.http, run_id))["state"] == "succeeded"
