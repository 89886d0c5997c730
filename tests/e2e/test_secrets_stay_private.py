"""What users entrust to us goes where it belongs and nowhere else: not into logs, other servers, metrics or a dump."""

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from mcp.shared.exceptions import MCPError

from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service, running_service
from tests.support.factories import outbound_allow, tool
from tests.support.mcp_server import FakeMcpServer, Fault, malformed_json, raw_result, running_mcp_server

USER = "keeper"
Json = dict[str, Any]

CREDENTIAL = "canary-of-a-credential-3f1c"
CLIENT_HEADER = "canary-of-a-client-header-88d2"
ARGUMENT = "canary-of-an-argument-51aa"
RESULT = "canary-of-a-result-c07e"
MESSAGE = "canary-of-a-message-4d4d"
KEPT_MESSAGE = "canary-of-a-message-that-is-to-be-kept-77b0"
ALL = [CREDENTIAL, CLIENT_HEADER, ARGUMENT, RESULT, MESSAGE, KEPT_MESSAGE]
WITH_A_LOG = "diarist"


@dataclass
class World:
    service: Service
    trusted: FakeMcpServer
    """Gets the credential."""
    other: FakeMcpServer
    answers: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """After all that can happen to a secret has happened to it."""
    with running_mcp_server() as trusted, running_mcp_server("streamable_http", "legacy") as other:
        settings = {"TOOLSCOUT_OUTBOUND_ALLOW": outbound_allow(trusted, other), "TOOLSCOUT_LOG_LEVEL": "DEBUG"}
        with running_service(tmp_path_factory.mktemp("canaries"), settings) as service:
            world = World(service, trusted, other)
            with service.admin(USER) as http:
                http.headers.update(
                    {"X-Canary": CLIENT_HEADER, "Cookie": f"c={CLIENT_HEADER}", "Baggage": CLIENT_HEADER}
                )
                live_through(world, http)
            with service.admin(WITH_A_LOG) as http:
                keep_a_log(http)
            yield world


def live_through(world: World, http: httpx.Client) -> None:
    for server in (world.trusted, world.other):
        server.tools = [tool("note", "Keeps a note."), tool("fail", "Fails."), tool("shout", "Shouts.")]
        server.on_call = {"note": lambda _: {"content": [{"type": "text", "text": RESULT}]}, "shout": refuse}
        server.on_call["fail"] = lambda _: {"content": [{"type": "text", "text": RESULT}], "isError": True}
    headers = {"Authorization": f"Bearer {CREDENTIAL}", "X-Token": CREDENTIAL}
    keys = register(http, "trusted", world.trusted, headers) | register(http, "other", world.other, {})
    http.post("/discover", json={"query": f"keep a note of {MESSAGE}"}).raise_for_status()
    for key in keys.values():
        world.answers.append(run(http, key).text)
        world.answers.append(run(http, key, Accept="text/event-stream").text)
        world.answers.append(run(http, key, **{"Idempotency-Key": f"key-{key}"}).text)
    spoil(world.trusted, http, keys["trusted.note"])
    http.post("/execute", json={"tool_key": keys["trusted.note"], "arguments": [ARGUMENT]})
    http.post("/execute", json={"tool_key": ARGUMENT, "arguments": {}})


def keep_a_log(http: httpx.Client) -> None:
    settings = {"settings": {"selection_log": True}}
    http.patch(f"/users/{WITH_A_LOG}", json=settings).raise_for_status()
    http.post("/discover", json={"query": KEPT_MESSAGE}).raise_for_status()
    for _ in range(1_200):
        if http.get("/selections").json()["items"]:
            return
        time.sleep(0.05)
    raise AssertionError("what was to be kept is not there")


def spoil(server: FakeMcpServer, http: httpx.Client, key: str) -> None:
    """Answers that nobody can read tend to be logged by whoever cannot read them."""
    broken = b'{"content": "' + RESULT.encode() + b'"}'
    for answer in (
        malformed_json,
        raw_result(broken),
        raw_result(b'{"resultType": "complete", "content": [{"type": 7}]}'),
    ):
        server.fault = Fault(answer, on=["tools/call"])
        assert run(http, key).status_code in (502, 504)
    server.fault = Fault(raw_result(b'{"tools": [{"name": "' + RESULT.encode() + b'"}]}'), on=["tools/list"])
    [server_id] = [item["id"] for item in http.get("/servers").json()["items"] if item["name"] == "trusted"]
    assert http.post(f"/servers/{server_id}/reindex", params={"wait": True}).json()["state"] == "failed"
    server.fault = None


def refuse(_arguments: Json) -> Json:
    """A server that says aloud what it was told."""
    raise MCPError(-32000, f"no such token: {CREDENTIAL}, {RESULT}")


def register(http: httpx.Client, name: str, server: FakeMcpServer, headers: dict[str, str]) -> dict[str, str]:
    body = {"name": name, "transport": server.transport, "url": server.url, "headers": headers}
    server_id = http.post("/servers", json=body).json()["id"]
    run = http.post(f"/servers/{server_id}/reindex", params={"wait": True}).json()
    assert run["state"] == "succeeded", run
    found = http.get("/tools", params={"server_id": server_id}).json()["items"]
    return {f"{name}.{item['name']}": item["id"] for item in found}


def run(http: httpx.Client, key: str, **headers: str) -> httpx.Response:
    return http.post("/execute", json={"tool_key": key, "arguments": {"text": ARGUMENT}}, headers=headers)


def spellings(canary: str) -> list[str]:
    return [canary, canary.encode().hex(), base64.b64encode(canary.encode()).decode().rstrip("=")[:-2]]


def traces_in(text: str) -> list[str]:
    return [canary for canary in ALL if any(spelling in text for spelling in spellings(canary))]


def test_the_canaries_did_go_where_they_belong(world: World) -> None:
    """Or the tests below would show nothing."""
    sent = [dict(request.headers) for request in world.trusted.requests if request.rpc_method == "tools/call"]
    assert sent
    assert all(headers["authorization"] == f"Bearer {CREDENTIAL}" for headers in sent)
    assert {arguments["text"] for _, arguments in world.trusted.calls + world.other.calls} == {ARGUMENT}
    assert sum(RESULT in answer for answer in world.answers) == len(world.answers)


def test_no_log_line_holds_any(world: World) -> None:
    log = (world.service.folder / "service.log").read_text()
    assert '"level":"debug"' in log or '"level":"info"' in log
    assert traces_in(log) == []


def test_a_credential_and_the_clients_headers_reach_no_other_server(world: World) -> None:
    seen = "".join(str(request.headers) + request.body.decode() for request in world.other.requests)
    assert ARGUMENT in seen
    assert traces_in(seen) == [ARGUMENT]
    assert CLIENT_HEADER not in "".join(str(request.headers) for request in world.trusted.requests)


def test_metrics_and_audit_hold_none(world: World) -> None:
    with world.service.admin() as http:
        metrics, audit = http.get("/metrics").text, http.get("/audit", params={"limit": 200}).text
    assert "toolscout_upstream_seconds" in metrics
    assert "tool.execute" in audit
    assert traces_in(metrics + audit) == []


def test_a_dump_of_the_database_holds_none_in_the_clear(world: World) -> None:
    dump = whole_database(world.service.folder / "data")
    kept = dump.pop("selections")
    everything = "\n".join(dump.values())
    assert USER in everything
    assert traces_in(everything) == []
    # a message is kept of those alone who wish it, in the one table that is for it
    assert traces_in(kept) == [KEPT_MESSAGE]
    assert USER not in kept


def whole_database(data_dir: Path) -> dict[str, str]:
    """Every row of every table, as the superuser sees it."""
    with psycopg.connect(EmbeddedPostgres(data_dir).url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = {name: connection.execute(f"SELECT t::text FROM {name} t".encode()).fetchall() for (name,) in tables}
    return {name: "\n".join(text for (text,) in found) for name, found in rows.items()}
