"""Tests of `POST /execute`: valid and invalid bodies, tool calls in the models' formats, and progress events."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from app.container import Container
from tests.support.calls import (
    Json,
    assert_ok,
    connect_with_tools,
    list_executions,
    raise_disk_full,
    stopped_server,
    wait_for_calls,
)
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, get_app
from tests.support.events import parse_events
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, drop
from tests.support.worker_steps import until

EVENTS = {"Accept": "text/event-stream"}


def make_tool_call(format_name: str, name: str, arguments: Json) -> Json:
    """Return a tool call as the model's API returns it."""
    arguments_text = json.dumps(arguments)
    calls: dict[str, Json] = {
        "openai": {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments_text}},
        "openai_responses": {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "call_1",
            "name": name,
            "arguments": arguments_text,
            "status": "completed",
        },
        "anthropic": {"id": "toolu_1", "type": "tool_use", "name": name, "input": arguments},
    }
    return calls[format_name]


def get_name(format_name: str, definition: Json) -> str:
    name: str = definition["function"]["name"] if format_name == "openai" else definition["name"]
    return name


@pytest.mark.parametrize("format_name", ["openai", "openai_responses", "anthropic"])
async def test_a_models_tool_call_runs_the_tool_that_it_names(
    user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, format_name: str
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("read file"), tool("search"), tool("plain")], [tool("search")]
    await user.connect(mcp, "here")
    await user.connect(legacy_mcp, "there")
    items = (await user.http.get("/tools")).json()["items"]
    discovery = await user.discover("anything", keep=[item["id"] for item in items], format=format_name)
    assert len(discovery["definitions"]) == 4
    for hit, definition in zip(discovery["tools"], discovery["definitions"], strict=True):
        call = make_tool_call(format_name, get_name(format_name, definition), {"path": "ü", "n": [1]})
        body = assert_ok(await user.http.post("/execute", json={"tool_call": call}))
        assert (body["tool_key"], body["server_id"]) == (hit["tool_key"], hit["server_id"])
    assert sorted(name for name, _ in mcp.calls) == ["plain", "read file", "search"]
    assert legacy_mcp.calls == [("search", {"path": "ü", "n": [1]})]


@pytest.mark.parametrize("arguments_text", ["", "{}", None])
async def test_missing_arguments_of_a_model_are_an_empty_object(
    user: TestUser, mcp: FakeMcpServer, arguments_text: str | None
) -> None:
    await connect_with_tools(user, mcp, "now")
    calls: list[Json] = [
        {"type": "function", "function": {"name": "now", "arguments": arguments_text}},
        {"type": "function_call", "name": "now", "arguments": arguments_text},
        {"type": "tool_use", "name": "now"},
    ]
    for call in calls:
        assert_ok(await user.http.post("/execute", json={"tool_call": call}))
    assert mcp.calls == [("now", {})] * 3


@pytest.mark.parametrize(
    "arguments_text",
    ["{", "[1]", "null", "1", '"x"', '{"a": NaN}', '{"a": "\\u0000"}', '{"a": "\\ud800"}', "{} {}", "{'a': 1}"],
)
async def test_arguments_of_a_model_that_are_not_a_json_object_are_rejected(
    user: TestUser, mcp: FakeMcpServer, arguments_text: str
) -> None:
    await connect_with_tools(user, mcp, "now")
    for call in (
        {"type": "function", "function": {"name": "now", "arguments": arguments_text}},
        {"type": "function_call", "name": "now", "arguments": arguments_text},
    ):
        problem = assert_problem(
            await user.http.post("/execute", json={"tool_call": call}), 422, "TOOL_VALIDATION_ERROR"
        )
        assert "arguments" in problem["detail"]
    assert mcp.calls == []


@pytest.mark.parametrize("value", [[1], "x", 5, True])
async def test_an_anthropic_input_that_is_not_an_object_is_rejected(
    user: TestUser, mcp: FakeMcpServer, value: Any
) -> None:
    await connect_with_tools(user, mcp, "now")
    call = {"type": "tool_use", "name": "now", "input": value}
    assert_problem(await user.http.post("/execute", json={"tool_call": call}), 422, "TOOL_VALIDATION_ERROR")
    assert_ok(await user.http.post("/execute", json={"tool_call": call | {"input": {}}}))


KEY = "00000000-0000-0000-0000-000000000000"
ANTHROPIC_CALL = {"type": "tool_use", "name": "now", "input": {}}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"arguments": {}},
        {"tool_key": KEY, "tool_call": ANTHROPIC_CALL},
        {"tool_call": ANTHROPIC_CALL, "arguments": {}},
        {"tool_key": ""},
        {"tool_key": "x" * 301},
        {"tool_key": 5},
        {"tool_key": KEY, "arguments": []},
        {"tool_key": KEY, "arguments": "{}"},
        {"tool_key": KEY, "timeout_ms": 0},
        {"tool_key": KEY, "timeout_ms": 3_600_001},
        {"tool_key": KEY, "timeout_ms": "200"},
        {"tool_key": KEY, "timeout_ms": 1.5},
        {"tool_key": KEY, "timeout_s": 1},
        {"tool_call": {"type": "custom", "name": "now"}},
        {"tool_call": []},
        {"tool_call": {"type": "tool_use"}},
        {"tool_call": {"type": "function", "function": {"name": "now", "arguments": {}}}},
        {"tool_call": {"type": "tool_use", "name": "x" * 257}},
    ],
    ids=str,
)
async def test_an_invalid_body_is_rejected(user: TestUser, body: Json) -> None:
    assert_problem(await user.http.post("/execute", json=body), 422, "invalid_input")
    assert_problem(
        await user.http.post("/execute", json={"tool_key": KEY, "timeout_ms": 3_600_000}), 404, "TOOL_NOT_FOUND"
    )


@pytest.mark.parametrize("call", [{"name": "now"}, {"type": "custom", "name": "now"}])
async def test_the_error_for_an_unknown_call_type_names_the_known_types(user: TestUser, call: Json) -> None:
    problem = assert_problem(await user.http.post("/execute", json={"tool_call": call}), 422, "invalid_input")
    assert problem["detail"].startswith("body.tool_call: ")
    for call_type in ("function", "function_call", "tool_use"):
        assert re.search(rf"['`]{call_type}['`]", problem["detail"])


@pytest.mark.parametrize(
    ("call", "path", "reason"),
    [
        ({"type": "function", "function": {"name": "now", "arguments": {}}}, "function.arguments", "must be JSON text"),
        ({"type": "function_call", "name": "now", "arguments": {}}, "arguments", "must be JSON text"),
        ({"type": "function", "function": {}}, "function.name", "Field required"),
        ({"type": "function", "function": "now"}, "function", "should be an object"),
        ({"type": "function"}, "function", "Field required"),
        ({"type": "tool_use"}, "name", "Field required"),
    ],
)
async def test_an_error_inside_a_tool_call_has_its_path(user: TestUser, call: Json, path: str, reason: str) -> None:
    problem = assert_problem(await user.http.post("/execute", json={"tool_call": call}), 422, "invalid_input")
    assert problem["detail"].startswith(f"body.tool_call.{path}: ")
    assert reason in problem["detail"]
    assert [error["loc"] for error in problem["errors"]] == [["body", "tool_call", *path.split(".")]]


@pytest.mark.parametrize("key", [b"", b" ", b"a b", "ü".encode(), b"x" * 256, b"a\x7f"])
async def test_an_invalid_idempotency_key_is_rejected(user: TestUser, mcp: FakeMcpServer, key: bytes) -> None:
    await connect_with_tools(user, mcp, "now")
    body = {"tool_key": (await user.tools())["now"]["id"]}
    assert_problem(
        await user.http.post("/execute", json=body, headers=[(b"Idempotency-Key", key)]), 422, "invalid_input"
    )
    assert_ok(await user.http.post("/execute", json=body, headers={"Idempotency-Key": "x" * 255}))
    assert len(mcp.calls) == 1


async def execute_streaming(
    user: TestUser, name: str, arguments: Json | None = None, key: str | None = None
) -> list[tuple[str, Any]]:
    body = {"tool_key": (await user.tools())[name]["id"], "arguments": arguments or {}}
    headers = EVENTS | ({} if key is None else {"Idempotency-Key": key})
    answer = await user.http.post("/execute", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    return list(parse_events(answer.text.splitlines()))


async def read_lines(
    address: str, user: TestUser, name: str, arguments: Json, *, until_three: str, then: Callable[[], None]
) -> list[str]:
    """Return the lines of the stream; call `then` after the third line that equals `until_three`."""
    body = {"tool_key": (await user.tools())[name]["id"], "arguments": arguments}
    headers = {"Authorization": f"Bearer {user.key}", **EVENTS}
    lines: list[str] = []
    async with (
        httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client,
        client.stream("POST", "/execute", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            lines.append(line)
            if lines.count(until_three) == 3:
                then()
    return lines


@pytest.fixture(params=["mcp", "legacy_mcp", "sse_mcp"])
def any_mcp(request: pytest.FixtureRequest) -> FakeMcpServer:
    server: FakeMcpServer = request.getfixturevalue(request.param)
    return server


async def test_progress_events_come_before_the_result(
    user: TestUser, container: Container, any_mcp: FakeMcpServer, address: str
) -> None:
    await connect_with_tools(user, any_mcp, "work")
    any_mcp.progress["work"] = 3
    any_mcp.stalled.add("work")  # else the result could overtake progress, which comes on another stream
    lines = await read_lines(address, user, "work", {"a": 1}, until_three="event: progress", then=any_mcp.stalled.clear)
    *reports, (kind, last) = parse_events(lines)
    assert reports == [("progress", {"progress": step, "total": 3, "message": f"step {step}"}) for step in (1, 2, 3)]
    assert kind == "result"
    assert last["result"]["content"] == [{"type": "text", "text": '{"a": 1}'}]
    assert last.keys() == assert_ok(await user.execute("work")).keys()
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == ["succeeded"] * 2


async def test_a_call_without_progress_is_a_single_event(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "work")
    assert [kind for kind, _ in await execute_streaming(user, "work")] == ["result"]


async def test_an_error_before_the_call_is_a_problem_and_not_an_event(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("pay", inputSchema={"type": "object", "required": ["sum"]})]
    await user.connect(mcp)
    await user.add_tools(tool("pushed"), server="pushed")
    tool_ids = {name: listed["id"] for name, listed in (await user.tools()).items()}

    async def post(tool_key: str, **headers: str) -> httpx.Response:
        return await user.http.post("/execute", json={"tool_key": tool_key}, headers={**EVENTS, **headers})

    assert_problem(await post(KEY), 404, "TOOL_NOT_FOUND")
    assert assert_problem(await post(tool_ids["pay"]), 422, "TOOL_VALIDATION_ERROR")["errors"]
    assert assert_problem(await post(tool_ids["pushed"]), 502, "SERVER_CONNECTION_ERROR")["cause"] == "push"
    assert mcp.calls == []


async def test_an_error_during_the_call_is_an_event(user: TestUser, container: Container, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "work")
    mcp.on_call["work"] = raise_disk_full
    mcp.progress["work"] = 1
    [*reports, (kind, problem)] = await execute_streaming(user, "work")
    assert (len(reports), kind) == (1, "error")
    assert (problem["status"], problem["code"], problem["outcome"]) == (502, "TOOL_EXECUTION_ERROR", "failed")
    assert "the disk is full" in problem["detail"]
    assert problem["request_id"]

    mcp.on_call, mcp.progress, mcp.fault = {}, {}, Fault(drop, on=["tools/call"])
    [(kind, problem)] = await execute_streaming(user, "work")
    assert (kind, problem["code"], problem["outcome"]) == ("error", "TOOL_EXECUTION_ERROR", "unknown")
    mcp.fault = None
    with stopped_server(mcp):
        [(kind, problem)] = await execute_streaming(user, "work")
    assert (kind, problem["code"], problem["cause"]) == ("error", "SERVER_CONNECTION_ERROR", "refused")
    outcomes = [outcome for outcome, _ in await list_executions(container, user.id)]
    assert outcomes == ["TOOL_EXECUTION_ERROR", "TOOL_EXECUTION_ERROR", "SERVER_CONNECTION_ERROR"]


async def test_a_replayed_call_is_answered_with_an_event(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "work")
    mcp.progress["work"] = 2
    *reports, first = await execute_streaming(user, "work", key="k")
    assert len(reports) == 2
    assert await execute_streaming(user, "work", key="k") == [first]
    body = {"tool_key": (await user.tools())["work"]["id"], "arguments": {"a": 1}}
    other = await user.http.post("/execute", json=body, headers={**EVENTS, "Idempotency-Key": "k"})
    assert_problem(other, 422, "invalid_input")
    assert len(mcp.calls) == 1


async def test_a_call_without_progress_sends_heartbeats(
    user: TestUser, mcp: FakeMcpServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.execution.HEARTBEAT_S", 0.02)
    await connect_with_tools(user, mcp, "work")
    mcp.stalled.add("work")
    lines = await read_lines(address, user, "work", {}, until_three=": still here", then=mcp.stalled.clear)
    assert [kind for kind, _ in parse_events(lines)] == ["result"]


class _Server(uvicorn.Server):
    """Does not install signal handlers: the test runner has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@pytest.fixture(scope="module")
async def address(container: Container) -> AsyncIterator[str]:
    """The application on a real socket, which a client can disconnect from."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(get_app(container), log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))

    async def is_started() -> bool:
        return server.started

    await until(is_started)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await serving


async def wait_for_outcome(container: Container, user: TestUser) -> str:
    """Return the audited outcome of the user's only call."""
    [(outcome, _)] = await until(lambda: list_executions(container, user.id))
    return str(outcome)


async def test_disconnecting_from_the_stream_cancels_the_call(
    user: TestUser, container: Container, any_mcp: FakeMcpServer, address: str
) -> None:
    ran: list[Json] = []

    def work(arguments: Json) -> Json:
        ran.append(arguments)
        return {"content": []}

    any_mcp.on_call["work"] = work
    await connect_with_tools(user, any_mcp, "work")
    any_mcp.progress["work"] = 1
    any_mcp.stalled.add("work")
    body = {"tool_key": (await user.tools())["work"]["id"]}
    async with (
        httpx.AsyncClient(
            base_url=address, headers={"Authorization": f"Bearer {user.key}", **EVENTS}, timeout=60
        ) as client,
        client.stream("POST", "/execute", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("event: progress"):
                break
    assert await wait_for_outcome(container, user) == "cancelled"
    assert len(any_mcp.calls) == 1

    async def server_is_notified() -> bool:
        return any_mcp.cancelled_calls == ["work"]

    await until(server_is_notified)
    any_mcp.stalled.clear()
    assert ran == []
    assert_ok(await user.execute("work"))
    assert len(ran) == 1


async def test_a_caller_that_disconnects_cancels_its_call_and_frees_its_slot(
    user: TestUser, container: Container, any_mcp: FakeMcpServer, address: str
) -> None:
    await connect_with_tools(user, any_mcp, "work")
    any_mcp.stalled.add("work")
    body = {"tool_key": (await user.tools())["work"]["id"], "timeout_ms": 3_600_000}
    headers = {"Authorization": f"Bearer {user.key}", "Idempotency-Key": "k"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        sending = asyncio.create_task(client.post("/execute", json=body))
        await wait_for_calls(any_mcp)
        assert "toolscout_requests_in_flight 1.0" in container.metrics.render().decode()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert await wait_for_outcome(container, user) == "cancelled"

    async def is_over() -> bool:
        is_free = "toolscout_requests_in_flight 0.0" in container.metrics.render().decode()
        return is_free and any_mcp.cancelled_calls == ["work"]

    await until(is_over)
    any_mcp.stalled.clear()
    again = await user.http.post("/execute", json=body, headers={"Idempotency-Key": "k"})
    assert assert_problem(again, 502, "TOOL_EXECUTION_ERROR")["outcome"] == "unknown"
    assert len(any_mcp.calls) == 1
    assert_ok(await user.http.post("/execute", json=body, headers={"Idempotency-Key": "another"}))
