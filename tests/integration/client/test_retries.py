"""Tests of which requests the client sends again, against a server with scripted answers."""

import json
import re
import socket
from typing import Any

import httpx
import pytest

from tests.support.python_client import Kind, Operation, expect_error, open_client
from tests.support.wire_server import WireServer, http_response, running_wire_server
from toolscout_client import (
    ConfirmationRequired,
    Conflict,
    ConnectionFailed,
    Conversation,
    RateLimited,
    ToolFailed,
    ToolscoutError,
    Unavailable,
)
from toolscout_client.retries import MAX_PAUSE_S, Request, Sleep, Steps, send_with_retries
from toolscout_client.transport import make_request

DROPPED = b""
EXECUTED = {"result": {"content": []}, "tool_key": "k", "server_id": "s", "duration_ms": 1.0, "truncated": False}


def json_response(body: Any, status: str = "200 OK", **headers: str) -> bytes:
    return http_response(json.dumps(body).encode(), status, Content_Type="application/json", **headers)


def problem_response(status: str, code: str, **members: Any) -> bytes:
    headers = {"Retry_After": members.pop("retry_after")} if "retry_after" in members else {}
    return json_response({"code": code, "detail": "a sentence", "request_id": "r1", **members}, status, **headers)


BUSY = problem_response("503 Service Unavailable", "unavailable", retry_after="0")
LIMITED = problem_response("429 Too Many Requests", "rate_limited", retry_after="0")
RUNNING = problem_response("409 Conflict", "conflict")
DISCOVERED = json_response(
    {
        "discovery_id": "d",
        "tools": [],
        "definitions": [],
        "total_searched": 0,
        "search_duration_ms": 1.0,
        "embedding_generated": True,
        "strategy": "hybrid",
        "degraded": False,
        "degraded_reason": None,
        "no_match": True,
        "tokens": {"selected": 0, "all": 0, "saved_percent": 0.0},
        "toolset_hash": "0123456789abcdef",
    }
)
NO_CONTENT = http_response(status="204 No Content")
HEALTHY = json_response({"status": "ok", "a_future_field": {"x": 1}})


async def run_against(kind: Kind, operation: Operation, *script: bytes, retries: int = 3) -> tuple[Any, WireServer]:
    """Return the result of the operation or its error, and the server."""
    async with running_wire_server(problem_response("500 Internal Server Error", "unexpected_request")) as server:
        server.script = list(script)
        async with open_client(kind, f"http://127.0.0.1:{server.port}", "a-key", retries=retries) as any_client:
            try:
                return await any_client(operation), server
            except ToolscoutError as error:
                return error, server


@pytest.mark.parametrize("answer", [BUSY, LIMITED], ids=["503", "429"])
async def test_a_request_is_sent_again_after_retry_after(kind: Kind, answer: bytes) -> None:
    outcome, server = await run_against(kind, lambda c: c.feedback("d", "k", "called"), answer, answer, NO_CONTENT)
    assert outcome is None
    assert [json.loads(body) for body in server.bodies] == 3 * [
        {"discovery_id": "d", "tool_key": "k", "outcome": "called"}
    ]


@pytest.mark.parametrize(("answer", "error"), [(BUSY, Unavailable), (LIMITED, RateLimited)], ids=["503", "429"])
async def test_the_number_of_retries_is_limited(kind: Kind, answer: bytes, error: type[ToolscoutError]) -> None:
    outcome, server = await run_against(kind, lambda c: c.health(), answer, answer, HEALTHY, retries=1)
    assert type(outcome) is error
    assert (outcome.retry_after, outcome.request_id, outcome.message) == (0, "r1", "a sentence")
    assert server.connects == 2


@pytest.mark.parametrize(
    "answer",
    [
        problem_response("503 Service Unavailable", "unavailable"),
        problem_response("503 Service Unavailable", "unavailable", retry_after="3600"),
        problem_response("500 Internal Server Error", "internal_error"),
        RUNNING,
    ],
    ids=["no Retry-After", "long Retry-After", "500", "409"],
)
async def test_other_failures_are_not_retried(kind: Kind, answer: bytes) -> None:
    outcome, server = await run_against(kind, lambda c: c.health(), answer, HEALTHY)
    assert isinstance(outcome, ToolscoutError)
    assert server.connects == 1


@pytest.mark.parametrize(
    "operation",
    [lambda c: c.health(), lambda c: c.request("GET", "/healthz")],
    ids=["health", "request"],
)
async def test_a_read_whose_answer_was_lost_is_sent_again(kind: Kind, operation: Operation) -> None:
    outcome, server = await run_against(kind, operation, DROPPED, HEALTHY)
    assert not isinstance(outcome, ToolscoutError)
    assert server.connects == 2


@pytest.mark.parametrize(
    "options", [{}, {"keep": []}, {"keep": Conversation("chat-7"), "turn": 3}], ids=["plain", "list", "turn"]
)
async def test_a_discovery_whose_answer_was_lost_is_sent_again(kind: Kind, options: Any) -> None:
    outcome, server = await run_against(kind, lambda c: c.discover("a message", **options), DROPPED, DISCOVERED)
    assert outcome.discovery_id == "d"
    assert server.bodies[0] == server.bodies[1]


async def test_a_discovery_that_counts_turns_is_not_sent_again(kind: Kind) -> None:
    """The second request would be the next turn, and the model would never get the tools of the lost answer."""
    keep = Conversation("chat-7")
    outcome, server = await run_against(kind, lambda c: c.discover("a message", keep=keep), DROPPED, DISCOVERED)
    assert type(outcome) is ConnectionFailed
    assert server.connects == 1


async def test_a_post_that_only_reads_is_sent_again(kind: Kind) -> None:
    why = json_response({"items": []})
    outcome, server = await run_against(kind, lambda c: c.why("a_tool", "a message"), DROPPED, why)
    assert outcome == []
    assert server.connects == 2


@pytest.mark.parametrize(
    "operation",
    [
        lambda c: c.feedback("d", "k", "called"),
        lambda c: c.servers.delete("s"),
        lambda c: c.rules.put([]),
        lambda c: c.request("POST", "/reindex"),
    ],
    ids=["feedback", "delete", "put", "request"],
)
async def test_a_write_whose_answer_was_lost_is_not_sent_again(kind: Kind, operation: Operation) -> None:
    outcome, server = await run_against(kind, operation, DROPPED, NO_CONTENT)
    assert type(outcome) is ConnectionFailed
    assert outcome.outcome == "unknown"
    assert server.connects == 1


async def test_an_execution_whose_answer_was_lost_is_sent_again_with_the_same_key(kind: Kind) -> None:
    """A conflict means that the first request is still running; the client waits for it."""
    outcome, server = await run_against(
        kind, lambda c: c.execute("k", {}), DROPPED, RUNNING, RUNNING, json_response(EXECUTED), retries=1
    )
    assert outcome.tool_key == "k"
    keys = [re.findall(rb"(?i)idempotency-key: (\S+)", head) for head in server.requests]
    assert server.connects == 4
    assert len(keys[0][0]) == 32
    assert all(key == keys[0] for key in keys)


@pytest.mark.parametrize(
    ("code", "members", "error"),
    [
        ("CONFIRMATION_REQUIRED", {"confirmation_token": "t"}, ConfirmationRequired),
        ("conflict", {"choices": [{"tool_key": "k", "name": "n"}]}, Conflict),
    ],
    ids=["confirmation", "ambiguous name"],
)
async def test_only_a_conflict_that_says_still_running_is_waited_for(
    kind: Kind, code: str, members: Any, error: type[Conflict]
) -> None:
    answer = problem_response("409 Conflict", code, **members)
    outcome, server = await run_against(kind, lambda c: c.execute("k"), DROPPED, answer, json_response(EXECUTED))
    assert type(outcome) is error
    assert server.connects == 2


async def test_a_conflict_without_a_lost_answer_is_raised(kind: Kind) -> None:
    outcome, server = await run_against(
        kind, lambda c: c.execute("k", idempotency_key="theirs"), RUNNING, json_response(EXECUTED)
    )
    assert type(outcome) is Conflict
    assert server.connects == 1


@pytest.mark.parametrize("reported", ["failed", "unknown"])
async def test_a_failed_tool_is_not_run_again(kind: Kind, reported: str) -> None:
    failed = problem_response("502 Bad Gateway", "TOOL_EXECUTION_ERROR", outcome=reported)
    outcome, server = await run_against(kind, lambda c: c.execute("k"), failed, json_response(EXECUTED))
    assert type(outcome) is ToolFailed
    assert outcome.outcome == reported
    assert server.connects == 1


async def test_an_error_of_a_proxy_has_an_unknown_outcome(kind: Kind) -> None:
    proxy = http_response(b"<html>Bad Gateway</html>", "502 Bad Gateway", Content_Type="text/html")
    outcome, server = await run_against(kind, lambda c: c.execute("k"), proxy, json_response(EXECUTED))
    assert type(outcome) is ConnectionFailed
    assert (outcome.outcome, outcome.code, outcome.status) == ("unknown", "status_502", 502)
    assert server.connects == 1


@pytest.mark.parametrize(
    "answer",
    [http_response(b"<html>Welcome</html>"), json_response([]), json_response({"state": "ok"})],
    ids=["html", "a list", "another"],
)
async def test_a_response_of_another_service_is_an_error(kind: Kind, answer: bytes) -> None:
    outcome, _ = await run_against(kind, lambda c: c.health(), answer)
    assert outcome.code == "unreadable_answer"
    assert "/healthz" in outcome.message


async def test_a_refused_connection_is_retried_and_then_raised(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    async with open_client(kind, f"http://somebody:canary@127.0.0.1:{port}", "a-key", retries=1) as any_client:
        error = await expect_error(any_client(lambda c: c.servers.delete("s")), ConnectionFailed)
    assert (error.outcome, error.code, error.status) == ("failed", "connection_failed", None)
    assert f"no answer from 127.0.0.1:{port}: " in str(error)
    assert "canary" not in str(error)


async def test_a_server_that_does_not_answer_times_out(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with open_client(kind, address, "a-key", timeout=0.1) as any_client:
            error = await expect_error(any_client(lambda c: c.health()), ConnectionFailed)
    assert error.outcome == "unknown"


HTTPX_REQUEST = httpx.Request("GET", "http://toolscout/tools")


def collect_pauses(request: Request, *outcomes: httpx.Response | httpx.RequestError) -> list[float]:
    """Return the pause before each retry, without sleeping."""
    steps: Steps[httpx.Response] = send_with_retries(request, retries=len(outcomes))
    seconds = []
    assert next(steps) is request
    for outcome in outcomes:
        pause = steps.send(outcome)
        assert isinstance(pause, Sleep)
        seconds.append(pause.seconds)
        assert next(steps) is request
    return seconds


def test_a_pause_is_slightly_longer_than_retry_after() -> None:
    [seconds] = collect_pauses(
        make_request("DELETE /servers/{}", "s"), httpx.Response(503, headers={"Retry-After": "7"})
    )
    assert 7 < seconds < 8


def test_pauses_grow_up_to_a_limit_and_have_jitter() -> None:
    refused = [httpx.ConnectError("refused", request=HTTPX_REQUEST)] * 12
    one, other = (
        collect_pauses(make_request("GET /healthz"), *refused),
        collect_pauses(make_request("GET /healthz"), *refused),
    )
    assert one != other
    assert one[0] <= 0.1 < one[3]
    assert all(MAX_PAUSE_S / 2 <= seconds <= MAX_PAUSE_S for seconds in one[-3:])


def test_waiting_for_a_lost_execution_ends_after_its_timeout() -> None:
    steps = send_with_retries(make_request("POST /execute", timeout=0, retry_safe=True), retries=3)
    next(steps)
    steps.send(httpx.ReadError("lost", request=HTTPX_REQUEST))
    next(steps)
    with pytest.raises(ConnectionFailed) as failure:
        steps.send(httpx.Response(409, json={"code": "conflict", "detail": "still running"}))
    assert failure.value.outcome == "unknown"
