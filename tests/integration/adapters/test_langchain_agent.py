"""Tests of the middleware in LangChain's own agent, with a scripted model and tools that really run."""

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool as make_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from examples import langgraph_agent
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.scripted_chat_model import ScriptedChatModel, call
from tests.support.weather_server import DELETE_MESSAGE, MESSAGE, add_weather_tools
from toolscout_client import AsyncToolscout, ConnectionFailed, Toolscout
from toolscout_client.adapters import langchain as adapter
from toolscout_client.adapters.langchain import ToolscoutMiddleware, ToolscoutTools, confirm_by_interrupt

OSLO = {"place": "Oslo"}
MAIL_MESSAGE = "send a mail to somebody"
THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}}


@make_tool
def get_forecast(place: str) -> str:
    """The application's own forecast."""
    return f"{place}: sun"


def make_agent(
    model: ScriptedChatModel,
    client: AsyncToolscout | Toolscout,
    *,
    tools: Any = (),
    search: bool = False,
    **options: Any,
) -> Any:
    discover = options.pop("discover", True)
    middleware = ToolscoutMiddleware(ToolscoutTools(client, **options), discover=discover, search=search)
    return create_agent(model, tools=list(tools), middleware=[middleware], checkpointer=InMemorySaver())


async def chat(agent: Any, message: str, config: RunnableConfig = THREAD) -> list[Any]:
    """Return the messages that follow the user's."""
    result = await agent.ainvoke({"messages": [HumanMessage(message)]}, config)
    messages: list[Any] = result["messages"]
    last_user = max(index for index, each in enumerate(messages) if isinstance(each, HumanMessage))
    return messages[last_user + 1 :]


async def test_an_agent_gets_the_tools_of_the_message_and_toolscout_runs_them(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    model = ScriptedChatModel(answers=[call("get_forecast", OSLO), AIMessage("It snows.")])
    called, result, answer = await chat(make_agent(model, toolscout), MESSAGE)
    assert model.bound_names[0][0] == "get_forecast"
    assert model.bound[0] == model.bound[1]  # the tools stay the same while the agent works on a message
    assert called.tool_calls[0]["name"] == "get_forecast"
    assert (result.content, result.status, answer.content) == ("Oslo: snow", "success", "It snows.")
    assert result.artifact["content"] == [{"type": "text", "text": "Oslo: snow"}]
    assert weather.calls == [("get_forecast", OSLO)]


async def test_an_agent_that_blocks_runs_in_a_thread(blocking_toolscout: Toolscout, weather: FakeMcpServer) -> None:
    model = ScriptedChatModel(answers=[call("get_forecast", OSLO), AIMessage("It snows.")])
    agent = make_agent(model, blocking_toolscout)
    result = await asyncio.to_thread(agent.invoke, {"messages": [HumanMessage(MESSAGE)]}, THREAD)
    assert [each.content for each in result["messages"][-2:]] == ["Oslo: snow", "It snows."]
    assert "toolscout_tools" not in result  # private


async def test_tools_of_earlier_messages_stay_first_under_their_names(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    model = ScriptedChatModel(answers=[AIMessage("Snow."), call("get_forecast", OSLO), AIMessage("It snows.")])
    agent = make_agent(model, toolscout)
    await chat(agent, MESSAGE)
    _, result, _ = await chat(agent, MAIL_MESSAGE)
    first, second = model.bound[0], model.bound[1]
    assert second[: len(first)] == first
    assert "send_mail" in model.bound_names[1]
    assert result.content == "Oslo: snow"  # a tool of the first message still runs
    other_thread: RunnableConfig = {"configurable": {"thread_id": "2"}}
    await chat(agent, MAIL_MESSAGE, other_thread)
    assert model.bound_names[-1][0] == "send_mail"


async def test_a_long_conversation_keeps_only_the_tools_that_were_called(
    toolscout: AsyncToolscout, weather: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "MAX_KEPT", 1)
    answers = [call("send_mail"), AIMessage("Sent."), AIMessage("Yes?")]
    model = ScriptedChatModel(answers=answers)
    agent = make_agent(model, toolscout, fill=True, limit=2, similarity_threshold=0.0)
    await chat(agent, MAIL_MESSAGE)
    assert len(model.bound_names[0]) == 2
    agent_without_search = make_agent(model, toolscout, limit=1)
    agent_without_search.checkpointer = agent.checkpointer
    await chat(agent_without_search, DELETE_MESSAGE)
    assert model.bound_names[-1] == ["send_mail", "delete_station"]


async def test_a_tool_of_the_agents_own_keeps_its_name(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    answers = [call("get_forecast", OSLO), call("toolscout_get_forecast", OSLO, "call_2"), AIMessage("Both.")]
    model = ScriptedChatModel(answers=answers)
    _, own, _, found, _ = await chat(make_agent(model, toolscout, tools=[get_forecast]), MESSAGE)
    assert model.bound_names[0][:2] == ["get_forecast", "toolscout_get_forecast"]
    assert (own.content, found.content) == ("Oslo: sun", "Oslo: snow")
    assert weather.calls == [("get_forecast", OSLO)]


async def test_a_tool_that_the_model_makes_up_is_answered_with_the_names_of_all_tools(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    model = ScriptedChatModel(answers=[call("get_weather", OSLO), AIMessage("Sorry.")])
    _, result, _ = await chat(make_agent(model, toolscout, tools=[get_forecast]), MAIL_MESSAGE)
    assert result.status == "error"
    assert result.content.startswith("There is no tool named 'get_weather'. Nothing was run. Call one of: get_forecast")
    assert "send_mail" in result.content
    assert weather.calls == []


async def test_a_failing_tool_is_a_message_and_the_agent_goes_on(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    model = ScriptedChatModel(answers=[call("send_mail"), AIMessage("It failed.")])
    _, result, answer = await chat(make_agent(model, toolscout), MAIL_MESSAGE)
    assert (result.content, result.status) == ("The tool failed: no such address", "error")
    assert answer.content == "It failed."


async def test_the_model_searches_for_more_tools_while_it_works(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    answers = [call("find_tools", {"query": MESSAGE}), call("get_forecast", OSLO, "call_2"), AIMessage("It snows.")]
    model = ScriptedChatModel(answers=answers)
    agent = make_agent(model, toolscout, discover=False, search=True)
    _, searched, _, result, _ = await chat(agent, "hello")
    assert model.bound_names[0] == ["find_tools"]
    assert model.bound[0][0]["parameters"]["required"] == ["query"]
    assert searched.content.startswith("Available tools: get_forecast")
    assert model.bound_names[1][:2] == ["find_tools", "get_forecast"]
    assert result.content == "Oslo: snow"


async def test_a_search_names_the_tools_as_the_model_gets_them(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    model = ScriptedChatModel(answers=[call("find_tools", {"query": MESSAGE}), AIMessage("Found.")])
    agent = make_agent(model, toolscout, tools=[get_forecast], discover=False, search=True, limit=1)
    _, searched, _ = await chat(agent, "hello")
    assert searched.content == "Available tools: toolscout_get_forecast"
    assert model.bound_names[1] == ["find_tools", "get_forecast", "toolscout_get_forecast"]


async def test_tools_that_were_searched_for_are_looked_up_again_for_the_next_message(
    user: TestUser, toolscout: AsyncToolscout, mcp: FakeMcpServer
) -> None:
    server_id = await user.connect(add_weather_tools(mcp), "weather")
    search = call("find_tools", {"query": MESSAGE})
    answers = [search, AIMessage("Found."), AIMessage("Yes?"), search, call("get_forecast", OSLO), AIMessage("Snow.")]
    model = ScriptedChatModel(answers=answers)
    agent = make_agent(model, toolscout, discover=False, search=True, limit=1)
    await chat(agent, "hello")
    await chat(agent, "hello again")
    assert model.bound_names[-1] == ["find_tools", "get_forecast"]
    await user.http.delete(f"/servers/{server_id}")
    await user.connect(mcp, "weather")
    _, _, _, result, _ = await chat(agent, MESSAGE)
    assert model.bound_names[3:] == [["find_tools"], *[["find_tools", "get_forecast"]] * 2]
    assert result.content == "Oslo: snow"


async def test_of_two_tools_with_one_name_the_one_that_was_found_last_is_given(
    user: TestUser, toolscout: AsyncToolscout, mcp: FakeMcpServer
) -> None:
    server_id = await user.connect(add_weather_tools(mcp), "weather")
    calls = call("find_tools", {"query": MESSAGE}), call("find_tools", {"query": MESSAGE}, "call_2")
    model = ScriptedChatModel(answers=[*calls, call("get_forecast", OSLO), AIMessage("Snow.")])

    async def reconnect() -> None:
        await user.http.delete(f"/servers/{server_id}")
        await user.connect(mcp, "weather")

    agent = make_agent(model, toolscout, discover=False, search=True, limit=1)
    steps = agent.astream({"messages": [HumanMessage("hello")]}, THREAD, stream_mode="updates")
    reconnected = False
    async for step in steps:
        if "tools" in step and not reconnected:
            await reconnect()
            reconnected = True
    assert model.bound_names[2] == ["find_tools", "get_forecast"]
    assert mcp.calls == [("get_forecast", OSLO)]


async def test_two_searches_at_once_add_the_tools_of_both(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    first, second = (call("find_tools", {"query": text}, text).tool_calls[0] for text in (MESSAGE, MAIL_MESSAGE))
    model = ScriptedChatModel(answers=[AIMessage("", tool_calls=[first, second]), AIMessage("Done.")])
    await chat(make_agent(model, toolscout, discover=False, search=True), "hello")
    assert {"find_tools", "get_forecast", "send_mail"} <= set(model.bound_names[1])
    assert len(model.bound_names[1]) == len(set(model.bound_names[1]))


async def test_a_search_that_finds_nothing_says_so(toolscout: AsyncToolscout) -> None:
    model = ScriptedChatModel(answers=[call("find_tools", {"query": MESSAGE}), AIMessage("I cannot.")])
    _, searched, _ = await chat(make_agent(model, toolscout, discover=False, search=True), "hello")
    assert searched.content.startswith("No further tool fits.")


def test_an_agent_that_neither_discovers_nor_searches_is_refused() -> None:
    with Toolscout("http://127.0.0.1:1", "a-key", verify=False) as client, pytest.raises(ValueError, match="`search`"):
        ToolscoutMiddleware(ToolscoutTools(client), discover=False)


@pytest.mark.usefixtures("confirmed_destructive")
@pytest.mark.parametrize(
    ("decisions", "text"),
    [
        (["approve"], "deleted Oslo"),
        (["reject"], "The user has declined this call. Nothing was run."),
        ([], "The user has declined this call. Nothing was run."),
        (["approve", "approve"], "The user has declined this call. Nothing was run."),
    ],
    ids=str,
)
async def test_a_destructive_call_interrupts_the_agent_until_the_user_has_decided(
    toolscout: AsyncToolscout, weather: FakeMcpServer, decisions: list[str], text: str
) -> None:
    model = ScriptedChatModel(answers=[call("delete_station", OSLO), AIMessage("Done.")])
    agent = make_agent(model, toolscout, confirm=confirm_by_interrupt)
    paused = await agent.ainvoke({"messages": [HumanMessage(DELETE_MESSAGE)]}, THREAD)
    [request] = paused["__interrupt__"][0].value["action_requests"]
    assert (request["name"], request["args"]) == ("delete_station", OSLO)
    assert weather.calls == []
    resume: Any = Command(resume={"decisions": [{"type": decision} for decision in decisions]})
    resumed = await agent.ainvoke(resume, THREAD)
    assert [each.content for each in resumed["messages"] if isinstance(each, ToolMessage)] == [text]
    assert weather.calls == ([("delete_station", OSLO)] if decisions == ["approve"] else [])


@pytest.mark.usefixtures("confirmed_destructive")
async def test_two_destructive_calls_are_decided_by_the_ids_of_their_interrupts(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    rome = {"place": "Rome"}
    calls = [call("delete_station", place, place["place"]).tool_calls[0] for place in (OSLO, rome)]
    model = ScriptedChatModel(answers=[AIMessage("", tool_calls=calls), AIMessage("Done.")])
    agent = make_agent(model, toolscout, confirm=confirm_by_interrupt)
    paused = await agent.ainvoke({"messages": [HumanMessage(DELETE_MESSAGE)]}, THREAD)
    decisions = {
        interrupt.id: {
            "decisions": [{"type": "approve" if interrupt.value["action_requests"][0]["args"] == rome else "reject"}]
        }
        for interrupt in paused["__interrupt__"]
    }
    await agent.ainvoke(Command(resume=decisions), THREAD)
    assert weather.calls == [("delete_station", rome)]


@pytest.mark.usefixtures("confirmed_destructive")
async def test_a_node_that_runs_again_after_an_interrupt_does_not_repeat_its_other_calls(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    """A `ToolNode` of a graph runs the calls of a message in one task, and LangGraph resumes a task from its start."""
    provider = ToolscoutTools(toolscout, confirm=confirm_by_interrupt, fill=True, similarity_threshold=0.0)
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(await provider.afor_message(DELETE_MESSAGE)))
    graph.add_edge(START, "tools")
    compiled: Any = graph.compile(checkpointer=InMemorySaver())
    calls = [call(name, OSLO, name).tool_calls[0] for name in ("get_forecast", "delete_station")]
    await compiled.ainvoke({"messages": [AIMessage("", tool_calls=calls)]}, THREAD)
    assert weather.calls == [("get_forecast", OSLO)]
    resumed = await compiled.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert [each.content for each in resumed["messages"][-2:]] == ["Oslo: snow", "deleted Oslo"]
    assert weather.calls == [("get_forecast", OSLO), ("delete_station", OSLO)]


async def test_a_later_call_with_the_same_id_is_another_call(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    """Some models number the calls of each answer from one."""
    model = ScriptedChatModel(answers=[call("get_forecast", OSLO), call("get_forecast", OSLO), AIMessage("Twice.")])
    await chat(make_agent(model, toolscout), MESSAGE)
    assert weather.calls == [("get_forecast", OSLO)] * 2


async def test_an_agent_whose_toolscout_is_down_fails_or_goes_on_with_its_own_tools(
    unreachable_toolscout: AsyncToolscout,
) -> None:
    model = ScriptedChatModel(answers=[call("get_forecast", OSLO), AIMessage("It is sunny.")])
    with pytest.raises(ConnectionFailed):
        await chat(make_agent(model, unreachable_toolscout, tools=[get_forecast]), MESSAGE)
    agent = make_agent(model, unreachable_toolscout, tools=[get_forecast], on_error="continue")
    _, result, _ = await chat(agent, MESSAGE)
    assert result.content == "Oslo: sun"


async def test_the_model_of_an_agent_without_matching_tools_gets_none(
    user: TestUser, toolscout: AsyncToolscout
) -> None:
    await user.add_tools(tool("send_mail", "Sends a mail to somebody."))
    model = ScriptedChatModel(answers=[AIMessage("Hello!")])
    [answer] = await chat(make_agent(model, toolscout), "hello")
    assert answer.content == "Hello!"
    assert model.bound == []


async def test_the_example_answers_two_messages_of_one_conversation(
    address: str,
    user: TestUser,
    weather: FakeMcpServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOOLSCOUT_URL", address)
    monkeypatch.setenv("TOOLSCOUT_KEY", user.key)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    await asyncio.to_thread(langgraph_agent.main, MESSAGE, MAIL_MESSAGE)
    assert capsys.readouterr().out.splitlines() == [
        f"user       {MESSAGE}",
        'called     get_forecast {"place": "Oslo"}',
        "result     Oslo: snow",
        "model      The tool says: Oslo: snow",
        f"user       {MAIL_MESSAGE}",
        "called     send_mail {}",
        "result     The tool failed: no such address (an error)",
        "model      The tool says: The tool failed: no such address",
    ]
    assert weather.calls == [("get_forecast", OSLO), ("send_mail", {})]
