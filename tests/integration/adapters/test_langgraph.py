"""Tests of the graph whose model searches for its tools, and of the registry in `langgraph-bigtool`'s own graph."""

import asyncio
from typing import Any

import httpx
import langgraph_bigtool  # type: ignore[import-untyped]
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool as make_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from tests.support.clients import TestUser
from tests.support.mcp_server import FakeMcpServer
from tests.support.scripted_chat_model import ScriptedChatModel, call
from tests.support.weather_server import DELETE_MESSAGE, MESSAGE
from tests.support.weather_server import FORECAST as FORECAST_TOOL
from toolscout_client import AsyncToolscout, ConnectionFailed, Toolscout
from toolscout_client.adapters.langgraph import (
    ToolscoutRegistry,
    ToolscoutTools,
    confirm_by_interrupt,
    create_agent,
)

OSLO = {"place": "Oslo"}
SAILING_MESSAGE = "how strong are waves and currents for sailing boats?"
SAILING_FORECAST = FORECAST_TOOL | {"description": "Waves and currents for sailing boats."}
SEARCH = call("retrieve_tools", {"query": MESSAGE})
FORECAST = call("get_forecast", OSLO, "call_2")
THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}}


@make_tool
def tell_joke() -> str:
    """The application's own."""
    return "a joke"


def make_registry(client: AsyncToolscout | Toolscout, **options: Any) -> ToolscoutRegistry:
    return ToolscoutRegistry(ToolscoutTools(client, **options))


async def chat(graph: Any, config: RunnableConfig = THREAD) -> list[Any]:
    """Return the messages that follow the user's first one."""
    result = await graph.ainvoke({"messages": [HumanMessage("hello")]}, config)
    messages: list[Any] = result["messages"]
    return messages[1:]


async def test_the_model_finds_a_tool_calls_it_and_answers(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    model = ScriptedChatModel(answers=[SEARCH, FORECAST, AIMessage("It snows.")])
    graph = create_agent(model, make_registry(toolscout), tools=[tell_joke]).compile()
    _, found, _, result, answer = await chat(graph)
    assert model.bound_names[0] == ["retrieve_tools", "tell_joke"]
    assert found.content.startswith("Available tools: get_forecast")
    assert model.bound_names[1][:3] == ["retrieve_tools", "tell_joke", "get_forecast"]
    assert (result.content, answer.content) == ("Oslo: snow", "It snows.")
    assert result.artifact["content"] == [{"type": "text", "text": "Oslo: snow"}]
    assert weather.calls == [("get_forecast", OSLO)]


async def test_a_graph_that_blocks_runs_in_a_thread(blocking_toolscout: Toolscout, weather: FakeMcpServer) -> None:
    model = ScriptedChatModel(answers=[SEARCH, FORECAST, AIMessage("It snows.")])
    graph: Any = create_agent(model, make_registry(blocking_toolscout)).compile()
    result = await asyncio.to_thread(graph.invoke, {"messages": [HumanMessage("hello")]})
    assert [each.content for each in result["messages"][-2:]] == ["Oslo: snow", "It snows."]
    assert len(result["selected_tool_ids"]) == len(model.bound_names[1]) - 1
    assert weather.calls == [("get_forecast", OSLO)]


async def test_another_process_continues_with_the_tools_that_were_found(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    saver = InMemorySaver()
    model = ScriptedChatModel(answers=[SEARCH, AIMessage("Yes?"), FORECAST, AIMessage("It snows.")])
    await chat(create_agent(model, make_registry(toolscout)).compile(checkpointer=saver))
    messages = await chat(create_agent(model, make_registry(toolscout)).compile(checkpointer=saver))
    assert model.bound_names[-1] == model.bound_names[1]
    assert [each.content for each in messages[-2:]] == ["Oslo: snow", "It snows."]


async def test_a_tool_that_is_switched_off_is_no_longer_given_to_the_model(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    registry = make_registry(toolscout)
    keys = await registry.aretrieve_tools(MESSAGE)
    assert (await make_registry(toolscout).aget_tools(keys))[0].name == "get_forecast"
    await toolscout.tools.update(keys[0], enabled=False)
    assert "get_forecast" not in [tool.name for tool in await make_registry(toolscout).aget_tools(keys)]


async def test_a_held_definition_is_asked_for_again_after_some_minutes(
    toolscout: AsyncToolscout, unreachable_toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    registry = make_registry(toolscout)
    [forecast, *_] = await registry.aretrieve_tools(MESSAGE)
    await toolscout.tools.update(forecast, enabled=False)
    assert [tool.name for tool in await registry.aget_tools([forecast])] == ["get_forecast"]
    held = {key: (tool, float("-inf")) for key, (tool, _) in registry._held.items()}
    registry._held.update(held)
    assert await registry.aget_tools([forecast]) == []
    going_on = make_registry(unreachable_toolscout, on_error="continue")
    going_on._held.update(held)  # an outdated definition is better than none
    assert [tool.name for tool in await going_on.aget_tools([forecast])] == ["get_forecast"]


async def test_own_tools_run_and_made_up_ones_are_explained_before_any_search(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    model = ScriptedChatModel(answers=[call("get_forecast", OSLO), call("tell_joke"), AIMessage("Ha.")])
    _, unknown, _, joke, _ = await chat(create_agent(model, make_registry(toolscout), tools=[tell_joke]).compile())
    assert unknown.content.endswith("Call one of: retrieve_tools, tell_joke.")
    assert joke.content == "a joke"
    assert weather.calls == []


async def test_a_found_tool_does_not_replace_an_own_one_or_an_earlier_one_of_its_name(
    toolscout: AsyncToolscout, user: TestUser, weather: FakeMcpServer
) -> None:
    @make_tool
    def get_forecast(place: str) -> str:
        """The application's own forecast."""
        return f"{place}: sun"

    found = call("toolscout_get_forecast", OSLO, "call_3")
    model = ScriptedChatModel(answers=[SEARCH, FORECAST, found, SEARCH, AIMessage("Both.")])
    graph = create_agent(model, make_registry(toolscout, limit=1), tools=[get_forecast]).compile()
    _, searched, _, own, _, result, *_ = await chat(graph)
    assert searched.content == "Available tools: toolscout_get_forecast"
    assert (own.content, result.content) == ("Oslo: sun", "Oslo: snow")
    assert model.bound_names[-1] == ["retrieve_tools", "get_forecast", "toolscout_get_forecast"]
    registry = make_registry(toolscout, limit=1)
    keys = await registry.aretrieve_tools(MESSAGE)
    [server] = [server async for server in toolscout.servers.list()]
    await toolscout.servers.delete(server.id)  # which the registry does not know yet
    await user.add_tools(SAILING_FORECAST, server="sailing")
    keys += await registry.aretrieve_tools(SAILING_MESSAGE)
    model = ScriptedChatModel(answers=[AIMessage("Hello.")])
    graph = create_agent(model, registry).compile()
    await graph.ainvoke({"messages": [HumanMessage("hello")], "selected_tool_ids": keys})
    assert model.bound_names == [["retrieve_tools", "get_forecast", "toolscout_get_forecast"]]


async def test_a_tool_that_is_gone_is_not_asked_for_at_each_step(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    keys = await make_registry(toolscout, limit=1).aretrieve_tools(MESSAGE)
    await toolscout.tools.update(keys[0], enabled=False)
    registry = make_registry(toolscout)
    assert await registry.aget_tools(keys) == []
    await toolscout.tools.update(keys[0], enabled=True)
    assert await registry.aget_tools(keys) == []
    registry._held.update({key: (tool, float("-inf")) for key, (tool, _) in registry._held.items()})
    assert [tool.name for tool in await registry.aget_tools(keys)] == ["get_forecast"]


async def test_one_graph_serves_users_apart(
    admin: httpx.AsyncClient, address: str, user: TestUser, other_user: TestUser, weather: FakeMcpServer
) -> None:
    key = (await admin.post("/keys", json={"kind": "service"})).json()["key"]
    async with AsyncToolscout(address, key, verify=False) as service:
        model = ScriptedChatModel(
            answers=[SEARCH, FORECAST, AIMessage("It snows."), SEARCH, FORECAST, AIMessage("No.")]
        )
        graph: Any = create_agent(model, make_registry(service)).compile()
        _, _, _, own, _ = await chat(graph, {"configurable": {"user_id": user.id}})
        selected = await make_registry(service.for_user(user.id)).aretrieve_tools(MESSAGE)
        state = {"messages": [HumanMessage("hello")], "selected_tool_ids": selected}
        others = await graph.ainvoke(state, {"configurable": {"user_id": other_user.id}})
    assert own.content == "Oslo: snow"
    assert model.bound_names[3] == ["retrieve_tools"]  # the other user's keys name nothing
    assert [each.content for each in others["messages"] if isinstance(each, ToolMessage)] == [
        "No further tool fits. Use one that you have, describe the task in other words, or do without.",
        "There is no tool named 'get_forecast'. Nothing was run. Call one of: retrieve_tools.",
    ]
    assert weather.calls == [("get_forecast", OSLO)]


async def test_a_search_with_invalid_arguments_is_explained_to_the_model(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    model = ScriptedChatModel(answers=[call("retrieve_tools", {"text": "x"}), AIMessage("Sorry.")])
    _, explained, answer = await chat(create_agent(model, make_registry(toolscout)).compile())
    assert "query" in explained.content or "validation" in explained.content
    assert answer.content == "Sorry."


@pytest.mark.usefixtures("confirmed_destructive")
async def test_a_destructive_call_interrupts_the_graph(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    search, delete = call("retrieve_tools", {"query": DELETE_MESSAGE}), call("delete_station", OSLO)
    model = ScriptedChatModel(answers=[search, delete, AIMessage("Done.")])
    registry = make_registry(toolscout, confirm=confirm_by_interrupt)
    graph: Any = create_agent(model, registry).compile(checkpointer=InMemorySaver())
    paused = await graph.ainvoke({"messages": [HumanMessage("hello")]}, THREAD)
    assert paused["__interrupt__"][0].value["action_requests"][0]["name"] == "delete_station"
    assert weather.calls == []
    resumed = await graph.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert [each.content for each in resumed["messages"][-2:]] == ["deleted Oslo", "Done."]


async def test_a_search_fails_or_finds_nothing_while_toolscout_is_down(unreachable_toolscout: AsyncToolscout) -> None:
    model = ScriptedChatModel(answers=[SEARCH, AIMessage("Sorry.")])
    with pytest.raises(ConnectionFailed):
        await chat(create_agent(model, make_registry(unreachable_toolscout)).compile())
    model = ScriptedChatModel(answers=[SEARCH, AIMessage("Sorry.")])
    registry = make_registry(unreachable_toolscout, on_error="continue")
    _, found, _ = await chat(create_agent(model, registry).compile())
    assert found.content.startswith("No further tool fits.")


async def test_the_registry_and_the_retriever_fit_the_graph_of_bigtool(
    blocking_toolscout: Toolscout, weather: FakeMcpServer
) -> None:
    """Up to the call of a tool: for that, its release 0.0.3 needs a method that LangGraph 1.0 has removed."""
    registry = make_registry(blocking_toolscout)
    model = ScriptedChatModel(answers=[SEARCH, AIMessage("Found.")])
    graph: Any = langgraph_bigtool.create_agent(
        model,
        registry,  # any mapping will do
        retrieve_tools_function=registry.retrieve_tools,
        retrieve_tools_coroutine=registry.aretrieve_tools,
    ).compile()
    _, found, answer = await chat(graph)
    assert found.content.startswith("Available tools: ['get_forecast'")
    assert model.bound_names[1][:2] == ["retrieve_tools", "get_forecast"]
    assert answer.content == "Found."


async def test_the_registry_asks_toolscout_for_what_it_does_not_hold(
    blocking_toolscout: Toolscout, weather: FakeMcpServer
) -> None:
    def look_up() -> None:
        [forecast, *_] = make_registry(blocking_toolscout).retrieve_tools(MESSAGE)
        registry = make_registry(blocking_toolscout)
        assert (len(registry), list(registry)) == (0, [])
        assert registry[forecast].name == "get_forecast"
        assert forecast in registry
        with pytest.raises(KeyError):
            registry["00000000-0000-4000-8000-000000000000"]

    await asyncio.to_thread(look_up)
