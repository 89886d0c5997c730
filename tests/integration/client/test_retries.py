"""What the client sends again and what it does not, against a server that says what it is told to."""

import json
import re
import socket
from typing import Any

import httpx
import pytest

from tests.integration.client.conftest import Ask, Kind, failure, speaking
from tests.support.wire_server import WireServer, http_response, running_wire_server
from toolscout_client import Conflict, ConnectionFailed, RateLimited, ToolFailed, ToolscoutError, Unavailable
from toolscout_client.calling import to
from toolscout_client.repeating import LONGEST_PAUSE_S, Call, Pause, Steps, answered

DROPPED = b""
EXECUTED = {"result": {"content": []}, "tool_key": "k", "server_id": "s", "duration_ms": 1.0, "truncated": False}


def told(body: Any, status: str = "200 OK", **headers: str) -> bytes:
    return http_response(json.dumps(body).encode(), status, Content_Type="application/json", **headers)


def problem(status: str, code: str, **members: str) -> bytes:
    headers = {"Retry_After": members.pop("retry_after")} if "retry_after" in members else {}
    return told({"code": code, "detail": "a sentence", "request_id": "r1", **members}, status, **headers)


BUSY = problem("503 Service Unavailable", "unavailable", retry_after="0")
LIMITED = problem("429 Too Many Requests", "rate_limited", retry_after="0")
RUNNING = problem("409 Conflict", "conflict")
NOTHING = http_response(status="204 No Content")
HEALTHY = told({"status": "ok", "a_field_of_the_future": {"x": 1}})


async def after(kind: Kind, ask: Ask, *script: bytes, retries: int = 3) -> tuple[Any, WireServer]:
    """What came of it, be it an error, and the server that was asked."""
    async with running_wire_server(problem("500 Internal Server Error", "asked_too_often")) as server:
        server.script = list(script)
        async with speaking(kind, f"http://127.0.0.1:{server.port}", "a-key", retries=retries) as speaker:
            try:
                return await speaker(ask), server
            except ToolscoutError as error:
                return error, server


@pytest.mark.parametrize("trouble", [BUSY, LIMITED], ids=["503", "429"])
async def test_whoever_is_told_when_to_come_again_does(kind: Kind, trouble: bytes) -> None:
    outcome, server = await after(kind, lambda c: c.feedback("d", "k", "called"), trouble, trouble, NOTHING)
    assert outcome is None
    assert [json.loads(body) for body in server.bodies] == 3 * [
        {"discovery_id": "d", "tool_key": "k", "outcome": "called"}
    ]


@pytest.mark.parametrize(("trouble", "error"), [(BUSY, Unavailable), (LIMITED, RateLimited)], ids=["503", "429"])
async def test_but_not_for_ever(kind: Kind, trouble: bytes, error: type[ToolscoutError]) -> None:
    outcome, server = await after(kind, lambda c: c.health(), trouble, trouble, HEALTHY, retries=1)
    assert type(outcome) is error
    assert (outcome.retry_after, outcome.request_id, outcome.message) == (0, "r1", "a sentence")
    assert server.connects == 2


@pytest.mark.parametrize(
    "trouble",
    [
        problem("503 Service Unavailable", "unavailable"),
        problem("503 Service Unavailable", "unavailable", retry_after="3600"),
        problem("500 Internal Server Error", "internal_error"),
        RUNNING,
    ],
    ids=["no word about when", "too long", "500", "409"],
)
async def test_what_may_not_help_is_not_tried(kind: Kind, trouble: bytes) -> None:
    outcome, server = await after(kind, lambda c: c.health(), trouble, HEALTHY)
    assert isinstance(outcome, ToolscoutError)
    assert server.connects == 1


@pytest.mark.parametrize(
    "question",
    [lambda c: c.health(), lambda c: c.request("GET", "/healthz")],
    ids=["a call", "through request"],
)
async def test_a_question_whose_answer_was_lost_is_asked_again(kind: Kind, question: Ask) -> None:
    outcome, server = await after(kind, question, DROPPED, HEALTHY)
    assert not isinstance(outcome, ToolscoutError)
    assert server.connects == 2


async def test_what_is_posted_only_to_ask_is_a_question_too(kind: Kind) -> None:
    why = told({"items": []})
    outcome, server = await after(kind, lambda c: c.why("a_tool", "a message"), DROPPED, why)
    assert outcome == []
    assert server.connects == 2


@pytest.mark.parametrize(
    "deed",
    [
        lambda c: c.feedback("d", "k", "called"),
        lambda c: c.servers.delete("s"),
        lambda c: c.rules.put([]),
        lambda c: c.request("POST", "/reindex"),
    ],
    ids=["feedback", "delete", "put", "through request"],
)
async def test_a_deed_whose_answer_was_lost_is_not_done_again(kind: Kind, deed: Ask) -> None:
    outcome, server = await after(kind, deed, DROPPED, NOTHING)
    assert type(outcome) is ConnectionFailed
    assert outcome.outcome == "unknown"
    assert server.connects == 1


async def test_an_execution_whose_answer_was_lost_is_asked_for_with_the_same_key(kind: Kind) -> None:
    """While the first one still runs, it is waited for: it is the same call."""
    outcome, server = await after(
        kind, lambda c: c.execute("k", {}), DROPPED, RUNNING, RUNNING, told(EXECUTED), retries=1
    )
    assert outcome.tool_key == "k"
    keys = [re.findall(rb"(?i)idempotency-key: (\S+)", head) for head in server.requests]
    assert server.connects == 4
    assert len(keys[0][0]) == 32
    assert all(key == keys[0] for key in keys)


async def test_an_execution_that_somebody_else_began_is_not_waited_for(kind: Kind) -> None:
    outcome, server = await after(kind, lambda c: c.execute("k", idempotency_key="theirs"), RUNNING, told(EXECUTED))
    assert type(outcome) is Conflict
    assert server.connects == 1


@pytest.mark.parametrize("known", ["failed", "unknown"])
async def test_a_tool_that_failed_is_not_run_again(kind: Kind, known: str) -> None:
    failed = problem("502 Bad Gateway", "TOOL_EXECUTION_ERROR", outcome=known)
    outcome, server = await after(kind, lambda c: c.execute("k"), failed, told(EXECUTED))
    assert type(outcome) is ToolFailed
    assert outcome.outcome == known
    assert server.connects == 1


async def test_a_proxy_that_lost_the_service_does_not_know_the_outcome(kind: Kind) -> None:
    proxy = http_response(b"<html>Bad Gateway</html>", "502 Bad Gateway", Content_Type="text/html")
    outcome, server = await after(kind, lambda c: c.execute("k"), proxy, told(EXECUTED))
    assert type(outcome) is ConnectionFailed
    assert (outcome.outcome, outcome.code, outcome.status) == ("unknown", "status_502", 502)
    assert server.connects == 1


@pytest.mark.parametrize(
    "answer",
    [http_response(b"<html>Welcome</html>"), told([]), told({"state": "ok"})],
    ids=["html", "a list", "another"],
)
async def test_an_answer_that_is_not_toolscouts_is_an_error_that_says_so(kind: Kind, answer: bytes) -> None:
    outcome, _ = await after(kind, lambda c: c.health(), answer)
    assert outcome.code == "unreadable_answer"
    assert "/healthz" in outcome.message


async def test_nobody_there_is_tried_again_and_then_said(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    async with speaking(kind, f"http://somebody:canary@127.0.0.1:{port}", "a-key", retries=1) as speaker:
        error = await failure(speaker(lambda c: c.servers.delete("s")), ConnectionFailed)
    assert (error.outcome, error.code, error.status) == ("failed", "connection_failed", None)
    assert f"no answer from 127.0.0.1:{port}: " in str(error)
    assert "canary" not in str(error)


async def test_a_server_that_does_not_answer_in_time_is_given_up(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with speaking(kind, address, "a-key", timeout=0.1) as speaker:
            error = await failure(speaker(lambda c: c.health()), ConnectionFailed)
    assert error.outcome == "unknown"


SOMETHING = httpx.Request("GET", "http://toolscout/tools")


def pauses(call: Call, *outcomes: httpx.Response | httpx.RequestError) -> list[float]:
    """Before each repetition, without waiting for it."""
    steps: Steps[httpx.Response] = answered(call, retries=len(outcomes))
    found = []
    assert next(steps) is call
    for outcome in outcomes:
        pause = steps.send(outcome)
        assert isinstance(pause, Pause)
        found.append(pause.seconds)
        assert next(steps) is call
    return found


def test_a_pause_is_as_long_as_the_service_asks_for_and_a_little_longer() -> None:
    [seconds] = pauses(to("DELETE /servers/{}", "s"), httpx.Response(503, headers={"Retry-After": "7"}))
    assert 7 < seconds < 8


def test_pauses_grow_up_to_a_bound_and_no_two_clients_share_them() -> None:
    refused = [httpx.ConnectError("refused", request=SOMETHING)] * 12
    one, other = pauses(to("GET /healthz"), *refused), pauses(to("GET /healthz"), *refused)
    assert one != other
    assert one[0] <= 0.1 < one[3]
    assert all(LONGEST_PAUSE_S / 2 <= seconds <= LONGEST_PAUSE_S for seconds in one[-3:])


def test_a_lost_execution_that_never_ends_is_given_up_after_its_time() -> None:
    steps = answered(to("POST /execute", timeout=0, repeatable=True), retries=3)
    next(steps)
    steps.send(httpx.ReadError("lost", request=SOMETHING))
    next(steps)
    with pytest.raises(ConnectionFailed) as given_up:
        steps.send(httpx.Response(409, json={"code": "conflict", "detail": "still running"}))
    assert given_up.value.outcome == "unknown"
