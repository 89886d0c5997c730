"""`POST /servers/import`: the configuration files of MCP clients become servers."""

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.container import Container
from app.management import server_import
from app.mcp_client.resolver import Resolver
from tests.support.checks import assert_problem, everything
from tests.support.clients import TestUser, new_user
from tests.support.factories import OpenService, tool
from tests.support.mcp_server import FakeMcpServer

URL = "https://mcp.example.com/mcp"
CANARY = "canary-71e0ab-secret"


async def post_import(user: TestUser, config: Any, **fields: Any) -> httpx.Response:
    return await user.http.post("/servers/import", json={"config": config, **fields})


async def import_config(user: TestUser, config: Any, **fields: Any) -> dict[str, Any]:
    answer = await post_import(user, config, **fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_what_can_be_imported_is_imported_and_the_rest_is_reported(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read_file"), tool("write_file")]
    await user.add_server("taken")
    result = await import_config(
        user,
        {
            "mcpServers": {
                "local": {"command": "npx", "args": ["-y", "server-files"], "env": {"TOKEN": CANARY}},
                "files": {"type": "http", "url": mcp.url, "headers": {"X-Token": CANARY}, "timeout": 60},
                "inside": {"url": "https://10.0.0.1/mcp"},
                "taken": {"url": URL},
                "bad\nname": {"url": URL},
                "odd": {"url": URL, "headers": {"Host": "elsewhere", "X-Key": f"{CANARY}\n"}},
                "off": {"url": URL, "type": "sse", "disabled": True},
            }
        },
    )
    assert [(server["name"], server["transport"], server["enabled"]) for server in result["imported"]] == [
        ("files", "streamable_http", True),
        ("off", "sse", False),
    ]
    assert result["imported"][0]["header_names"] == ["X-Token"]
    reasons = {each["name"]: each["reason"] for each in result["skipped"]}
    assert list(reasons) == ["local", "inside", "taken", "bad\nname", "odd"]
    assert "TOOLSCOUT_STDIO_SERVERS" in reasons["local"]
    assert "10.0.0.1 is not a public address" in reasons["inside"]
    assert reasons["taken"] == (
        "there is already a server named 'taken': change or delete that one, or give this one another name"
    )
    assert reasons["bad\nname"].startswith("`name`: ")
    assert reasons["odd"] == "`headers.X-Key`: it has characters that are not allowed"
    assert result["notes"] == [{"name": "files", "note": "not imported: `timeout`"}]
    assert CANARY not in json.dumps(result)

    stored = {server["name"]: server for server in await everything(user.http, "/servers")}
    assert stored.keys() == {"taken", "files", "off"}
    run = await user.reindex(stored["files"]["id"])
    assert run["state"] == "succeeded", run
    assert (await user.tools()).keys() == {"read_file", "write_file"}
    assert {request.headers["x-token"] for request in mcp.requests} == {CANARY}


async def test_importing_twice_changes_nothing(user: TestUser) -> None:
    config = {"servers": {"one": {"url": URL, "disabled": True}, "two": {"url": URL, "disabled": True}}}
    assert len((await import_config(user, config))["imported"]) == 2
    before = await everything(user.http, "/servers")
    again = await import_config(user, config)
    assert again["imported"] == []
    assert [each["name"] for each in again["skipped"]] == ["one", "two"]
    assert await everything(user.http, "/servers") == before


async def test_placeholders_take_their_values_from_the_request_alone(
    user: TestUser, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPORT_TOKEN", CANARY)
    mcp.tools = [tool("read_file")]
    servers = {
        "files": {"url": mcp.url, "headers": {"X-Token": "${env:IMPORT_TOKEN}", "X-Team": "${input:team}"}},
        "plain": {"url": URL, "disabled": True},
    }
    config = {"servers": servers, "inputs": [{"id": "team", "type": "promptString"}]}
    refused = await import_config(user, config)
    assert [server["name"] for server in refused["imported"]] == ["plain"]
    [skipped] = refused["skipped"]
    assert skipped["reason"].startswith("there is no value for `IMPORT_TOKEN`, `team`: give it in `values`")

    result = await import_config(user, config, values={"IMPORT_TOKEN": "from-request", "team": "blue"})
    [imported] = result["imported"]
    assert (await user.reindex(imported["id"]))["state"] == "succeeded"
    assert {(each.headers["x-token"], each.headers["x-team"]) for each in mcp.requests} == {("from-request", "blue")}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("teem", "unknown placeholder `teem`; did you mean `team`?"),
        ("colour", "unknown placeholder `colour`: the configuration has `team`"),
    ],
)
async def test_a_value_without_its_placeholder_is_refused(user: TestUser, given: str, reason: str) -> None:
    servers = {
        "files": {"url": URL, "headers": {"X-Team": "${input:team}"}, "disabled": True},
        "local": {"command": "npx", "args": ["${ROOT}"]},
    }
    config = {"servers": servers, "inputs": [{"id": "declared", "type": "promptString"}]}
    problem = assert_problem(await post_import(user, config, values={"team": "blue", given: CANARY}), 422)
    assert reason in problem["detail"]
    assert CANARY not in str(problem)
    assert await everything(user.http, "/servers") == []
    result = await import_config(user, config, values={"team": "blue", "declared": "x", "ROOT": "/srv"})
    assert [server["name"] for server in result["imported"]] == ["files"]


async def test_no_secret_reaches_an_answer_the_log_or_the_audit(
    user: TestUser, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    servers = {
        "host": {"url": "https://${HOST}.localhost/mcp"},
        "header": {"url": URL, "headers": {"Authorization": "Bearer ${BROKEN}"}},
        "good": {"url": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}, "disabled": True},
        "oauth": {"url": URL, "oauth": {"clientSecret": CANARY}, "disabled": True},
    }
    values = {"HOST": CANARY, "BROKEN": f"{CANARY}\u00e9", "TOKEN": CANARY}
    result = await import_config(user, {"mcpServers": servers}, values=values)
    assert [server["name"] for server in result["imported"]] == ["good", "oauth"]
    host, header = result["skipped"]
    assert host["reason"].startswith("${HOST}.localhost is not a public host name")
    assert header["reason"].startswith("`headers.Authorization`: ")
    audit = (await user.http.get("/audit")).text
    assert "server.create" in audit
    for text in (json.dumps(result), audit, caplog.text):
        assert CANARY not in text


async def test_each_imported_server_has_an_audit_event_and_skipped_ones_have_none(user: TestUser) -> None:
    config = {"mcpServers": {"one": {"url": URL, "disabled": True}, "two": {"command": "sh"}}}
    [imported] = (await import_config(user, config))["imported"]
    events = await everything(user.http, "/audit", action="server.create")
    assert [event["target"] for event in events] == [imported["id"]]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"config": []}, "config"),
        ({"config": "{}"}, "config"),
        ({}, "config"),
        ({"config": {}}, "no servers found"),
        ({"config": {"mcpServers": []}}, "must be an object"),
        ({"config": {"mcpServers": {str(n): {"url": URL} for n in range(101)}}}, "at most 100"),
        ({"config": {"mcpServers": {}}, "values": {"A": 7}}, "values"),
        ({"config": {"mcpServers": {}}, "unknown": 1}, "unknown"),
    ],
)
async def test_a_body_that_is_no_configuration_is_refused(user: TestUser, body: Any, reason: str) -> None:
    answer = await user.http.post("/servers/import", json=body)
    assert_problem(answer, 422)
    assert reason in answer.text
    assert await everything(user.http, "/servers") == []


async def test_an_empty_configuration_imports_nothing(user: TestUser) -> None:
    assert await import_config(user, {"mcpServers": {}}) == {"imported": [], "skipped": [], "notes": []}


async def test_a_program_that_the_operator_lists_is_registered_by_its_name(
    open_service: OpenService, tmp_path: Path
) -> None:
    stdio = tmp_path / "stdio.json"
    stdio.write_text(json.dumps({"listed": {"argv": ["/bin/false"]}}))
    async with open_service(stdio_servers=stdio) as container, new_user(container) as user:
        servers = {name: {"command": "npx", "disabled": True} for name in ("listed", "unlisted")}
        result = await import_config(user, {"mcpServers": servers})
        assert [(each["name"], each["transport"]) for each in result["imported"]] == [("listed", "stdio")]
        assert [each["name"] for each in result["skipped"]] == ["unlisted"]
        assert result["notes"][0]["note"].startswith("it runs as the operator's file says")


async def test_addresses_are_looked_up_at_the_same_time_and_not_without_end(
    container: Container, user: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    meeting = asyncio.Barrier(server_import._MAX_CHECKS)

    async def meet(host: str, _port: int) -> Sequence[str]:
        looked_up.append(host)
        await meeting.wait()  # ends only if as many look-ups run together
        return ["93.184.215.14"]

    async def hang(host: str, _port: int) -> Sequence[str]:
        looked_up.append(host)
        return await asyncio.Future()

    def make_config(prefix: str) -> Any:
        hosts = [f"{prefix}{number}.example.com" for number in range(2 * server_import._MAX_CHECKS)]
        return {"mcpServers": {host: {"url": f"https://{host}/mcp", "disabled": True} for host in hosts}}

    guard = container.mcp_pool.guard
    monkeypatch.setattr(guard, "_resolver", Resolver(meet))
    result = await import_config(user, make_config("a"))
    assert len(result["imported"]) == len(looked_up) == 2 * server_import._MAX_CHECKS

    looked_up.clear()
    hanging = Resolver(hang)
    monkeypatch.setattr(guard, "_resolver", hanging)
    monkeypatch.setattr(server_import, "_CHECK_TIMEOUT_S", 0.05)
    result = await import_config(user, make_config("b"))
    assert result["imported"] == []
    assert {each["reason"] for each in result["skipped"]} == {
        "its host name could not be looked up in time: import it again"
    }
    assert len(looked_up) == server_import._MAX_CHECKS
    hanging.close()
