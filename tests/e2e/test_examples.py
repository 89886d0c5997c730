"""The examples do what they say: with the fake model, the real application behind a socket, and a real MCP server."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from examples import anthropic_tool_search, chat_backend, openai_tool_search
from examples.fake_model import running_fake_model
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer

Json = dict[str, Any]
Example = Callable[[str], None]

MESSAGE = "what's the weather in Oslo tomorrow?"
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS = [
    tool("get_forecast", "The expected weather at a place for the coming days: rain, wind.", inputSchema=PLACE),
    tool("send_mail", "Sends a mail to somebody."),
]

both = pytest.mark.parametrize(
    "example", [anthropic_tool_search.main, openai_tool_search.main], ids=["anthropic", "openai"]
)


@pytest.fixture
def surroundings(address: str, user: TestUser, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the terminal of a newcomer, who has no key of a model's vendor."""
    monkeypatch.setenv("TOOLSCOUT_URL", address)
    monkeypatch.setenv("TOOLSCOUT_KEY", user.key)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def fake_model() -> Iterator[str]:
    with running_fake_model() as address:
        yield address


async def steps(example: Example, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What it printed, by the word that each line begins with."""
    await asyncio.to_thread(example, MESSAGE)  # the application answers in this thread
    return {line[:11].strip(): line[11:] for line in capsys.readouterr().out.splitlines()}


@both
@pytest.mark.usefixtures("surroundings")
async def test_the_model_finds_a_tool_and_calls_it_and_answers_with_what_came_back(
    example: Example, user: TestUser, mcp: FakeMcpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mcp.tools = TOOLS
    mcp.on_call["get_forecast"] = lambda arguments: {
        "content": [{"type": "text", "text": f"{arguments['place']}: snow"}]
    }
    await user.connect(mcp, "weather")
    printed = await steps(example, capsys)
    tokens = (await user.discover(MESSAGE, include_core_tools=False))["tokens"]
    assert list(printed) == ["user", "searched", "called", "came back", "model"]
    assert printed["searched"].startswith(f'"{MESSAGE}": get_forecast')
    assert printed["searched"].endswith(f"({tokens['selected']} tokens instead of {tokens['all']})")
    assert printed["called"] == 'get_forecast {"place": "Oslo"}'
    assert printed["came back"] == "Oslo: snow"
    assert printed["model"] == "The tool says: Oslo: snow"
    assert mcp.calls == [("get_forecast", {"place": "Oslo"})]


@both
@pytest.mark.usefixtures("surroundings")
async def test_a_tool_that_cannot_run_is_an_error_that_the_model_is_told(
    example: Example, user: TestUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.add_tools(*TOOLS)  # pushed, as the demo's are
    printed = await steps(example, capsys)
    assert printed["came back"].startswith("SERVER_CONNECTION_ERROR: ")
    assert printed["came back"].endswith(" (an error)")
    assert "SERVER_CONNECTION_ERROR" in printed["model"]


@both
@pytest.mark.usefixtures("surroundings")
async def test_a_search_that_finds_nothing_ends_without_a_call(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = await steps(example, capsys)
    assert list(printed) == ["user", "searched", "model"]
    assert printed["searched"] == f'"{MESSAGE}": nothing (0 tokens instead of 0)'
    assert printed["model"] == "I have no tool for that."


async def chat(capsys: pytest.CaptureFixture[str], *said: str) -> list[tuple[str, str]]:
    """What the chat backend printed, line by line."""
    await asyncio.to_thread(chat_backend.main, *said)
    return [(line[:11].strip(), line[11:]) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("surroundings")
async def test_a_chat_finds_tools_for_each_message_and_keeps_those_it_had(
    user: TestUser, mcp: FakeMcpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mcp.tools = TOOLS
    mcp.on_call["get_forecast"] = lambda arguments: {
        "content": [{"type": "text", "text": f"{arguments['place']}: snow"}]
    }
    mcp.on_call["send_mail"] = lambda _: {"content": [{"type": "text", "text": "no such address"}], "isError": True}
    await user.connect(mcp, "weather")
    asked, found, called, came_back, answered, *rest = await chat(capsys, MESSAGE, "send a mail about it")
    anew = await user.discover("send a mail about it")
    assert asked == ("user", MESSAGE)
    assert found[1].startswith("get_forecast")
    assert called == ("called", 'get_forecast {"place": "Oslo"}')
    assert came_back == ("came back", "Oslo: snow")
    assert answered == ("model", "The tool says: Oslo: snow")
    assert rest[1][1].startswith("get_forecast, send_mail (")  # the first stays first
    assert anew["tools"][0]["alias"] == "send_mail"  # which it would not by itself
    assert rest[3] == ("came back", "no such address (an error)")
    assert rest[4] == ("model", "The tool says: The tool failed: no such address")
    assert mcp.calls == [("get_forecast", {"place": "Oslo"}), ("send_mail", {})]


@pytest.mark.usefixtures("surroundings")
async def test_a_chat_that_has_gathered_too_many_tools_begins_anew(
    user: TestUser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await user.add_tools(*TOOLS)
    said = (MESSAGE, "send a mail to somebody")

    async def last_found() -> str:
        return [text for word, text in await chat(capsys, *said) if word == "found"][-1]

    assert (await last_found()).startswith("get_forecast, send_mail (")
    monkeypatch.setattr(chat_backend, "MOST_TOOLS", 1)
    assert (await last_found()).startswith("send_mail")


@pytest.mark.usefixtures("surroundings")
async def test_a_chat_tells_the_model_that_a_tool_cannot_run(
    user: TestUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.add_tools(*TOOLS)
    printed = dict(await chat(capsys, MESSAGE))
    assert printed["came back"].startswith("SERVER_CONNECTION_ERROR: ")
    assert "SERVER_CONNECTION_ERROR" in printed["model"]


@pytest.mark.usefixtures("surroundings")
async def test_a_chat_that_needs_no_tool_goes_without(capsys: pytest.CaptureFixture[str]) -> None:
    printed = await chat(capsys, MESSAGE)
    assert printed == [("user", MESSAGE), ("found", "nothing (0 tokens)"), ("model", "I have no tool for that.")]


FIND_TOOLS = anthropic_tool_search.FIND_TOOLS
FORECAST = {"name": "get_forecast", "description": "", "input_schema": PLACE, "defer_loading": True}
SEARCH = {"type": "tool_use", "id": "toolu_1", "name": "find_tools", "input": {"query": MESSAGE}}
FOUND = {
    "type": "tool_result",
    "tool_use_id": "toolu_1",
    "content": [{"type": "tool_reference", "tool_name": "get_forecast"}],
}


def messages(tools: list[Json], *results: Json) -> Json:
    """A request after the model has searched."""
    turns = [
        {"role": "user", "content": MESSAGE},
        {"role": "assistant", "content": [SEARCH]},
        {"role": "user", "content": list(results)},
    ]
    return {"model": "fake", "max_tokens": 100, "tools": tools, "messages": turns}


def test_a_search_that_is_answered_rightly_leads_to_a_call(fake_model: str) -> None:
    answer = httpx.post(f"{fake_model}/messages", json=messages([FIND_TOOLS, FORECAST], FOUND))
    assert answer.status_code == 200
    assert answer.json()["content"][0]["name"] == "get_forecast"


@pytest.mark.parametrize(
    ("request_body", "why"),
    [
        (messages([FIND_TOOLS], FOUND), "Tool reference 'get_forecast' not found in available tools"),
        (messages([{**FIND_TOOLS, "defer_loading": True}, FORECAST], FOUND), "All tools cannot be deferred"),
        (messages([FIND_TOOLS, FORECAST, FORECAST], FOUND), "Tool names must be unique"),
        (messages([FIND_TOOLS, FORECAST], {**FOUND, "tool_use_id": "toolu_2"}), "unexpected `tool_use_id`"),
        (messages([FIND_TOOLS, FORECAST]), "without `tool_result` blocks"),
    ],
)
def test_the_fake_refuses_messages_that_the_real_api_refuses(fake_model: str, request_body: Json, why: str) -> None:
    answer = httpx.post(f"{fake_model}/messages", json=request_body)
    assert answer.status_code == 400
    assert why in answer.json()["error"]["message"]


SEARCH_CALL = {"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {"query": MESSAGE}}
LOADED = {"type": "function", "name": "get_forecast", "parameters": PLACE, "defer_loading": True, "strict": False}
SEARCH_OUTPUT = {"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": [LOADED]}
FUNCTION_CALL = {"type": "function_call", "call_id": "call_2", "name": "get_forecast", "arguments": "{}"}


def responses(*items: Json) -> Json:
    user_message = {"role": "user", "content": MESSAGE}
    return {"model": "fake", "tools": [openai_tool_search.TOOL_SEARCH], "input": [user_message, *items]}


def test_a_search_output_loads_the_function_that_is_called(fake_model: str) -> None:
    answer = httpx.post(f"{fake_model}/responses", json=responses(SEARCH_CALL, SEARCH_OUTPUT))
    assert answer.status_code == 200
    assert answer.json()["output"][0]["name"] == "get_forecast"


@pytest.mark.parametrize(
    ("request_body", "why"),
    [
        (responses(SEARCH_OUTPUT), "No tool call found"),
        (responses(SEARCH_CALL, {**SEARCH_OUTPUT, "type": "function_call_output"}), "No tool call found"),
        (responses(SEARCH_CALL), "No tool output found"),
        (responses(SEARCH_CALL, SEARCH_OUTPUT, FUNCTION_CALL), "No tool output found"),
    ],
)
def test_the_fake_refuses_responses_that_the_real_api_refuses(fake_model: str, request_body: Json, why: str) -> None:
    answer = httpx.post(f"{fake_model}/responses", json=request_body)
    assert answer.status_code == 400
    assert why in answer.json()["error"]["message"]


ASKED = {"role": "user", "content": MESSAGE}
FUNCTION = {"type": "function", "function": {"name": "get_forecast", "parameters": PLACE}}
CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_forecast", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "snow"}


def completions(*turns: Json, tools: list[Json] | None = None) -> Json:
    return {"model": "fake", "messages": list(turns), "tools": [FUNCTION] if tools is None else tools}


def test_a_result_that_follows_its_call_is_told(fake_model: str) -> None:
    answer = httpx.post(f"{fake_model}/chat/completions", json=completions(ASKED, CALLING, RESULT))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "The tool says: snow"


@pytest.mark.parametrize(
    ("request_body", "why"),
    [
        (completions(ASKED, tools=[]), "[] is too short"),
        (completions(ASKED, RESULT), "must be a response to"),
        (completions(ASKED, CALLING), "did not have response messages: call_1"),
        (completions(ASKED, CALLING, ASKED), "did not have response messages: call_1"),
    ],
)
def test_the_fake_refuses_chats_that_the_real_api_refuses(fake_model: str, request_body: Json, why: str) -> None:
    answer = httpx.post(f"{fake_model}/chat/completions", json=request_body)
    assert answer.status_code == 400
    assert why in answer.json()["error"]["message"]
