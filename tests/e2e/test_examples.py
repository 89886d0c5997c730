"""Tests of the examples with the fake model, the real application on a socket, and a real MCP server."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from anthropic.types import ToolParam, ToolResultBlockParam
from pydantic import TypeAdapter

from app.container import Container
from examples import (
    anthropic_chat,
    anthropic_deferred_tools,
    anthropic_tool_search,
    chat_backend,
    openai_tool_search,
)
from examples.fake_model import FakeModel, Turn, View, running_fake_model
from examples.toolscout_calls import run_tool
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

SEARCHES = [anthropic_tool_search, anthropic_deferred_tools, openai_tool_search]

with_all_searches = pytest.mark.parametrize(
    "example", [module.main for module in SEARCHES], ids=["anthropic", "anthropic deferred", "openai"]
)


@pytest.fixture
def environment(address: str, user: TestUser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variables of a user without a key of a model provider."""
    monkeypatch.setenv("TOOLSCOUT_URL", address)
    monkeypatch.setenv("TOOLSCOUT_KEY", user.key)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


async def run_example(example: Example, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the printed lines by their label."""
    await asyncio.to_thread(example, MESSAGE)  # the application answers in this thread
    return {line[:11].strip(): line[11:] for line in capsys.readouterr().out.splitlines()}


@with_all_searches
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


@with_all_searches
@pytest.mark.usefixtures("environment")
async def test_the_model_gets_the_error_of_a_tool_that_cannot_run(
    example: Example, user: TestUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.add_tools(*TOOLS)  # a push server, as in the demo
    printed = await run_example(example, capsys)
    assert printed["result"].startswith("SERVER_CONNECTION_ERROR: ")
    assert printed["result"].endswith(" (an error)")
    assert "SERVER_CONNECTION_ERROR" in printed["model"]


@with_all_searches
@pytest.mark.usefixtures("environment")
async def test_a_search_without_results_ends_without_a_call(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = await run_example(example, capsys)
    assert list(printed) == ["user", "searched", "model"]
    assert printed["searched"] == f'"{MESSAGE}": nothing (0 tokens instead of 0)'
    assert printed["model"] == "I have no tool for that."


@pytest.mark.parametrize(
    "example",
    ["anthropic_chat", "anthropic_deferred_tools", "anthropic_tool_search", "chat_backend", "openai_tool_search"],
)
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


class RecordingModel(FakeModel):
    """Takes the turns of a script, and keeps the last request."""

    search: tuple[str, Json] | None = None

    def __init__(self, *turns: Turn) -> None:
        script = list(turns)

        def take_turn(view: View) -> Turn:
            view.search = view.search or self.search
            self.search = view.search
            return script.pop(0)

        super().__init__(take_turn)
        self.tools: list[Any] = []
        self.last_request: Json = {}

    def answer(self, path: str, request: Json, betas: frozenset[str]) -> Json:
        self.last_request = request
        self.tools.append(request["tools"])
        return super().answer(path, request, betas)


async def run_with_turns(
    module: Any, user: TestUser, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch, *turns: Turn
) -> RecordingModel:
    mcp.tools = TOOLS
    mcp.on_call["get_forecast"] = lambda _: {"content": [{"type": "text", "text": "snow"}]}
    await user.connect(mcp, "weather")
    model = RecordingModel(*turns)
    monkeypatch.setattr(module, "running_fake_model", lambda: running_fake_model(model))
    await asyncio.to_thread(module.main, MESSAGE)
    return model


@pytest.mark.parametrize("arguments", [{}, {"query": ""}, {"query": 7}], ids=str)
@pytest.mark.parametrize("module", SEARCHES, ids=lambda module: module.__name__)
@pytest.mark.usefixtures("environment")
async def test_a_search_without_a_query_is_an_error_for_the_model(
    module: Any,
    arguments: Json,
    user: TestUser,
    mcp: FakeMcpServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await run_with_turns(module, user, mcp, monkeypatch, Turn(search=arguments), Turn(text="sorry"))
    assert [line for line in capsys.readouterr().out.splitlines() if not line.startswith("user")] == [
        f"searched   {json.dumps(arguments)}: invalid_input",
        "model      sorry",
    ]


@pytest.mark.parametrize("module", SEARCHES, ids=lambda module: module.__name__)
@pytest.mark.usefixtures("environment")
async def test_several_searches_give_each_definition_once_and_leave_the_prefix_as_it_was(
    module: Any, user: TestUser, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [MESSAGE, "send a mail to somebody", MESSAGE]
    turns = [Turn(search={"query": query}) for query in queries]
    call = Turn(tool="get_forecast", arguments={"place": "Oslo"})
    model = await run_with_turns(module, user, mcp, monkeypatch, *turns, call, Turn(text="done"))
    assert (model.rejections, model.dropped, model.redundant) == ([], [], [])
    assert all(tools == model.tools[0] for tools in model.tools)
    given = re.findall(r'"(?:tool_)?name": "(\w+)"', json.dumps(_list_given(model.last_request)))
    assert sorted(given) == ["get_forecast", "send_mail"]
    assert mcp.calls == [("get_forecast", {"place": "Oslo"})]


def _list_given(request: Json) -> list[Json]:
    """Return the definitions, or the references to them, that a conversation contains."""
    if "input" in request:
        return [tool for item in request["input"] for tool in item.get("tools", [])]
    contents = [message["content"] for message in request["messages"] if isinstance(message["content"], list)]
    blocks = [block for content in contents for block in content]
    blocks += [item for block in blocks if isinstance(block.get("content"), list) for item in block["content"]]
    additions = [block["tool"]["definition"] for block in blocks if block["type"] == "tool_addition"]
    return [*additions, *(block for block in blocks if block["type"] == "tool_reference")]


@pytest.mark.usefixtures("environment")
async def test_deferred_tools_are_declared_ahead_and_have_the_shape_of_the_sdk(
    user: TestUser, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, call = Turn(search={"query": MESSAGE}), Turn(tool="get_forecast", arguments={"place": "Oslo"})
    model = await run_with_turns(anthropic_deferred_tools, user, mcp, monkeypatch, search, call, Turn(text="done"))
    [find_tools, *deferred] = model.tools[0]
    assert "defer_loading" not in find_tools
    assert [(each["name"], each["defer_loading"]) for each in deferred] == [("get_forecast", True), ("send_mail", True)]
    for each in model.tools[0]:
        TypeAdapter(ToolParam).validate_python(each)
    [result] = model.last_request["messages"][2]["content"]
    TypeAdapter(ToolResultBlockParam).validate_python(result)
    assert result["content"][0] == {"type": "tool_reference", "tool_name": "get_forecast"}


@pytest.mark.usefixtures("environment")
async def test_too_many_tools_are_not_declared_ahead(user: TestUser, monkeypatch: pytest.MonkeyPatch) -> None:
    await user.add_tools(*TOOLS)
    monkeypatch.setattr(anthropic_deferred_tools, "MAX_TOOLS", 1)
    with pytest.raises(SystemExit, match="2 tools are too many to declare"):
        await asyncio.to_thread(anthropic_deferred_tools.main, MESSAGE)


async def chat(
    example: Callable[..., None], capsys: pytest.CaptureFixture[str], *user_messages: str
) -> list[tuple[str, str]]:
    """Return the label and the text of each printed line."""
    await asyncio.to_thread(example, *user_messages)
    return [(line[:11].strip(), line[11:]) for line in capsys.readouterr().out.splitlines()]


with_both_chats = pytest.mark.parametrize(
    "example", [anthropic_chat.main, chat_backend.main], ids=["anthropic", "openai"]
)


@with_both_chats
@pytest.mark.usefixtures("environment")
async def test_a_chat_adds_the_tools_that_a_message_needs_to_those_that_it_has(
    example: Callable[..., None], user: TestUser, mcp: FakeMcpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mcp.tools = TOOLS
    mcp.on_call["get_forecast"] = lambda arguments: {
        "content": [{"type": "text", "text": f"{arguments['place']}: snow"}]
    }
    mcp.on_call["send_mail"] = lambda _: {"content": [{"type": "text", "text": "no such address"}], "isError": True}
    await user.connect(mcp, "weather")
    user_line, found_line, call_line, result_line, model_line, *rest = await chat(
        example, capsys, MESSAGE, "send a mail about it", "and now the weather in Rome"
    )
    assert user_line == ("user", MESSAGE)
    assert found_line[1].startswith("get_forecast (now 1 tools, ")
    assert call_line == ("called", 'get_forecast {"place": "Oslo"}')
    assert result_line == ("result", "Oslo: snow")
    assert model_line == ("model", "The tool says: Oslo: snow")
    assert rest[1][1].startswith("send_mail (now 2 tools, ")
    assert rest[3] == ("result", "no such address (an error)")
    assert rest[4][1].endswith("no such address")
    assert rest[6][1].startswith("nothing new (now 2 tools, ")
    assert [name for name, _ in mcp.calls][:2] == ["get_forecast", "send_mail"]


@with_both_chats
@pytest.mark.usefixtures("environment")
async def test_toolscout_remembers_the_turns_of_a_chat_and_the_calls_in_them(
    example: Callable[..., None],
    user: TestUser,
    mcp: FakeMcpServer,
    container: Container,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mcp.tools = TOOLS
    await user.connect(mcp, "weather")
    printed = await chat(example, capsys, MESSAGE, "send a mail about it")
    assert [text.split()[0] for label, text in printed if label == "called"] == ["get_forecast", "send_mail"]
    reader = container.database.reader(user.id)
    [(turn, calls)] = await reader.rows(
        "SELECT turn, calls::text FROM conversations WHERE user_id = %(id)s", {"id": user.id}
    )
    assert turn == 2
    assert sorted(json.loads(calls).values()) == [1, 2]  # of the second call only `execute` could know


@with_both_chats
@pytest.mark.usefixtures("environment")
async def test_a_chat_loses_a_tool_that_has_vanished(
    example: Callable[..., None],
    user: TestUser,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server_id = await user.add_tools(*TOOLS)
    loop = asyncio.get_running_loop()

    def vanish_after_the_first_answer(*arguments: Any) -> str:
        answered = answer(*arguments)
        asyncio.run_coroutine_threadsafe(user.push(server_id, TOOLS[1:]), loop).result(30)
        return answered

    module = sys.modules[example.__module__]
    answer: Callable[..., str] = module.answer
    monkeypatch.setattr(module, "answer", vanish_after_the_first_answer)
    printed = await chat(example, capsys, MESSAGE, "send a mail about it")
    found = [text for label, text in printed if label == "found"]
    assert found[0].startswith("get_forecast (now 1 tools, ")
    assert found[1].startswith("send_mail (now 1 tools, ")
    assert found[1].endswith(", 1 lost)")


@with_both_chats
@pytest.mark.usefixtures("environment")
async def test_the_model_of_a_chat_gets_the_error_of_a_tool_that_cannot_run(
    example: Callable[..., None], user: TestUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.add_tools(*TOOLS)
    printed = dict(await chat(example, capsys, MESSAGE))
    assert printed["result"].startswith("SERVER_CONNECTION_ERROR: ")
    assert "SERVER_CONNECTION_ERROR" in printed["model"]


async def test_the_model_gets_the_choices_if_several_tools_have_the_name(
    address: str, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = TOOLS
    await user.connect(mcp, "weather")
    await user.add_tools(*TOOLS, server="sailing")

    def run(name: str) -> tuple[str, bool]:
        with Toolscout(address, user.key) as toolscout:
            return run_tool(toolscout, {"id": "1", "type": "tool_use", "name": name, "input": {"place": "Oslo"}})

    advice, failed = await asyncio.to_thread(run, "get_forecast")
    assert advice.endswith("choose one of sailing.get_forecast, weather.get_forecast")
    assert failed
    assert mcp.calls == []
    await asyncio.to_thread(run, "weather.get_forecast")
    assert mcp.calls == [("get_forecast", {"place": "Oslo"})]


NOTHING = ("found", "nothing new (now 0 tools, 0 tokens)")


@pytest.mark.usefixtures("environment")
async def test_a_chat_without_tools_answers_without_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    printed = await chat(chat_backend.main, capsys, MESSAGE)
    assert printed == [("user", MESSAGE), NOTHING, ("model", "I have no tool for that.")]


@pytest.mark.usefixtures("environment")
async def test_a_chat_with_claude_has_a_tool_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    printed = await chat(anthropic_chat.main, capsys, MESSAGE)
    assert printed[:3] == [("user", MESSAGE), NOTHING, ("called", "get_date_of_today {}")]
    assert re.fullmatch(r"The tool says: \d{4}-\d\d-\d\d", printed[3][1])
