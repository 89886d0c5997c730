"""Tests of `tool_execute` with several calls: each has its own result, and none hides another's."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY

from app.catalog.visibility import Scope
from app.container import Container
from app.errors import Unavailable
from app.execution.batch import execute_batch
from app.execution.models import ExecutionRequest, ExecutionResult
from app.limits.rate_limit import RateLimiter
from tests.support.calls import list_executions
from tests.support.clients import TestUser, new_user
from tests.support.factories import tool
from tests.support.mcp_client import Json, call_meta_tool, connect_client, get_error, get_text
from tests.support.mcp_server import FakeMcpServer
from tests.support.worker_steps import until

READ_ONLY = {"readOnlyHint": True}


async def call_all(http: httpx.AsyncClient, *calls: tuple[str, Json], **params: Any) -> Json:
    items = [{"toolKey": key, "arguments": arguments} for key, arguments in calls]
    return await call_meta_tool(http, "tool_execute", {"calls": items}, **params)


def get_results(result: Json) -> list[Json]:
    entries: list[Json] = result["structuredContent"]["results"]
    assert [entry["position"] for entry in entries] == list(range(len(entries)))
    return entries


def get_code(entry: Json) -> str | None:
    code: str | None = entry["_meta"]["toolscout/error"]["code"] if entry["isError"] else None
    return code


async def wait_for(condition: Any) -> None:
    async def holds() -> bool:
        return bool(condition())

    await until(holds)


@pytest.fixture
async def two_servers(user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer) -> TestUser:
    """A user with the tools `one.read`, `one.write` and `two.write`."""
    mcp.tools, legacy_mcp.tools = [tool("read"), tool("write")], [tool("write")]
    await user.connect(mcp, "one")
    await user.connect(legacy_mcp, "two")
    return user


async def test_every_call_has_its_own_result_or_error(
    container: Container, two_servers: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.on_call = {"write": lambda _: {"content": [{"type": "text", "text": "full"}], "isError": True}}
    calls: list[tuple[str, Json]] = [
        ("one.read", {"a": 1}),
        ("one.write", {}),
        ("nowhere.tool", {}),
        ("two.write", {"b": 2}),
    ]
    result = await call_all(two_servers.http, *calls)
    assert "isError" not in result
    read, failed, missing, written = get_results(result)
    assert [entry["toolKey"] for entry in (read, failed, missing, written)] == [key for key, _ in calls]
    assert read["content"] == [{"type": "text", "text": '{"a": 1}'}]
    assert (failed["isError"], failed["content"][0]["text"]) == (True, "full")
    assert get_code(missing) == "TOOL_NOT_FOUND"
    assert written["content"] == [{"type": "text", "text": '{"b": 2}'}]
    texts = [block["text"] for block in result["content"]]
    assert [text for text in texts if text.startswith("calls[")] == [
        "calls[0] one.read:",
        "calls[1] one.write failed:",
        "calls[2] nowhere.tool failed:",
        "calls[3] two.write:",
    ]
    outcomes = sorted(outcome for outcome, _ in await list_executions(container, two_servers.id))
    assert outcomes == ["TOOL_NOT_FOUND", "succeeded", "succeeded", "tool_error"]


async def test_the_whole_is_an_error_if_all_calls_failed(two_servers: TestUser) -> None:
    result = await call_all(two_servers.http, ("a.b", {}), ("c.d", {}))
    assert result["isError"] is True
    assert [get_code(entry) for entry in get_results(result)] == ["TOOL_NOT_FOUND"] * 2


async def test_the_result_of_a_single_call_is_the_same_as_before(two_servers: TestUser) -> None:
    single = await call_meta_tool(two_servers.http, "tool_execute", {"toolKey": "one.read", "arguments": {"a": 1}})
    assert (get_text(single), "structuredContent" in single) == ('{"a": 1}', False)
    [entry] = get_results(await call_all(two_servers.http, ("one.read", {"a": 1})))
    assert entry["content"] == single["content"]


async def test_calls_of_different_servers_run_at_the_same_time(
    two_servers: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    def free(_: Json) -> Json:
        mcp.stalled.clear()
        return {"content": []}

    mcp.stalled, legacy_mcp.on_call = {"write"}, {"write": free}
    results = get_results(await call_all(two_servers.http, ("one.write", {}), ("two.write", {})))
    assert [entry["isError"] for entry in results] == [False, False]


async def test_calls_of_one_server_run_in_the_given_order(two_servers: TestUser, mcp: FakeMcpServer) -> None:
    mcp.stalled = {"write"}
    running = asyncio.create_task(call_all(two_servers.http, ("one.write", {"n": 1}), ("one.read", {"n": 2})))
    await wait_for(lambda: mcp.calls)
    mcp.stalled.clear()
    await running
    assert mcp.calls == [("write", {"n": 1}), ("read", {"n": 2})]


async def test_calls_of_one_server_that_only_read_run_at_the_same_time(user: TestUser, mcp: FakeMcpServer) -> None:
    def free(_: Json) -> Json:
        mcp.stalled.clear()
        return {"content": []}

    mcp.tools = [tool("look", annotations=READ_ONLY), tool("list", annotations=READ_ONLY)]
    mcp.stalled, mcp.on_call = {"look"}, {"list": free}
    await user.connect(mcp, "one")
    results = get_results(await call_all(user.http, ("one.look", {}), ("one.list", {})))
    assert [entry["isError"] for entry in results] == [False, False]


async def test_progress_counts_the_calls_and_only_grows(
    two_servers: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    mcp.progress = {"write": 2}
    reports: list[tuple[float, float | None]] = []

    async def append_report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total))

    calls = [{"toolKey": "one.write"}, {"toolKey": "one.read"}, {"toolKey": "two.write"}]
    async with connect_client(f"{address}/mcp", two_servers.key) as client:
        await client.call_tool("tool_execute", {"calls": calls}, progress_callback=append_report)
        await wait_for(lambda: reports and reports[-1][0] == 3)
    values = [progress for progress, _ in reports]
    assert values == sorted(set(values))
    assert {total for _, total in reports} == {3}


async def test_cancelling_ends_all_calls(
    two_servers: TestUser, address: str, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.stalled, legacy_mcp.stalled = {"read"}, {"write"}
    calls = [{"toolKey": "one.read"}, {"toolKey": "one.write"}, {"toolKey": "two.write"}]
    async with connect_client(f"{address}/mcp", two_servers.key) as client:
        running = asyncio.create_task(client.call_tool("tool_execute", {"calls": calls}))
        await wait_for(lambda: mcp.calls and legacy_mcp.calls)
        running.cancel()
        await wait_for(lambda: mcp.cancelled_calls and legacy_mcp.cancelled_calls)
    assert [name for name, _ in mcp.calls] == ["read"], "the next call of the same server is not begun"


async def test_an_unexpected_error_of_one_call_does_not_hide_the_others(
    two_servers: TestUser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_answer: Json, _limit: int) -> Any:
        raise RuntimeError("secret")

    with monkeypatch.context() as patch:
        patch.setattr("app.execution.execute.truncate", fail)
        broken = await call_all(two_servers.http, ("one.read", {}), ("a.b", {}))
    first, second = get_results(broken)
    assert (get_code(first), get_code(second)) == ("internal_error", "TOOL_NOT_FOUND")
    assert "secret" not in str(broken)
    assert "unexpected error" in caplog.text
    [again] = get_results(await call_all(two_servers.http, ("one.read", {})))
    assert not again["isError"]


async def test_calls_that_the_time_does_not_suffice_for_are_not_run(
    container: Container, two_servers: TestUser, mcp: FakeMcpServer
) -> None:
    scope = Scope(two_servers.id, container.model.id)
    requests = [ExecutionRequest(scope, "user:test", {}, key) for key in ("one.read", "two.write")]
    in_no_time = replace(container.executor, timeout_s=0.0, max_timeout_s=0.0)
    outcomes = await execute_batch(in_no_time, requests)
    assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable]
    assert mcp.calls == []
    assert all(isinstance(each, ExecutionResult) for each in await execute_batch(container.executor, requests))


async def test_every_call_counts_for_the_rate_limit(container: Container, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read")]
    async with new_user(replace(container, rate_limiter=RateLimiter(2, container.metrics))) as limited:
        await limited.connect(mcp, "one")
        result = await call_all(limited.http, *[("one.read", {})] * 10)
        assert get_error(result)["code"] == "rate_limited"
        assert "at most 8 are possible at once, and these are 10" in get_text(result)
        assert "Nothing was run. Try again in " in get_text(result)
        assert mcp.calls == []
        alone = await call_meta_tool(limited.http, "tool_execute", {"toolKey": "one.read"})
        assert "isError" not in alone, "the refused calls took nothing from the limit"


def repeat_text(arguments: Json) -> Json:
    return {"content": [{"type": "text", "text": "x" * arguments["size"]}]}


async def test_the_results_share_the_size_limit_of_one(
    container: Container, user: TestUser, mcp: FakeMcpServer
) -> None:
    limit = container.executor.max_result_bytes
    mcp.tools, mcp.on_call = [tool("read", annotations=READ_ONLY)], {"read": repeat_text}
    await user.connect(mcp, "one")
    sizes = [limit * 2 // 3, 10, limit * 2 // 3]
    result = await call_all(user.http, *(("one.read", {"size": size}) for size in sizes))
    lengths = [len(entry["content"][0]["text"]) for entry in get_results(result)]
    assert lengths[1] == 10
    assert 0.95 * limit < sum(lengths) <= limit
    truncated = ["toolscout/truncated" in entry.get("_meta", {}) for entry in get_results(result)]
    assert truncated == [True, False, True]
    assert get_results(result)[0]["content"][-1]["text"] == (
        f"[truncated: the results together are larger than {limit} bytes]"
    )
    fitting = get_results(await call_all(user.http, ("one.read", {"size": sizes[0]}), ("one.read", {"size": 10})))
    assert [len(entry["content"][0]["text"]) for entry in fitting] == sizes[:2]


async def test_an_input_schema_is_shown_once_for_each_tool(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [
        tool(name, inputSchema={"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]})
        for name in ("one", "two")
    ]
    await user.connect(mcp, "s")
    result = await call_all(user.http, ("s.one", {}), ("s.two", {}), ("s.one", {}))
    texts = [entry["content"][0]["text"] for entry in get_results(result)]
    assert ["The input schema: {" in text for text in texts] == [True, True, False]
    assert texts[2].endswith("The input schema is the same as in calls[0].")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"calls": [{"arguments": {}}]}, "arguments.calls.0: 'toolKey' is a required property"),
        ({"calls": [{"toolKey": "a.b", "args": {}}]}, "did you mean 'arguments'"),
        ({"calls": [{"toolKey": "a.b"}] * 11}, "arguments.calls"),
        ({"calls": [{"toolKey": "a.b"}], "toolKey": "a.b"}, "send either toolKey or calls, not both"),
        ({"calls": [{"toolKey": "a.b"}], "arguments": {"a": 1}}, "put the arguments into each of the calls"),
        ({"calls": []}, "'toolKey' is a required property"),
        ({}, "'toolKey' is a required property"),
    ],
    ids=str,
)
async def test_invalid_calls_are_refused_before_anything_runs(user: TestUser, arguments: Json, message: str) -> None:
    result = await call_meta_tool(user.http, "tool_execute", arguments)
    assert get_error(result)["code"] == "TOOL_VALIDATION_ERROR"
    assert message in get_text(result)


async def test_calls_and_their_arguments_may_be_json_texts(two_servers: TestUser) -> None:
    for calls in (
        '[{"toolKey": "one.read", "arguments": {"a": 1}}]',
        [{"toolKey": "one.read", "arguments": '{"a": 1}'}],
    ):
        [entry] = get_results(await call_meta_tool(two_servers.http, "tool_execute", {"calls": calls}))
        assert entry["content"][0]["text"] == '{"a": 1}'


@pytest.fixture
async def confirming_user(container: Container, mcp: FakeMcpServer) -> AsyncIterator[TestUser]:
    mcp.tools = [tool("delete", annotations={"destructiveHint": True}), tool("read")]
    executor = replace(container.executor, confirm_destructive=True)
    async with new_user(replace(container, executor=executor)) as created:
        await created.connect(mcp, "one")
        yield created


async def test_a_destructive_call_is_confirmed_by_itself(confirming_user: TestUser, mcp: FakeMcpServer) -> None:
    http = confirming_user.http
    first, second = get_results(await call_all(http, ("one.delete", {"n": 1}), ("one.read", {})))
    assert (get_code(first), get_code(second)) == ("CONFIRMATION_REQUIRED", None)
    token = first["_meta"]["toolscout/error"]["confirmation_token"]
    again = {"calls": [{"toolKey": "one.delete", "arguments": {"n": 1}, "confirmationToken": token}]}
    [confirmed] = get_results(await call_meta_tool(http, "tool_execute", again))
    assert not confirmed["isError"]
    assert [name for name, _ in mcp.calls] == ["read", "delete"]


async def test_a_client_that_can_ask_its_user_gets_no_token_for_one_of_several_calls(
    confirming_user: TestUser, mcp: FakeMcpServer
) -> None:
    meta: Json = {CLIENT_CAPABILITIES_META_KEY: {"elicitation": {"form": {}}}}
    [entry] = get_results(await call_all(confirming_user.http, ("one.delete", {}), _meta=meta))
    assert get_code(entry) == "CONFIRMATION_REQUIRED"
    assert "call it alone" in entry["content"][0]["text"]
    assert "confirmation_token" not in str(entry)
    alone = await call_meta_tool(confirming_user.http, "tool_execute", {"toolKey": "one.delete"}, _meta=meta)
    assert alone["resultType"] == "input_required"
    assert mcp.calls == []
