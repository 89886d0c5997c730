"""Tests of the examples for agent frameworks with the fake model, the real application and a real MCP server."""

import asyncio
import subprocess
import sys

import pytest

from examples import langgraph_tool_search, openai_agents
from tests.support.clients import TestUser
from tests.support.mcp_server import FakeMcpServer
from tests.support.paths import ROOT
from tests.support.weather_server import DELETE_MESSAGE, DELETE_STATION, MESSAGE, add_weather_tools


@pytest.fixture(autouse=True)
async def _environment(address: str, user: TestUser, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with tools that run, and without a key of a model provider."""
    await user.connect(add_weather_tools(mcp), "weather")
    monkeypatch.setenv("TOOLSCOUT_URL", address)
    monkeypatch.setenv("TOOLSCOUT_KEY", user.key)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "clients/python"))
    for name in ("OPENAI_API_KEY", "LITELLM_MODEL"):
        monkeypatch.delenv(name, raising=False)


def run_example(name: str, *messages: str) -> list[tuple[str, str]]:
    """Run it in a process of its own, and return the label and the text of each printed line."""
    command = [sys.executable, "-W", "error", "-m", f"examples.{name}", *messages]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return [(line[:11].strip(), line[11:]) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["openai_agents", "litellm_hook"])
async def test_the_model_calls_the_tools_that_are_found_for_each_message(name: str, mcp: FakeMcpServer) -> None:
    lines = await asyncio.to_thread(run_example, name, MESSAGE, "send a mail to somebody")
    printed = [line for line in lines if line[0] not in ("found", "offered")]
    assert printed == [
        ("user", MESSAGE),
        ("called", 'get_forecast {"place": "Oslo"}'),
        ("result", "Oslo: snow"),
        ("model", "The tool says: Oslo: snow"),
        ("user", "send a mail to somebody"),
        ("called", "send_mail {}"),
        ("result", "The tool failed: no such address"),
        ("model", "The tool says: The tool failed: no such address"),
    ]
    [first, *_] = [text for label, text in lines if label in ("found", "offered")]
    assert first.startswith("get_forecast")
    assert mcp.calls == [("get_forecast", {"place": "Oslo"}), ("send_mail", {})]


async def test_the_model_of_a_graph_searches_for_its_tools(
    mcp: FakeMcpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    # in this process: importing LangGraph warns
    await asyncio.to_thread(langgraph_tool_search.main, MESSAGE, "send a mail to somebody")
    lines = capsys.readouterr().out.splitlines()
    searches = [line for line in lines if line.startswith("result     Available tools: ")]
    assert len(searches) == 2
    assert [line for line in lines if line not in searches] == [
        f"user       {MESSAGE}",
        f'called     retrieve_tools {{"query": "{MESSAGE}"}}',
        'called     get_forecast {"place": "Oslo"}',
        "result     Oslo: snow",
        "model      The tool says: Oslo: snow",
        "user       send a mail to somebody",
        'called     retrieve_tools {"query": "send a mail to somebody"}',
        "called     send_mail {}",
        "result     The tool failed: no such address (an error)",
        "model      The tool says: The tool failed: no such address",
    ]
    assert mcp.calls == [("get_forecast", {"place": "Oslo"}), ("send_mail", {})]


@pytest.mark.parametrize("reply", ["y", "n"])
async def test_a_destructive_call_of_an_agent_waits_for_the_user(
    reply: str, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def answer(question: str) -> str:
        questions.append(question)
        return reply

    monkeypatch.setattr("builtins.input", answer)
    await asyncio.to_thread(openai_agents.main, DELETE_MESSAGE)
    assert questions == [f'run {DELETE_STATION["name"]} {{"place": "Oslo"}}? [y/N] ']
    assert [name for name, _ in mcp.calls] == (["delete_station"] if reply == "y" else [])
