"""Tests of what all adapters share: running a discovered tool, and the words of its outcome for a model."""

import asyncio

import pytest

from tests.support.mcp_server import FakeMcpServer, Fault, status
from tests.support.weather_server import DELETE_MESSAGE, MESSAGE
from toolscout_client import AsyncToolscout, AuthorizationRequired, ConfirmationRequired, Toolscout, Unauthenticated
from toolscout_client.adapters._calls import (
    CallableTool,
    call_tool,
    call_tool_async,
    callable_tools,
)
from toolscout_client.models import Format


async def find_tool(toolscout: AsyncToolscout, name: str, message: str = MESSAGE) -> CallableTool:
    tools = callable_tools(await toolscout.discover(message, format="openai", fill=True, similarity_threshold=0.0))
    return next(tool for tool in tools if tool.name == name)


@pytest.mark.parametrize("api_format", ["openai", "openai_responses"])
async def test_tools_have_the_names_and_schemas_of_the_definitions(
    toolscout: AsyncToolscout, weather: FakeMcpServer, api_format: Format
) -> None:
    [tool, *_] = callable_tools(await toolscout.discover(MESSAGE, format=api_format))
    assert (tool.name, tool.input_schema["required"]) == ("get_forecast", ["place"])
    assert tool.description.startswith("The expected weather")


@pytest.mark.parametrize("arguments", [{"place": "Oslo"}, '{"place": "Oslo"}'], ids=["parsed", "text"])
async def test_a_tool_runs_with_parsed_arguments_or_with_the_models_text(
    toolscout: AsyncToolscout, weather: FakeMcpServer, arguments: str | dict[str, str]
) -> None:
    outcome = await call_tool_async(toolscout, await find_tool(toolscout, "get_forecast"), arguments)
    assert (outcome.text, outcome.failed, outcome.error) == ("Oslo: snow", False, None)
    assert outcome.result["content"] == [{"type": "text", "text": "Oslo: snow"}]
    assert weather.calls == [("get_forecast", {"place": "Oslo"})]


async def test_a_tool_runs_with_the_blocking_client(
    toolscout: AsyncToolscout, blocking_toolscout: Toolscout, weather: FakeMcpServer
) -> None:
    tool = await find_tool(toolscout, "get_forecast")
    outcome = await asyncio.to_thread(call_tool, blocking_toolscout, tool, {"place": "Oslo"})
    assert outcome.text == "Oslo: snow"
    failed = await asyncio.to_thread(call_tool, blocking_toolscout, tool, {"place": 7})
    assert failed.failed


async def test_a_failure_that_the_tool_reports_is_for_the_model(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    outcome = await call_tool_async(toolscout, await find_tool(toolscout, "send_mail"), {})
    assert (outcome.text, outcome.failed) == ("The tool failed: no such address", True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"place": 7}, "place: "), ({}, "place"), ("{broken", "not valid JSON"), ("[1]", "")],
    ids=["wrong type", "missing", "no JSON", "no object"],
)
async def test_invalid_arguments_are_explained_and_nothing_runs(
    toolscout: AsyncToolscout, weather: FakeMcpServer, arguments: str | dict[str, object], words: str
) -> None:
    outcome = await call_tool_async(toolscout, await find_tool(toolscout, "get_forecast"), arguments)
    assert outcome.failed
    assert outcome.text.startswith("TOOL_VALIDATION_ERROR: ")
    assert words in outcome.text
    assert outcome.text.endswith("Correct the arguments, then call the tool again.")
    assert weather.calls == []


async def test_a_tool_that_has_vanished_is_explained(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    tool = await find_tool(toolscout, "get_forecast")
    await toolscout.tools.update(tool.discovered.tool_key, enabled=False)
    outcome = await call_tool_async(toolscout, tool, {"place": "Oslo"})
    assert outcome.text.startswith("TOOL_NOT_FOUND: ")
    assert "use another one" in outcome.text


async def test_a_sign_in_is_asked_for(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    tool = await find_tool(toolscout, "get_forecast")
    weather.fault = Fault(status(401, headers={"WWW-Authenticate": 'Bearer realm="weather"'}))
    outcome = await call_tool_async(toolscout, tool, {"place": "Oslo"})
    assert outcome.text.startswith("AUTHORIZATION_REQUIRED: ")
    assert outcome.text.endswith("Ask the user to sign in to the server, and call the tool again after that.")
    assert isinstance(outcome.error, AuthorizationRequired)


@pytest.mark.usefixtures("confirmed_destructive")
async def test_a_call_that_needs_a_confirmation_is_raised_for_the_application(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    tool = await find_tool(toolscout, "delete_station", DELETE_MESSAGE)
    assert tool.is_destructive
    with pytest.raises(ConfirmationRequired) as raised:
        await call_tool_async(toolscout, tool, {"place": "Oslo"})
    assert weather.calls == []
    outcome = await call_tool_async(toolscout, tool, {"place": "Oslo"}, confirmation_token=raised.value.token)
    assert outcome.text == "deleted Oslo"


async def test_a_refused_key_is_raised(toolscout: AsyncToolscout, weather: FakeMcpServer, address: str) -> None:
    tool = await find_tool(toolscout, "get_forecast")
    async with AsyncToolscout(address, "bad", verify=False) as stranger:
        with pytest.raises(Unauthenticated):
            await call_tool_async(stranger, tool, {"place": "Oslo"})


async def test_a_toolscout_that_is_down_is_explained(
    toolscout: AsyncToolscout, unreachable_toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    tool = await find_tool(toolscout, "get_forecast")
    outcome = await call_tool_async(unreachable_toolscout, tool, {"place": "Oslo"})
    assert outcome.text.startswith("connection_failed: ")
