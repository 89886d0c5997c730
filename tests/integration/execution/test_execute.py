"""A visible tool runs on its server, once, and whatever becomes of it is said and written down."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from app.catalog.visibility import Scope
from app.container import Container
from app.execution.execute import ExecutionRequest, ProgressReports, execute
from app.execution.results import make_serializable, truncate
from tests.support.calls import Json, executions, failed, succeeded, text
from tests.support.checks import without_request_id
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, drop, verbatim
from tests.support.worker_steps import server_of, until

EVERY_KIND = {
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


async def offer(user: TestUser, mcp: FakeMcpServer, *names: str, server: str = "files") -> str:
    """The id of the server."""
    mcp.tools = [tool(name) for name in names]
    return await user.connect(mcp, server)


@contextmanager
def stopped(mcp: FakeMcpServer) -> Iterator[None]:
    mcp.stop()
    try:
        yield
    finally:
        mcp.start()


async def test_a_result_is_passed_on_whole_over_every_transport(user: TestUser, any_mcp: FakeMcpServer) -> None:
    any_mcp.on_call["show"] = lambda _: EVERY_KIND
    server_id = await offer(user, any_mcp, "show")
    body = succeeded(await user.execute("show", {"a": [1, {"b": "ü"}]}))
    assert body["result"].pop("_meta").items() >= EVERY_KIND["_meta"].items()  # type: ignore[attr-defined]
    assert body["result"] == {name: value for name, value in EVERY_KIND.items() if name != "_meta"}
    assert (body["server_id"], body["truncated"]) == (server_id, False)
    assert body["tool_key"] == (await user.tools())["show"]["id"]
    assert 0 < body["duration_ms"] < 10_000
    assert any_mcp.calls == [("show", {"a": [1, {"b": "ü"}]})]


async def test_a_tool_that_says_it_failed_has_answered(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call["show"] = lambda _: {"content": [{"type": "text", "text": "no such file"}], "isError": True}
    await offer(user, mcp, "show")
    answer = await user.execute("show")
    assert succeeded(answer)["result"]["isError"] is True
    assert text(answer) == "no such file"
    assert [outcome for outcome, _ in await executions(container, user.id)] == ["tool_error"]


async def test_a_number_longer_than_ours_is_passed_on_to_the_last_digit(
    user: TestUser, legacy_mcp: FakeMcpServer
) -> None:
    long = 123456789012345678901234567890
    await offer(user, legacy_mcp, "count")
    result = json.dumps({"content": [], "structuredContent": {"long": [long, -long], "short": 2**63 - 1}})
    legacy_mcp.fault = Fault(verbatim(result.encode()), on=["tools/call"])
    answer = await user.http.post(
        "/execute",
        json={"tool_key": (await user.tools())["count"]["id"]},
        headers={"Idempotency-Key": "long"},
    )
    assert succeeded(answer)["result"]["structuredContent"] == {"long": [str(long), str(-long)], "short": 2**63 - 1}


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**4_000, True, 1.5])
def test_every_number_can_be_written(number: Any) -> None:
    written = orjson.dumps(make_serializable({"content": [], "structuredContent": {"n": [number]}}))
    [passed_on] = orjson.loads(written)["structuredContent"]["n"]
    assert passed_on in (number, str(number))


def result_of(size: int) -> Json:
    """So many bytes of JSON."""
    empty: Json = {"content": [{"type": "text", "text": ""}]}
    empty["content"][0]["text"] = "x" * (size - len(orjson.dumps(empty)))
    return empty


async def test_a_result_is_cut_off_beyond_the_limit_and_not_at_it(
    user: TestUser, container: Container, legacy_mcp: FakeMcpServer
) -> None:
    limit = container.settings.max_result_bytes
    legacy_mcp.on_call = {"fits": lambda _: result_of(limit), "beyond": lambda _: result_of(limit + 1)}
    await offer(user, legacy_mcp, "fits", "beyond")
    fits = succeeded(await user.execute("fits"))
    assert (fits["result"], fits["truncated"]) == (result_of(limit), False)
    beyond = succeeded(await user.execute("beyond"))
    assert beyond["truncated"] is True
    assert beyond["result"] == result_of(limit)


TEXTS = st.text(alphabet=st.sampled_from(list('ab"\\\n\t\x00\x1f\x7f/ü€🦉\u2028')), max_size=60)
BLOCKS = st.builds(lambda said: {"type": "text", "text": said, "annotations": {"priority": 1}}, TEXTS) | st.builds(
    lambda data: {"type": "image", "data": data, "mimeType": "image/png"}, TEXTS
)
RESULTS = st.builds(
    lambda blocks, extra: {"content": blocks, **extra},
    st.lists(BLOCKS, max_size=4),
    st.fixed_dictionaries({}, optional={"isError": st.booleans(), "structuredContent": st.just({"a": "x" * 30})}),
)


@settings(max_examples=200)
@given(RESULTS, st.integers(40, 400))
def test_what_is_left_of_a_result_fits_and_is_its_beginning(result: Json, limit: int) -> None:
    left, truncated = truncate(result, limit)
    assert len(orjson.dumps(left)) <= limit
    assert truncated is (len(orjson.dumps(result)) > limit)
    if not truncated:
        assert left == result
        return
    assert left.get("isError") == result.get("isError")
    for kept, whole in zip(left["content"], result["content"], strict=False):
        assert kept == whole or (kept["type"] == "text" and whole["text"].startswith(kept["text"]))
    assert all(kept == whole for kept, whole in zip(left["content"][:-1], result["content"], strict=False))


def test_a_text_is_cut_as_late_as_possible_between_two_characters() -> None:
    result = {"content": [{"type": "text", "text": "🦉" * 100}]}
    kept = [truncate(result, limit)[0]["content"][0]["text"] for limit in (80, 81, 82, 83, 84)]
    assert [len(said) for said in kept] == [10, 10, 10, 11, 11]


def test_what_else_a_long_text_carries_is_cut_off_with_it() -> None:
    result = {"content": [{"type": "text", "text": "x", "_meta": {"filler": "y" * 500}}], "_meta": {"a": 1}}
    assert truncate(result, 100) == ({"content": [{"type": "text", "text": "x"}]}, True)


async def refusals(user: TestUser, keys: list[str]) -> list[tuple[int, Json]]:
    answers = [await user.http.post("/execute", json={"tool_key": key}) for key in keys]
    for answer in answers:
        failed(answer, 404, "TOOL_NOT_FOUND")
    return [without_request_id(answer) for answer in answers]


async def test_what_may_not_be_used_answers_exactly_as_what_does_not_exist(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    await offer(other_user, legacy_mcp, "theirs")
    closed = await offer(user, legacy_mcp, "of_a_closed_server", server="closed")
    server_id = await offer(user, mcp, "open", "switched_off", "gone")
    known = {name: shown["id"] for name, shown in (await user.tools()).items()}
    theirs = (await other_user.tools())["theirs"]["id"]

    await user.http.put("/core-tools", json={"tools": [tool("native")]})
    native = (await user.discover("native"))["tools"][0]
    assert native["source"] == "core"
    await user.http.patch(f"/tools/{known['switched_off']}", json={"enabled": False})
    await user.http.patch(f"/servers/{closed}", json={"enabled": False})
    mcp.tools = [tool("open"), tool("switched_off")]
    await user.reindex(server_id)

    hidden = ["switched_off", "gone", "of_a_closed_server"]
    keys = [*(known[name] for name in hidden), theirs, str(uuid.uuid4()), "nothing", native["tool_key"]]
    answers = await refusals(user, keys)
    assert all(answer == answers[0] for answer in answers)
    assert (mcp.calls, legacy_mcp.calls) == ([], [])

    await user.http.patch(f"/tools/{known['switched_off']}", json={"enabled": True})
    for name in ("open", "switched_off"):
        succeeded(await user.execute(name))
    legacy_mcp.tools = [tool("theirs")]
    succeeded(await other_user.execute("theirs"))
    assert [name for name, _ in mcp.calls + legacy_mcp.calls] == ["open", "switched_off", "theirs"]


async def test_the_stored_fact_that_hides_a_tool_from_search_keeps_it_from_being_run(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await offer(user, mcp, "read_file")
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


async def test_a_pushed_tool_cannot_be_run_and_says_why(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    server_id = await user.add_tools(tool("pushed"), server="pushed")
    before = await server_of(user, server_id)
    problem = failed(await user.execute("pushed"), 502, "SERVER_CONNECTION_ERROR")
    assert problem["cause"] == "push"
    assert "pushed" in problem["detail"]
    assert await server_of(user, server_id) == before
    await offer(user, mcp, "asked")
    succeeded(await user.execute("asked"))
    assert [outcome for outcome, _ in await executions(container, user.id)] == ["SERVER_CONNECTION_ERROR", "succeeded"]


async def test_a_server_that_is_away_is_disconnected_until_the_next_good_call(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    server_id = await offer(user, mcp, "read")
    succeeded(await user.execute("read"))
    assert (await server_of(user, server_id))["status"] == "connected"
    with stopped(mcp):
        problem = failed(await user.execute("read"), 502, "SERVER_CONNECTION_ERROR")
        assert problem["cause"] == "refused"
        assert "outcome" not in problem
        away = await server_of(user, server_id)
        assert (away["status"], away["last_cause"], away["last_error"]) == (
            "disconnected",
            "refused",
            problem["detail"],
        )
    succeeded(await user.execute("read"))
    healed = await server_of(user, server_id)
    assert (healed["status"], healed["last_cause"], healed["last_error"]) == ("connected", None, None)
    assert len(mcp.calls) == 2


async def test_a_tool_that_takes_too_long_may_have_run(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await offer(user, mcp, "slow")
    mcp.stalled.add("slow")
    problem = failed(await user.execute("slow", timeout_ms=3_000), 504, "TOOL_EXECUTION_TIMEOUT")
    assert problem["outcome"] == "unknown"
    mcp.stalled.clear()
    succeeded(await user.execute("slow", timeout_ms=20_000))
    assert len(mcp.calls) == 2
    outcomes = [outcome for outcome, _ in await executions(container, user.id)]
    assert outcomes == ["TOOL_EXECUTION_TIMEOUT", "succeeded"]


async def test_a_call_that_may_have_reached_the_server_is_never_repeated(
    user: TestUser, container: Container, any_mcp: FakeMcpServer
) -> None:
    await offer(user, any_mcp, "pay")
    any_mcp.fault = Fault(drop, on=["tools/call"])
    problem = failed(await user.execute("pay"), 502, "TOOL_EXECUTION_ERROR")
    assert problem["outcome"] == "unknown"
    assert len(any_mcp.calls) == 1
    any_mcp.fault = None
    succeeded(await user.execute("pay"))
    assert len(any_mcp.calls) == 2
    assert [outcome for outcome, _ in await executions(container, user.id)] == ["TOOL_EXECUTION_ERROR", "succeeded"]


def refuse(_arguments: Json) -> Json:
    raise MCPError(INTERNAL_ERROR, "the disk is full")


async def test_a_server_that_answers_with_an_error_has_failed_for_sure(user: TestUser, any_mcp: FakeMcpServer) -> None:
    server_id = await offer(user, any_mcp, "write")
    any_mcp.on_call["write"] = refuse
    problem = failed(await user.execute("write"), 502, "TOOL_EXECUTION_ERROR")
    assert problem["outcome"] == "failed"
    assert "the disk is full" in problem["detail"]
    assert len(any_mcp.calls) == 1
    assert (await server_of(user, server_id))["status"] == "connected"
    del any_mcp.on_call["write"]
    succeeded(await user.execute("write"))


async def test_an_answer_that_is_no_result_leaves_the_outcome_open(user: TestUser, legacy_mcp: FakeMcpServer) -> None:
    await offer(user, legacy_mcp, "read")
    for broken in (b'{"content": 5}', b'{"content": [{"type": "text"}]}', b"[]"):
        legacy_mcp.fault = Fault(verbatim(broken), on=["tools/call"])
        assert failed(await user.execute("read"), 502, "TOOL_EXECUTION_ERROR")["outcome"] == "unknown"
    legacy_mcp.fault = Fault(verbatim(b'{"content": []}'), on=["tools/call"])
    succeeded(await user.execute("read"))
    assert len(legacy_mcp.calls) == 4


def calling(container: Container, user: TestUser, key: str, **fields: Any) -> ExecutionRequest:
    return ExecutionRequest(Scope(user.id, container.model.id), "test", {}, tool_key=key, **fields)


async def test_a_call_that_is_broken_off_is_written_down_and_proves_nothing_about_the_server(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    server_id = await offer(user, mcp, "slow")
    with stopped(mcp):
        failed(await user.execute("slow"), 502, "SERVER_CONNECTION_ERROR")
    mcp.delays["slow"] = 30.0
    key = (await user.tools())["slow"]["id"]
    running = asyncio.create_task(execute(container.executor, calling(container, user, key)))

    async def called() -> bool:
        return len(mcp.calls) == 1

    await until(called)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [outcome for outcome, _ in await executions(container, user.id)][-1] == "cancelled"
    assert (await server_of(user, server_id))["status"] == "disconnected"
    mcp.delays = {}
    succeeded(await user.execute("slow"))
    assert (await server_of(user, server_id))["status"] == "connected"


@contextmanager
def audit_closed(container: Container) -> Iterator[None]:
    """Postgres refuses what the app wants to write down."""
    url = container.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("REVOKE INSERT ON audit_events FROM toolscout_app")
        try:
            yield
        finally:
            owner.execute("GRANT INSERT ON audit_events TO toolscout_app")


async def test_a_tool_that_has_run_has_run_though_it_cannot_be_written_down(
    user: TestUser, container: Container, mcp: FakeMcpServer, caplog: pytest.LogCaptureFixture
) -> None:
    await offer(user, mcp, "read")
    key = (await user.tools())["read"]["id"]
    call = calling(container, user, key)
    with audit_closed(container):
        assert (await execute(container.executor, call)).tool_key == key
    assert "a call could not be written down" in caplog.text
    assert await executions(container, user.id) == []
    await execute(container.executor, call)
    assert await executions(container, user.id) == [("succeeded", key)]


async def test_a_server_that_reports_more_than_anybody_listens_to_fills_no_memory() -> None:
    progress = ProgressReports()
    for step in range(10_000):
        await progress.report(step, None, "x" * 1_000)
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    told = [report async for report in progress.reports(ended)]
    assert [report and report["progress"] for report in told] == list(range(100))


async def test_what_nobody_can_see_in_a_servers_error_reaches_nobody(user: TestUser, mcp: FakeMcpServer) -> None:
    def refuse(_: Json) -> Json:
        raise MCPError(INTERNAL_ERROR, "\x1b[31mit is\u202e \U000e0041full\u200b")

    mcp.tools, mcp.on_call = [tool("work")], {"work": refuse}
    await user.connect(mcp)
    answer = await user.execute("work")
    assert answer.json()["detail"].endswith("it is full")
