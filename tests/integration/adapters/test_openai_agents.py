"""Tests of the adapter for the OpenAI Agents SDK: its real runner with a scripted model, and tools that really run."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    RunResult,
    RunState,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.items import ToolCallOutputItem
from agents.testing import ModelCall, ScriptedModel, assistant_message, function_call
from openai import AsyncOpenAI, BadRequestError

from examples.fake_model import FakeModel, Turn, View, running_fake_model
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, Fault, status
from tests.support.weather_server import DELETE_MESSAGE, FORECAST, MESSAGE
from toolscout_client import AsyncToolscout, ConnectionFailed, Conversation, Unauthenticated
from toolscout_client.adapters import openai_agents as adapter
from toolscout_client.adapters._appending_model import AppendingModel
from toolscout_client.adapters.openai_agents import SEARCH_TOOL, ToolscoutTools

OSLO = {"place": "Oslo"}
NOTHING = "thanks, that is all"
"""A message that needs no tool."""
MAIL_MESSAGE = "send a mail to somebody"
DONE = [assistant_message("done")]


@pytest.fixture(scope="module", autouse=True)
def _no_tracing() -> Iterator[None]:
    """Runs are not reported to OpenAI."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


def call(name: str, arguments: Any, call_id: str = "call_1") -> Any:
    return function_call(name, arguments, call_id=call_id)


def make_agent(*steps: Any, **fields: Any) -> tuple[Agent[None], ScriptedModel]:
    """Return an agent whose model takes these steps, and then says that it is done."""
    model = ScriptedModel([*([step] for step in steps), DONE])
    return Agent[None](name="assistant", model=model, **fields), model


def names(model_call: ModelCall | None) -> list[str]:
    assert model_call is not None
    return [offered.name for offered in model_call.tools]


def outputs(result: RunResult) -> list[str]:
    return [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)]


async def run(toolscout: AsyncToolscout, agent: Agent[None], message: str = MESSAGE, **options: Any) -> RunResult:
    return await Runner.run(await ToolscoutTools(toolscout, **options).equip(agent, message), message)


async def test_an_agent_gets_the_tools_for_the_message_and_toolscout_runs_them(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    agent, model = make_agent(call("get_forecast", OSLO))
    result = await run(toolscout, agent, limit=1)
    assert names(model.first_call) == [SEARCH_TOOL, "get_forecast"]
    assert outputs(result) == ["Oslo: snow"]
    assert result.final_output == "done"
    assert weather.calls == [("get_forecast", OSLO)]


async def test_the_agent_itself_is_not_changed_and_its_own_tools_come_first(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    @function_tool
    def roll_dice() -> str:
        """Roll the dice."""
        return "6"

    agent, model = make_agent(call("roll_dice", {}), tools=[roll_dice])
    result = await run(toolscout, agent, limit=1)
    assert names(model.first_call) == ["roll_dice", SEARCH_TOOL, "get_forecast"]
    assert outputs(result) == ["6"]
    assert [own.name for own in agent.tools] == ["roll_dice"]


async def test_schemas_are_sent_as_the_server_wrote_them(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    agent, model = make_agent()
    await run(toolscout, agent, limit=1)
    assert model.first_call is not None
    found: Any = model.first_call.tools[1]
    assert (found.params_json_schema, found.strict_json_schema) == (FORECAST["inputSchema"], False)


async def test_tools_that_the_model_searches_for_can_be_called_in_the_next_turn(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    steps = call(SEARCH_TOOL, {"query": MESSAGE}), call("get_forecast", OSLO, "call_2")
    agent, model = make_agent(*steps)
    result = await run(toolscout, agent, NOTHING, limit=1)
    assert names(model.calls[0]) == [SEARCH_TOOL]
    assert names(model.calls[1]) == [SEARCH_TOOL, "get_forecast"]
    found, forecast = outputs(result)
    assert found.startswith("You can call these tools now:\n- get_forecast: The expected weather")
    assert forecast == "Oslo: snow"


async def test_two_searches_at_the_same_time_lose_nothing(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    searches = [call(SEARCH_TOOL, {"query": query}, query) for query in (MESSAGE, "send a mail to somebody")]
    model = ScriptedModel([searches, DONE])
    await run(toolscout, Agent[None](name="assistant", model=model), NOTHING, limit=1)
    assert sorted(names(model.last_call)) == sorted([SEARCH_TOOL, "get_forecast", "send_mail"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"query": NOTHING}, "No further tool was found."),
        ({}, "The arguments must be a JSON object with `query`"),
        ("{", "The arguments must be a JSON object with `query`"),
        ({"query": ""}, "invalid_input: "),
    ],
)
async def test_a_search_without_a_find_says_so(
    toolscout: AsyncToolscout, weather: FakeMcpServer, arguments: Any, text: str
) -> None:
    agent, model = make_agent(call(SEARCH_TOOL, arguments))
    [output] = outputs(await run(toolscout, agent, limit=1))
    assert output.startswith(text)
    assert names(model.calls[0]) == names(model.calls[1])


async def test_the_search_tool_can_be_renamed_and_left_out(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    for search_tool, expected in (("look", ["look", "get_forecast"]), (None, ["get_forecast"])):
        agent, model = make_agent()
        await run(toolscout, agent, limit=1, search_tool=search_tool)
        assert names(model.first_call) == expected


async def test_tools_stay_in_their_order_in_the_next_message(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    tools = ToolscoutTools(toolscout, limit=1, search_tool=None)
    agent, _ = make_agent()
    first = await tools.equip(agent, MESSAGE)
    second = await tools.equip(first, "send a mail to somebody")  # an equipped agent may be equipped again
    assert [offered.name for offered in first.tools] == ["get_forecast"]
    assert [offered.name for offered in second.tools] == ["get_forecast", "send_mail"]


async def test_a_long_conversation_keeps_only_the_tools_that_were_called(
    toolscout: AsyncToolscout, weather: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "MAX_KEPT", 1)
    tools = ToolscoutTools(toolscout, limit=1, search_tool=None)
    agent, model = make_agent(call("get_forecast", OSLO))
    await Runner.run(await tools.equip(agent, MESSAGE), MESSAGE)
    offered = [
        [found.name for found in (await tools.equip(agent, text)).tools] for text in (MAIL_MESSAGE, DELETE_MESSAGE)
    ]
    assert offered == [["get_forecast", "send_mail"], ["get_forecast", "delete_station"]]
    assert model.remaining_steps == 0


async def test_another_process_continues_a_conversation_that_toolscout_remembers(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    agent, _ = make_agent(call("get_forecast", OSLO))
    options: Any = {"limit": 1, "keep": Conversation("chat-7")}
    first = await run(toolscout, agent, **options)
    items: list[Any] = [*first.to_input_list(), {"role": "user", "content": MAIL_MESSAGE}]
    agent, model = make_agent(call("get_forecast", OSLO))
    result = await Runner.run(await ToolscoutTools(toolscout, **options).equip(agent, items), items)
    assert names(model.first_call) == [SEARCH_TOOL, "get_forecast", "send_mail"]
    assert outputs(result) == ["Oslo: snow"]


async def test_the_tools_to_start_with_do_not_displace_those_that_are_found(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    keys = (await toolscout.discover(MESSAGE, limit=1, format="openai_responses")).tool_keys
    tools = ToolscoutTools(toolscout, limit=1, search_tool=None, keep=keys)
    agent, _ = make_agent()
    for message in (MAIL_MESSAGE, DELETE_MESSAGE):
        equipped = await tools.equip(agent, message)
    assert [found.name for found in equipped.tools] == ["get_forecast", "send_mail", "delete_station"]


async def test_calls_stay_within_the_project(toolscout: AsyncToolscout, weather: FakeMcpServer, user: TestUser) -> None:
    [server] = [server async for server in toolscout.servers.list()]
    project = await toolscout.projects.create("p", server_ids=[server.id], optimization="hybrid")
    tools = ToolscoutTools(toolscout, limit=1, project_id=project.id, needs_approval=False)
    agent, _ = make_agent(call("delete_station", OSLO))
    equipped = await tools.equip(agent, DELETE_MESSAGE)
    await toolscout.projects.update(project.id, server_ids=[])
    [output] = outputs(await Runner.run(equipped, DELETE_MESSAGE))
    assert output.startswith("TOOL_NOT_FOUND: ")
    assert weather.calls == []
    await toolscout.projects.update(project.id, server_ids=[server.id])
    agent, _ = make_agent(call("delete_station", OSLO))
    result = await Runner.run(await tools.equip(agent, DELETE_MESSAGE), DELETE_MESSAGE)
    assert outputs(result) == ["deleted Oslo"]


async def test_without_a_users_text_the_earlier_tools_stay(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    tools = ToolscoutTools(toolscout, limit=1, search_tool=None)
    agent, _ = make_agent()
    assert (await tools.equip(agent, [])).tools == []
    await tools.equip(agent, MESSAGE)
    image: Any = {"role": "user", "content": [{"type": "input_image", "image_url": "data:…", "detail": "auto"}]}
    assert [offered.name for offered in (await tools.equip(agent, [image])).tools] == ["get_forecast"]


async def test_a_session_tells_what_the_conversation_is_about(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    session = SQLiteSession("a chat")
    agent, model = make_agent(call("get_forecast", OSLO))
    tools = ToolscoutTools(toolscout, limit=1)
    await Runner.run(await tools.equip(agent, MESSAGE, session=session), MESSAGE, session=session)
    later = ToolscoutTools(toolscout, limit=1)  # another process, which knows the session alone
    follow_up = "the same for the other one, please"
    equipped = await later.equip(agent, follow_up, session=session)
    assert "get_forecast" in [offered.name for offered in equipped.tools]
    without = await ToolscoutTools(toolscout, limit=1).equip(agent, follow_up)
    assert "get_forecast" not in [offered.name for offered in without.tools]
    session.close()
    assert model.remaining_steps == 0


async def test_a_found_tool_does_not_replace_the_agents_own_tool_of_the_same_name(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    @function_tool
    def get_forecast(place: str) -> str:
        """The agent's own."""
        return f"{place}: my own"

    calls = call("get_forecast", OSLO), call("toolscout_get_forecast", OSLO, "call_2")
    agent, model = make_agent(*calls, tools=[get_forecast])
    result = await run(toolscout, agent, limit=1)
    assert names(model.first_call) == ["get_forecast", SEARCH_TOOL, "toolscout_get_forecast"]
    assert outputs(result) == ["Oslo: my own", "Oslo: snow"]


async def test_tools_of_the_same_name_on_two_servers_both_run(
    toolscout: AsyncToolscout, user: TestUser, weather: FakeMcpServer
) -> None:
    await user.add_tools(FORECAST, server="sailing")
    tools = ToolscoutTools(toolscout, search_tool=None)
    agent, _ = make_agent()
    offered = [found.name for found in (await tools.equip(agent, MESSAGE)).tools]
    assert len([name for name in offered if "get_forecast" in name]) == len(set(offered)) == 2
    agent, model = make_agent(*(call(name, OSLO, name) for name in offered))
    found = outputs(await Runner.run(await tools.equip(agent, MESSAGE), MESSAGE))
    assert sorted(output.partition(":")[0] for output in found) == ["Oslo", "SERVER_CONNECTION_ERROR"]
    assert model.remaining_steps == 0


async def test_the_model_gets_errors_as_texts(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    agent, _ = make_agent(call("get_forecast", {"place": 7}), call("get_forecast", "{", "call_2"))
    assert [output.partition(":")[0] for output in outputs(await run(toolscout, agent))] == [
        "TOOL_VALIDATION_ERROR",
        "TOOL_VALIDATION_ERROR",
    ]
    assert weather.calls == []


async def test_the_application_gets_what_the_model_does_not_see(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    weather.on_call["get_forecast"] = lambda _: {"content": [], "structuredContent": {"snow": True}}
    agent, _ = make_agent(call("get_forecast", OSLO))
    tools = ToolscoutTools(toolscout, limit=1)
    [item] = [
        item
        for item in (await Runner.run(await tools.equip(agent, MESSAGE), MESSAGE)).new_items
        if isinstance(item, ToolCallOutputItem)
    ]
    assert item.custom_data is not None
    assert item.custom_data["server"] == "weather"
    assert item.custom_data["structured_content"] == {"snow": True}
    assert json.loads(item.output) == {"snow": True}

    weather.fault = Fault(status(401, headers={"WWW-Authenticate": 'Bearer realm="weather"'}))
    agent, _ = make_agent(call("get_forecast", OSLO))
    result = await Runner.run(await tools.equip(agent, MESSAGE), MESSAGE)
    [item] = [item for item in result.new_items if isinstance(item, ToolCallOutputItem)]
    assert item.custom_data is not None
    assert (item.custom_data["failed"], item.custom_data["code"]) == (True, "AUTHORIZATION_REQUIRED")
    assert "sign in" in item.output


async def test_an_image_reaches_the_model(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    weather.on_call["get_forecast"] = lambda _: {"content": [{"type": "text", "text": "a map"}, image]}
    agent, model = make_agent(call("get_forecast", OSLO))
    await run(toolscout, agent, limit=1)
    assert model.last_call is not None
    text, picture = model.last_call.input[-1]["output"]
    assert text["text"] == "a map\n[image image/png]"
    assert picture["image_url"] == "data:image/png;base64,aGVsbG8="


@pytest.mark.usefixtures("confirmed_destructive")
@pytest.mark.parametrize("approved", [True, False])
async def test_a_destructive_call_waits_for_a_person(
    toolscout: AsyncToolscout, weather: FakeMcpServer, approved: bool
) -> None:
    agent, _ = make_agent(call("delete_station", OSLO))
    tools = ToolscoutTools(toolscout, limit=1)
    equipped = await tools.equip(agent, DELETE_MESSAGE)
    waiting = await Runner.run(equipped, DELETE_MESSAGE)
    [interruption] = waiting.interruptions
    assert (interruption.tool_name, weather.calls) == ("delete_station", [])
    # stored, and resumed in another process
    later = await ToolscoutTools(toolscout, limit=1).equip(agent, DELETE_MESSAGE)
    state = await RunState.from_string(later, waiting.to_state().to_string())
    [interruption] = state.get_interruptions()
    if approved:
        state.approve(interruption)
    else:
        state.reject(interruption)
    result = await Runner.run(later, state)
    assert result.final_output == "done"
    assert weather.calls == ([("delete_station", OSLO)] if approved else [])


@pytest.mark.usefixtures("confirmed_destructive")
async def test_without_approvals_the_model_learns_that_the_user_must_confirm(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    agent, _ = make_agent(call("delete_station", OSLO))
    [output] = outputs(await run(toolscout, agent, DELETE_MESSAGE, limit=1, needs_approval=False))
    assert output.endswith("Nothing was run. The user must confirm this call first.")
    assert weather.calls == []


async def test_the_application_decides_which_calls_need_approval(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    agent, _ = make_agent(call("get_forecast", OSLO))
    needs_approval = lambda found: found.discovered.server_name == "weather"  # noqa: E731
    assert (await run(toolscout, agent, limit=1, needs_approval=needs_approval)).interruptions
    agent, _ = make_agent(call("delete_station", OSLO))
    result = await run(toolscout, agent, DELETE_MESSAGE, limit=1, needs_approval=False)
    assert outputs(result) == ["deleted Oslo"]


async def test_a_toolscout_that_is_down_is_raised_before_the_run(
    unreachable_toolscout: AsyncToolscout,
) -> None:
    agent, _ = make_agent()
    with pytest.raises(ConnectionFailed):
        await ToolscoutTools(unreachable_toolscout).equip(agent, MESSAGE)


async def test_a_refused_key_is_raised(address: str) -> None:
    agent, _ = make_agent()
    async with AsyncToolscout(address, "bad", verify=False) as stranger:
        with pytest.raises(Unauthenticated):
            await ToolscoutTools(stranger).equip(agent, MESSAGE)


async def test_a_streamed_run_works_alike(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    agent, _ = make_agent(call("get_forecast", OSLO))
    equipped = await ToolscoutTools(toolscout).equip(agent, MESSAGE)
    streamed = Runner.run_streamed(equipped, MESSAGE, run_config=RunConfig(tool_name_collision_policy="error"))
    kinds = [event.name async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
    assert kinds == ["tool_called", "tool_output", "message_output_created"]
    assert weather.calls == [("get_forecast", OSLO)]


async def test_a_name_that_no_model_api_accepts_becomes_an_alias(
    toolscout: AsyncToolscout, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("weather/forecast.get", "The expected weather at a place for the coming days.")]
    mcp.on_call["weather/forecast.get"] = lambda _: {"content": [{"type": "text", "text": "snow"}]}
    await user.connect(mcp, "weather")
    agent, _ = make_agent()
    [found] = (await ToolscoutTools(toolscout, search_tool=None).equip(agent, MESSAGE)).tools
    assert "/" not in found.name
    agent, _ = make_agent(call(found.name, {}))
    assert outputs(await run(toolscout, agent)) == ["snow"]


@pytest.fixture
def fake_model() -> FakeModel:
    """Rejects reasoning if anything before it has changed, as `tools`."""
    return FakeModel(decide=call_newest_tool)


@pytest.fixture
async def reasoning_agent(fake_model: FakeModel) -> AsyncIterator[Agent[None]]:
    """An agent with the SDK's real model for the Responses API."""
    with running_fake_model(fake_model) as url:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = OpenAIResponsesModel("fake", client)
            settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
            yield Agent[None](name="assistant", model=model, model_settings=settings)


def call_newest_tool(view: View) -> Turn:
    """Search if nothing was found for the message, then call the tool that was given last, and repeat its result."""
    searched = any(result.startswith("You can call") for result in view.results)
    if view.message == NOTHING and not searched:
        return Turn(tool=SEARCH_TOOL, arguments={"query": MESSAGE})
    if view.results and not (searched and len(view.results) == 1):
        return Turn(text=view.results[-1])
    return Turn(tool=next(iter(view.tools)), arguments=OSLO if "forecast" in next(iter(view.tools)) else {})


async def converse(tools: ToolscoutTools, agent: Agent[None], *messages: str) -> list[str]:
    """Return the answers to the messages of one conversation."""
    items: list[Any] = []
    answers = []
    for message in messages:
        items.append({"role": "user", "content": message})
        result = await Runner.run(await tools.equip(agent, items), items)
        items = result.to_input_list()
        answers.append(result.final_output)
    return answers


async def test_additional_tools_leave_the_prefix_as_it_was(
    toolscout: AsyncToolscout, weather: FakeMcpServer, reasoning_agent: Agent[None], fake_model: FakeModel
) -> None:
    tools = ToolscoutTools(toolscout, limit=1, additional_tools=True)
    answers = await converse(tools, reasoning_agent, MESSAGE, MAIL_MESSAGE, MESSAGE)
    assert answers == ["Oslo: snow", "The tool failed: no such address", "The tool failed: no such address"]
    assert (fake_model.rejections, fake_model.redundant) == ([], [])


async def test_in_the_array_new_tools_change_the_prefix(
    toolscout: AsyncToolscout, weather: FakeMcpServer, reasoning_agent: Agent[None], fake_model: FakeModel
) -> None:
    with pytest.raises(BadRequestError, match="what precedes it has changed"):
        await converse(ToolscoutTools(toolscout, limit=1), reasoning_agent, MESSAGE, MAIL_MESSAGE)


async def test_additional_tools_can_be_searched_for_during_a_run(
    toolscout: AsyncToolscout, weather: FakeMcpServer, reasoning_agent: Agent[None], fake_model: FakeModel
) -> None:
    tools = ToolscoutTools(toolscout, limit=1, additional_tools=True)
    assert await converse(tools, reasoning_agent, NOTHING, MAIL_MESSAGE) == [
        "Oslo: snow",
        "The tool failed: no such address",
    ]
    assert fake_model.rejections == []


async def test_an_additional_tool_that_is_gone_is_refused_in_words(
    toolscout: AsyncToolscout, weather: FakeMcpServer, reasoning_agent: Agent[None], fake_model: FakeModel
) -> None:
    tools = ToolscoutTools(toolscout, limit=1, additional_tools=True)
    assert await converse(tools, reasoning_agent, MESSAGE) == ["Oslo: snow"]
    [found] = [found async for found in toolscout.tools.list(name="get_forecast")]
    await toolscout.tools.update(found.id, enabled=False)
    [answer] = await converse(tools, reasoning_agent, "bye")
    assert answer.startswith("TOOL_NOT_FOUND: ")
    assert fake_model.rejections == []


async def test_additional_tools_are_added_again_where_the_history_was_cut(
    toolscout: AsyncToolscout, weather: FakeMcpServer, reasoning_agent: Agent[None], fake_model: FakeModel
) -> None:
    tools = ToolscoutTools(toolscout, limit=1, search_tool=None, additional_tools=True)
    items: list[Any] = [{"role": "user", "content": MESSAGE}]
    items = (await Runner.run(await tools.equip(reasoning_agent, items), items)).to_input_list()
    turn = [item for item in items[1:] if item.get("type") != "reasoning"]  # its signature would not fit any more
    cut: list[Any] = [*turn, {"role": "user", "content": MAIL_MESSAGE}]
    equipped = await tools.equip(reasoning_agent, cut)
    given = ScriptedModel([DONE])
    assert isinstance(equipped.model, AppendingModel)
    equipped.model.model = given
    await Runner.run(equipped, cut)
    assert given.first_call is not None
    sent: Any = given.first_call.input
    assert sent[:-1] == cut
    assert [added["name"] for added in sent[-1]["tools"]] == ["get_forecast", "send_mail"]


async def test_additional_tools_need_a_model_object(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    """The provider of the run, which knows what a name means, is not known to `equip`."""
    tools = ToolscoutTools(toolscout, additional_tools=True)
    for model in ("a-deployment", None):
        with pytest.raises(TypeError, match="Model object"):
            await tools.equip(Agent[None](name="assistant", model=model), MESSAGE)
    equipped = await ToolscoutTools(toolscout).equip(Agent[None](name="assistant", model="a-deployment"), MESSAGE)
    assert equipped.model == "a-deployment"
