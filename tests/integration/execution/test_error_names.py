"""Errors of a tool call name the tool and its server, over REST, MCP and in the Python client."""

import asyncio
import uuid
from typing import Any

import httpx
import pytest

from app.execution import call_record
from tests.support.calls import (
    Json,
    assert_ok,
    connect_with_tools,
    raise_disk_full,
    stopped_server,
    wait_for_calls,
)
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.events import parse_events
from tests.support.factories import tool
from tests.support.mcp_client import call_meta_tool, get_error, get_text
from tests.support.mcp_server import FakeMcpServer, Fault, drop

NAMES = {"server": "files", "tool": "pay"}
NUMBER_SCHEMA = {"type": "object", "properties": {"sum": {"type": "number"}}}


def names_in(fields: Json) -> Json:
    return {name: fields[name] for name in ("server", "tool") if name in fields}


async def send(user: TestUser, arguments: Json | None = None, key: str | None = None, **fields: Any) -> httpx.Response:
    body = {"tool_key": (await user.tools())["pay"]["id"], "arguments": arguments or {}, **fields}
    return await user.http.post("/execute", json=body, headers={} if key is None else {"Idempotency-Key": key})


async def test_arguments_that_do_not_match_name_the_tool(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("pay", inputSchema=NUMBER_SCHEMA)]
    await user.connect(mcp)
    assert names_in(assert_problem(await send(user, {"sum": "x"}), 422, "TOOL_VALIDATION_ERROR")) == NAMES
    call = {"type": "tool_use", "name": "pay", "input": {"sum": "x"}}
    problem = assert_problem(await user.http.post("/execute", json={"tool_call": call}), 422, "TOOL_VALIDATION_ERROR")
    assert names_in(problem) == NAMES
    assert_ok(await send(user, {"sum": 1}))


async def test_a_server_that_cannot_be_reached_is_named(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    with stopped_server(mcp):
        assert names_in(assert_problem(await send(user), 502, "SERVER_CONNECTION_ERROR")) == NAMES


async def test_a_push_server_is_named(user: TestUser) -> None:
    await user.add_tools(tool("pay"))
    assert names_in(assert_problem(await send(user), 502, "SERVER_CONNECTION_ERROR")) == NAMES


async def test_a_tool_that_is_too_slow_is_named(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    mcp.stalled.add("pay")
    assert names_in(assert_problem(await send(user, timeout_ms=500), 504, "TOOL_EXECUTION_TIMEOUT")) == NAMES


async def test_a_failed_tool_is_named_also_when_the_failure_is_replayed(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    mcp.on_call["pay"] = raise_disk_full
    for _ in range(2):
        assert names_in(assert_problem(await send(user, key="k"), 502, "TOOL_EXECUTION_ERROR")) == NAMES
    mcp.on_call.clear()
    mcp.fault = Fault(drop, on=["tools/call"])
    assert names_in(assert_problem(await send(user, key="other"), 502, "TOOL_EXECUTION_ERROR")) == NAMES
    [pay] = (await user.tools()).values()
    await user.http.patch(f"/tools/{pay['id']}", json={"enabled": False})
    replayed = await send(user, key="k")
    assert names_in(assert_problem(replayed, 502, "TOOL_EXECUTION_ERROR")) == NAMES, "names are stored with the outcome"


async def test_the_tool_of_a_failure_that_an_older_version_stored_is_looked_up(
    user: TestUser, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connect_with_tools(user, mcp, "pay")
    mcp.on_call["pay"] = raise_disk_full
    dump_outcome = call_record._dump_outcome

    def dump_without_names(*args: Any) -> Json:
        return {"failed": dump_outcome(*args)["failed"]}

    with monkeypatch.context() as patched:
        patched.setattr(call_record, "_dump_outcome", dump_without_names)
        assert_problem(await send(user, key="k"), 502, "TOOL_EXECUTION_ERROR")
    assert names_in(assert_problem(await send(user, key="k"), 502, "TOOL_EXECUTION_ERROR")) == NAMES


async def test_a_conflict_of_idempotency_keys_names_the_tool(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    mcp.stalled.add("pay")
    running = asyncio.create_task(send(user, key="k"))
    await wait_for_calls(mcp)
    assert names_in(assert_problem(await send(user, key="k"), 409, "conflict")) == NAMES
    mcp.stalled.clear()
    assert_ok(await running)
    assert names_in(assert_problem(await send(user, {"sum": 1}, key="k"), 422, "invalid_input")) == NAMES


async def test_an_error_event_names_the_tool(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    mcp.on_call["pay"] = raise_disk_full
    body = {"tool_key": (await user.tools())["pay"]["id"]}
    answer = await user.http.post("/execute", json=body, headers={"Accept": "text/event-stream"})
    [(name, problem)] = parse_events(answer.text.splitlines())
    assert (name, names_in(problem)) == ("error", NAMES)


async def test_a_tool_that_is_not_visible_is_not_named(user: TestUser, other_user: TestUser) -> None:
    await other_user.add_tools(tool("pay"))
    foreign = (await other_user.tools())["pay"]["id"]
    for key in (foreign, str(uuid.uuid4())):
        problem = assert_problem(await user.http.post("/execute", json={"tool_key": key}), 404, "TOOL_NOT_FOUND")
        assert names_in(problem) == {}


async def test_an_idempotency_conflict_does_not_name_another_users_tool(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, mcp, "pay")
    await other_user.add_tools(tool("theirs"))
    assert_ok(await send(user, key="k"))
    body = {"tool_key": (await other_user.tools())["theirs"]["id"]}
    answer = await user.http.post("/execute", json=body, headers={"Idempotency-Key": "k"})
    assert names_in(assert_problem(answer, 422, "invalid_input")) == {}


async def test_an_mcp_client_gets_the_names_too(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("pay", inputSchema=NUMBER_SCHEMA)]
    await user.connect(mcp)
    arguments: Json = {"toolKey": (await user.tools())["pay"]["id"]}
    invalid = await call_meta_tool(user.http, "tool_execute", arguments | {"arguments": {"sum": "x"}})
    assert names_in(get_error(invalid)) == NAMES
    assert "The tool was pay of files." in get_text(invalid)
    mcp.on_call["pay"] = raise_disk_full
    assert names_in(get_error(await call_meta_tool(user.http, "tool_execute", arguments))) == NAMES
    unknown = await call_meta_tool(user.http, "tool_execute", {"toolKey": str(uuid.uuid4())})
    assert names_in(get_error(unknown)) == {}
