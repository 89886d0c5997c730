"""The same `Idempotency-Key` twice: the tool runs once, and whoever asks again is told how that went."""

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
from tests.integration.execution.test_execute import offer, refuse, stopped
from tests.support.calls import Json, executions, failed, succeeded, text
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


async def stored(container: Container, user: TestUser, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    async with container.database.transaction(user.id) as session:
        return await session.rows(statement, values)


async def test_a_repeated_call_runs_once_and_gets_the_same_answer(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call["pay"] = lambda _: {
        "content": [{"type": "text", "text": uuid.uuid4().hex}],
        "structuredContent": {"a": 1},
    }
    await offer(user, mcp, "pay")
    first = await send(user, "pay", "k", {"to": "bob", "sum": 5})
    again = await send(user, "pay", "k", {"sum": 5, "to": "bob"})
    assert succeeded(again) == succeeded(first)
    assert len(mcp.calls) == 1
    assert len(await executions(container, user.id)) == 1, "a repetition is no execution"
    other = await send(user, "pay", "another", {"to": "bob", "sum": 5})
    assert text(other) != text(first)
    assert len(mcp.calls) == 2


async def test_without_a_key_every_call_runs(user: TestUser, mcp: FakeMcpServer) -> None:
    await offer(user, mcp, "pay")
    for _ in range(2):
        succeeded(await user.execute("pay", {"sum": 5}))
    assert len(mcp.calls) == 2


async def test_a_key_belongs_to_one_request(user: TestUser, mcp: FakeMcpServer) -> None:
    await offer(user, mcp, "pay", "refund")
    succeeded(await send(user, "pay", "k", {"sum": 5}))
    for answer in (
        await send(user, "pay", "k", {"sum": 6}),
        await send(user, "refund", "k", {"sum": 5}),
        await send(user, "pay", "k", {"sum": 5}, timeout_ms=5_000),
    ):
        assert "another request" in failed(answer, 422, "invalid_input")["detail"]
    succeeded(await send(user, "pay", "k", {"sum": 5}))
    assert len(mcp.calls) == 1


async def test_while_the_first_call_runs_the_others_are_told_so(user: TestUser, mcp: FakeMcpServer) -> None:
    await offer(user, mcp, "pay")
    mcp.stalled.add("pay")
    running = asyncio.create_task(send(user, "pay", "k"))

    async def called() -> bool:
        return len(mcp.calls) == 1

    await until(called)
    assert "still running" in failed(await send(user, "pay", "k"), 409, "conflict")["detail"]
    mcp.stalled.clear()
    assert succeeded(await running) == succeeded(await send(user, "pay", "k"))
    assert len(mcp.calls) == 1


async def test_of_many_at_once_one_runs(user: TestUser, mcp: FakeMcpServer) -> None:
    await offer(user, mcp, "pay")
    mcp.stalled.add("pay")
    sending = [asyncio.create_task(send(user, "pay", "k")) for _ in range(12)]

    async def all_but_one_are_told() -> bool:
        return sum(task.done() for task in sending) == 11

    await until(all_but_one_are_told)
    mcp.stalled.clear()
    answers = await asyncio.gather(*sending)
    assert len(mcp.calls) == 1
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 11


async def test_the_same_key_of_two_users_is_two_keys(
    user: TestUser, other_user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call["pay"] = lambda arguments: {"content": [{"type": "text", "text": f"{arguments} {uuid.uuid4().hex}"}]}
    for each in (user, other_user):
        await offer(each, mcp, "pay")
    mine, theirs = await send(user, "pay", "k", {"of": "me"}), await send(other_user, "pay", "k", {"of": "them"})
    assert ("me" in text(mine), "them" in text(theirs)) == (True, True)
    assert text(await send(user, "pay", "k", {"of": "me"})) == text(mine)
    assert text(await send(other_user, "pay", "k", {"of": "them"})) == text(theirs)
    assert len(mcp.calls) == 2
    assert await stored(container, user, "SELECT DISTINCT user_id FROM tool_calls") == [(user.id,)]


async def test_where_nothing_was_run_the_key_is_free_again(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("pay", inputSchema={"type": "object", "required": ["sum"]})]
    await user.connect(mcp)
    failed(await send(user, "pay", "k", {}), 422, "TOOL_VALIDATION_ERROR")
    with stopped(mcp):
        failed(await send(user, "pay", "k", {"sum": 5}), 502, "SERVER_CONNECTION_ERROR")
    assert await stored(container, user, "SELECT key FROM tool_calls") == []
    succeeded(await send(user, "pay", "k", {"sum": 6}))
    assert len(mcp.calls) == 1


@pytest.mark.parametrize("trouble", ["a dropped connection", "a time-out", "an error"])
async def test_how_a_call_went_wrong_is_told_again_and_it_never_runs_again(
    user: TestUser, mcp: FakeMcpServer, trouble: str
) -> None:
    await offer(user, mcp, "pay")
    patience_ms = 3_000 if trouble == "a time-out" else 20_000
    if trouble == "a dropped connection":
        mcp.fault, expected = Fault(drop, on=["tools/call"]), (502, "TOOL_EXECUTION_ERROR", "unknown")
    elif trouble == "a time-out":
        mcp.delays["pay"], expected = 60.0, (504, "TOOL_EXECUTION_TIMEOUT", "unknown")
    else:
        mcp.on_call["pay"], expected = refuse, (502, "TOOL_EXECUTION_ERROR", "failed")
    status, code, outcome = expected
    first = failed(await send(user, "pay", "k", timeout_ms=patience_ms), status, code)
    mcp.fault, mcp.delays, mcp.on_call = None, {}, {}
    again = failed(await send(user, "pay", "k", timeout_ms=patience_ms), status, code)
    assert (first["outcome"], again["outcome"]) == (outcome, outcome)
    assert first["detail"] == again["detail"]
    assert len(mcp.calls) == 1
    succeeded(await send(user, "pay", "another", timeout_ms=20_000))


async def test_a_call_whose_caller_went_away_is_unknown_and_never_runs_again(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    await offer(user, mcp, "pay")
    mcp.stalled.add("pay")
    running = asyncio.create_task(send(user, "pay", "k"))

    async def called() -> bool:
        return len(mcp.calls) == 1

    await until(called)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    mcp.stalled.clear()
    problem = failed(await send(user, "pay", "k"), 502, "TOOL_EXECUTION_ERROR")
    assert problem["outcome"] == "unknown"
    assert "went away, or the service stopped" in problem["detail"]
    assert len(mcp.calls) == 1


async def test_a_key_that_a_dead_process_left_behind_is_unknown_and_never_runs(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await offer(user, mcp, "pay")
    succeeded(await send(user, "pay", "k"))
    await stored(container, user, "UPDATE tool_calls SET answer = NULL, given_up_at = now() + interval '9 seconds'")
    failed(await send(user, "pay", "k"), 409, "conflict")
    await stored(container, user, "UPDATE tool_calls SET given_up_at = now() - interval '1 second'")
    for _ in range(2):
        problem = failed(await send(user, "pay", "k"), 502, "TOOL_EXECUTION_ERROR")
        assert problem["outcome"] == "unknown"
    assert len(mcp.calls) == 1


async def test_a_call_is_given_up_only_after_its_own_time_out(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await offer(user, mcp, "pay")
    succeeded(await send(user, "pay", "usual"))
    succeeded(await send(user, "pay", "patient", timeout_ms=3_000_000))
    waits = dict(
        await stored(container, user, "SELECT key, extract(epoch FROM given_up_at - started_at)::float FROM tool_calls")
    )
    assert waits["usual"] > container.settings.call_timeout_s
    assert waits["patient"] > 3_000


async def test_answers_are_stored_sealed_and_open_in_no_other_row(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call["pay"] = lambda arguments: {"content": [{"type": "text", "text": f"{CANARY} {arguments}"}]}
    await offer(user, mcp, "pay")
    for key in ("one", "two"):
        assert CANARY in text(await send(user, "pay", key, {"secret": f"{CANARY} {key}"}))
    rows = await stored(
        container, user, "SELECT key, to_jsonb(t)::text, request, answer FROM tool_calls t ORDER BY key"
    )
    assert [key for key, *_ in rows] == ["one", "two"]
    for _, shown, request, answer in rows:
        assert len(answer) > len(CANARY)
        for content in (shown.encode(), bytes(request), bytes(answer)):
            assert CANARY.encode() not in content
            assert CANARY.encode().hex().encode() not in content
    await stored(
        container,
        user,
        "UPDATE tool_calls t SET answer = o.answer FROM tool_calls o WHERE t.key = 'one' AND o.key = 'two'",
    )
    answer = await send(user, "pay", "one", {"secret": f"{CANARY} one"})
    assert answer.status_code == 500
    assert CANARY not in answer.text
    assert CANARY in text(await send(user, "pay", "two", {"secret": f"{CANARY} two"}))
    assert len(mcp.calls) == 2


async def test_a_key_that_is_released_while_another_asks_for_it_is_theirs(user: TestUser, container: Container) -> None:
    request = user.id, "k", b"the same request", 5.0
    database, sealer = container.database, container.sealer
    async with database.transaction(user.id) as session:
        assert await idempotency.claim_key(session, sealer, *request) is None

    class OutcomeUnknown(Session):
        """The other caller ends just after our first statement."""

        async def scalar(self, statement: Executable) -> Any:
            claimed = await super().scalar(statement)
            async with database.transaction(user.id) as other:
                await idempotency.release_key(other, user.id, "k")
            return claimed

    async with database.transaction(user.id) as session:
        interrupted = OutcomeUnknown(session._connection, session._driver)
        assert await idempotency.claim_key(interrupted, sealer, *request) is None


async def test_an_answer_is_given_again_although_the_tool_may_be_used_no_more(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    await offer(user, mcp, "pay")
    tool_id = (await user.tools())["pay"]["id"]
    first = succeeded(await send(user, "pay", "k"))
    await user.http.patch(f"/tools/{tool_id}", json={"enabled": False})
    assert succeeded(await send(user, "pay", "k")) == first
    assert (await send(user, "pay", "another")).status_code == 404
    assert len(mcp.calls) == 1


async def test_what_is_older_than_a_day_is_forgotten(
    user: TestUser, container: Container, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_FIRST_RUN_S", 0)
    await offer(user, mcp, "pay")
    for key in ("old", "young"):
        succeeded(await send(user, "pay", key))
    await stored(
        container,
        user,
        "UPDATE tool_calls SET started_at = now() - CASE key WHEN 'old' THEN interval '25 h' ELSE interval '23 h' END",
    )
    loop = asyncio.create_task(retention.run_retention(container.database, [idempotency.expired_rows()]))

    async def forgotten() -> bool:
        return await stored(container, user, "SELECT key FROM tool_calls") == [("young",)]

    await until(forgotten)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
