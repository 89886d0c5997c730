"""Tests of LangChain tools that Toolscout finds and runs."""

import asyncio
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException
from langchain_core.utils.function_calling import convert_to_openai_tool

from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, status
from tests.support.weather_server import DELETE_MESSAGE, FORECAST, MESSAGE, add_weather_tools
from toolscout_client import AsyncToolscout, ConnectionFailed, Forbidden, Toolscout, Unauthenticated
from toolscout_client.adapters.langchain import ToolscoutTool, ToolscoutTools

Json = dict[str, Any]


async def find_tool(
    client: AsyncToolscout | Toolscout, name: str = "get_forecast", message: str = MESSAGE, **options: Any
) -> ToolscoutTool:
    found = await ToolscoutTools(client, **options).afor_message(message)
    return next(each for each in found if each.name == name)


async def call_tool(called: ToolscoutTool, arguments: Json, config: RunnableConfig | None = None) -> ToolMessage:
    """Call the tool as an agent does."""
    call = {"name": called.name, "args": arguments, "id": "call_1", "type": "tool_call"}
    message = await called.ainvoke(call, config)
    assert isinstance(message, ToolMessage)
    return message


async def test_a_found_tool_has_the_schema_of_its_server_and_runs(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    forecast = await find_tool(toolscout)
    function = convert_to_openai_tool(forecast)["function"]
    assert (function["name"], function["description"]) == ("get_forecast", FORECAST["description"])
    assert function["parameters"]["required"] == ["place"]
    message = await call_tool(forecast, {"place": "Oslo"})
    assert (message.content, message.status) == ("Oslo: snow", "success")
    assert message.artifact["content"] == [{"type": "text", "text": "Oslo: snow"}]
    assert weather.calls == [("get_forecast", {"place": "Oslo"})]


async def test_the_blocking_client_finds_and_runs_tools_in_a_thread(
    blocking_toolscout: Toolscout, weather: FakeMcpServer
) -> None:
    def find_and_call() -> Any:
        [forecast, *_] = ToolscoutTools(blocking_toolscout).for_message(MESSAGE)
        return forecast.invoke({"place": "Oslo"})

    assert await asyncio.to_thread(find_and_call) == "Oslo: snow"
    assert weather.calls == [("get_forecast", {"place": "Oslo"})]


async def test_the_blocking_client_does_not_block_the_event_loop(
    blocking_toolscout: Toolscout, weather: FakeMcpServer
) -> None:
    """The service answers in this event loop: a call that blocked it would never end."""
    async with asyncio.timeout(20):
        forecast = await find_tool(blocking_toolscout)
        assert (await call_tool(forecast, {"place": "Oslo"})).content == "Oslo: snow"
    assert weather.calls == [("get_forecast", {"place": "Oslo"})]


async def test_an_asyncio_client_that_would_have_to_block_says_what_to_do(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    with pytest.raises(TypeError, match="use `ainvoke`, `afor_message`"):
        ToolscoutTools(toolscout).for_message(MESSAGE)
    forecast = await find_tool(toolscout)
    with pytest.raises(TypeError, match="pass a Toolscout"):
        forecast.invoke({"place": "Oslo"})
    assert weather.calls == []


async def test_a_structured_result_is_the_artifact(
    user: TestUser, toolscout: AsyncToolscout, mcp: FakeMcpServer
) -> None:
    add_weather_tools(mcp).on_call["get_forecast"] = lambda _: {"content": [], "structuredContent": {"sky": "snow"}}
    await user.connect(mcp, "weather")
    message = await call_tool(await find_tool(toolscout), {"place": "Oslo"})
    assert message.content == '{"sky": "snow"}'
    assert message.artifact["structuredContent"] == {"sky": "snow"}


async def test_an_image_reaches_the_model(user: TestUser, toolscout: AsyncToolscout, mcp: FakeMcpServer) -> None:
    blocks = [{"type": "text", "text": "a map"}, {"type": "image", "data": "iVBORw0K", "mimeType": "image/png"}]
    add_weather_tools(mcp).on_call["get_forecast"] = lambda _: {"content": blocks}
    await user.connect(mcp, "weather")
    message = await call_tool(await find_tool(toolscout), {"place": "Oslo"})
    assert message.content == [
        {"type": "text", "text": "a map"},
        {"type": "image", "base64": "iVBORw0K", "mime_type": "image/png"},
    ]


async def test_arguments_may_have_the_names_of_the_frameworks_own(
    user: TestUser, toolscout: AsyncToolscout, mcp: FakeMcpServer
) -> None:
    properties = {name: {"type": "string"} for name in ("config", "run_manager", "arguments", "self", "runtime")}
    mcp.tools = [
        tool(
            "set_options", "Set the options of the forecast.", inputSchema={"type": "object", "properties": properties}
        )
    ]
    mcp.on_call["set_options"] = lambda arguments: {"content": [{"type": "text", "text": " ".join(arguments)}]}
    await user.connect(mcp, "weather")
    options = await find_tool(toolscout, "set_options", "set the options of the forecast")
    arguments = dict.fromkeys(properties, "x")
    assert (await call_tool(options, arguments)).status == "success"
    assert mcp.calls == [("set_options", arguments)]


async def test_a_failure_that_the_tool_reports_is_a_message_for_the_model(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    message = await call_tool(await find_tool(toolscout, "send_mail", "send a mail to somebody"), {})
    assert (message.content, message.status) == ("The tool failed: no such address", "error")
    assert weather.calls == [("send_mail", {})]


async def test_errors_are_raised_where_the_application_wants_them(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    forecast = await find_tool(toolscout)
    message = await call_tool(forecast, {"place": 7})
    assert message.status == "error"
    assert str(message.content).startswith("TOOL_VALIDATION_ERROR: ")
    with pytest.raises(ToolException, match="TOOL_VALIDATION_ERROR"):
        await call_tool(forecast.model_copy(update={"handle_tool_error": False}), {"place": 7})
    assert weather.calls == []


async def test_a_sign_in_is_asked_for(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    forecast = await find_tool(toolscout)
    weather.fault = Fault(status(401, headers={"WWW-Authenticate": 'Bearer realm="weather"'}))
    message = await call_tool(forecast, {"place": "Oslo"})
    assert str(message.content).startswith("AUTHORIZATION_REQUIRED: ")
    assert "Ask the user to sign in" in str(message.content)


@pytest.mark.usefixtures("confirmed_destructive")
async def test_a_destructive_call_runs_once_the_application_has_asked(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    asked: list[tuple[str, Json]] = []

    async def delete(*, confirmed: bool | None) -> ToolMessage:
        def confirm(name: str, arguments: Json, _: Exception) -> bool:
            asked.append((name, arguments))
            return confirmed is True

        options = {} if confirmed is None else {"confirm": confirm}
        called = await find_tool(toolscout, "delete_station", DELETE_MESSAGE, **options)
        return await call_tool(called, {"place": "Oslo"})

    told = await delete(confirmed=None)
    assert "The user must confirm this call first." in str(told.content)
    declined = await delete(confirmed=False)
    assert declined.content == "The user has declined this call. Nothing was run."
    assert weather.calls == []
    assert (await delete(confirmed=True)).content == "deleted Oslo"
    assert weather.calls == [("delete_station", {"place": "Oslo"})]
    assert asked == [("delete_station", {"place": "Oslo"})] * 2


async def test_tools_of_one_name_get_names_of_their_own_and_run_on_their_servers(
    user: TestUser, toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    await user.add_tools(FORECAST, server="sailing")  # a push server, whose tools cannot run
    found = await ToolscoutTools(toolscout, fill=True, similarity_threshold=0.0).afor_message(MESSAGE)
    by_server = {each.found.discovered.server_name: each for each in found if "forecast" in each.name}
    assert by_server["sailing"].name != by_server["weather"].name
    assert (await call_tool(by_server["weather"], {"place": "Oslo"})).content == "Oslo: snow"
    failed = await call_tool(by_server["sailing"], {"place": "Oslo"})
    assert str(failed.content).startswith("SERVER_CONNECTION_ERROR: ")
    assert len(weather.calls) == 1


async def test_kept_tools_come_first_under_their_names(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    provider = ToolscoutTools(toolscout)
    mail = "send a mail to somebody"
    kept = await provider.afor_message(MESSAGE)
    names = [each.name for each in await provider.afor_message(mail, keep=kept)]
    assert names[: len(kept)] == [each.name for each in kept]
    assert "send_mail" in names
    assert (await provider.afor_message(mail))[0].name == "send_mail"
    by_key = await provider.afor_message(mail, keep=[kept[0].tool_key])
    assert by_key[0].name == kept[0].name


async def test_tools_are_found_for_the_last_user_message_of_a_conversation(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    conversation = [
        SystemMessage("You send mails to somebody."),
        HumanMessage("send a mail to somebody"),
        AIMessage("", tool_calls=[{"name": "send_mail", "args": {}, "id": "1"}]),
        ToolMessage("sent", tool_call_id="1"),
        AIMessage("It is sent."),
        HumanMessage([{"type": "text", "text": MESSAGE}, {"type": "image", "base64": "A" * 2_000_000}]),
    ]
    assert (await ToolscoutTools(toolscout).afor_message(conversation))[0].name == "get_forecast"
    assert await ToolscoutTools(toolscout).afor_message([SystemMessage(MESSAGE)]) == []


async def test_the_user_of_the_config_is_the_one_whose_tools_are_found_and_run(
    admin: httpx.AsyncClient, address: str, user: TestUser, other_user: TestUser, weather: FakeMcpServer
) -> None:
    key = (await admin.post("/keys", json={"kind": "service"})).json()["key"]
    config: RunnableConfig = {"configurable": {"user_id": user.id}}
    others: RunnableConfig = {"configurable": {"user_id": other_user.id}}
    async with AsyncToolscout(address, key, verify=False) as service:
        provider = ToolscoutTools(service)
        [forecast, *_] = await provider.afor_message(MESSAGE, config=config)
        assert await provider.afor_message(MESSAGE, config=others) == []
        assert (await call_tool(forecast, {"place": "Oslo"}, config)).content == "Oslo: snow"
        refused = await call_tool(forecast, {"place": "Oslo"}, others)
        assert str(refused.content).startswith("TOOL_NOT_FOUND: ")
        # a client that is bound to a user acts for no other one, whatever the config says
        bound = ToolscoutTools(service.for_user(user.id))
        assert (await bound.afor_message(MESSAGE, config=others))[0].name == "get_forecast"
    assert weather.calls == [("get_forecast", {"place": "Oslo"})]


async def test_the_config_cannot_make_a_users_key_act_for_another_user(
    toolscout: AsyncToolscout, other_user: TestUser, weather: FakeMcpServer
) -> None:
    others: RunnableConfig = {"configurable": {"user_id": other_user.id}}
    with pytest.raises(Forbidden):
        await ToolscoutTools(toolscout).afor_message(MESSAGE, config=others)
    ignoring = ToolscoutTools(toolscout, user_id=lambda _: None)
    assert (await ignoring.afor_message(MESSAGE, config=others))[0].name == "get_forecast"


async def test_an_application_chooses_whether_to_go_on_while_toolscout_is_down(
    toolscout: AsyncToolscout,
    unreachable_toolscout: AsyncToolscout,
    weather: FakeMcpServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = await ToolscoutTools(toolscout).afor_message(MESSAGE)
    with pytest.raises(ConnectionFailed, match="no answer from"):
        await ToolscoutTools(unreachable_toolscout).afor_message(MESSAGE, keep=kept)
    going_on = ToolscoutTools(unreachable_toolscout, on_error="continue")
    assert await going_on.afor_message(MESSAGE, keep=kept) == kept
    assert "tool discovery failed" in caplog.text


async def test_a_refused_key_is_raised_even_if_the_application_goes_on_after_outages(address: str) -> None:
    async with AsyncToolscout(address, "bad", verify=False) as stranger:
        with pytest.raises(Unauthenticated):
            await ToolscoutTools(stranger, on_error="continue").afor_message(MESSAGE)
