"""Tests of `tool_execute`: it runs a tool on its server once and forwards the result; errors have a text for models and
a code for programs."""

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    SERVER_INFO_META_KEY,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
)

from app.catalog.visibility import apply_policy
from app.catalog.visibility_policy import Policy
from app.container import Container
from app.mcp_client import connection
from app.mcp_server.responses import ERROR_META, TRUNCATED_META
from tests.support.calls import list_executions, raise_disk_full
from tests.support.clients import TestUser, open_client
from tests.support.factories import tool
from tests.support.mcp_client import (
    MODES,
    OLDER_HEADERS,
    Json,
    Mode,
    call_meta_tool,
    connect_client,
    get_error,
    get_text,
    make_headers,
    make_message,
    send_message,
)
from tests.support.mcp_server import FakeMcpServer, Fault, Received, drop, status
from tests.support.worker_steps import until

FIXTURES = ["mcp", "legacy_mcp", "sse_mcp"]
HANDSHAKE_METHODS = {"initialize", "server/discover"}

ALL_CONTENT_TYPES: Json = {
    "content": [
        {"type": "text", "text": "grün 🦉\u2028", "annotations": {"audience": ["user"], "priority": 0.5}},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav", "_meta": {"length": 1}},
        {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"},
        {"type": "resource", "resource": {"uri": "file:///b.txt", "mimeType": "text/plain", "text": "b"}},
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "aGk="}},
    ],
    "structuredContent": {"list": [1, 2.5, None, True, {"deep": {"er": None}}], "none": None, "z": 1, "a": []},
    "_meta": {"example.com/trace": "abc"},
}


@pytest.fixture(params=FIXTURES)
def any_mcp(request: pytest.FixtureRequest) -> FakeMcpServer:
    server: FakeMcpServer = request.getfixturevalue(request.param)
    return server


async def connect_tools(user: TestUser, mcp: FakeMcpServer, *names: str, server: str = "files") -> dict[str, str]:
    """Register the fake server with tools of these names and return the key of each tool."""
    mcp.tools = [tool(name) for name in names]
    server_id = await user.connect(mcp, server)
    answer = await user.http.get("/tools", params={"server_id": server_id, "limit": 200})
    return {item["name"]: item["id"] for item in answer.json()["items"] if item["server_id"] == server_id}


async def execute_with_client(
    client: Client, key: str, arguments: Json | None = None, **options: Any
) -> CallToolResult:
    return await client.call_tool("tool_execute", {"toolKey": key, "arguments": arguments or {}}, **options)


async def execute_with_message(http: httpx.AsyncClient, key: str, arguments: Json | None = None) -> Json:
    """Call `tool_execute` with a bare message."""
    return await call_meta_tool(http, "tool_execute", {"toolKey": key, "arguments": arguments or {}})


def received_calls(mcp: FakeMcpServer) -> list[Received]:
    return [request for request in mcp.requests if request.rpc_method == "tools/call"]


def count_handshakes(mcp: FakeMcpServer) -> int:
    return sum(request.rpc_method in HANDSHAKE_METHODS for request in mcp.requests)


async def wait_until(condition: Callable[[], object]) -> None:
    async def condition_holds() -> bool:
        return bool(condition())

    await until(condition_holds)


# Results


async def test_a_result_is_forwarded_unchanged_from_every_server_to_every_client(
    user: TestUser, address: str, any_mcp: FakeMcpServer
) -> None:
    any_mcp.on_call = {"show": lambda _: ALL_CONTENT_TYPES, "fail": lambda _: {**ALL_CONTENT_TYPES, "isError": True}}
    keys = await connect_tools(user, any_mcp, "show", "fail")
    arguments = {"a": [1, {"b": "ü", "c": None}]}
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            check_forwarded(await execute_with_client(client, keys["show"], arguments), is_error=False)
            check_forwarded(await execute_with_client(client, keys["fail"], arguments), is_error=True)
    assert any_mcp.calls == [("show", arguments), ("fail", arguments)] * 2


def check_forwarded(result: CallToolResult, *, is_error: bool) -> None:
    forwarded = result.model_dump(by_alias=True, mode="json", exclude_unset=True)
    assert {name: forwarded[name] for name in ("content", "structuredContent")} == {
        name: ALL_CONTENT_TYPES[name] for name in ("content", "structuredContent")
    }
    assert result.is_error is is_error
    assert forwarded.keys() <= {"content", "structuredContent", "isError", "resultType", "_meta"}
    meta = forwarded["_meta"]
    assert meta["example.com/trace"] == "abc"
    assert meta.get(SERVER_INFO_META_KEY, {"name": "toolscout"})["name"] == "toolscout"


async def test_structured_content_that_is_not_an_object_reaches_newer_clients(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    values: list[Any] = [[1, None, "a"], 5, "text", False, {"a": None}]
    mcp.on_call["show"] = lambda arguments: {
        "content": [{"type": "text", "text": "whole"}],
        "structuredContent": values[arguments["number"]],
    }
    key = (await connect_tools(user, mcp, "show"))["show"]
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            results = [await execute_with_client(client, key, {"number": number}) for number in range(len(values))]
        assert [get_text(result) for result in results] == ["whole"] * len(values)
        expected = [value if mode == "auto" or isinstance(value, dict) else None for value in values]
        assert [result.structured_content for result in results] == expected


async def test_structured_content_that_is_null_is_forwarded_or_left_out(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.on_call["show"] = lambda _: {"content": [], "structuredContent": None}
    key = (await connect_tools(user, mcp, "show"))["show"]
    result = await execute_with_message(user.http, key)
    assert (result["content"], result.get("structuredContent")) == ([], None)


async def test_a_result_above_the_limit_is_truncated_and_marked(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call = {
        "long": lambda _: {"content": [{"type": "text", "text": "x" * 5_000}], "structuredContent": {"a": 1}},
        "short": lambda _: {"content": [{"type": "text", "text": "x"}]},
    }
    keys = await connect_tools(user, mcp, "long", "short")
    service = replace(container, executor=replace(container.executor, max_result_bytes=1_024))
    async with open_client(service, Authorization=f"Bearer {user.key}") as http:
        truncated = await execute_with_message(http, keys["long"])
        whole = await execute_with_message(http, keys["short"])
    beginning, notice = truncated["content"]
    assert set(beginning["text"]) == {"x"}
    assert 900 < len(beginning["text"]) < 1_024
    assert "1024 bytes" in notice["text"]
    assert truncated["_meta"][TRUNCATED_META] is True
    assert "structuredContent" not in truncated
    assert get_text(whole) == "x"
    assert TRUNCATED_META not in whole["_meta"]


# Progress and cancellation


async def test_progress_arrives_in_order_before_the_result(
    user: TestUser, address: str, any_mcp: FakeMcpServer
) -> None:
    any_mcp.progress["work"] = 3
    key = (await connect_tools(user, any_mcp, "work"))["work"]
    reports: list[tuple[float, float | None, str | None]] = []

    async def append_report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    for mode in MODES:
        reports.clear()
        any_mcp.stalled.add("work")  # else the result could overtake progress, which comes on another stream
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            running = asyncio.create_task(execute_with_client(client, key, progress_callback=append_report))
            await wait_until(lambda: len(reports) == 3)
            any_mcp.stalled.clear()
            await running
            assert reports == [(1.0, 3.0, "step 1"), (2.0, 3.0, "step 2"), (3.0, 3.0, "step 3")]
            assert not (await execute_with_client(client, key)).is_error
            assert len(reports) == 3
    requested = ["progressToken" in call.params.get("_meta", {}) for call in received_calls(any_mcp)]
    assert requested == [True, False, True, False]


@pytest.mark.parametrize("era", ["newer", "older"])
async def test_progress_is_reported_only_with_a_progress_token(user: TestUser, mcp: FakeMcpServer, era: str) -> None:
    mcp.progress["work"] = 2
    key = (await connect_tools(user, mcp, "work"))["work"]
    for token in ("mine", 7, None):
        meta = {} if token is None else {"progressToken": token}
        body = make_message("tools/call", {"name": "tool_execute", "arguments": {"toolKey": key}, "_meta": meta})
        headers = make_headers(body) if era == "newer" else OLDER_HEADERS
        answer = await user.http.post("/mcp", json=body, headers=headers)
        if era == "newer" and token is None:
            assert answer.headers["content-type"] == "application/json"
            continue
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        reported = [event["params"] for event in events[:-1]]
        assert "result" in events[-1]
        assert [(report["progressToken"], report["progress"]) for report in reported] == (
            [] if token is None else [(token, 1.0), (token, 2.0)]
        )


async def connect_stalled_tool(user: TestUser, mcp: FakeMcpServer) -> str:
    mcp.stalled = {"stall"}
    return (await connect_tools(user, mcp, "stall"))["stall"]


@pytest.fixture(autouse=True)
def _long_cancel_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine cancelling takes longer, and a connection on which it takes too long is not used again."""
    monkeypatch.setattr(connection, "_CANCEL_TIMEOUT_S", 5)


async def check_cancelled(container: Container, user: TestUser, mcp: FakeMcpServer, key: str) -> None:
    """Check that the server was notified, the call is audited, and the same connection serves the next call."""

    async def is_audited() -> bool:
        return (await list_executions(container, user.id))[-1:] == [("cancelled", key)]

    await wait_until(lambda: mcp.cancelled_calls == ["stall"])
    await until(is_audited)
    mcp.stalled, handshakes = set(), count_handshakes(mcp)
    assert "isError" not in await execute_with_message(user.http, key)
    assert (len(mcp.calls), count_handshakes(mcp)) == (2, handshakes)
    mcp.stalled = {"stall"}
    mcp.cancelled_calls.clear()


async def test_cancelling_in_the_client_cancels_the_call(
    user: TestUser, container: Container, address: str, any_mcp: FakeMcpServer
) -> None:
    key = await connect_stalled_tool(user, any_mcp)
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            any_mcp.requests.clear()
            waiting = asyncio.create_task(execute_with_client(client, key))
            await wait_until(lambda: any_mcp.calls)
            waiting.cancel()
            await wait_until(lambda: any_mcp.cancelled_calls)
            assert (await client.list_tools()).tools  # the client is still usable
        await check_cancelled(container, user, any_mcp, key)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_disconnects_cancels_its_calls(
    user: TestUser, container: Container, address: str, mcp: FakeMcpServer, mode: Mode
) -> None:
    key = await connect_stalled_tool(user, mcp)

    async def call_until_cancelled() -> None:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            await execute_with_client(client, key)

    calling = asyncio.create_task(call_until_cancelled())
    await wait_until(lambda: mcp.calls)
    calling.cancel()
    await check_cancelled(container, user, mcp, key)
    await asyncio.wait({calling})


@pytest.mark.parametrize("era", ["newer", "older"])
async def test_closing_the_stream_cancels_the_call(
    user: TestUser, container: Container, address: str, mcp: FakeMcpServer, era: str
) -> None:
    key = await connect_stalled_tool(user, mcp)
    mcp.progress["stall"] = 1
    body = make_message(
        "tools/call", {"name": "tool_execute", "arguments": {"toolKey": key}, "_meta": {"progressToken": 1}}
    )
    headers = (make_headers(body) if era == "newer" else OLDER_HEADERS) | {"Authorization": f"Bearer {user.key}"}
    async with (
        httpx.AsyncClient(timeout=30) as http,
        http.stream("POST", f"{address}/mcp", json=body, headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if "notifications/progress" in line:
                break
        assert mcp.cancelled_calls == []
    await check_cancelled(container, user, mcp, key)


def make_cancellation(request_id: int) -> Json:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}


async def test_a_call_can_be_cancelled_only_from_its_own_session(
    user: TestUser, other_user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    key = await connect_stalled_tool(user, mcp)
    session, other_session = [{**OLDER_HEADERS, "Mcp-Session-Id": str(uuid.uuid4())} for _ in range(2)]
    body = make_message("tools/call", {"name": "tool_execute", "arguments": {"toolKey": key}}, request_id=7)

    def call() -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(user.http.post("/mcp", json=body, headers=session))

    async def cancel(caller: TestUser, request_id: int, headers: dict[str, str]) -> None:
        answer = await caller.http.post("/mcp", json=make_cancellation(request_id), headers=headers)
        assert answer.status_code == 202

    running = call()
    await wait_until(lambda: mcp.calls)
    await cancel(other_user, 7, session)
    await cancel(user, 7, other_session)
    await cancel(user, 7, OLDER_HEADERS)
    await cancel(user, 8, session)
    mcp.stalled = set()
    assert '"result"' in (await running).text
    assert mcp.cancelled_calls == []

    mcp.stalled = {"stall"}
    running = call()
    await wait_until(lambda: len(mcp.calls) == 2)
    await cancel(user, 7, session)
    assert '"the call was cancelled"' in (await running).text
    await wait_until(lambda: mcp.cancelled_calls == ["stall"])
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == ["succeeded", "cancelled"]


# Questions of the server to the user

SURE = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
QUESTION = {
    "resultType": "input_required",
    "inputRequests": {
        "sure": {"method": "elicitation/create", "params": {"message": "Delete all?", "requestedSchema": SURE}}
    },
    "requestState": "server-state",
}


def ask_for_confirmation(mcp: FakeMcpServer) -> Callable[[Json], Json]:
    """Return a handler that asks the user, and then returns the user's response."""

    def handle(_arguments: Json) -> Json:
        params = received_calls(mcp)[-1].params
        if "inputResponses" not in params:
            return QUESTION
        received = {"responses": params["inputResponses"], "state": params.get("requestState")}
        return {"content": [{"type": "text", "text": "deleted"}], "structuredContent": received}

    return handle


async def test_a_question_reaches_the_client_and_its_response_reaches_the_server(
    user: TestUser, container: Container, address: str, mcp: FakeMcpServer
) -> None:
    mcp.on_call["delete"] = ask_for_confirmation(mcp)
    key = (await connect_tools(user, mcp, "delete"))["delete"]
    questions: list[str] = []

    async def answer(_context: Any, params: ElicitRequestParams) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"sure": True})

    async with connect_client(f"{address}/mcp", user.key, elicitation_callback=answer) as client:
        result = await execute_with_client(client, key, {"path": "/"})
    assert questions == ["Delete all?"]
    assert get_text(result) == "deleted"
    assert result.structured_content == {
        "responses": {"sure": {"action": "accept", "content": {"sure": True}}},
        "state": "server-state",
    }
    assert mcp.calls == [("delete", {"path": "/"})] * 2
    declared = [call.params["_meta"][CLIENT_CAPABILITIES_META_KEY] for call in received_calls(mcp)]
    assert all("elicitation" in capabilities for capabilities in declared)
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == ["input_required", "succeeded"]


async def test_a_server_may_ask_for_a_repeated_call_with_its_state(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    """A request with nothing but the server's state needs no capability of the client."""

    def handle(_arguments: Json) -> Json:
        state = received_calls(mcp)[-1].params.get("requestState")
        return return_text(state, {}) if state else {"resultType": "input_required", "requestState": "half way"}

    mcp.on_call["work"] = handle
    key = (await connect_tools(user, mcp, "work"))["work"]
    async with connect_client(f"{address}/mcp", user.key) as client:
        assert get_text(await execute_with_client(client, key)) == "half way"
    assert len(mcp.calls) == 2


async def test_a_question_above_the_size_limit_fails_the_call(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    def ask_with_state_of(size: int) -> Callable[[Json], Json]:
        return lambda _: {"resultType": "input_required", "requestState": "s" * size}

    mcp.on_call["work"] = ask_with_state_of(container.executor.max_result_bytes)
    key = (await connect_tools(user, mcp, "work"))["work"]
    rejected = await call_meta_tool(user.http, "tool_execute", {"toolKey": key})
    assert (get_error(rejected)["code"], get_error(rejected)["outcome"]) == ("TOOL_EXECUTION_ERROR", "failed")
    mcp.on_call["work"] = ask_with_state_of(1_000)
    assert (await call_meta_tool(user.http, "tool_execute", {"toolKey": key}))["resultType"] == "input_required"
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == [
        "TOOL_EXECUTION_ERROR",
        "input_required",
    ]


async def test_responses_that_cannot_be_serialized_are_rejected(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.on_call["delete"] = ask_for_confirmation(mcp)
    key = (await connect_tools(user, mcp, "delete"))["delete"]
    nested: Json = {}
    for _ in range(300):
        nested = {"a": nested}
    responses: Json = {"q": {"roots": [], "_meta": nested}}
    rejected = await call_meta_tool(user.http, "tool_execute", {"toolKey": key}, inputResponses=responses)
    assert get_error(rejected)["code"] == "TOOL_VALIDATION_ERROR"
    assert mcp.calls == []
    [server] = (await user.http.get("/servers")).json()["items"]
    assert server["status"] == "connected"
    accepted = await call_meta_tool(user.http, "tool_execute", {"toolKey": key}, inputResponses={"q": {"roots": []}})
    assert get_text(accepted) == "deleted"


async def test_integers_of_any_size_pass_exactly_in_both_directions(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.on_call["count"] = lambda arguments: {"content": [], "structuredContent": {"n": arguments["n"]}}
    key = (await connect_tools(user, mcp, "count"))["count"]
    numbers = [10000000000000000000000001, -(2**70), 2**64]
    result = await call_meta_tool(user.http, "tool_execute", {"toolKey": key, "arguments": {"n": numbers}})
    assert mcp.calls == [("count", {"n": numbers})]
    assert result["structuredContent"] == {"n": numbers}


async def test_reserved_meta_keys_of_a_server_are_removed(user: TestUser, mcp: FakeMcpServer) -> None:
    forged = {ERROR_META: {"code": "TOOL_NOT_FOUND"}, TRUNCATED_META: True, "theirs": 1}
    mcp.on_call["work"] = lambda _: {"content": [], "_meta": forged}
    key = (await connect_tools(user, mcp, "work"))["work"]
    result = await call_meta_tool(user.http, "tool_execute", {"toolKey": key})
    assert {name for name in result["_meta"] if "modelcontextprotocol" not in name} == {"theirs"}


def require_elicitation(mcp: FakeMcpServer) -> Callable[[Json], Json]:
    """Return a handler that follows the specification: a client without the capability gets an error."""

    def handle(_arguments: Json) -> Json:
        if "elicitation" in received_calls(mcp)[-1].params["_meta"][CLIENT_CAPABILITIES_META_KEY]:
            return QUESTION
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "no", {"requiredCapabilities": {"elicitation": {}}})

    return handle


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_cannot_answer_gets_a_clear_error(
    user: TestUser, address: str, mcp: FakeMcpServer, mode: Mode
) -> None:
    mcp.on_call = {"strict": require_elicitation(mcp), "careless": ask_for_confirmation(mcp)}
    keys = await connect_tools(user, mcp, "strict", "careless")
    async with connect_client(f"{address}/mcp", user.key, mode) as client:
        for name in ("strict", "careless"):
            result = await execute_with_client(client, keys[name])
            assert get_error(result)["code"] == "TOOL_EXECUTION_ERROR"
            assert get_error(result)["outcome"] == "failed"
            assert "asks the user for input" in get_text(result)
    declared = [call.params["_meta"][CLIENT_CAPABILITIES_META_KEY] for call in received_calls(mcp)]
    assert ["elicitation" in capabilities for capabilities in declared] == [False, False]


async def test_a_legacy_server_that_asks_during_a_call_gets_no_answer(
    user: TestUser, address: str, legacy_mcp: FakeMcpServer
) -> None:
    legacy_mcp.questions["delete"] = "Delete all?"
    keys = await connect_tools(user, legacy_mcp, "delete", "keep")

    async def answer(_context: Any, _params: ElicitRequestParams) -> ElicitResult:
        raise AssertionError("the question cannot reach the client")

    async with connect_client(f"{address}/mcp", user.key, elicitation_callback=answer) as client:
        rejected = await execute_with_client(client, keys["delete"])
        assert rejected.is_error
        assert "Elicitation not supported" in get_text(rejected)
        assert not (await execute_with_client(client, keys["keep"])).is_error
    [handshake] = [request for request in legacy_mcp.requests if request.rpc_method == "initialize"]
    assert "elicitation" not in handshake.params["capabilities"]


# Errors


def check_error(result: Json, code: str, *fragments: str, **members: Any) -> Json:
    """Check that the error has the code and, with the same message, the text."""
    error = get_error(result)
    assert error["code"] == code
    assert error.items() >= members.items()
    text = get_text(result)
    assert text.startswith(f"{code}: {error['message']}")
    for fragment in fragments:
        assert fragment in text
    assert "structuredContent" not in result
    return error


NOTHING_RAN = "Nothing was run."
MAY_HAVE_RUN = "It may have run:"


async def test_a_hidden_tool_is_not_found_and_no_server_is_called(
    user: TestUser, other_user: TestUser, container: Container, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    theirs = (await connect_tools(other_user, legacy_mcp, "theirs"))["theirs"]
    keys = await connect_tools(user, mcp, "open", "switched_off")
    await user.http.patch(f"/tools/{keys['switched_off']}", json={"enabled": False})
    invalid = [keys["switched_off"], theirs, str(uuid.uuid4()), "nothing", "", "x" * 5_000, "\u202e"]
    results = [await execute_with_message(user.http, key) for key in invalid]
    assert all(result == results[0] for result in results)
    check_error(results[0], "TOOL_NOT_FOUND", "Call tool_discovery")
    assert (mcp.calls, legacy_mcp.calls) == ([], [])
    targets = [keys["switched_off"], *[None] * (len(invalid) - 1)]
    assert await list_executions(container, user.id) == [("TOOL_NOT_FOUND", target) for target in targets]

    await user.http.patch(f"/tools/{keys['switched_off']}", json={"enabled": True})
    for caller, key in ((user, keys["switched_off"]), (user, keys["open"]), (other_user, theirs)):
        assert "isError" not in await execute_with_message(caller.http, key)


async def test_a_held_tool_is_not_run_until_it_is_approved(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("pay", "Pay a bill")]
    server_id = await user.connect(mcp)
    key = (await user.tools())["pay"]["id"]
    previous = container.settings.hold_changed_tools, container.settings.find_failing_servers
    await apply_policy(container.database, Policy(True, True))
    try:
        mcp.tools = [tool("pay", "Pay any bill at all")]
        await user.reindex(server_id)
        check_error(await execute_with_message(user.http, key), "TOOL_NOT_FOUND")
        assert mcp.calls == []
        approved = await user.http.post(f"/tools/{key}/approve")
        assert approved.status_code < 300, approved.text
        assert "isError" not in await execute_with_message(user.http, key)
    finally:
        await apply_policy(container.database, Policy(*previous))
    assert len(mcp.calls) == 1


async def test_arguments_are_checked_before_the_call_and_every_error_is_reported(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    names = [f"part_{number}" for number in range(8)]
    properties = {name: {"type": "integer"} for name in names}
    mcp.tools = [tool("add", inputSchema={"type": "object", "properties": properties, "required": ["part_0"]})]
    await user.connect(mcp)
    key = (await user.tools())["add"]["id"]
    invalid = await execute_with_message(user.http, key, dict.fromkeys(names, "x"))
    error = check_error(invalid, "TOOL_VALIDATION_ERROR", NOTHING_RAN, "input schema")
    assert [item["loc"] for item in error["errors"]] == [["arguments", name] for name in names]
    for name in names:
        assert get_text(invalid).count(f"arguments.{name}: 'x' is not of type 'integer'") == 1
    check_error(await execute_with_message(user.http, key), "TOOL_VALIDATION_ERROR", "'part_0' is a required property")
    assert mcp.calls == []
    assert "isError" not in await execute_with_message(user.http, key, {"part_0": 1})
    assert mcp.calls == [("add", {"part_0": 1})]


async def test_invalid_arguments_of_tool_execute_are_reported(user: TestUser, container: Container) -> None:
    invalid: dict[str, Json] = {
        "arguments: 'toolKey' is a required property": {},
        "arguments.toolKey: 5 is not of type 'string'": {"toolKey": 5},
        "arguments.arguments: [] is not of type 'object'": {"toolKey": "x", "arguments": []},
        "additional properties are not allowed: 'input'": {"toolKey": "x", "input": {}},
        "; did you mean 'arguments' instead of 'args'?": {"toolKey": "x", "args": {}},
        "; did you mean 'toolKey' instead of 'tool_key'?": {"tool_key": "x"},
        "; did you mean 'toolKey' instead of 'name', 'arguments' instead of 'params'?": {"name": "x", "params": {}},
        "'zzz'; the allowed ones are toolKey, arguments": {"toolKey": "x", "zzz": {}},
    }
    for message, arguments in invalid.items():
        result = await call_meta_tool(user.http, "tool_execute", arguments)
        check_error(result, "TOOL_VALIDATION_ERROR", message, NOTHING_RAN)
    assert await list_executions(container, user.id) == []


async def test_arguments_may_be_left_out(user: TestUser, mcp: FakeMcpServer) -> None:
    key = (await connect_tools(user, mcp, "read"))["read"]
    assert "isError" not in await call_meta_tool(user.http, "tool_execute", {"toolKey": key})
    assert mcp.calls == [("read", {})]


async def test_a_tool_of_a_push_server_cannot_be_run(user: TestUser) -> None:
    await user.add_tools(tool("pushed"))
    key = (await user.tools())["pushed"]["id"]
    check_error(
        await execute_with_message(user.http, key),
        "SERVER_CONNECTION_ERROR",
        "your backend runs them",
        "trying again will not help",
        cause="push",
    )


async def test_nothing_is_run_on_an_unreachable_server(user: TestUser, mcp: FakeMcpServer) -> None:
    key = (await connect_tools(user, mcp, "read"))["read"]
    mcp.stop()
    try:
        result = await execute_with_message(user.http, key)
    finally:
        mcp.start()
    assert "outcome" not in check_error(result, "SERVER_CONNECTION_ERROR", NOTHING_RAN, cause="refused")
    assert mcp.calls == []
    assert "isError" not in await execute_with_message(user.http, key)


async def test_a_timed_out_call_has_an_unknown_outcome(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    key = await connect_stalled_tool(user, mcp)
    assert container.executor.timeout_s > 10
    service = replace(container, executor=replace(container.executor, timeout_s=3.0))
    async with open_client(service, Authorization=f"Bearer {user.key}") as http:
        result = await execute_with_message(http, key)
    check_error(result, "TOOL_EXECUTION_TIMEOUT", MAY_HAVE_RUN, outcome="unknown")
    assert NOTHING_RAN not in get_text(result)
    assert len(mcp.calls) == 1
    mcp.stalled = set()
    assert "isError" not in await execute_with_message(user.http, key)
    outcomes = [outcome for outcome, _ in await list_executions(container, user.id)]
    assert outcomes == ["TOOL_EXECUTION_TIMEOUT", "succeeded"]


async def test_a_call_whose_answer_is_lost_is_never_sent_again(user: TestUser, mcp: FakeMcpServer) -> None:
    key = (await connect_tools(user, mcp, "pay"))["pay"]
    for answer in (drop, status(500)):
        mcp.requests.clear()
        mcp.fault = Fault(answer, on=["tools/call"])
        check_error(await execute_with_message(user.http, key), "TOOL_EXECUTION_ERROR", MAY_HAVE_RUN, outcome="unknown")
        assert len(mcp.calls) == 1
        mcp.fault = None
        assert "isError" not in await execute_with_message(user.http, key)
        assert len(mcp.calls) == 2


async def test_an_error_from_the_server_is_quoted(user: TestUser, mcp: FakeMcpServer) -> None:
    keys = await connect_tools(user, mcp, "write", "read")
    mcp.on_call["write"] = raise_disk_full
    result = await execute_with_message(user.http, keys["write"])
    check_error(result, "TOOL_EXECUTION_ERROR", "the disk is full", outcome="failed")
    assert MAY_HAVE_RUN not in get_text(result)
    assert len(mcp.calls) == 1
    assert "isError" not in await execute_with_message(user.http, keys["read"])


async def test_an_error_is_the_same_in_both_protocols(user: TestUser, address: str) -> None:
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            result = await execute_with_client(client, "nothing")
        expected = {"code": "TOOL_NOT_FOUND", "message": "this tool does not exist, or you may not use it"}
        assert get_error(result) == expected
        assert "Call tool_discovery" in get_text(result)


# Tool keys


def return_text(text: str, _arguments: Json) -> Json:
    return {"content": [{"type": "text", "text": text}]}


async def test_a_tool_with_the_name_of_a_meta_tool_shadows_nothing(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    names = ["tool_execute", "tool_discovery", "a:b:c", "a/b c.d"]
    mcp.on_call = {name: partial(return_text, f"their {name}") for name in names}
    keys = await connect_tools(user, mcp, *names)
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            listed = (await client.list_tools()).tools
            results = [await execute_with_client(client, keys[name]) for name in names]
            found = await client.call_tool("tool_discovery", {"query": ["tool_execute"]})
        assert [meta_tool.name for meta_tool in listed] == ["tool_discovery", "tool_execute"]
        assert [get_text(result) for result in results] == [f"their {name}" for name in names]
        assert found.structured_content is not None
        assert keys["tool_execute"] in [hit["toolKey"] for hit in found.structured_content["results"]]
    assert mcp.calls == [(name, {}) for name in names] * 2


async def test_each_key_reaches_its_own_server(user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer) -> None:
    one = await connect_tools(user, mcp, "search", server="one")
    two = await connect_tools(user, legacy_mcp, "search", server="two")
    await execute_with_message(user.http, one["search"], {"for": 1})
    assert (mcp.calls, legacy_mcp.calls) == ([("search", {"for": 1})], [])
    await execute_with_message(user.http, two["search"], {"for": 2})
    assert (mcp.calls, legacy_mcp.calls) == ([("search", {"for": 1})], [("search", {"for": 2})])


async def test_every_execution_is_audited_with_its_key(
    user: TestUser, admin: httpx.AsyncClient, client: httpx.AsyncClient, mcp: FakeMcpServer
) -> None:
    mcp.on_call["fail"] = lambda _: {"content": [], "isError": True}
    keys = await connect_tools(user, mcp, "read", "fail")
    expected = []
    for key in ({"kind": "user", "user_id": user.id}, {"kind": "service"}):
        created = (await admin.post("/keys", json=key)).json()
        headers = {"Authorization": f"Bearer {created['key']}", "X-User-Id": user.id}
        for tool_key, outcome in ((keys["read"], "succeeded"), (keys["fail"], "tool_error"), ("x", "TOOL_NOT_FOUND")):
            body = make_message("tools/call", {"name": "tool_execute", "arguments": {"toolKey": tool_key}})
            assert (await send_message(client, body, **headers)).status_code == 200
            target = None if tool_key == "x" else tool_key
            expected.append((f"{key['kind']}:{created['id']}", target, outcome))
    events = (await user.http.get("/audit", params={"action": "tool.execute"})).json()["items"]
    assert [(event["actor"], event["target"], event["outcome"]) for event in reversed(events)] == expected
