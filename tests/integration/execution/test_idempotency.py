"""Tests of the `Idempotency-Key`: the tool runs once, and repeated requests get the outcome of the first call."""

import asyncio
import uuid
from typing import Any

import httpx
import pytest
from sqlalchemy import Executable

from app.container import Container
from app.db import retention
from app.db.engine import Session
from app.execution import idempotency
from tests.support.calls import (
    Json,
    assert_ok,
    connect_with_tools,
    list_executions,
    raise_disk_full,
    result_text,
    stopped_server,
    wait_for_calls,
)
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, drop
from tests.support.worker_steps import until

pytestmark = pytest.mark.no_retry

CANARY = "canary-4f1b"


async def send(user: TestUser, name: str, key: str, arguments: Json | None = None, **fields: Any) -> httpx.Response:
    tool_key = (await user.tools())[name]["id"]
    body = {"tool_key": tool_key, "arguments": arguments or {}, **fields}
    return await user.http.post("/execute", json=body, headers={"Idempotency-Key": key})


async def query(container: Container, user: TestUser, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    async with container.database.transaction(user.id) as session:
        return await session.rows(statement, values)


async def test_a_repeated_call_runs_once_and_gets_the_same_answer(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call["pay"] = lambda _: {
        "content": [{"type": "text", "text": uuid.uuid4().hex}],
        "structuredContent": {"a": 1},
    }
    await connect_with_tools(user, mcp, "pay")
    first = await send(user, "pay", "k", {"to": "bob", "sum": 5})
    again = await send(user, "pay", "k", {"sum": 5, "to": "bob"})
    assert assert_ok(again) == assert_ok(first)
    assert len(mcp.calls) == 1
    assert len(await list_executions(container, user.id)) == 1, "a replayed call is not audited again"
    other = await send(user, "pay", "another", {"to": "bob", "sum": 5})
    assert result_text(other) != result_text(first)
    assert len(mcp.calls) == 2


async def test_without_a_key_every_call_runs(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    for _ in range(2):
        assert_ok(await user.execute("pay", {"sum": 5}))
    assert len(mcp.calls) == 2


async def test_two_keys_in_one_request_are_refused(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    body = {"tool_key": (await user.tools())["pay"]["id"]}
    for keys in (["a", "b"], ["a", "a"]):
        answer = await user.http.post("/execute", json=body, headers=[("Idempotency-Key", key) for key in keys])
        assert_problem(answer, 400, "bad_request")
    assert mcp.calls == []
    assert_ok(await send(user, "pay", "a,b"))


async def test_a_key_cannot_be_used_for_another_request(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay", "refund")
    assert_ok(await send(user, "pay", "k", {"sum": 5}))
    for answer in (
        await send(user, "pay", "k", {"sum": 6}),
        await send(user, "refund", "k", {"sum": 5}),
        await send(user, "pay", "k", {"sum": 5}, timeout_ms=5_000),
    ):
        assert "another request" in assert_problem(answer, 422, "invalid_input")["detail"]
    assert_ok(await send(user, "pay", "k", {"sum": 5}))
    assert len(mcp.calls) == 1


async def test_repeating_a_running_call_is_a_conflict(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    mcp.stalled.add("pay")
    running = asyncio.create_task(send(user, "pay", "k"))
    await wait_for_calls(mcp)
    assert "still running" in assert_problem(await send(user, "pay", "k"), 409, "conflict")["detail"]
    mcp.stalled.clear()
    assert assert_ok(await running) == assert_ok(await send(user, "pay", "k"))
    assert len(mcp.calls) == 1


async def test_one_of_many_concurrent_calls_with_the_same_key_runs(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    mcp.stalled.add("pay")
    sending = [asyncio.create_task(send(user, "pay", "k")) for _ in range(12)]

    async def all_but_one_are_answered() -> bool:
        return sum(task.done() for task in sending) == 11

    await until(all_but_one_are_answered)
    mcp.stalled.clear()
    answers = await asyncio.gather(*sending)
    assert len(mcp.calls) == 1
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 11


async def test_keys_of_different_users_are_independent(
    user: TestUser, other_user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call["pay"] = lambda arguments: {"content": [{"type": "text", "text": f"{arguments} {uuid.uuid4().hex}"}]}
    for owner in (user, other_user):
        await connect_with_tools(owner, mcp, "pay")
    mine, theirs = await send(user, "pay", "k", {"owner": "me"}), await send(other_user, "pay", "k", {"owner": "them"})
    assert ("me" in result_text(mine), "them" in result_text(theirs)) == (True, True)
    assert result_text(await send(user, "pay", "k", {"owner": "me"})) == result_text(mine)
    assert result_text(await send(other_user, "pay", "k", {"owner": "them"})) == result_text(theirs)
    assert len(mcp.calls) == 2
    assert await query(container, user, "SELECT DISTINCT user_id FROM tool_calls") == [(user.id,)]


async def test_the_key_is_released_if_nothing_was_run(user: TestUser, container: Container, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("pay", inputSchema={"type": "object", "required": ["sum"]})]
    await user.connect(mcp)
    assert_problem(await send(user, "pay", "k", {}), 422, "TOOL_VALIDATION_ERROR")
    with stopped_server(mcp):
        assert_problem(await send(user, "pay", "k", {"sum": 5}), 502, "SERVER_CONNECTION_ERROR")
    assert await query(container, user, "SELECT key FROM tool_calls") == []
    assert_ok(await send(user, "pay", "k", {"sum": 6}))
    assert len(mcp.calls) == 1


@pytest.mark.parametrize("failure", ["a dropped connection", "a timeout", "an error"])
async def test_a_failed_call_is_replayed_and_never_runs_again(user: TestUser, mcp: FakeMcpServer, failure: str) -> None:
    await connect_with_tools(user, mcp, "pay")
    timeout_ms = 3_000 if failure == "a timeout" else 20_000
    if failure == "a dropped connection":
        mcp.fault, expected = Fault(drop, on=["tools/call"]), (502, "TOOL_EXECUTION_ERROR", "unknown")
    elif failure == "a timeout":
        mcp.delays["pay"], expected = 60.0, (504, "TOOL_EXECUTION_TIMEOUT", "unknown")
    else:
        mcp.on_call["pay"], expected = raise_disk_full, (502, "TOOL_EXECUTION_ERROR", "failed")
    status, code, outcome = expected
    first = assert_problem(await send(user, "pay", "k", timeout_ms=timeout_ms), status, code)
    mcp.fault, mcp.delays, mcp.on_call = None, {}, {}
    again = assert_problem(await send(user, "pay", "k", timeout_ms=timeout_ms), status, code)
    assert (first["outcome"], again["outcome"]) == (outcome, outcome)
    assert first["detail"] == again["detail"]
    assert len(mcp.calls) == 1
    assert_ok(await send(user, "pay", "another", timeout_ms=20_000))


async def test_a_call_whose_caller_disconnected_has_an_unknown_outcome_and_never_runs_again(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, mcp, "pay")
    mcp.stalled.add("pay")
    running = asyncio.create_task(send(user, "pay", "k"))
    await wait_for_calls(mcp)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    mcp.stalled.clear()
    problem = assert_problem(await send(user, "pay", "k"), 502, "TOOL_EXECUTION_ERROR")
    assert problem["outcome"] == "unknown"
    assert "disconnected, or the service stopped" in problem["detail"]
    assert len(mcp.calls) == 1


async def test_a_call_of_a_dead_process_has_an_unknown_outcome_and_never_runs_again(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, mcp, "pay")
    assert_ok(await send(user, "pay", "k"))
    await query(container, user, "UPDATE tool_calls SET answer = NULL, given_up_at = now() + interval '9 seconds'")
    assert_problem(await send(user, "pay", "k"), 409, "conflict")
    await query(container, user, "UPDATE tool_calls SET given_up_at = now() - interval '1 second'")
    for _ in range(2):
        problem = assert_problem(await send(user, "pay", "k"), 502, "TOOL_EXECUTION_ERROR")
        assert problem["outcome"] == "unknown"
    assert len(mcp.calls) == 1


async def test_a_call_is_given_up_only_after_its_own_timeout(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, mcp, "pay")
    assert_ok(await send(user, "pay", "usual"))
    assert_ok(await send(user, "pay", "patient", timeout_ms=100_000))
    assert_ok(await send(user, "pay", "too-patient", timeout_ms=3_000_000))
    waits_s = dict(
        await query(container, user, "SELECT key, extract(epoch FROM given_up_at - started_at)::float FROM tool_calls")
    )
    assert waits_s["usual"] > container.settings.call_timeout_s
    assert waits_s["patient"] > 100
    assert 120 < waits_s["too-patient"] < 200


async def test_a_key_that_was_claimed_as_its_caller_disconnected_is_released(
    user: TestUser, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent: a key that stays claimed would look like a call that still runs."""
    await connect_with_tools(user, mcp, "pay")
    is_claiming, may_claim = asyncio.Event(), asyncio.Event()
    claim_key = idempotency.claim_key

    async def claim_slowly(*args: Any, **options: Any) -> Any:
        is_claiming.set()
        await may_claim.wait()
        return await claim_key(*args, **options)

    monkeypatch.setattr(idempotency, "claim_key", claim_slowly)
    running = asyncio.create_task(send(user, "pay", "k"))
    await is_claiming.wait()
    running.cancel()
    may_claim.set()
    await asyncio.gather(running, return_exceptions=True)
    assert len(mcp.calls) == 0
    assert_ok(await send(user, "pay", "k"))
    assert len(mcp.calls) == 1


async def test_stored_responses_are_encrypted_and_bound_to_their_row(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call["pay"] = lambda arguments: {"content": [{"type": "text", "text": f"{CANARY} {arguments}"}]}
    await connect_with_tools(user, mcp, "pay")
    for key in ("one", "two"):
        assert CANARY in result_text(await send(user, "pay", key, {"secret": f"{CANARY} {key}"}))
    rows = await query(container, user, "SELECT key, to_jsonb(t)::text, request, answer FROM tool_calls t ORDER BY key")
    assert [key for key, *_ in rows] == ["one", "two"]
    for _, row_text, request, answer in rows:
        assert len(answer) > len(CANARY)
        for content in (row_text.encode(), bytes(request), bytes(answer)):
            assert CANARY.encode() not in content
            assert CANARY.encode().hex().encode() not in content
    await query(
        container,
        user,
        "UPDATE tool_calls t SET answer = o.answer FROM tool_calls o WHERE t.key = 'one' AND o.key = 'two'",
    )
    answer = await send(user, "pay", "one", {"secret": f"{CANARY} one"})
    assert answer.status_code == 500
    assert CANARY not in answer.text
    assert CANARY in result_text(await send(user, "pay", "two", {"secret": f"{CANARY} two"}))
    assert len(mcp.calls) == 2


async def test_a_key_that_is_released_during_a_claim_is_claimed(user: TestUser, container: Container) -> None:
    request = user.id, "k", b"the same request", 5.0
    database, sealer = container.database, container.sealer
    async with database.transaction(user.id) as session:
        assert await idempotency.claim_key(session, sealer, *request) is None

    class ReleasingSession(Session):
        """The first caller releases the key right after our first statement."""

        async def scalar(self, statement: Executable) -> Any:
            claimed = await super().scalar(statement)
            async with database.transaction(user.id) as other:
                await idempotency.release_key(other, user.id, "k")
            return claimed

    async with database.transaction(user.id) as session:
        releasing = ReleasingSession(session._connection, session._driver)
        assert await idempotency.claim_key(releasing, sealer, *request) is None


async def test_a_response_is_replayed_even_if_the_tool_was_disabled_since(user: TestUser, mcp: FakeMcpServer) -> None:
    await connect_with_tools(user, mcp, "pay")
    tool_id = (await user.tools())["pay"]["id"]
    first = assert_ok(await send(user, "pay", "k"))
    await user.http.patch(f"/tools/{tool_id}", json={"enabled": False})
    assert assert_ok(await send(user, "pay", "k")) == first
    assert (await send(user, "pay", "another")).status_code == 404
    assert len(mcp.calls) == 1


async def test_keys_older_than_a_day_are_deleted(
    user: TestUser, container: Container, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_FIRST_RUN_S", 0)
    await connect_with_tools(user, mcp, "pay")
    for key in ("old", "young"):
        assert_ok(await send(user, "pay", key))
    await query(
        container,
        user,
        "UPDATE tool_calls SET started_at = now() - CASE key WHEN 'old' THEN interval '25 h' ELSE interval '23 h' END",
    )
    loop = asyncio.create_task(retention.run_retention(container.database, [idempotency.expired_rows()]))

    async def old_key_is_deleted() -> bool:
        return await query(container, user, "SELECT key FROM tool_calls") == [("young",)]

    await until(old_key_is_deleted)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
