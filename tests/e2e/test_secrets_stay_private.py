"""Tests that users' secrets reach only their own server: not logs, other servers, metrics or a dump of the database."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError

from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service, running_service
from tests.support.factories import outbound_allow, tool
from tests.support.leaks import dump_database, find_leaks
from tests.support.mcp_server import FakeMcpServer, Fault, malformed_json, raw_result, running_mcp_server

USER = "alice"
Json = dict[str, Any]

CREDENTIAL = "canary-credential-3f1c"
CLIENT_HEADER = "canary-client-header-88d2"
ARGUMENT = "canary-argument-51aa"
RESULT = "canary-result-c07e"
MESSAGE = "canary-message-4d4d"
LOGGED_MESSAGE = "canary-logged-message-77b0"
CANARIES = [CREDENTIAL, CLIENT_HEADER, ARGUMENT, RESULT, MESSAGE, LOGGED_MESSAGE]
USER_WITH_LOG = "bob"


@dataclass
class Scenario:
    service: Service
    trusted: FakeMcpServer
    """The server that gets the credential."""
    other: FakeMcpServer
    answers: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    """A service after requests, calls and failures that involve every canary."""
    with running_mcp_server() as trusted, running_mcp_server("streamable_http", "legacy") as other:
        settings = {"TOOLSCOUT_OUTBOUND_ALLOW": outbound_allow(trusted, other), "TOOLSCOUT_LOG_LEVEL": "DEBUG"}
        with running_service(tmp_path_factory.mktemp("canaries"), settings) as service:
            scenario = Scenario(service, trusted, other)
            with service.admin(USER) as http:
                http.headers.update(
                    {"X-Canary": CLIENT_HEADER, "Cookie": f"c={CLIENT_HEADER}", "Baggage": CLIENT_HEADER}
                )
                use_all_canaries(scenario, http)
            with service.admin(USER_WITH_LOG) as http:
                log_a_message(http)
            yield scenario


def use_all_canaries(scenario: Scenario, http: httpx.Client) -> None:
    for server in (scenario.trusted, scenario.other):
        server.tools = [tool("note", "Keeps a note."), tool("fail", "Fails."), tool("shout", "Shouts.")]
        server.on_call = {
            "note": lambda _: {"content": [{"type": "text", "text": RESULT}]},
            "shout": raise_with_canaries,
        }
        server.on_call["fail"] = lambda _: {"content": [{"type": "text", "text": RESULT}], "isError": True}
    headers = {"Authorization": f"Bearer {CREDENTIAL}", "X-Token": CREDENTIAL}
    keys = register(http, "trusted", scenario.trusted, headers) | register(http, "other", scenario.other, {})
    http.post("/discover", json={"query": f"keep a note of {MESSAGE}"}).raise_for_status()
    for key in keys.values():
        scenario.answers.append(execute(http, key).text)
        scenario.answers.append(execute(http, key, Accept="text/event-stream").text)
        scenario.answers.append(execute(http, key, **{"Idempotency-Key": f"key-{key}"}).text)
    cause_unreadable_answers(scenario.trusted, http, keys["trusted.note"])
    http.post("/execute", json={"tool_key": keys["trusted.note"], "arguments": [ARGUMENT]})
    http.post("/execute", json={"tool_key": ARGUMENT, "arguments": {}})


def log_a_message(http: httpx.Client) -> None:
    settings = {"settings": {"selection_log": True}}
    http.patch(f"/users/{USER_WITH_LOG}", json=settings).raise_for_status()
    http.post("/discover", json={"query": LOGGED_MESSAGE}).raise_for_status()
    for _ in range(1_200):
        if http.get("/selections").json()["items"]:
            return
        time.sleep(0.05)
    raise AssertionError("the message was not logged")


def cause_unreadable_answers(server: FakeMcpServer, http: httpx.Client, key: str) -> None:
    """Make the server send answers that cannot be parsed: parsers tend to log what they cannot read."""
    broken = b'{"content": "' + RESULT.encode() + b'"}'
    for answer in (
        malformed_json,
        raw_result(broken),
        raw_result(b'{"resultType": "complete", "content": [{"type": 7}]}'),
    ):
        server.fault = Fault(answer, on=["tools/call"])
        assert execute(http, key).status_code in (502, 504)
    server.fault = Fault(raw_result(b'{"tools": [{"name": "' + RESULT.encode() + b'"}]}'), on=["tools/list"])
    [server_id] = [item["id"] for item in http.get("/servers").json()["items"] if item["name"] == "trusted"]
    assert http.post(f"/servers/{server_id}/reindex", params={"wait": True}).json()["state"] == "failed"
    server.fault = None


def raise_with_canaries(_arguments: Json) -> Json:
    """A server that quotes its credential in an error."""
    raise MCPError(-32000, f"no such token: {CREDENTIAL}, {RESULT}")


def register(http: httpx.Client, name: str, server: FakeMcpServer, headers: dict[str, str]) -> dict[str, str]:
    body = {"name": name, "transport": server.transport, "url": server.url, "headers": headers}
    server_id = http.post("/servers", json=body).json()["id"]
    index_run = http.post(f"/servers/{server_id}/reindex", params={"wait": True}).json()
    assert index_run["state"] == "succeeded", index_run
    found = http.get("/tools", params={"server_id": server_id}).json()["items"]
    return {f"{name}.{item['name']}": item["id"] for item in found}


def execute(http: httpx.Client, key: str, **headers: str) -> httpx.Response:
    return http.post("/execute", json={"tool_key": key, "arguments": {"text": ARGUMENT}}, headers=headers)


def find_canaries(text: str) -> list[str]:
    return find_leaks(text, CANARIES)


def test_the_canaries_reach_their_own_server(scenario: Scenario) -> None:
    """Otherwise the tests below would show nothing."""
    sent = [dict(request.headers) for request in scenario.trusted.requests if request.rpc_method == "tools/call"]
    assert sent
    assert all(headers["authorization"] == f"Bearer {CREDENTIAL}" for headers in sent)
    assert {arguments["text"] for _, arguments in scenario.trusted.calls + scenario.other.calls} == {ARGUMENT}
    assert sum(RESULT in answer for answer in scenario.answers) == len(scenario.answers)


def test_the_log_contains_no_canary(scenario: Scenario) -> None:
    log = (scenario.service.folder / "service.log").read_text()
    assert '"level":"debug"' in log or '"level":"info"' in log
    assert find_canaries(log) == []


def test_the_credential_and_the_clients_headers_reach_no_other_server(scenario: Scenario) -> None:
    received = "".join(str(request.headers) + request.body.decode() for request in scenario.other.requests)
    assert ARGUMENT in received
    assert find_canaries(received) == [ARGUMENT]
    assert CLIENT_HEADER not in "".join(str(request.headers) for request in scenario.trusted.requests)


def test_metrics_and_audit_contain_no_canary(scenario: Scenario) -> None:
    with scenario.service.admin() as http:
        metrics, audit = http.get("/metrics").text, http.get("/audit", params={"limit": 200}).text
    assert "toolscout_upstream_seconds" in metrics
    assert "tool.execute" in audit
    assert find_canaries(metrics + audit) == []


def test_a_dump_of_the_database_contains_no_canary_in_plain_text(scenario: Scenario) -> None:
    dump = dump_database(EmbeddedPostgres(scenario.service.folder / "data").url)
    selections = dump.pop("selections")
    other_tables = "\n".join(dump.values())
    assert USER in other_tables
    assert find_canaries(other_tables) == []
    # messages are stored only for users with a selection log, and only in its table
    assert find_canaries(selections) == [LOGGED_MESSAGE]
    assert USER not in selections
