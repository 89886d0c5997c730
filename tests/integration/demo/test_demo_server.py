"""The demo's own MCP server: a real program, which the demo user finds and runs, and nobody else can start."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.container import Container
from app.demo.seed import finish_demo, seed_demo
from app.mcp_client.stdio_servers import StdioServerRegistry, read_stdio_servers
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import OpenService, make_settings
from tests.support.mcp_pool import make_endpoint, running_pool

READS = {"get_current_time", "convert_time", "convert_units", "calculate", "list_notes", "get_text_statistics"}
TOOLBOX = {"name": "toolbox", "transport": "stdio"}
DEMO_ENDPOINT = make_endpoint("toolbox", user_id="demo")


@pytest.fixture
async def seeded(open_service: OpenService) -> AsyncIterator[TestUser]:
    """The demo user of a service with the demo, after its first start."""
    async with open_service(demo=True, connect_timeout_s=120) as service:
        key = await seed_demo(service)
        assert key is not None
        await finish_demo(service)
        async with open_client(service, Authorization=f"Bearer {key}") as http:
            yield TestUser("demo", key, http)


async def test_after_the_first_start_the_demo_tools_are_found_and_run(seeded: TestUser) -> None:
    found = await seeded.discover("what time is it in Tokyo?")
    first = found["tools"][0]
    assert (first["server_name"], first["tool"]["name"]) == ("toolbox", "get_current_time")
    answer = await seeded.http.post(
        "/execute", json={"tool_key": first["tool_key"], "arguments": {"timezone": "Tokyo"}}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["result"]["structuredContent"]["timezone"] == "Asia/Tokyo"

    [server] = [each for each in (await seeded.http.get("/servers")).json()["items"] if each["name"] == "toolbox"]
    assert (server["transport"], server["status"], server["tool_count"]) == ("stdio", "connected", 8)


async def test_only_the_demo_user_can_register_the_demo_server(open_service: OpenService) -> None:
    async with open_service(demo=True) as service:
        async with new_user(service, "demo") as demo:
            assert (await demo.http.post("/servers", json=TOOLBOX)).status_code == 201
        async with new_user(service) as other:
            assert_problem(await other.http.post("/servers", json=TOOLBOX), 422, "invalid_input")
            server_id = await other.add_server("toolbox")  # a push server may have the name
            changed = await other.http.patch(f"/servers/{server_id}", json={"transport": "stdio"})
            assert_problem(changed, 422, "invalid_input")


async def test_without_the_demo_nobody_can_register_or_run_the_demo_server(open_service: OpenService) -> None:
    async with open_service(demo=False) as service, new_user(service, "demo") as demo:
        assert_problem(await demo.http.post("/servers", json=TOOLBOX), 422, "invalid_input")


async def test_a_run_that_keeps_failing_does_not_hold_up_the_first_start(
    open_service: OpenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(demo=True) as service:
        monkeypatch.setattr(service.mcp_pool, "stdio_servers", StdioServerRegistry({}))
        await seed_demo(service)
        await finish_demo(service)
        assert await _read_last_error(service) == (
            "TOOLSCOUT_STDIO_SERVERS, as last read, has no server named 'toolbox'; "
            "the demo's own needs TOOLSCOUT_DEMO=1"
        )


async def _read_last_error(service: Container) -> str:
    async with service.database.transaction("demo") as session:
        [(error,)] = await session.rows("SELECT last_error FROM mcp_servers WHERE name = 'toolbox'")
    return str(error)


def test_a_program_of_the_operator_with_the_same_name_wins(tmp_path: Path) -> None:
    file = tmp_path / "stdio.json"
    file.write_text(json.dumps({"toolbox": {"argv": ["another"]}, "for_ann": {"argv": ["run"], "users": ["ann"]}}))
    own = read_stdio_servers(make_settings(tmp_path, demo=True))
    listed = read_stdio_servers(make_settings(tmp_path, demo=True, stdio_servers=file))
    assert own.get_program("toolbox", "demo").argv[0] == sys.executable
    assert listed.get_program("toolbox", "demo").argv == ["another"]
    assert (own.list_names("demo"), own.list_names("ann")) == (["toolbox"], [])
    assert (listed.list_names("demo"), listed.list_names("ann")) == (["toolbox"], ["toolbox", "for_ann"])


async def test_the_tools_have_schemas_and_annotations(tmp_path: Path) -> None:
    registry = read_stdio_servers(make_settings(tmp_path, demo=True))
    async with running_pool(stdio_servers=registry) as mcp_pool:
        tools = {tool["name"]: tool for tool in await mcp_pool.list_tools(DEMO_ENDPOINT)}
    assert {name for name, tool in tools.items() if tool["annotations"]["readOnlyHint"]} == READS
    assert tools.keys() - READS == {"add_note", "delete_note"}
    for tool in tools.values():
        assert tool["title"]
        assert "  " not in tool["description"]
        assert tool["outputSchema"]["properties"]
        assert all("description" in parameter for parameter in tool["inputSchema"]["properties"].values())


CALLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("convert_units", {"value": 98.6, "from_unit": "°F", "to_unit": "°C"}, {"result": 37.0, "quantity": "temperature"}),
    ("calculate", {"expression": "2^64"}, {"result": float(2**64), "formatted": "18446744073709551616"}),
    ("calculate", {"expression": "6 * 7"}, {"result": 42, "formatted": "42"}),
    ("get_text_statistics", {"text": "To be or not to be."}, {"words": 6, "unique_words": 4, "sentences": 1}),
    (
        "convert_time",
        {"time": "3 pm", "source_timezone": "New York", "target_timezone": "Kathmandu", "date": "2026-11-18"},
        {"difference_hours": 10.75},
    ),
    ("add_note", {"text": "buy milk"}, {"id": 1, "text": "buy milk"}),
    ("list_notes", {}, {"count": 1}),
    ("delete_note", {"note_id": 1}, {"id": 1}),
    ("list_notes", {}, {"count": 0, "notes": []}),
]
FAILING_CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("get_current_time", {"timezone": "Europe/Viena"}, "did you mean Europe/Vienna"),
    ("convert_units", {"value": 1, "from_unit": "km", "to_unit": "kg"}, "one is a unit of length, the other of mass"),
    ("calculate", {"expression": "9**9**9"}, "too large"),
    ("delete_note", {"note_id": 9}, "there is no note 9"),
]


async def test_the_tools_run_and_explain_what_is_wrong(tmp_path: Path) -> None:
    """In one connection: starting the program takes longer than all calls."""
    registry = read_stdio_servers(make_settings(tmp_path, demo=True))
    async with running_pool(stdio_servers=registry) as mcp_pool:
        for name, arguments, expected in CALLS:
            result = await mcp_pool.call_tool(DEMO_ENDPOINT, name, arguments, 60)
            assert not result["isError"], result
            assert result["structuredContent"].items() >= expected.items()
        for name, arguments, reason in FAILING_CALLS:
            result = await mcp_pool.call_tool(DEMO_ENDPOINT, name, arguments, 60)
            assert result["isError"], result
            assert reason in result["content"][0]["text"]


async def test_the_program_starts_in_a_folder_with_another_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where somebody runs Toolscout in the folder of a project of their own."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise RuntimeError")
    registry = read_stdio_servers(make_settings(tmp_path, demo=True))
    monkeypatch.chdir(tmp_path)
    async with running_pool(stdio_servers=registry) as mcp_pool:
        assert len(await mcp_pool.list_tools(DEMO_ENDPOINT)) == 8


async def test_a_result_of_a_demo_tool_arrives_unchanged(seeded: TestUser) -> None:
    answer: httpx.Response = await seeded.execute("calculate", {"expression": "10 / 4"})
    assert answer.json()["result"]["structuredContent"] == {"expression": "10 / 4", "result": 2.5, "formatted": "2.5"}
    failed: httpx.Response = await seeded.execute("calculate", {"expression": "10 / 0"})
    assert failed.status_code == 200
    assert failed.json()["result"]["isError"] is True
    assert "division by zero" in failed.json()["result"]["content"][0]["text"]
