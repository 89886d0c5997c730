"""`POST /execute` at the door: what may be said, model's own calls, and progress as events."""

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
from tests.integration.execution.test_execute import offer, refuse, stopped
from tests.support.calls import Json, executions, failed, succeeded, text
from tests.support.clients import TestUser, get_app
from tests.support.events import events_of
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, drop
from tests.support.worker_steps import until

EVENTS = {"Accept": "text/event-stream"}


def in_format(shape: str, name: str, arguments: Json) -> Json:
    """A call as the model's API gives it."""
    written = json.dumps(arguments)
    shapes: dict[str, Json] = {
        "openai": {"id": "call_1", "type": "function", "function": {"name": name, "arguments": written}},
        "openai_responses": {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "call_1",
            "name": name,
            "arguments": written,
            "status": "completed",
        },
        "anthropic": {"id": "toolu_1", "type": "tool_use", "name": name, "input": arguments},
    }
    return shapes[shape]


def name_in(shape: str, definition: Json) -> str:
    name: str = definition["function"]["name"] if shape == "openai" else definition["name"]
    return name


@pytest.mark.parametrize("shape", ["openai", "openai_responses", "anthropic"])
async def test_a_models_own_call_runs_the_tool_that_it_was_given(
    user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, shape: str
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("read file"), tool("search"), tool("plain")], [tool("search")]
    await user.connect(mcp, "here")
    await user.connect(legacy_mcp, "there")
    items = (await user.http.get("/tools")).json()["items"]
    shown = await user.discover("anything", keep=[each["id"] for each in items], format=shape)
    assert len(shown["definitions"]) == 4
    for hit, definition in zip(shown["tools"], shown["definitions"], strict=True):
        call = in_format(shape, name_in(shape, definition), {"path": "ü", "n": [1]})
        body = succeeded(await user.http.post("/execute", json={"tool_call": call}))
        assert (body["tool_key"], body["server_id"]) == (hit["tool_key"], hit["server_id"])
    assert sorted(name for name, _ in mcp.calls) == ["plain", "read file", "search"]
    assert legacy_mcp.calls == [("search", {"path": "ü", "n": [1]})]


@pytest.mark.parametrize("written", ["", "{}", None])
async def test_a_model_that_gives_no_arguments_gives_none(
    user: TestUser, mcp: FakeMcpServer, written: str | None
) -> None:
    await offer(user, mcp, "now")
    calls: list[Json] = [
        {"type": "function", "function": {"name": "now", "arguments": written}},
        {"type": "function_call", "name": "now", "arguments": written},
        {"type": "tool_use", "name": "now"},
    ]
    for call in calls:
        succeeded(await user.http.post("/execute", json={"tool_call": call}))
    assert mcp.calls == [("now", {})] * 3


@pytest.mark.parametrize(
    "written",
    ["{", "[1]", "null", "1", '"x"', '{"a": NaN}', '{"a": "\\u0000"}', '{"a": "\\ud800"}', "{} {}", "{'a': 1}"],
)
async def test_arguments_that_a_model_got_wrong_are_told_as_such(
    user: TestUser, mcp: FakeMcpServer, written: str
) -> None:
    await offer(user, mcp, "now")
    for call in (
        {"type": "function", "function": {"name": "now", "arguments": written}},
        {"type": "function_call", "name": "now", "arguments": written},
    ):
        problem = failed(await user.http.post("/execute", json={"tool_call": call}), 422, "TOOL_VALIDATION_ERROR")
        assert "arguments" in problem["detail"]
    assert mcp.calls == []


@pytest.mark.parametrize("given", [[1], "x", 5, True])
async def test_an_input_that_is_no_object_is_refused(user: TestUser, mcp: FakeMcpServer, given: Any) -> None:
    await offer(user, mcp, "now")
    call = {"type": "tool_use", "name": "now", "input": given}
    failed(await user.http.post("/execute", json={"tool_call": call}), 422, "TOOL_VALIDATION_ERROR")
    succeeded(await user.http.post("/execute", json={"tool_call": call | {"input": {}}}))


KEY = "00000000-0000-0000-0000-000000000000"
USE = {"type": "tool_use", "name": "now", "input": {}}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"arguments": {}},
        {"tool_key": KEY, "tool_call": USE},
        {"tool_call": USE, "arguments": {}},
        {"tool_key": ""},
        {"tool_key": "x" * 129},
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
async def test_a_body_that_says_it_wrong_is_refused(user: TestUser, body: Json) -> None:
    failed(await user.http.post("/execute", json=body), 422, "invalid_input")
    failed(await user.http.post("/execute", json={"tool_key": KEY, "timeout_ms": 3_600_000}), 404, "TOOL_NOT_FOUND")


@pytest.mark.parametrize("call", [{"name": "now"}, {"type": "custom", "name": "now"}])
async def test_a_call_of_no_known_type_is_told_which_there_are(user: TestUser, call: Json) -> None:
    refused = failed(await user.http.post("/execute", json={"tool_call": call}), 422, "invalid_input")
    assert refused["detail"].startswith("body.tool_call: ")
    for known in ("function", "function_call", "tool_use"):
        assert re.search(rf"['`]{known}['`]", refused["detail"])


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
async def test_what_is_wrong_within_a_call_is_told_by_its_path(
    user: TestUser, call: Json, path: str, reason: str
) -> None:
    refused = failed(await user.http.post("/execute", json={"tool_call": call}), 422, "invalid_input")
    assert refused["detail"].startswith(f"body.tool_call.{path}: ")
    assert reason in refused["detail"]
    assert [error["loc"] for error in refused["errors"]] == [["body", "tool_call", *path.split(".")]]


@pytest.mark.parametrize("key", [b"", b" ", b"a b", "ü".encode(), b"x" * 256, b"a\x7f"])
async def test_a_key_that_cannot_be_one_is_refused(user: TestUser, mcp: FakeMcpServer, key: bytes) -> None:
    await offer(user, mcp, "now")
    body = {"tool_key": (await user.tools())["now"]["id"]}
    failed(await user.http.post("/execute", json=body, headers=[(b"Idempotency-Key", key)]), 422, "invalid_input")
    succeeded(await user.http.post("/execute", json=body, headers={"Idempotency-Key": "x" * 255}))
    assert len(mcp.calls) == 1


async def streamed(
    user: TestUser, name: str, arguments: Json | None = None, key: str | None = None
) -> list[tuple[str, Any]]:
    body = {"tool_key": (await user.tools())[name]["id"], "arguments": arguments or {}}
    headers = EVENTS | ({} if key is None else {"Idempotency-Key": key})
    answer = await user.http.post("/execute", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    return list(events_of(answer.text.splitlines()))


async def lines_of(
    address: str, user: TestUser, name: str, arguments: Json, *, until_three: str, then: Callable[[], None]
) -> list[str]:
    """Of the stream, as they come; when three of that kind have come, something is to be done."""
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


async def test_progress_comes_as_events_and_the_result_at_last(
    user: TestUser, container: Container, any_mcp: FakeMcpServer, address: str
) -> None:
    await offer(user, any_mcp, "work")
    any_mcp.progress["work"] = 3
    any_mcp.stalled.add("work")  # what is said on one stream may overtake what was said on another
    lines = await lines_of(address, user, "work", {"a": 1}, until_three="event: progress", then=any_mcp.stalled.clear)
    *reports, (kind, last) = events_of(lines)
    assert reports == [("progress", {"progress": step, "total": 3, "message": f"step {step}"}) for step in (1, 2, 3)]
    assert kind == "result"
    assert last["result"]["content"] == [{"type": "text", "text": '{"a": 1}'}]
    assert last.keys() == succeeded(await user.execute("work")).keys()
    assert [outcome for outcome, _ in await executions(container, user.id)] == ["succeeded"] * 2


async def test_a_call_without_progress_is_one_event(user: TestUser, mcp: FakeMcpServer) -> None:
    await offer(user, mcp, "work")
    assert [kind for kind, _ in await streamed(user, "work")] == ["result"]


async def test_what_is_wrong_before_the_call_is_a_plain_problem(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("pay", inputSchema={"type": "object", "required": ["sum"]})]
    await user.connect(mcp)
    await user.add_tools(tool("pushed"), server="pushed")
    known = {name: shown["id"] for name, shown in (await user.tools()).items()}

    async def ask(tool_key: str, **headers: str) -> httpx.Response:
        return await user.http.post("/execute", json={"tool_key": tool_key}, headers={**EVENTS, **headers})

    failed(await ask(KEY), 404, "TOOL_NOT_FOUND")
    assert failed(await ask(known["pay"]), 422, "TOOL_VALIDATION_ERROR")["errors"]
    assert failed(await ask(known["pushed"]), 502, "SERVER_CONNECTION_ERROR")["cause"] == "push"
    assert mcp.calls == []


async def test_what_goes_wrong_in_the_call_is_an_event(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await offer(user, mcp, "work")
    mcp.on_call["work"] = refuse
    mcp.progress["work"] = 1
    [*reports, (kind, problem)] = await streamed(user, "work")
    assert (len(reports), kind) == (1, "error")
    assert (problem["status"], problem["code"], problem["outcome"]) == (502, "TOOL_EXECUTION_ERROR", "failed")
    assert "the disk is full" in problem["detail"]
    assert problem["request_id"]

    mcp.on_call, mcp.progress, mcp.fault = {}, {}, Fault(drop, on=["tools/call"])
    [(kind, problem)] = await streamed(user, "work")
    assert (kind, problem["code"], problem["outcome"]) == ("error", "TOOL_EXECUTION_ERROR", "unknown")
    mcp.fault = None
    with stopped(mcp):
        [(kind, problem)] = await streamed(user, "work")
    assert (kind, problem["code"], problem["cause"]) == ("error", "SERVER_CONNECTION_ERROR", "refused")
    outcomes = [outcome for outcome, _ in await executions(container, user.id)]
    assert outcomes == ["TOOL_EXECUTION_ERROR", "TOOL_EXECUTION_ERROR", "SERVER_CONNECTION_ERROR"]


async def test_a_repeated_call_is_answered_as_events_too(user: TestUser, mcp: FakeMcpServer) -> None:
    await offer(user, mcp, "work")
    mcp.progress["work"] = 2
    *reports, first = await streamed(user, "work", key="k")
    assert len(reports) == 2
    assert await streamed(user, "work", key="k") == [first]
    body = {"tool_key": (await user.tools())["work"]["id"], "arguments": {"a": 1}}
    other = await user.http.post("/execute", json=body, headers={**EVENTS, "Idempotency-Key": "k"})
    failed(other, 422, "invalid_input")
    assert len(mcp.calls) == 1


async def test_a_silent_call_shows_that_it_is_still_there(
    user: TestUser, mcp: FakeMcpServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.execution.HEARTBEAT_S", 0.02)
    await offer(user, mcp, "work")
    mcp.stalled.add("work")
    lines = await lines_of(address, user, "work", {}, until_three=": still here", then=mcp.stalled.clear)
    assert [kind for kind, _ in events_of(lines)] == ["result"]


class _Server(uvicorn.Server):
    """Beside a test runner, which has its own handlers for signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@pytest.fixture(scope="module")
async def address(container: Container) -> AsyncIterator[str]:
    """The application behind real sockets: only those can be left."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(get_app(container), log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))

    async def started() -> bool:
        return server.started

    await until(started)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await serving


async def outcome_of(container: Container, user: TestUser) -> str:
    """Of the user's only call, once it has one."""
    [(outcome, _)] = await until(lambda: executions(container, user.id))
    return str(outcome)


async def test_whoever_stops_listening_stops_the_call(
    user: TestUser, container: Container, any_mcp: FakeMcpServer, address: str
) -> None:
    ran: list[Json] = []

    def work(arguments: Json) -> Json:
        ran.append(arguments)
        return {"content": []}

    any_mcp.on_call["work"] = work
    await offer(user, any_mcp, "work")
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
    assert await outcome_of(container, user) == "cancelled"
    assert len(any_mcp.calls) == 1

    async def told() -> bool:
        return any_mcp.given_up == ["work"]

    await until(told)
    any_mcp.stalled.clear()
    assert ran == []
    succeeded(await user.execute("work"))
    assert len(ran) == 1


async def test_a_plain_call_goes_on_though_its_caller_has_left_and_its_answer_is_kept(
    user: TestUser, container: Container, mcp: FakeMcpServer, address: str
) -> None:
    await offer(user, mcp, "work")
    mcp.stalled.add("work")
    body = {"tool_key": (await user.tools())["work"]["id"]}
    headers = {"Authorization": f"Bearer {user.key}", "Idempotency-Key": "k"}

    async def called() -> bool:
        return len(mcp.calls) == 1

    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        shutdown = asyncio.create_task(client.post("/execute", json=body))
        await until(called)
        shutdown.cancel()
        await asyncio.gather(shutdown, return_exceptions=True)
    await asyncio.sleep(0.1)  # the service has time to notice
    mcp.stalled.clear()
    assert await outcome_of(container, user) == "succeeded"
    again = await user.http.post("/execute", json=body, headers={"Idempotency-Key": "k"})
    assert text(again) == "{}"
    assert len(mcp.calls) == 1
