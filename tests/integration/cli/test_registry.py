"""`toolscout server search` and `toolscout server add --from-registry`."""

import json
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.integration.cli.conftest import Command
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.registry_server import FakeRegistry, entry, remote, running_registry
from tests.support.terminal import FakeTerminal

CANARY = "canary-77aa01"
TOKEN = {"name": "Authorization", "value": "Bearer {token}", "isRequired": True, "isSecret": True, "description": "Key"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, mcp: FakeMcpServer) -> Iterator[FakeRegistry]:
    mcp.tools = [tool("get_forecast"), tool("get_alarm")]
    with running_registry() as running:
        monkeypatch.setenv("TOOLSCOUT_REGISTRY_URL", running.url)
        region = {"name": "X-Region", "isRequired": True, "choices": ["eu", "us"]}
        running.reset(
            entry("com.acme/weather", remote(mcp.url, headers=[TOKEN, region]), title="Weather"),
            entry("com.acme/local-weather"),
            entry("com.other/weather", remote(mcp.url), status="deprecated", message="use com.acme/weather"),
        )
        yield running


@pytest.fixture
def user(command: Command, request: pytest.FixtureRequest) -> list[str]:
    name = f"user-{abs(hash(request.node.nodeid))}"
    command("key", "create", "--user", name)
    return ["--user", name]


def test_a_search_lists_what_can_be_added_and_what_cannot(command: Command, registry: FakeRegistry) -> None:
    lines = command("server", "search", "weather").splitlines()
    assert [line.split()[:3] for line in lines[:3]] == [
        ["com.acme/local-weather", "1.0.0", "local"],
        ["com.acme/weather", "1.0.0", "remote"],
        ["com.other/weather", "1.0.0", "deprecated"],
    ]
    assert "toolscout server add --from-registry NAME" in lines[-1]
    assert "no servers found" in command("server", "search", "nothing-like-it")


def test_a_search_names_what_is_left_out(
    command: Command, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_REGISTRY_ALLOW", "com.acme/*")
    output = command("server", "search", "weather", "--limit", "1")
    assert "there are more" in output
    assert "1 more are not allowed by TOOLSCOUT_REGISTRY_ALLOW" in command("server", "search", "weather")
    assert "does not allow" in command("server", "add", "--from-registry", "com.other/weather", status=1)


def test_a_search_prints_json(command: Command, registry: FakeRegistry) -> None:
    answer = json.loads(command("server", "search", "com.acme/weather", "--json"))
    [found] = answer["items"]
    assert [each["name"] for each in found["remotes"][0]["inputs"]] == ["token", "X-Region"]


def test_without_a_registry_the_commands_say_what_to_set(command: Command) -> None:
    for arguments in (["search", "x"], ["add", "--from-registry", "com.acme/weather"]):
        assert "TOOLSCOUT_REGISTRY_URL" in command("server", *arguments, status=1)


def test_a_server_is_added_with_its_values(
    command: Command, registry: FakeRegistry, user: list[str], mcp: FakeMcpServer
) -> None:
    add = ["server", "add", "--from-registry", "com.acme/weather", *user]
    refused = command(*add, status=1)
    assert "variables.token: required: Key; headers.X-Region: required; give them with --header" in refused
    values = ["--variable", f"token={CANARY}", "--header", "X-Region: eu"]
    output = command(*add, *values)
    assert output.startswith("weather ")
    assert "weather: 2 added" in output
    assert CANARY not in output
    assert {each.headers["authorization"] for each in mcp.requests} == {f"Bearer {CANARY}"}
    assert "forecasts  " in command(*add[:2], "forecasts", *add[2:], *values)


def test_a_deprecated_server_is_added_with_a_note(command: Command, registry: FakeRegistry, user: list[str]) -> None:
    output = command("server", "add", "--from-registry", "com.other/weather", *user)
    assert "note: its publisher has deprecated it: use com.acme/weather" in output
    assert "weather: 2 added" in output


def test_missing_values_are_asked_for_on_a_terminal(
    command: Command, registry: FakeRegistry, user: list[str], mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, asked = FakeTerminal(), []

    def answer(value: str) -> Callable[[str], str]:
        def ask(prompt: str) -> str:
            asked.append(prompt)
            return value

        return ask

    monkeypatch.setattr(sys, "stdin", FakeTerminal())
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("getpass.getpass", answer(CANARY))
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", answer("us"))
    output = command("server", "add", "--from-registry", "com.acme/weather", *user)
    sent = {(each.headers["authorization"], each.headers["x-region"]) for each in mcp.requests}
    assert sent == {(f"Bearer {CANARY}", "us")}
    shown = terminal.getvalue() + output + "".join(asked)
    assert "token: Key" in shown
    assert "X-Region (eu, us)" in shown
    assert CANARY not in shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give the server's NAME"),
        (["x", "https://x.example.com", "--variable", f"a={CANARY}"], "--variable needs --from-registry"),
        (["--from-registry", "com.acme/weather", "--variable", CANARY], "--variable takes NAME=VALUE"),
        (["--from-registry", "com.acme/weather", "--transport", "sse"], "leave --transport out"),
        (["--from-registry", "com.acme/local-weather"], "on one's own computer"),
        (["--from-registry", "weather"], "has the form `io.github.user/weather`"),
        (["--from-registry", "com.acme/unknown"], "the registry has no server of that name"),
        (["x", "https://elsewhere.example.com", "--from-registry", "com.acme/weather"], "no remote with that URL"),
    ],
)
def test_what_cannot_be_added_says_why(
    command: Command, registry: FakeRegistry, arguments: list[str], reason: str
) -> None:
    output = command("server", "add", *arguments, status=1)
    assert reason in output
    assert CANARY not in output


def test_doctor_says_whether_the_registry_answers(command: Command, registry: FakeRegistry) -> None:
    assert f"{registry.url} answers" in command("doctor")
    registry.mode = "status"
    assert "the registry answered with status 503" in command("doctor")
