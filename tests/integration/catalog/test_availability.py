"""What the interfaces say about tools that Toolscout runs, that a backend runs, and that cannot be run."""

from typing import Any

import pytest

from app.container import Container
from tests.support.clients import TestUser
from tests.support.console_client import open_console
from tests.support.factories import tool
from tests.support.mcp_client import call_meta_tool
from tests.support.mcp_server import FakeMcpServer, Fault, status

FORECAST = tool("get_forecast", "Return the expected weather at a place for the coming days.")
ALERTS = tool("get_weather_alerts", "Return the weather warnings for a place.")
MESSAGE = "what will the weather be like?"


@pytest.fixture
async def both(user: TestUser, mcp: FakeMcpServer) -> dict[str, str]:
    """The ids of a connected server with `get_forecast` and of a push server with `get_weather_alerts`."""
    mcp.tools = [FORECAST]
    return {
        "connected": await user.connect(mcp, "weather"),
        "push": await user.add_tools(ALERTS, server="alerts"),
    }


async def read_tools(user: TestUser) -> dict[str, tuple[Any, ...]]:
    return {
        name: (each["visible"], each["runnable"], each["server_status"]) for name, each in (await user.tools()).items()
    }


async def test_a_tool_says_whether_toolscout_runs_it(user: TestUser, both: dict[str, str]) -> None:
    assert await read_tools(user) == {
        "get_forecast": (True, True, "connected"),
        "get_weather_alerts": (True, False, "push"),
    }
    for name, server_id in both.items():
        assert (await user.http.get(f"/servers/{server_id}")).json()["status"] == name
        await user.http.patch(f"/servers/{server_id}", json={"enabled": False})
    hidden = await read_tools(user)
    assert {each[:2] for each in hidden.values()} == {(False, False)}


@pytest.mark.usefixtures("both")
async def test_a_runnable_tool_runs_and_any_other_is_refused(user: TestUser) -> None:
    for name, (_, runnable, _) in (await read_tools(user)).items():
        assert ((await user.execute(name)).status_code == 200) == runnable


@pytest.mark.usefixtures("both")
async def test_a_discovery_has_the_status_of_each_server(user: TestUser) -> None:
    found = await user.discover(MESSAGE, fill=True)
    assert {each["alias"]: each["server_status"] for each in found["tools"]} == {
        "get_forecast": "connected",
        "get_weather_alerts": "push",
    }


async def test_a_tool_of_a_failing_server_is_still_run_and_marked(
    user: TestUser, mcp: FakeMcpServer, both: dict[str, str]
) -> None:
    mcp.fault = Fault(status(503))
    await user.http.post(f"/servers/{both['connected']}/reindex", params={"wait": True})
    assert (await read_tools(user))["get_forecast"][:2] == (True, True)
    assert (await read_tools(user))["get_forecast"][2] in ("error", "disconnected")


@pytest.mark.usefixtures("both")
async def test_a_model_is_told_which_tools_it_cannot_run(user: TestUser) -> None:
    answer = await call_meta_tool(user.http, "tool_discovery", {"query": [MESSAGE]})
    texts = {text.partition(" of ")[0]: text for text in answer["content"][0]["text"].split("\n\n")}
    assert "Note: found by Toolscout, run by your backend" in texts["get_weather_alerts"]
    assert "Note" not in texts["get_forecast"]


@pytest.mark.usefixtures("both")
async def test_the_console_does_not_say_that_toolscout_runs_a_tool_of_a_push_server(
    container: Container, user: TestUser
) -> None:
    keys = {name: each["id"] for name, each in (await user.tools()).items()}
    async with open_console(container, user.key) as console:
        pages = {name: await console.get_page(f"/console/tools/{key}") for name, key in keys.items()}
        listed = await console.get_page("/console/tools")
        answer = await console.submit("/console/try", query=MESSAGE, fill="yes")
    assert "run by your backend" in pages["get_weather_alerts"]
    assert "run by your backend" not in pages["get_forecast"]
    assert listed.count("run by your backend</span>") == 1
    assert answer.text.count("run by your backend</span>") == 1
