"""Tests of the toolset in Pydantic AI's own agent, with a scripted model and tools that really run."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from examples import pydantic_ai_agent
from examples.fake_model import FakeModel, running_fake_model
from tests.support.clients import TestUser
from tests.support.mcp_server import FakeMcpServer, Fault, status
from tests.support.weather_server import DELETE_MESSAGE, FORECAST, MESSAGE, add_weather_tools
from toolscout_client import AsyncToolscout, ConnectionFailed, Unauthenticated
from toolscout_client.adapters import _pydantic_ai_history as history
from toolscout_client.adapters import pydantic_ai as adapter
from toolscout_client.adapters.pydantic_ai import ToolscoutToolset

OSLO = {"place": "Oslo"}
MAIL_MESSAGE = "send a mail to somebody"


def call(name: str, arguments: Any = None) -> ModelResponse:
    return ModelResponse([ToolCallPart(name, {} if arguments is None else arguments)])


def say(text: str) -> ModelResponse:
    return ModelResponse([TextPart(text)])


@dataclass
class Script:
    """Plays back its answers, of which the last one is repeated, and records the tools of each request."""

    answers: list[ModelResponse]
    requests: list[AgentInfo] = field(default_factory=list)

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:  # noqa: ARG002 of the model
        self.requests.append(info)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self.answer)

    @property
    def tool_names(self) -> list[list[str]]:
        return [[tool.name for tool in info.function_tools] for info in self.requests]


def make_agent(script: Script, client: AsyncToolscout, **options: Any) -> Agent[Any, Any]:
    return Agent(script.model, toolsets=[ToolscoutToolset(client, **options)])


def list_results(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


async def test_an_agent_gets_the_tools_of_the_message_and_toolscout_runs_them(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    script = Script([call("get_forecast", OSLO), say("It snows.")])
    run = await make_agent(script, toolscout).run(MESSAGE)
    assert run.output == "It snows."
    [result] = list_results(run.all_messages())
    assert (result.content, result.outcome) == ("Oslo: snow", "success")
    assert result.metadata["content"] == [{"type": "text", "text": "Oslo: snow"}]
    [forecast, *_] = script.requests[0].function_tools
    assert (forecast.name, forecast.description) == ("get_forecast", FORECAST["description"])
    assert forecast.parameters_json_schema["required"] == ["place"]
    assert script.tool_names[0] == script.tool_names[1]
    assert weather.calls == [("get_forecast", OSLO)]


async def test_images_reach_the_model(user: TestUser, toolscout: AsyncToolscout, mcp: FakeMcpServer) -> None:
    blocks = [{"type": "text", "text": "a map"}, {"type": "image", "data": "iVBORw0K", "mimeType": "image/png"}]
    add_weather_tools(mcp).on_call["get_forecast"] = lambda _: {"content": blocks}
    await user.connect(mcp, "weather")
    run = await make_agent(Script([call("get_forecast", OSLO), say("Done.")]), toolscout).run(MESSAGE)
    [result] = list_results(run.all_messages())
    content: Any = result.content
    text, image = content
    assert text == "a map"
    assert isinstance(image, BinaryContent)
    assert (image.base64, image.media_type) == ("iVBORw0K", "image/png")


async def test_an_image_that_cannot_be_decoded_is_named(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    blocks = [{"type": "text", "text": "a map"}, {"type": "image", "data": "abcde", "mimeType": "image/png"}]
    weather.on_call["get_forecast"] = lambda _: {"content": blocks}
    run = await make_agent(Script([call("get_forecast", OSLO), say("Done.")]), toolscout).run(MESSAGE)
    [result] = list_results(run.all_messages())
    assert result.content == "a map\n[image image/png]"


@pytest.mark.parametrize("arguments", [{"place": 7}, "{}"], ids=["wrong type", "missing"])
async def test_the_model_corrects_invalid_arguments(
    toolscout: AsyncToolscout, weather: FakeMcpServer, arguments: Any
) -> None:
    script = Script([call("get_forecast", arguments), call("get_forecast", OSLO), say("It snows.")])
    run = await make_agent(script, toolscout).run(MESSAGE)
    rejected, result = list_results(run.all_messages())
    assert str(rejected.content).startswith("TOOL_VALIDATION_ERROR: ")
    assert result.content == "Oslo: snow"
    assert weather.calls == [("get_forecast", OSLO)]


async def test_a_model_that_does_not_correct_its_arguments_uses_up_its_retries(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    script = Script([call("get_forecast", {"place": 7})])
    with pytest.raises(UnexpectedModelBehavior, match="get_forecast"):
        await make_agent(script, toolscout, max_retries=2).run(MESSAGE)
    assert len(script.requests) == 3
    assert weather.calls == []


async def test_a_failing_tool_is_a_result_for_the_model(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    run = await make_agent(Script([call("send_mail"), say("It failed.")]), toolscout).run(MAIL_MESSAGE)
    [result] = list_results(run.all_messages())
    assert (result.content, result.outcome) == ("The tool failed: no such address", "failed")
    assert run.output == "It failed."
    assert weather.calls == [("send_mail", {})]


async def test_a_sign_in_is_asked_for(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    script = Script([call("get_forecast", OSLO), say("Please sign in.")])
    agent = make_agent(script, toolscout)
    weather.fault = Fault(status(401, headers={"WWW-Authenticate": 'Bearer realm="weather"'}))
    run = await agent.run(MESSAGE)
    [result] = list_results(run.all_messages())
    assert str(result.content).startswith("AUTHORIZATION_REQUIRED: ")
    assert "Ask the user to sign in" in str(result.content)


async def test_a_tool_that_the_model_makes_up_is_explained_by_the_framework(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    run = await make_agent(Script([call("get_weather", OSLO), say("Sorry.")]), toolscout).run(MESSAGE)
    assert "Unknown tool name: 'get_weather'" in str(run.all_messages())
    assert run.output == "Sorry."
    assert weather.calls == []


async def test_tools_stay_between_runs_under_their_names_also_in_a_stored_history(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    script = Script([say("Snow."), call("get_forecast", OSLO), say("It snows.")])
    agent = make_agent(script, toolscout)
    first = await agent.run(MESSAGE)
    stored = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(first.all_messages()))
    second = await agent.run(MAIL_MESSAGE, message_history=stored)
    assert script.tool_names[1][: len(script.tool_names[0])] == script.tool_names[0]
    assert "send_mail" in script.tool_names[1]
    assert list_results(second.all_messages())[0].content == "Oslo: snow"
    await agent.run(MAIL_MESSAGE)
    assert script.tool_names[-1][0] == "send_mail"


async def test_tools_of_a_later_message_are_announced_and_not_declared_anew(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    script = Script([say("Snow."), say("Sent.")])
    agent = make_agent(script, toolscout)
    first = await agent.run(MESSAGE)
    second = await agent.run(MAIL_MESSAGE, message_history=first.all_messages())
    deltas = [
        part
        for message in second.all_messages()
        for part in message.parts
        if isinstance(part, ToolAvailabilityDeltaPart)
    ]
    new = [name for name in script.tool_names[1] if name not in script.tool_names[0]]
    assert [delta.tools_added for delta in deltas] == [new]
    assert "send_mail" in new
    parameters = [info.model_request_parameters for info in script.requests]
    assert [each.introduced_tool_names for each in parameters] == [set(), set(new)]


async def test_a_long_conversation_keeps_only_the_tools_that_were_called(
    toolscout: AsyncToolscout, weather: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_KEPT", 1)
    script = Script([call("send_mail"), say("Sent."), say("Yes?")])
    first = await make_agent(script, toolscout, fill=True, limit=2, similarity_threshold=0.0).run(MAIL_MESSAGE)
    assert len(script.tool_names[0]) == 2
    await make_agent(script, toolscout, limit=1).run(DELETE_MESSAGE, message_history=first.all_messages())
    assert script.tool_names[-1] == ["send_mail", "delete_station"]


async def test_a_long_conversation_keeps_the_tools_that_were_called_with_a_prefix(
    toolscout: AsyncToolscout, weather: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_KEPT", 1)
    script = Script([call("ts_send_mail"), say("Sent."), say("Yes?")])

    def make_prefixed(**options: Any) -> Agent[Any, Any]:
        toolset: ToolscoutToolset[Any] = ToolscoutToolset(toolscout, **options)
        return Agent(script.model, toolsets=[toolset.prefixed("ts")])

    first = await make_prefixed(fill=True, limit=2, similarity_threshold=0.0).run(MAIL_MESSAGE)
    await make_prefixed(limit=1).run(DELETE_MESSAGE, message_history=first.all_messages())
    assert script.tool_names[-1] == ["ts_send_mail", "ts_delete_station"]


async def test_with_a_prefix_a_search_names_the_tools_as_the_model_gets_them(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    script = Script([call("ts_find_tools", {"query": MESSAGE}), say("Found.")])
    toolset: ToolscoutToolset[Any] = ToolscoutToolset(toolscout, search=True, limit=1)
    agent: Agent[Any, Any] = Agent(script.model, toolsets=[toolset.prefixed("ts")])

    @agent.tool_plain
    def get_forecast(place: str) -> str:
        return f"{place}: sun"

    run = await agent.run("hello")
    [searched] = list_results(run.all_messages())
    assert searched.content == "Available tools: ts_get_forecast"
    assert sorted(script.tool_names[-1]) == ["get_forecast", "ts_find_tools", "ts_get_forecast"]


async def test_a_function_of_the_agents_own_keeps_its_name(toolscout: AsyncToolscout, weather: FakeMcpServer) -> None:
    script = Script([call("get_forecast", OSLO), call("toolscout_get_forecast", OSLO), say("Both.")])
    agent = make_agent(script, toolscout)

    @agent.tool_plain
    def get_forecast(place: str) -> str:
        return f"{place}: sun"

    run = await agent.run(MESSAGE)
    assert [result.content for result in list_results(run.all_messages())] == ["Oslo: sun", "Oslo: snow"]
    assert weather.calls == [("get_forecast", OSLO)]


async def test_the_model_searches_for_more_tools_while_it_works(
    toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    script = Script([call("find_tools", {"query": MESSAGE}), call("get_forecast", OSLO), say("It snows.")])
    agent = make_agent(script, toolscout, search=True)
    run = await agent.run("hello")
    assert script.tool_names[0] == ["find_tools"]
    assert "get_forecast" in script.tool_names[1]
    searched, result = list_results(run.all_messages())
    assert str(searched.content).startswith("Available tools: get_forecast")
    assert result.content == "Oslo: snow"
    again = await agent.run("thanks", message_history=run.all_messages())
    assert again.output == "It snows."
    assert "get_forecast" in script.tool_names[-1]


@pytest.mark.parametrize("query", ["play the piano", None])
async def test_a_search_that_finds_nothing_or_asks_nothing_is_explained(
    toolscout: AsyncToolscout, query: str | None
) -> None:
    script = Script([call("find_tools", {"query": query}), say("I cannot.")])
    run = await make_agent(script, toolscout, search=True).run("hello")
    [searched] = list_results(run.all_messages())
    assert ("`query` must be a text" if query is None else "No further tool fits.") in str(searched.content)


@pytest.mark.usefixtures("confirmed_destructive")
@pytest.mark.parametrize("approved", [True, False])
async def test_a_destructive_call_waits_for_the_approval_of_a_person(
    toolscout: AsyncToolscout, weather: FakeMcpServer, approved: bool
) -> None:
    script = Script([call("delete_station", OSLO), say("Done.")])
    agent: Agent[Any, Any] = Agent(
        script.model, toolsets=[ToolscoutToolset(toolscout)], output_type=[str, DeferredToolRequests]
    )
    paused = await agent.run(DELETE_MESSAGE)
    assert isinstance(paused.output, DeferredToolRequests)
    [request] = paused.output.approvals
    assert (request.tool_name, request.args) == ("delete_station", OSLO)
    assert paused.output.metadata[request.tool_call_id]["tool"] == "delete_station"
    assert weather.calls == []
    decisions = DeferredToolResults(approvals={request.tool_call_id: approved})
    resumed = await agent.run(message_history=paused.all_messages(), deferred_tool_results=decisions)
    assert resumed.output == "Done."
    [result] = list_results(resumed.all_messages())
    assert result.content == ("deleted Oslo" if approved else "The tool call was denied.")
    assert weather.calls == ([("delete_station", OSLO)] if approved else [])


async def test_each_run_acts_for_the_user_of_its_dependencies(
    admin: httpx.AsyncClient, address: str, user: TestUser, other_user: TestUser, weather: FakeMcpServer
) -> None:
    key = (await admin.post("/keys", json={"kind": "service"})).json()["key"]

    def get_user(ctx: RunContext[str]) -> str:
        return ctx.deps

    script = Script([say("Hello.")])
    async with AsyncToolscout(address, key, verify=False) as service:
        agent = Agent(script.model, deps_type=str, toolsets=[ToolscoutToolset(service, user_id=get_user)])
        await asyncio.gather(agent.run(MESSAGE, deps=user.id), agent.run(MESSAGE, deps=other_user.id))
    assert sorted(script.tool_names)[0] == []
    assert sorted(script.tool_names)[1][0] == "get_forecast"


async def test_an_agent_whose_toolscout_is_down_fails_or_goes_on_with_its_own_tools(
    unreachable_toolscout: AsyncToolscout,
) -> None:
    script = Script([say("Hello.")])
    with pytest.raises(ConnectionFailed, match="no answer from"):
        await make_agent(script, unreachable_toolscout).run(MESSAGE)
    run = await make_agent(script, unreachable_toolscout, on_error="continue").run(MESSAGE)
    assert (run.output, script.tool_names) == ("Hello.", [[]])


async def test_a_refused_key_is_raised(address: str) -> None:
    async with AsyncToolscout(address, "bad", verify=False) as stranger:
        with pytest.raises(Unauthenticated):
            await make_agent(Script([say("Hello.")]), stranger, on_error="continue").run(MESSAGE)


async def test_tools_of_one_name_get_names_of_their_own(
    user: TestUser, toolscout: AsyncToolscout, weather: FakeMcpServer
) -> None:
    await user.add_tools(FORECAST, server="sailing")
    script = Script([say("Hello.")])
    await make_agent(script, toolscout, fill=True, similarity_threshold=0.0).run(MESSAGE)
    servers = {tool.name: (tool.metadata or {})["server_name"] for tool in script.requests[0].function_tools}
    assert sorted(server for name, server in servers.items() if "forecast" in name) == ["sailing", "weather"]


@pytest.mark.parametrize("prefix", [None, "ts"])
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "declared again"])
async def test_a_later_tool_does_not_change_the_prompt_before_the_models_reasoning(
    toolscout: AsyncToolscout,
    weather: FakeMcpServer,
    announced: bool,
    prefix: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fake of OpenAI's Responses API rejects reasoning behind a changed prompt, as the newest models do."""
    if not announced:
        monkeypatch.setattr(adapter, "announce_tools", lambda *_: None)
    fake = FakeModel()
    with running_fake_model(fake) as url:
        model = OpenAIResponsesModel("gpt-5.6", provider=OpenAIProvider(base_url=url, api_key="none"))
        toolset: ToolscoutToolset[Any] = ToolscoutToolset(toolscout, limit=1)
        agent: Agent[Any, Any] = Agent(model, toolsets=[toolset if prefix is None else toolset.prefixed(prefix)])
        first = await agent.run(MESSAGE)
        assert first.output == "The tool says: Oslo: snow"
        second = agent.run(MAIL_MESSAGE, message_history=first.all_messages())
        if announced:
            assert "no such address" in (await second).output
            assert (fake.rejections, fake.dropped) == ([], [])
        else:
            with pytest.raises(ModelHTTPError):
                await second
            assert len(fake.rejections) == 1
    assert weather.calls == [("get_forecast", OSLO), ("send_mail", {})][: 2 if announced else 1]


async def test_no_tool_is_given_up_that_signed_reasoning_is_bound_to(
    toolscout: AsyncToolscout, weather: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_KEPT", 1)
    fake = FakeModel()
    with running_fake_model(fake) as url:
        model = OpenAIResponsesModel("gpt-5.6", provider=OpenAIProvider(base_url=url, api_key="none"))
        toolset: ToolscoutToolset[Any] = ToolscoutToolset(toolscout, fill=True, limit=2, similarity_threshold=0.0)
        agent: Agent[Any, Any] = Agent(model, toolsets=[toolset])
        first = await agent.run(MESSAGE)
        second = await agent.run(MAIL_MESSAGE, message_history=first.all_messages())
    assert "no such address" in second.output
    assert (fake.rejections, fake.dropped) == ([], [])


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
    await pydantic_ai_agent.main(MESSAGE, MAIL_MESSAGE)
    assert capsys.readouterr().out.splitlines() == [
        f"user       {MESSAGE}",
        'called     get_forecast {"place":"Oslo"}',
        "result     Oslo: snow",
        "model      The tool says: Oslo: snow",
        f"user       {MAIL_MESSAGE}",
        "called     send_mail {}",
        "result     The tool failed: no such address (an error)",
        'model      The tool says: {"error":"The tool failed: no such address"}',
    ]
