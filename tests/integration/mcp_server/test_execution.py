"""`tool_execute` runs a tool on its server, once, and passes on whatever comes back, whole; what goes wrong is said in
words for a model and in a code for a program."""

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
    INTERNAL_ERROR,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    SERVER_INFO_META_KEY,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
)

from app.catalog.policy import Policy
from app.catalog.visibility import apply_policy
from app.container import Container
from app.mcp_client import connection
from app.mcp_server.responses import ERROR_META, TRUNCATED_META
from tests.conftest import TestUser, client_of, tool
from tests.support.calls import list_executions
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

KINDS = ["mcp", "legacy_mcp", "sse_mcp"]
GREETINGS = {"initialize", "server/discover"}

EVERY_KIND: Json = {
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


@pytest.fixture(params=KINDS)
def any_mcp(request: pytest.FixtureRequest) -> FakeMcpServer:
    server: FakeMcpServer = request.getfixturevalue(request.param)
    return server


async def offer(user: TestUser, mcp: FakeMcpServer, *names: str, server: str = "files") -> dict[str, str]:
    """The key of each tool."""
    mcp.tools = [tool(name) for name in names]
    server_id = await user.connect(mcp, server)
    answer = await user.http.get("/tools", params={"server_id": server_id, "limit": 200})
    return {shown["name"]: shown["id"] for shown in answer.json()["items"] if shown["server_id"] == server_id}


async def run(client: Client, key: str, arguments: Json | None = None, **options: Any) -> CallToolResult:
    return await client.call_tool("tool_execute", {"toolKey": key, "arguments": arguments or {}}, **options)


async def executed(http: httpx.AsyncClient, key: str, arguments: Json | None = None) -> Json:
    """The same with a bare message."""
    return await call_meta_tool(http, "tool_execute", {"toolKey": key, "arguments": arguments or {}})


def sent_calls(mcp: FakeMcpServer) -> list[Received]:
    return [request for request in mcp.requests if request.rpc_method == "tools/call"]


def greetings(mcp: FakeMcpServer) -> int:
    return sum(request.rpc_method in GREETINGS for request in mcp.requests)


async def seen(look: Callable[[], object]) -> None:
    async def looked() -> bool:
        return bool(look())

    await until(looked)


# What comes back


async def test_a_result_is_passed_on_whole_from_every_kind_of_server_to_every_client(
    user: TestUser, address: str, any_mcp: FakeMcpServer
) -> None:
    any_mcp.on_call = {"show": lambda _: EVERY_KIND, "fail": lambda _: {**EVERY_KIND, "isError": True}}
    keys = await offer(user, any_mcp, "show", "fail")
    given = {"a": [1, {"b": "ü", "c": None}]}
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            check_whole(await run(client, keys["show"], given), is_error=False)
            check_whole(await run(client, keys["fail"], given), is_error=True)
    assert any_mcp.calls == [("show", given), ("fail", given)] * 2


def check_whole(result: CallToolResult, *, is_error: bool) -> None:
    passed_on = result.model_dump(by_alias=True, mode="json", exclude_unset=True)
    assert {name: passed_on[name] for name in ("content", "structuredContent")} == {
        name: EVERY_KIND[name] for name in ("content", "structuredContent")
    }
    assert result.is_error is is_error
    assert passed_on.keys() <= {"content", "structuredContent", "isError", "resultType", "_meta"}
    meta = passed_on["_meta"]
    assert meta["example.com/trace"] == "abc"
    assert meta.get(SERVER_INFO_META_KEY, {"name": "toolscout"})["name"] == "toolscout"


async def test_structured_content_that_is_no_object_reaches_those_who_know_it(
    user: TestUser, address: str, mcp: FakeMcpServer
) -> None:
    values: list[Any] = [[1, None, "a"], 5, "text", False, {"a": None}]
    mcp.on_call["show"] = lambda given: {
        "content": [{"type": "text", "text": "whole"}],
        "structuredContent": values[given["number"]],
    }
    key = (await offer(user, mcp, "show"))["show"]
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            results = [await run(client, key, {"number": number}) for number in range(len(values))]
        assert [get_text(result) for result in results] == ["whole"] * len(values)
        known = [value if mode == "auto" or isinstance(value, dict) else None for value in values]
        assert [result.structured_content for result in results] == known


async def test_structured_content_that_is_null_is_passed_on_or_left_out(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.on_call["show"] = lambda _: {"content": [], "structuredContent": None}
    key = (await offer(user, mcp, "show"))["show"]
    result = await executed(user.http, key)
    assert (result["content"], result.get("structuredContent")) == ([], None)


async def test_a_result_beyond_the_limit_is_cut_and_says_so(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.on_call = {
        "long": lambda _: {"content": [{"type": "text", "text": "x" * 5_000}], "structuredContent": {"a": 1}},
        "short": lambda _: {"content": [{"type": "text", "text": "x"}]},
    }
    keys = await offer(user, mcp, "long", "short")
    service = replace(container, executor=replace(container.executor, max_result_bytes=1_024))
    async with client_of(service, Authorization=f"Bearer {user.key}") as http:
        cut = await executed(http, keys["long"])
        whole = await executed(http, keys["short"])
    beginning, notice = cut["content"]
    assert set(beginning["text"]) == {"x"}
    assert 900 < len(beginning["text"]) < 1_024
    assert "1024 bytes" in notice["text"]
    assert cut["_meta"][TRUNCATED_META] is True
    assert "structuredContent" not in cut
    assert get_text(whole) == "x"
    assert TRUNCATED_META not in whole["_meta"]


# While it runs


async def test_progress_arrives_in_order_before_the_result(
    user: TestUser, address: str, any_mcp: FakeMcpServer
) -> None:
    any_mcp.progress["work"] = 3
    key = (await offer(user, any_mcp, "work"))["work"]
    told: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, words: str | None) -> None:
        told.append((progress, total, words))

    for mode in MODES:
        told.clear()
        any_mcp.stalled.add("work")  # what it says on one stream may overtake what it said on another
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            running = asyncio.create_task(run(client, key, progress_callback=note))
            await seen(lambda: len(told) == 3)
            any_mcp.stalled.clear()
            await running
            assert told == [(1.0, 3.0, "step 1"), (2.0, 3.0, "step 2"), (3.0, 3.0, "step 3")]
            assert not (await run(client, key)).is_error
            assert len(told) == 3
    asked = ["progressToken" in call.params.get("_meta", {}) for call in sent_calls(any_mcp)]
    assert asked == [True, False, True, False]


@pytest.mark.parametrize("era", ["newer", "older"])
async def test_reports_go_only_to_those_who_ask_for_them(user: TestUser, mcp: FakeMcpServer, era: str) -> None:
    mcp.progress["work"] = 2
    key = (await offer(user, mcp, "work"))["work"]
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


async def stalling(user: TestUser, mcp: FakeMcpServer) -> str:
    mcp.stalled = {"stall"}
    return (await offer(user, mcp, "stall"))["stall"]


@pytest.fixture(autouse=True)
def _time_to_say_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a call that is given up; a connection on which that takes long is not used again."""
    monkeypatch.setattr(connection, "_FAREWELL_S", 5)


async def check_given_up(container: Container, user: TestUser, mcp: FakeMcpServer, key: str) -> None:
    """The server was told, it is written down, and the same connection serves the next call."""

    async def written() -> bool:
        return (await list_executions(container, user.id))[-1:] == [("cancelled", key)]

    await seen(lambda: mcp.cancelled_calls == ["stall"])
    await until(written)
    mcp.stalled, met = set(), greetings(mcp)
    assert "isError" not in await executed(user.http, key)
    assert (len(mcp.calls), greetings(mcp)) == (2, met)
    mcp.stalled = {"stall"}
    mcp.cancelled_calls.clear()


async def test_a_caller_that_waits_no_longer_ends_the_call(
    user: TestUser, container: Container, address: str, any_mcp: FakeMcpServer
) -> None:
    key = await stalling(user, any_mcp)
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            any_mcp.requests.clear()
            waiting = asyncio.create_task(run(client, key))
            await seen(lambda: any_mcp.calls)
            waiting.cancel()
            await seen(lambda: any_mcp.cancelled_calls)
            assert (await client.list_tools()).tools  # the client can go on
        await check_given_up(container, user, any_mcp, key)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_leaves_takes_its_calls_along(
    user: TestUser, container: Container, address: str, mcp: FakeMcpServer, mode: Mode
) -> None:
    key = await stalling(user, mcp)

    async def call_and_leave() -> None:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            await run(client, key)

    shutdown = asyncio.create_task(call_and_leave())
    await seen(lambda: mcp.calls)
    shutdown.cancel()
    await check_given_up(container, user, mcp, key)
    await asyncio.wait({shutdown})


@pytest.mark.parametrize("era", ["newer", "older"])
async def test_a_stream_that_is_closed_ends_the_call(
    user: TestUser, container: Container, address: str, mcp: FakeMcpServer, era: str
) -> None:
    key = await stalling(user, mcp)
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
    await check_given_up(container, user, mcp, key)


def cancelling(number: int) -> Json:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}


async def test_only_its_own_session_can_take_a_call_back(
    user: TestUser, other_user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    key = await stalling(user, mcp)
    session, other_session = [{**OLDER_HEADERS, "Mcp-Session-Id": str(uuid.uuid4())} for _ in range(2)]
    body = make_message("tools/call", {"name": "tool_execute", "arguments": {"toolKey": key}}, request_id=7)

    def call() -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(user.http.post("/mcp", json=body, headers=session))

    async def cancel(who: TestUser, number: int, headers: dict[str, str]) -> None:
        answer = await who.http.post("/mcp", json=cancelling(number), headers=headers)
        assert answer.status_code == 202

    running = call()
    await seen(lambda: mcp.calls)
    await cancel(other_user, 7, session)
    await cancel(user, 7, other_session)
    await cancel(user, 7, OLDER_HEADERS)
    await cancel(user, 8, session)
    mcp.stalled = set()
    assert '"result"' in (await running).text
    assert mcp.cancelled_calls == []

    mcp.stalled = {"stall"}
    running = call()
    await seen(lambda: len(mcp.calls) == 2)
    await cancel(user, 7, session)
    assert '"the call was taken back"' in (await running).text
    await seen(lambda: mcp.cancelled_calls == ["stall"])
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == ["succeeded", "cancelled"]


# Questions of the server to the user

SURE = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
QUESTION = {
    "resultType": "input_required",
    "inputRequests": {
        "sure": {"method": "elicitation/create", "params": {"message": "Delete all?", "requestedSchema": SURE}}
    },
    "requestState": "state-of-the-server",
}


def asking(mcp: FakeMcpServer) -> Callable[[Json], Json]:
    """A tool that asks back, and answers who has answered."""

    def ask(_arguments: Json) -> Json:
        params = sent_calls(mcp)[-1].params
        if "inputResponses" not in params:
            return QUESTION
        told = {"responses": params["inputResponses"], "state": params.get("requestState")}
        return {"content": [{"type": "text", "text": "deleted"}], "structuredContent": told}

    return ask


async def test_a_question_is_passed_on_between_sides_that_know_how(
    user: TestUser, container: Container, address: str, mcp: FakeMcpServer
) -> None:
    mcp.on_call["delete"] = asking(mcp)
    key = (await offer(user, mcp, "delete"))["delete"]
    asked: list[str] = []

    async def answer(_context: Any, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"sure": True})

    async with connect_client(f"{address}/mcp", user.key, elicitation_callback=answer) as client:
        result = await run(client, key, {"path": "/"})
    assert asked == ["Delete all?"]
    assert get_text(result) == "deleted"
    assert result.structured_content == {
        "responses": {"sure": {"action": "accept", "content": {"sure": True}}},
        "state": "state-of-the-server",
    }
    assert mcp.calls == [("delete", {"path": "/"})] * 2
    declared = [call.params["_meta"][CLIENT_CAPABILITIES_META_KEY] for call in sent_calls(mcp)]
    assert all("elicitation" in capabilities for capabilities in declared)
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == ["input_required", "succeeded"]


async def test_a_server_may_want_to_be_asked_again_by_anybody(user: TestUser, address: str, mcp: FakeMcpServer) -> None:
    """With nothing but its own state, for which a client needs no capability."""

    def ask(_arguments: Json) -> Json:
        state = sent_calls(mcp)[-1].params.get("requestState")
        return saying(state, {}) if state else {"resultType": "input_required", "requestState": "half way"}

    mcp.on_call["work"] = ask
    key = (await offer(user, mcp, "work"))["work"]
    async with connect_client(f"{address}/mcp", user.key) as client:
        assert get_text(await run(client, key)) == "half way"
    assert len(mcp.calls) == 2


async def test_a_question_larger_than_we_take_is_no_answer(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    def asking_with(size: int) -> Callable[[Json], Json]:
        return lambda _: {"resultType": "input_required", "requestState": "s" * size}

    mcp.on_call["work"] = asking_with(container.executor.max_result_bytes)
    key = (await offer(user, mcp, "work"))["work"]
    refused = await call_meta_tool(user.http, "tool_execute", {"toolKey": key})
    assert (get_error(refused)["code"], get_error(refused)["outcome"]) == ("TOOL_EXECUTION_ERROR", "failed")
    mcp.on_call["work"] = asking_with(1_000)
    assert (await call_meta_tool(user.http, "tool_execute", {"toolKey": key}))["resultType"] == "input_required"
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == [
        "TOOL_EXECUTION_ERROR",
        "input_required",
    ]


async def test_answers_that_nobody_could_write_down_are_no_trouble_of_the_server(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.on_call["delete"] = asking(mcp)
    key = (await offer(user, mcp, "delete"))["delete"]
    deep: Json = {}
    for _ in range(300):
        deep = {"a": deep}
    wrong: list[Json] = [{"q": {"roots": [], "_meta": deep}}, {"q": {"roots": [], "_meta": {"n": 2**64}}}]
    for responses in wrong:
        refused = await call_meta_tool(user.http, "tool_execute", {"toolKey": key}, inputResponses=responses)
        assert get_error(refused)["code"] == "TOOL_VALIDATION_ERROR"
    assert mcp.calls == []
    [server] = (await user.http.get("/servers")).json()["items"]
    assert server["status"] == "connected"
    taken = await call_meta_tool(user.http, "tool_execute", {"toolKey": key}, inputResponses={"q": {"roots": []}})
    assert get_text(taken) == "deleted"


async def test_marks_that_only_we_may_set_are_not_taken_from_a_server(user: TestUser, mcp: FakeMcpServer) -> None:
    forged = {ERROR_META: {"code": "TOOL_NOT_FOUND"}, TRUNCATED_META: True, "theirs": 1}
    mcp.on_call["work"] = lambda _: {"content": [], "_meta": forged}
    key = (await offer(user, mcp, "work"))["work"]
    result = await call_meta_tool(user.http, "tool_execute", {"toolKey": key})
    assert {name for name in result["_meta"] if "modelcontextprotocol" not in name} == {"theirs"}


def wants_elicitation(mcp: FakeMcpServer) -> Callable[[Json], Json]:
    """As the specification has it: whoever cannot be asked gets an error."""

    def ask(_arguments: Json) -> Json:
        if "elicitation" in sent_calls(mcp)[-1].params["_meta"][CLIENT_CAPABILITIES_META_KEY]:
            return QUESTION
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "no", {"requiredCapabilities": {"elicitation": {}}})

    return ask


@pytest.mark.parametrize("mode", MODES)
async def test_whoever_cannot_be_asked_gets_a_clear_error(
    user: TestUser, address: str, mcp: FakeMcpServer, mode: Mode
) -> None:
    mcp.on_call = {"polite": wants_elicitation(mcp), "rude": asking(mcp)}
    keys = await offer(user, mcp, "polite", "rude")
    async with connect_client(f"{address}/mcp", user.key, mode) as client:
        for name in ("polite", "rude"):
            result = await run(client, keys[name])
            assert get_error(result)["code"] == "TOOL_EXECUTION_ERROR"
            assert get_error(result)["outcome"] == "failed"
            assert "asks its user for more input" in get_text(result)
    declared = [call.params["_meta"][CLIENT_CAPABILITIES_META_KEY] for call in sent_calls(mcp)]
    assert ["elicitation" in capabilities for capabilities in declared] == [False, False]


async def test_an_older_server_that_asks_in_the_midst_of_a_call_gets_no_answer(
    user: TestUser, address: str, legacy_mcp: FakeMcpServer
) -> None:
    legacy_mcp.questions["delete"] = "Delete all?"
    keys = await offer(user, legacy_mcp, "delete", "keep")

    async def answer(_context: Any, _params: ElicitRequestParams) -> ElicitResult:
        raise AssertionError("there is no way for the question to get here")

    async with connect_client(f"{address}/mcp", user.key, elicitation_callback=answer) as client:
        refused = await run(client, keys["delete"])
        assert refused.is_error
        assert "Elicitation not supported" in get_text(refused)
        assert not (await run(client, keys["keep"])).is_error
    [greeting] = [request for request in legacy_mcp.requests if request.rpc_method == "initialize"]
    assert "elicitation" not in greeting.params["capabilities"]


# What goes wrong


def check_failed(result: Json, code: str, *words: str, **members: Any) -> Json:
    """An error for a program and, in the same words, for a model."""
    error = get_error(result)
    assert error["code"] == code
    assert error.items() >= members.items()
    told = get_text(result)
    assert told.startswith(f"{code}: {error['make_message']}")
    for word in words:
        assert word in told
    assert "structuredContent" not in result
    return error


NOTHING_RAN = "Nothing was run."
MAY_HAVE_RUN = "It may have run all the same"


async def test_what_may_not_be_run_is_not_found_and_reaches_no_server(
    user: TestUser, other_user: TestUser, container: Container, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    theirs = (await offer(other_user, legacy_mcp, "theirs"))["theirs"]
    keys = await offer(user, mcp, "open", "switched_off")
    await user.http.patch(f"/tools/{keys['switched_off']}", json={"enabled": False})
    wrong = [keys["switched_off"], theirs, str(uuid.uuid4()), "open", "", "x" * 5_000, "\u202e"]
    results = [await executed(user.http, key) for key in wrong]
    assert all(result == results[0] for result in results)
    check_failed(results[0], "TOOL_NOT_FOUND", "Call tool_discovery")
    assert (mcp.calls, legacy_mcp.calls) == ([], [])
    named = [keys["switched_off"], *[None] * (len(wrong) - 1)]
    assert await list_executions(container, user.id) == [("TOOL_NOT_FOUND", target) for target in named]

    await user.http.patch(f"/tools/{keys['switched_off']}", json={"enabled": True})
    for who, key in ((user, keys["switched_off"]), (user, keys["open"]), (other_user, theirs)):
        assert "isError" not in await executed(who.http, key)


async def test_a_tool_that_is_held_is_not_run_until_it_is_approved(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("pay", "Pay a bill")]
    server_id = await user.connect(mcp)
    key = (await user.tools())["pay"]["id"]
    usual = container.settings.hold_changed_tools, container.settings.find_failing_servers
    await apply_policy(container.database, Policy(True, True))
    try:
        mcp.tools = [tool("pay", "Pay any bill at all")]
        await user.reindex(server_id)
        check_failed(await executed(user.http, key), "TOOL_NOT_FOUND")
        assert mcp.calls == []
        approved = await user.http.post(f"/tools/{key}/approve")
        assert approved.status_code < 300, approved.text
        assert "isError" not in await executed(user.http, key)
    finally:
        await apply_policy(container.database, Policy(*usual))
    assert len(mcp.calls) == 1


async def test_arguments_are_checked_before_anything_is_sent_and_every_error_is_told(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    names = [f"part_{number}" for number in range(8)]
    properties = {name: {"type": "integer"} for name in names}
    mcp.tools = [tool("add", inputSchema={"type": "object", "properties": properties, "required": ["part_0"]})]
    await user.connect(mcp)
    key = (await user.tools())["add"]["id"]
    wrong = await executed(user.http, key, dict.fromkeys(names, "x"))
    error = check_failed(wrong, "TOOL_VALIDATION_ERROR", NOTHING_RAN, "input schema")
    assert [item["loc"] for item in error["errors"]] == [["arguments", name] for name in names]
    for name in names:
        assert get_text(wrong).count(f"arguments.{name}: 'x' is not of type 'integer'") == 1
    check_failed(await executed(user.http, key), "TOOL_VALIDATION_ERROR", "'part_0' is a required property")
    assert mcp.calls == []
    assert "isError" not in await executed(user.http, key, {"part_0": 1})
    assert mcp.calls == [("add", {"part_0": 1})]


async def test_a_call_of_another_shape_is_told_what_is_wrong_with_it(user: TestUser, container: Container) -> None:
    wrong: dict[str, Json] = {
        "arguments: 'toolKey' is a required property": {},
        "arguments.toolKey: 5 is not of type 'string'": {"toolKey": 5},
        "arguments.arguments: [] is not of type 'object'": {"toolKey": "x", "arguments": []},
        "additional properties are not allowed: 'input'": {"toolKey": "x", "input": {}},
    }
    for words, arguments in wrong.items():
        result = await call_meta_tool(user.http, "tool_execute", arguments)
        check_failed(result, "TOOL_VALIDATION_ERROR", words, NOTHING_RAN)
    assert await list_executions(container, user.id) == []


async def test_arguments_may_be_left_out(user: TestUser, mcp: FakeMcpServer) -> None:
    key = (await offer(user, mcp, "look"))["look"]
    assert "isError" not in await call_meta_tool(user.http, "tool_execute", {"toolKey": key})
    assert mcp.calls == [("look", {})]


async def test_a_pushed_tool_is_run_by_whoever_pushes_it(user: TestUser) -> None:
    await user.add_tools(tool("pushed"))
    key = (await user.tools())["pushed"]["id"]
    check_failed(
        await executed(user.http, key),
        "SERVER_CONNECTION_ERROR",
        "whoever pushes them",
        "cannot be run from here later either",
        cause="push",
    )


async def test_a_server_that_is_away_ran_nothing(user: TestUser, mcp: FakeMcpServer) -> None:
    key = (await offer(user, mcp, "look"))["look"]
    mcp.stop()
    try:
        result = await executed(user.http, key)
    finally:
        mcp.start()
    assert "outcome" not in check_failed(result, "SERVER_CONNECTION_ERROR", NOTHING_RAN, cause="refused")
    assert mcp.calls == []
    assert "isError" not in await executed(user.http, key)


async def test_a_tool_that_takes_too_long_may_have_run(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    key = await stalling(user, mcp)
    assert container.executor.timeout_s > 10
    service = replace(container, executor=replace(container.executor, timeout_s=3.0))
    async with client_of(service, Authorization=f"Bearer {user.key}") as http:
        result = await executed(http, key)
    check_failed(result, "TOOL_EXECUTION_TIMEOUT", MAY_HAVE_RUN, outcome="unknown")
    assert NOTHING_RAN not in get_text(result)
    assert len(mcp.calls) == 1
    mcp.stalled = set()
    assert "isError" not in await executed(user.http, key)
    outcomes = [outcome for outcome, _ in await list_executions(container, user.id)]
    assert outcomes == ["TOOL_EXECUTION_TIMEOUT", "succeeded"]


async def test_a_call_whose_answer_is_lost_is_never_repeated(user: TestUser, mcp: FakeMcpServer) -> None:
    key = (await offer(user, mcp, "pay"))["pay"]
    for answer in (drop, status(500)):
        mcp.requests.clear()
        mcp.fault = Fault(answer, on=["tools/call"])
        check_failed(await executed(user.http, key), "TOOL_EXECUTION_ERROR", MAY_HAVE_RUN, outcome="unknown")
        assert len(mcp.calls) == 1
        mcp.fault = None
        assert "isError" not in await executed(user.http, key)
        assert len(mcp.calls) == 2


def refuse(_arguments: Json) -> Json:
    raise MCPError(INTERNAL_ERROR, "the disk is full")


async def test_an_error_of_the_server_is_told_in_its_words(user: TestUser, mcp: FakeMcpServer) -> None:
    keys = await offer(user, mcp, "write", "read")
    mcp.on_call["write"] = refuse
    result = await executed(user.http, keys["write"])
    check_failed(result, "TOOL_EXECUTION_ERROR", "the disk is full", outcome="failed")
    assert MAY_HAVE_RUN not in get_text(result)
    assert len(mcp.calls) == 1
    assert "isError" not in await executed(user.http, keys["read"])


async def test_an_error_reads_the_same_in_either_protocol(user: TestUser, address: str) -> None:
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            result = await run(client, "nothing")
        told = {"code": "TOOL_NOT_FOUND", "message": "there is no such tool, or it may not be used"}
        assert get_error(result) == told
        assert "Call tool_discovery" in get_text(result)


# Which tool is meant


def saying(words: str, _arguments: Json) -> Json:
    return {"content": [{"type": "text", "text": words}]}


async def test_a_tool_with_the_name_of_ours_shadows_nothing(user: TestUser, address: str, mcp: FakeMcpServer) -> None:
    names = ["tool_execute", "tool_discovery", "a:b:c", "a/b c.d"]
    mcp.on_call = {name: partial(saying, f"their {name}") for name in names}
    keys = await offer(user, mcp, *names)
    for mode in MODES:
        async with connect_client(f"{address}/mcp", user.key, mode) as client:
            offered = (await client.list_tools()).tools
            results = [await run(client, keys[name]) for name in names]
            found = await client.call_tool("tool_discovery", {"query": ["tool_execute"]})
        assert [each.name for each in offered] == ["tool_discovery", "tool_execute"]
        assert [get_text(result) for result in results] == [f"their {name}" for name in names]
        assert found.structured_content is not None
        assert keys["tool_execute"] in [hit["toolKey"] for hit in found.structured_content["results"]]
    assert mcp.calls == [(name, {}) for name in names] * 2


async def test_each_key_reaches_its_own_server(user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer) -> None:
    one = await offer(user, mcp, "search", server="one")
    two = await offer(user, legacy_mcp, "search", server="two")
    await executed(user.http, one["search"], {"for": 1})
    assert (mcp.calls, legacy_mcp.calls) == ([("search", {"for": 1})], [])
    await executed(user.http, two["search"], {"for": 2})
    assert (mcp.calls, legacy_mcp.calls) == ([("search", {"for": 1})], [("search", {"for": 2})])


async def test_every_execution_is_written_down_with_the_key_that_asked(
    user: TestUser, admin: httpx.AsyncClient, client: httpx.AsyncClient, mcp: FakeMcpServer
) -> None:
    mcp.on_call["fail"] = lambda _: {"content": [], "isError": True}
    keys = await offer(user, mcp, "look", "fail")
    expected = []
    for key in ({"kind": "user", "user_id": user.id}, {"kind": "service"}):
        made = (await admin.post("/keys", json=key)).json()
        headers = {"Authorization": f"Bearer {made['key']}", "X-User-Id": user.id}
        for tool_key, outcome in ((keys["look"], "succeeded"), (keys["fail"], "tool_error"), ("x", "TOOL_NOT_FOUND")):
            body = make_message("tools/call", {"name": "tool_execute", "arguments": {"toolKey": tool_key}})
            assert (await send_message(client, body, **headers)).status_code == 200
            target = None if tool_key == "x" else tool_key
            expected.append((f"{key['kind']}:{made['id']}", target, outcome))
    written = (await user.http.get("/audit", params={"action": "tool.execute"})).json()["items"]
    assert [(event["actor"], event["target"], event["outcome"]) for event in reversed(written)] == expected
