"""Tests of `execute`: a visible tool runs on its server once, and the outcome is returned and audited."""

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from app.catalog.visibility import Scope
from app.container import Container
from app.execution.execute import execute
from app.execution.models import ExecutionRequest
from app.execution.progress import ProgressReports
from tests.support.calls import (
    Json,
    assert_ok,
    audit_insert_revoked,
    connect_with_tools,
    list_executions,
    raise_disk_full,
    result_text,
    stopped_server,
    wait_for_calls,
)
from tests.support.checks import assert_problem, without_request_id
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, drop, raw_result
from tests.support.worker_steps import server_of

ALL_CONTENT_TYPES = {
    "content": [
        {"type": "text", "text": "grün \u0000 🦉", "annotations": {"audience": ["user"], "priority": 0.5}},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav", "_meta": {"length": 1}},
        {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"},
        {"type": "resource", "resource": {"uri": "file:///b.txt", "mimeType": "text/plain", "text": "b"}},
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "aGk="}},
    ],
    "structuredContent": {"list": [1, 2.5, None, True, {"deep": {"er": "x"}}], "z": 1, "a": 2},
    "isError": False,
    "_meta": {"example.com/trace": "abc"},
}


@pytest.fixture(params=["mcp", "legacy_mcp", "sse_mcp"])
def any_mcp(request: pytest.FixtureRequest) -> FakeMcpServer:
    server: FakeMcpServer = request.getfixturevalue(request.param)
    return server


async def test_a_result_is_returned_unchanged_over_every_transport(user: TestUser, any_mcp: FakeMcpServer) -> None:
    any_mcp.on_call["show"] = lambda _: ALL_CONTENT_TYPES
    server_id = await connect_with_tools(user, any_mcp, "show")
    body = assert_ok(await user.execute("show", {"a": [1, {"b": "ü"}]}))
    assert body["result"].pop("_meta").items() >= ALL_CONTENT_TYPES["_meta"].items()  # type: ignore[attr-defined]
    assert body["result"] == {name: value for name, value in ALL_CONTENT_TYPES.items() if name != "_meta"}
    assert (body["server_id"], body["truncated"]) == (server_id, False)
    assert body["tool_key"] == (await user.tools())["show"]["id"]
    assert 0 < body["duration_ms"] < 10_000
    assert any_mcp.calls == [("show", {"a": [1, {"b": "ü"}]})]


async def test_a_result_with_is_error_is_a_response_and_audited_as_tool_error(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call["show"] = lambda _: {"content": [{"type": "text", "text": "no such file"}], "isError": True}
    await connect_with_tools(user, mcp, "show")
    answer = await user.execute("show")
    assert assert_ok(answer)["result"]["isError"] is True
    assert result_text(answer) == "no such file"
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == ["tool_error"]


LONG = 10000000000000000000000001
NUMBERS = {"n": [LONG, -LONG, 2**64]}


@pytest.mark.parametrize(
    "make_call",
    [
        lambda key: {"tool_key": key, "arguments": NUMBERS},
        lambda _: {"tool_call": {"type": "function_call", "name": "count", "arguments": json.dumps(NUMBERS)}},
        lambda _: {"tool_call": {"type": "tool_use", "name": "count", "input": NUMBERS}},
    ],
    ids=["arguments", "OpenAI's text", "Anthropic's input"],
)
async def test_integers_of_any_size_reach_the_server_exactly(
    user: TestUser, mcp: FakeMcpServer, make_call: Callable[[str], Json]
) -> None:
    await connect_with_tools(user, mcp, "count")
    body = make_call((await user.tools())["count"]["id"])
    headers = {"Idempotency-Key": "long"}
    assert_ok(await user.http.post("/execute", json=body, headers=headers))
    assert mcp.calls == [("count", NUMBERS)]
    assert_ok(await user.http.post("/execute", json=body, headers=headers))
    other = json.dumps(body).replace(str(LONG), str(LONG + 1))
    headers["Content-Type"] = "application/json"
    assert_problem(await user.http.post("/execute", content=other, headers=headers), 422, "invalid_input")
    assert len(mcp.calls) == 1


async def test_a_number_beyond_all_doubles_is_refused_before_anything_is_sent(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, mcp, "count")
    body = json.dumps({"tool_key": (await user.tools())["count"]["id"], "arguments": {"n": "N"}})
    for number in ("1e400", "1" * 400):
        content = body.replace('"N"', number)
        answer = await user.http.post("/execute", content=content, headers={"Content-Type": "application/json"})
        assert_problem(answer, 422, "invalid_input")
    assert mcp.calls == []


async def test_integers_of_any_size_are_returned_exactly(user: TestUser, legacy_mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, legacy_mcp, "count")
    result = {"content": [], "structuredContent": {"long": [LONG, -LONG, 10**400], "short": 2**63 - 1}}
    legacy_mcp.fault = Fault(raw_result(json.dumps(result).encode()), on=["tools/call"])
    call, headers = {"tool_key": (await user.tools())["count"]["id"]}, {"Idempotency-Key": "long"}
    first = await user.http.post("/execute", json=call, headers=headers)
    assert assert_ok(first)["result"]["structuredContent"] == result["structuredContent"]
    legacy_mcp.fault = None
    repeated = await user.http.post("/execute", json=call, headers=headers)
    assert repeated.content == first.content


async def test_half_an_emoji_in_a_result_is_shown_as_the_replacement_character(
    user: TestUser, legacy_mcp: FakeMcpServer
) -> None:
    """Servers cut texts in the middle of a character; the rest of the result is valid."""
    await connect_with_tools(user, legacy_mcp, "count")
    result = (
        rb'{"content": [{"type": "text", "text": "An owl \ud83e"}], "structuredContent": {"\ud83e\udd89": "\udd89"}}'
    )
    legacy_mcp.fault = Fault(raw_result(result), on=["tools/call"])
    answer = await user.execute("count")
    assert result_text(answer) == "An owl \ufffd"
    assert answer.json()["result"]["structuredContent"] == {"🦉": "\ufffd"}


def make_result(size: int) -> Json:
    """Return a result that is `size` bytes long as JSON."""
    empty: Json = {"content": [{"type": "text", "text": ""}]}
    empty["content"][0]["text"] = "x" * (size - len(orjson.dumps(empty)))
    return empty


async def test_a_result_is_truncated_above_the_size_limit_and_not_at_it(
    user: TestUser, container: Container, legacy_mcp: FakeMcpServer
) -> None:
    limit = container.settings.max_result_bytes
    legacy_mcp.on_call = {"fits": lambda _: make_result(limit), "beyond": lambda _: make_result(limit + 1)}
    await connect_with_tools(user, legacy_mcp, "fits", "beyond")
    fits = assert_ok(await user.execute("fits"))
    assert (fits["result"], fits["truncated"]) == (make_result(limit), False)
    beyond = assert_ok(await user.execute("beyond"))
    assert beyond["truncated"] is True
    assert beyond["result"] == make_result(limit)


async def expect_tool_not_found(user: TestUser, keys: list[str]) -> list[tuple[int, Json]]:
    answers = [await user.http.post("/execute", json={"tool_key": key}) for key in keys]
    for answer in answers:
        assert_problem(answer, 404, "TOOL_NOT_FOUND")
    return [without_request_id(answer) for answer in answers]


async def test_a_hidden_tool_is_answered_exactly_like_a_missing_tool(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    await connect_with_tools(other_user, legacy_mcp, "theirs")
    disabled_id = await connect_with_tools(user, legacy_mcp, "on_disabled_server", server="disabled")
    server_id = await connect_with_tools(user, mcp, "open", "switched_off", "gone")
    tool_ids = {name: listed["id"] for name, listed in (await user.tools()).items()}
    theirs = (await other_user.tools())["theirs"]["id"]

    await user.http.put("/core-tools", json={"tools": [tool("native")]})
    native = (await user.discover("native"))["tools"][0]
    assert native["source"] == "core"
    await user.http.patch(f"/tools/{tool_ids['switched_off']}", json={"enabled": False})
    await user.http.patch(f"/servers/{disabled_id}", json={"enabled": False})
    mcp.tools = [tool("open"), tool("switched_off")]
    await user.reindex(server_id)

    hidden = ["switched_off", "gone", "on_disabled_server"]
    keys = [*(tool_ids[name] for name in hidden), theirs, str(uuid.uuid4()), "nothing", native["tool_key"]]
    answers = await expect_tool_not_found(user, keys)
    assert all(answer == answers[0] for answer in answers)
    assert (mcp.calls, legacy_mcp.calls) == ([], [])

    await user.http.patch(f"/tools/{tool_ids['switched_off']}", json={"enabled": True})
    for name in ("open", "switched_off"):
        assert_ok(await user.execute(name))
    legacy_mcp.tools = [tool("theirs")]
    assert_ok(await other_user.execute("theirs"))
    assert [name for name, _ in mcp.calls + legacy_mcp.calls] == ["open", "switched_off", "theirs"]


async def test_a_tool_that_is_disabled_in_the_search_index_cannot_be_run(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, mcp, "read_file")
    key = (await user.tools())["read_file"]["id"]
    for visible in (False, True):
        async with container.database.transaction(user.id) as session:
            statement = "UPDATE mcp_tool_embeddings SET enabled = %(visible)s WHERE tool_id = %(key)s"
            await session.rows(statement, {"visible": visible, "key": key})
        found = await user.discover("read_file", similarity_threshold=0, keep=[key])
        assert [hit["tool_key"] for hit in found["tools"]] == ([key] if visible else [])
        answer = await user.http.post("/execute", json={"tool_key": key})
        assert answer.status_code == (200 if visible else 404)
    assert len(mcp.calls) == 1


async def test_a_tool_of_a_push_server_cannot_be_run_and_the_error_says_why(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    server_id = await user.add_tools(tool("pushed"), server="pushed")
    before = await server_of(user, server_id)
    problem = assert_problem(await user.execute("pushed"), 502, "SERVER_CONNECTION_ERROR")
    assert problem["cause"] == "push"
    assert "type `push`" in problem["detail"]
    assert await server_of(user, server_id) == before
    await connect_with_tools(user, mcp, "read")
    assert_ok(await user.execute("read"))
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == [
        "SERVER_CONNECTION_ERROR",
        "succeeded",
    ]


async def test_an_unreachable_server_is_disconnected_until_the_next_successful_call(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    server_id = await connect_with_tools(user, mcp, "read")
    assert_ok(await user.execute("read"))
    assert (await server_of(user, server_id))["status"] == "connected"
    with stopped_server(mcp):
        problem = assert_problem(await user.execute("read"), 502, "SERVER_CONNECTION_ERROR")
        assert problem["cause"] == "refused"
        assert "outcome" not in problem
        disconnected = await server_of(user, server_id)
        assert (disconnected["status"], disconnected["last_cause"], disconnected["last_error"]) == (
            "disconnected",
            "refused",
            problem["detail"],
        )
    assert_ok(await user.execute("read"))
    reconnected = await server_of(user, server_id)
    assert (reconnected["status"], reconnected["last_cause"], reconnected["last_error"]) == ("connected", None, None)
    assert len(mcp.calls) == 2


async def test_a_timed_out_call_has_an_unknown_outcome(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, mcp, "slow")
    mcp.stalled.add("slow")
    problem = assert_problem(await user.execute("slow", timeout_ms=3_000), 504, "TOOL_EXECUTION_TIMEOUT")
    assert problem["outcome"] == "unknown"
    mcp.stalled.clear()
    assert_ok(await user.execute("slow", timeout_ms=20_000))
    assert len(mcp.calls) == 2
    outcomes = [outcome for outcome, _ in await list_executions(container, user.id)]
    assert outcomes == ["TOOL_EXECUTION_TIMEOUT", "succeeded"]


async def test_a_call_that_may_have_reached_the_server_is_never_sent_again(
    user: TestUser, container: Container, any_mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, any_mcp, "pay")
    any_mcp.fault = Fault(drop, on=["tools/call"])
    problem = assert_problem(await user.execute("pay"), 502, "TOOL_EXECUTION_ERROR")
    assert problem["outcome"] == "unknown"
    assert len(any_mcp.calls) == 1
    any_mcp.fault = None
    assert_ok(await user.execute("pay"))
    assert len(any_mcp.calls) == 2
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == [
        "TOOL_EXECUTION_ERROR",
        "succeeded",
    ]


async def test_a_call_that_the_server_answers_with_an_error_has_failed(user: TestUser, any_mcp: FakeMcpServer) -> None:
    server_id = await connect_with_tools(user, any_mcp, "write")
    any_mcp.on_call["write"] = raise_disk_full
    problem = assert_problem(await user.execute("write"), 502, "TOOL_EXECUTION_ERROR")
    assert problem["outcome"] == "failed"
    assert "the disk is full" in problem["detail"]
    assert len(any_mcp.calls) == 1
    assert (await server_of(user, server_id))["status"] == "connected"
    del any_mcp.on_call["write"]
    assert_ok(await user.execute("write"))


async def test_an_invalid_result_leaves_the_outcome_unknown(user: TestUser, legacy_mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, legacy_mcp, "read")
    for broken in (b'{"content": 5}', b'{"content": [{"type": "text"}]}', b"[]"):
        legacy_mcp.fault = Fault(raw_result(broken), on=["tools/call"])
        assert assert_problem(await user.execute("read"), 502, "TOOL_EXECUTION_ERROR")["outcome"] == "unknown"
    legacy_mcp.fault = Fault(raw_result(b'{"content": []}'), on=["tools/call"])
    assert_ok(await user.execute("read"))
    assert len(legacy_mcp.calls) == 4


def make_request(container: Container, user: TestUser, key: str, **fields: Any) -> ExecutionRequest:
    return ExecutionRequest(Scope(user.id, container.model.id), "test", {}, tool_key=key, **fields)


async def test_a_cancelled_call_is_audited_and_does_not_change_the_server_status(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    server_id = await connect_with_tools(user, mcp, "slow")
    with stopped_server(mcp):
        assert_problem(await user.execute("slow"), 502, "SERVER_CONNECTION_ERROR")
    mcp.delays["slow"] = 30.0
    key = (await user.tools())["slow"]["id"]
    running = asyncio.create_task(execute(container.executor, make_request(container, user, key)))
    await wait_for_calls(mcp)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [outcome for outcome, _ in await list_executions(container, user.id)][-1] == "cancelled"
    assert (await server_of(user, server_id))["status"] == "disconnected"
    mcp.delays = {}
    assert_ok(await user.execute("slow"))
    assert (await server_of(user, server_id))["status"] == "connected"


async def test_a_result_is_returned_even_if_the_call_cannot_be_recorded(
    user: TestUser, container: Container, mcp: FakeMcpServer, caplog: pytest.LogCaptureFixture
) -> None:
    await connect_with_tools(user, mcp, "read")
    key = (await user.tools())["read"]["id"]
    call = make_request(container, user, key)
    with audit_insert_revoked(container):
        assert (await execute(container.executor, call)).tool_key == key
    assert "failed to record a tool call" in caplog.text
    assert await list_executions(container, user.id) == []
    await execute(container.executor, call)
    assert await list_executions(container, user.id) == [("succeeded", key)]


async def test_progress_reports_that_nobody_reads_are_dropped() -> None:
    progress = ProgressReports()
    for step in range(10_000):
        await progress.report(step, None, "x" * 1_000)
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    received = [report async for report in progress.stream(ended)]
    assert [report and report["progress"] for report in received] == list(range(100))


async def test_invisible_characters_are_removed_from_a_servers_error(user: TestUser, mcp: FakeMcpServer) -> None:
    def raise_with_hidden_characters(_: Json) -> Json:
        raise MCPError(INTERNAL_ERROR, "\x1b[31mit is\u202e \U000e0041full\u200b")

    mcp.tools, mcp.on_call = [tool("work")], {"work": raise_with_hidden_characters}
    await user.connect(mcp)
    answer = await user.execute("work")
    assert answer.json()["detail"].endswith("it is full")
