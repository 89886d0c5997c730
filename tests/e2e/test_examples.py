"""Tests of the examples with the fake model, the real application on a socket, and a real MCP server."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from examples import anthropic_tool_search, chat_backend, openai_tool_search
from examples.fake_model import arguments_for, running_fake_model
from examples.problems import raise_for_problem
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.paths import ROOT
from toolscout_client import Toolscout

Json = dict[str, Any]
Example = Callable[[str], None]

MESSAGE = "what's the weather in Oslo tomorrow?"
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS = [
    tool("get_forecast", "The expected weather at a place for the coming days: rain, wind.", inputSchema=PLACE),
    tool("send_mail", "Sends a mail to somebody."),
]

with_both_examples = pytest.mark.parametrize(
    "example", [anthropic_tool_search.main, openai_tool_search.main], ids=["anthropic", "openai"]
)


@pytest.fixture
def environment(address: str, user: TestUser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variables of a user without a key of a model provider."""
    monkeypatch.setenv("TOOLSCOUT_URL", address)
    monkeypatch.setenv("TOOLSCOUT_KEY", user.key)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def fake_model() -> Iterator[str]:
    with running_fake_model() as address:
        yield address


async def run_example(example: Example, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the printed lines by their label."""
    await asyncio.to_thread(example, MESSAGE)  # the application answers in this thread
    return {line[:11].strip(): line[11:] for line in capsys.readouterr().out.splitlines()}


@with_both_examples
@pytest.mark.usefixtures("environment")
async def test_the_model_finds_a_tool_calls_it_and_answers_with_the_result(
    example: Example, user: TestUser, mcp: FakeMcpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mcp.tools = TOOLS
    mcp.on_call["get_forecast"] = lambda arguments: {
        "content": [{"type": "text", "text": f"{arguments['place']}: snow"}]
    }
    await user.connect(mcp, "weather")
    printed = await run_example(example, capsys)
    tokens = (await user.discover(MESSAGE, include_core_tools=False))["tokens"]
    assert list(printed) == ["user", "searched", "called", "result", "model"]
    assert printed["searched"].startswith(f'"{MESSAGE}": get_forecast')
    assert printed["searched"].endswith(f"({tokens['selected']} tokens instead of {tokens['all']})")
    assert printed["called"] == 'get_forecast {"place": "Oslo"}'
    assert printed["result"] == "Oslo: snow"
    assert printed["model"] == "The tool says: Oslo: snow"
    assert mcp.calls == [("get_forecast", {"place": "Oslo"})]


@with_both_examples
@pytest.mark.usefixtures("environment")
async def test_the_model_gets_the_error_of_a_tool_that_cannot_run(
    example: Example, user: TestUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.add_tools(*TOOLS)  # a push server, as in the demo
    printed = await run_example(example, capsys)
    assert printed["result"].startswith("SERVER_CONNECTION_ERROR: ")
    assert printed["result"].endswith(" (an error)")
    assert "SERVER_CONNECTION_ERROR" in printed["model"]


@with_both_examples
@pytest.mark.usefixtures("environment")
async def test_a_search_without_results_ends_without_a_call(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = await run_example(example, capsys)
    assert list(printed) == ["user", "searched", "model"]
    assert printed["searched"] == f'"{MESSAGE}": nothing (0 tokens instead of 0)'
    assert printed["model"] == "I have no tool for that."


@pytest.mark.parametrize("example", ["anthropic_tool_search", "chat_backend", "openai_tool_search"])
@pytest.mark.parametrize("kind", ["bad", "service"])
async def test_a_key_that_is_refused_is_explained(
    address: str, admin: httpx.AsyncClient, example: str, kind: str
) -> None:
    key = "bad" if kind == "bad" else (await admin.post("/keys", json={"kind": kind})).json()["key"]
    async with httpx.AsyncClient(base_url=address, headers={"Authorization": f"Bearer {key}"}) as http:
        problem = (await http.post("/discover", json={"query": MESSAGE})).json()
    assert problem["status"] == {"bad": 401, "service": 400}[kind]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "clients/python")}
    environment |= {"TOOLSCOUT_URL": address, "TOOLSCOUT_KEY": key}
    command = [sys.executable, "-m", f"examples.{example}"]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    explanation, advice = done.stderr.splitlines()
    assert explanation == f"{problem['code']}: {problem['detail']}"
    assert "TOOLSCOUT_KEY" in advice


def test_an_error_that_is_not_toolscouts_is_raised_with_its_status() -> None:
    request = httpx2.Request("POST", "http://example.com/discover")
    assert raise_for_problem(httpx2.Response(200, request=request)).is_success
    with pytest.raises(httpx2.HTTPStatusError, match="502 Bad Gateway"):
        raise_for_problem(httpx2.Response(502, text="<html>", request=request))


async def chat(capsys: pytest.CaptureFixture[str], *user_messages: str) -> list[tuple[str, str]]:
    """Return the label and the text of each printed line."""
    await asyncio.to_thread(chat_backend.main, *user_messages)
    return [(line[:11].strip(), line[11:]) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("environment")
async def test_a_chat_finds_tools_for_each_message_and_keeps_earlier_ones(
    user: TestUser, mcp: FakeMcpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mcp.tools = TOOLS
    mcp.on_call["get_forecast"] = lambda arguments: {
        "content": [{"type": "text", "text": f"{arguments['place']}: snow"}]
    }
    mcp.on_call["send_mail"] = lambda _: {"content": [{"type": "text", "text": "no such address"}], "isError": True}
    await user.connect(mcp, "weather")
    user_line, found_line, call_line, result_line, model_line, *rest = await chat(
        capsys, MESSAGE, "send a mail about it"
    )
    without_keep = await user.discover("send a mail about it")
    assert user_line == ("user", MESSAGE)
    assert found_line[1].startswith("get_forecast")
    assert call_line == ("called", 'get_forecast {"place": "Oslo"}')
    assert result_line == ("result", "Oslo: snow")
    assert model_line == ("model", "The tool says: Oslo: snow")
    assert rest[1][1].startswith("get_forecast, send_mail (")  # the tool of the first message stays first
    assert without_keep["tools"][0]["alias"] == "send_mail"  # without `keep` it would not
    assert rest[3] == ("result", "no such address (an error)")
    assert rest[4] == ("model", "The tool says: The tool failed: no such address")
    assert mcp.calls == [("get_forecast", {"place": "Oslo"}), ("send_mail", {})]


@pytest.mark.usefixtures("environment")
async def test_a_chat_with_too_many_tools_starts_over(
    user: TestUser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await user.add_tools(*TOOLS)
    user_messages = (MESSAGE, "send a mail to somebody")

    async def find_last_tools() -> str:
        return [text for label, text in await chat(capsys, *user_messages) if label == "found"][-1]

    assert (await find_last_tools()).startswith("get_forecast, send_mail (")
    monkeypatch.setattr(chat_backend, "MAX_TOOLS", 1)
    assert (await find_last_tools()).startswith("send_mail")


@pytest.mark.usefixtures("environment")
async def test_the_model_of_a_chat_gets_the_error_of_a_tool_that_cannot_run(
    user: TestUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.add_tools(*TOOLS)
    printed = dict(await chat(capsys, MESSAGE))
    assert printed["result"].startswith("SERVER_CONNECTION_ERROR: ")
    assert "SERVER_CONNECTION_ERROR" in printed["model"]


async def test_the_model_of_a_chat_gets_the_choices_if_several_tools_have_the_name(
    address: str, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = TOOLS
    await user.connect(mcp, "weather")
    await user.add_tools(*TOOLS, server="sailing")

    def run(name: str) -> str:
        function = {"name": name, "arguments": '{"place": "Oslo"}'}
        call = ChatCompletionMessageFunctionToolCall.model_validate(
            {"id": "1", "type": "function", "function": function}
        )
        with Toolscout(address, user.key) as toolscout:
            return chat_backend.run_tool(toolscout, call)

    advice = await asyncio.to_thread(run, "get_forecast")
    assert advice.endswith("choose one of sailing.get_forecast, weather.get_forecast")
    assert mcp.calls == []
    await asyncio.to_thread(run, "weather.get_forecast")
    assert mcp.calls == [("get_forecast", {"place": "Oslo"})]


@pytest.mark.usefixtures("environment")
async def test_a_chat_without_tools_answers_without_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    printed = await chat(capsys, MESSAGE)
    assert printed == [("user", MESSAGE), ("found", "nothing (0 tokens)"), ("model", "I have no tool for that.")]


FIND_TOOLS = anthropic_tool_search.FIND_TOOLS
FORECAST = {"name": "get_forecast", "description": "", "input_schema": PLACE, "defer_loading": True}
SEARCH = {"type": "tool_use", "id": "toolu_1", "name": "find_tools", "input": {"query": MESSAGE}}
SEARCH_RESULT = {
    "type": "tool_result",
    "tool_use_id": "toolu_1",
    "content": [{"type": "tool_reference", "tool_name": "get_forecast"}],
}


def make_messages_request(tools: list[Json], *results: Json) -> Json:
    """Return a request after the model has searched."""
    turns = [
        {"role": "user", "content": MESSAGE},
        {"role": "assistant", "content": [SEARCH]},
        {"role": "user", "content": list(results)},
    ]
    return {"model": "fake", "max_tokens": 100, "tools": tools, "messages": turns}


def test_a_valid_search_result_leads_to_a_call(fake_model: str) -> None:
    answer = httpx.post(f"{fake_model}/messages", json=make_messages_request([FIND_TOOLS, FORECAST], SEARCH_RESULT))
    assert answer.status_code == 200
    assert answer.json()["content"][0]["name"] == "get_forecast"


@pytest.mark.parametrize(
    ("request_body", "reason"),
    [
        (
            make_messages_request([FIND_TOOLS], SEARCH_RESULT),
            "Tool reference 'get_forecast' not found in available tools",
        ),
        (
            make_messages_request([{**FIND_TOOLS, "defer_loading": True}, FORECAST], SEARCH_RESULT),
            "All tools cannot be deferred",
        ),
        (make_messages_request([FIND_TOOLS, FORECAST, FORECAST], SEARCH_RESULT), "Tool names must be unique"),
        (
            make_messages_request([FIND_TOOLS, FORECAST], {**SEARCH_RESULT, "tool_use_id": "toolu_2"}),
            "unexpected `tool_use_id`",
        ),
        (make_messages_request([FIND_TOOLS, FORECAST]), "without `tool_result` blocks"),
    ],
)
def test_the_fake_rejects_messages_that_the_real_api_rejects(fake_model: str, request_body: Json, reason: str) -> None:
    answer = httpx.post(f"{fake_model}/messages", json=request_body)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


UNITS = {"value": {"type": "number"}, "from_unit": {"type": "string"}, "to_unit": {"type": "string"}}


@pytest.mark.parametrize(
    ("message", "properties", "arguments"),
    [
        ("what's the weather in Oslo?", {"place": {"type": "string"}}, {"place": "Oslo"}),
        ("what time is it in New York?", {"timezone": {"type": "string"}}, {"timezone": "New York"}),
        ("what is (2 + 3) * 4?", {"expression": {"type": "string"}}, {"expression": "(2 + 3) * 4"}),
        ("how many miles are 5.5 km?", UNITS, {"value": 5.5, "from_unit": "km", "to_unit": "miles"}),
        ("convert 3 kg to pounds", UNITS, {"value": 3.0, "from_unit": "kg", "to_unit": "pounds"}),
        ("delete note 7", {"note_id": {"type": "integer"}}, {"note_id": 7}),
        ("find a table in Oslo", {"query": {"type": "string"}}, {"query": "find a table in Oslo"}),
        (
            "buy milk",
            {"text": {"type": "string"}, "count": {"type": "integer", "minimum": 2}},
            {"text": "buy milk", "count": 2},
        ),
    ],
)
def test_the_fake_fills_arguments_with_what_the_message_says(message: str, properties: Json, arguments: Json) -> None:
    assert arguments_for({"properties": properties, "required": list(properties)}, message) == arguments


SEARCH_CALL = {"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {"query": MESSAGE}}
LOADED = {"type": "function", "name": "get_forecast", "parameters": PLACE, "defer_loading": True, "strict": False}
SEARCH_OUTPUT = {"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": [LOADED]}
FUNCTION_CALL = {"type": "function_call", "call_id": "call_2", "name": "get_forecast", "arguments": "{}"}


def make_responses_request(*items: Json) -> Json:
    user_message = {"role": "user", "content": MESSAGE}
    return {"model": "fake", "tools": [openai_tool_search.TOOL_SEARCH], "input": [user_message, *items]}


def test_the_function_of_a_search_output_is_called(fake_model: str) -> None:
    answer = httpx.post(f"{fake_model}/responses", json=make_responses_request(SEARCH_CALL, SEARCH_OUTPUT))
    assert answer.status_code == 200
    assert answer.json()["output"][0]["name"] == "get_forecast"


@pytest.mark.parametrize(
    ("request_body", "reason"),
    [
        (make_responses_request(SEARCH_OUTPUT), "No tool call found"),
        (make_responses_request(SEARCH_CALL, {**SEARCH_OUTPUT, "type": "function_call_output"}), "No tool call found"),
        (make_responses_request(SEARCH_CALL), "No tool output found"),
        (make_responses_request(SEARCH_CALL, SEARCH_OUTPUT, FUNCTION_CALL), "No tool output found"),
    ],
)
def test_the_fake_rejects_responses_that_the_real_api_rejects(fake_model: str, request_body: Json, reason: str) -> None:
    answer = httpx.post(f"{fake_model}/responses", json=request_body)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


USER_MESSAGE = {"role": "user", "content": MESSAGE}
FUNCTION = {"type": "function", "function": {"name": "get_forecast", "parameters": PLACE}}
TOOL_CALL_MESSAGE = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_forecast", "arguments": "{}"}}],
}
TOOL_RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "snow"}


def make_chat_request(*turns: Json, tools: list[Json] | None = None) -> Json:
    return {"model": "fake", "messages": list(turns), "tools": [FUNCTION] if tools is None else tools}


def test_the_model_answers_with_the_result_of_its_call(fake_model: str) -> None:
    answer = httpx.post(
        f"{fake_model}/chat/completions", json=make_chat_request(USER_MESSAGE, TOOL_CALL_MESSAGE, TOOL_RESULT)
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "The tool says: snow"


@pytest.mark.parametrize(
    ("request_body", "reason"),
    [
        (make_chat_request(USER_MESSAGE, tools=[]), "[] is too short"),
        (make_chat_request(USER_MESSAGE, TOOL_RESULT), "must be a response to"),
        (make_chat_request(USER_MESSAGE, TOOL_CALL_MESSAGE), "did not have response messages: call_1"),
        (make_chat_request(USER_MESSAGE, TOOL_CALL_MESSAGE, USER_MESSAGE), "did not have response messages: call_1"),
    ],
)
def test_the_fake_rejects_chats_that_the_real_api_rejects(fake_model: str, request_body: Json, reason: str) -> None:
    answer = httpx.post(f"{fake_model}/chat/completions", json=request_body)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]
