"""`toolscout server import`."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import Command
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.terminal import FakeTerminal

CANARY = "canary-0b77c1"
WriteConfig = Callable[[Any], str]


@pytest.fixture
def user(command: Command, request: pytest.FixtureRequest) -> list[str]:
    name = f"user-{abs(hash(request.node.nodeid))}"
    command("key", "create", "--user", name)
    return ["--user", name]


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    def write(config: Any) -> str:
        path = tmp_path / "mcp.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return str(path)

    return write


def test_a_file_with_comments_is_imported_and_its_tools_are_indexed(
    command: Command, user: list[str], mcp: FakeMcpServer, write_config: WriteConfig
) -> None:
    mcp.tools = [tool("echo"), tool("shout")]
    file = write_config(
        f"""{{
          // servers of the team
          "servers": {{
            "files": {{"type": "http", "url": "{mcp.url}", "headers": {{"X-Token": "{CANARY}"}}, "dev": {{}},}},
            "local": {{
              "command": "npx", "args": ["-y", "server-x", "--token", "{CANARY}"], "env": {{"A": "{CANARY}"}}
            }},
          }},
        }}"""
    )
    output = command("server", "import", file, *user)
    assert "files: 2 added" in output
    assert "\nimported  files                     not imported: `dev`\n" in output
    assert "\nskipped   local                     it runs a program, which only the operator can allow" in output
    snippet = json.loads(output[output.index("{\n") :])
    assert snippet == {"local": {"argv": ["npx", "-y", "server-x", "--token", "…"], "env": {"A": "…"}}}
    assert CANARY not in output
    assert {request.headers["x-token"] for request in mcp.requests} == {CANARY}
    assert "2 tools" in command("server", "list", *user)

    again = command("server", "import", file, *user)
    assert "skipped   files                     there is already a server named 'files'" in again


def test_a_configuration_is_read_from_standard_input(
    command: Command, user: list[str], mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mcp.tools = [tool("echo")]
    body = json.dumps({"mcpServers": {"files": {"url": mcp.url}}}).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
    assert "files: 1 added" in command("server", "import", "-", *user)


def test_values_come_from_options_and_from_the_environment(
    command: Command,
    user: list[str],
    mcp: FakeMcpServer,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mcp.tools = [tool("echo")]
    headers = {"X-Token": "${env:IMPORT_TOKEN}", "X-Team": "${input:team}", "X-Size": "${IMPORT_SIZE:-small}"}
    file = write_config({"servers": {"files": {"url": mcp.url, "headers": headers}}})
    monkeypatch.setenv("IMPORT_TOKEN", CANARY)
    monkeypatch.setenv("team", "never read for an input")
    refused = command("server", "import", file, *user, status=1)
    assert "skipped   files                     there is no value for `team`: give it in `values` (--set" in refused
    command("server", "import", file, "--set", "team=a=b", *user)
    names = ("x-token", "x-team", "x-size")
    sent = {tuple(request.headers[name] for name in names) for request in mcp.requests}
    assert sent == {(CANARY, "a=b", "small")}


def test_missing_values_are_asked_for_on_a_terminal(
    command: Command,
    user: list[str],
    mcp: FakeMcpServer,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mcp.tools = [tool("echo")]
    inputs = [
        {"id": "key", "type": "promptString", "description": "The key", "password": True},
        {"id": "team", "type": "pickString", "options": ["blue", "red"], "default": "blue"},
    ]
    headers = {"X-Token": "${input:key}", "X-Team": "${input:team}"}
    file = write_config({"servers": {"files": {"url": mcp.url, "headers": headers}}, "inputs": inputs})
    terminal = FakeTerminal()
    asked: list[str] = []

    def answer(value: str) -> Callable[[str], str]:
        def ask(prompt: str) -> str:
            asked.append(prompt)
            return value

        return ask

    monkeypatch.setattr(sys, "stdin", FakeTerminal())
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("getpass.getpass", answer(CANARY))
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", answer(""))
    output = command("server", "import", file, *user)
    assert "imported  files" in output
    assert {(each.headers["x-token"], each.headers["x-team"]) for each in mcp.requests} == {(CANARY, "blue")}
    shown = terminal.getvalue() + output + "".join(asked)
    assert "key: The key" in shown
    assert "team (blue, red) [blue]" in shown
    assert CANARY not in shown


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        ("{bad", [], "mcp.json is not valid JSON"),
        ({"mcpServers": []}, [], "`mcpServers` must be an object"),
        ({}, [], "under `mcpServers`, `servers`, `mcp.servers` or `context_servers`"),
        ({"mcpServers": {}}, ["--set", CANARY], "--set takes NAME=VALUE"),
        ({"mcpServers": {}}, ["--set", f"X={CANARY}"], "unknown placeholder `X`: the configuration has none"),
    ],
)
def test_a_file_that_cannot_be_imported_says_why(
    command: Command, write_config: WriteConfig, config: Any, options: list[str], reason: str
) -> None:
    output = command("server", "import", write_config(config), *options, status=1)
    assert reason in output
    assert CANARY not in output


def test_a_file_that_cannot_be_read_is_named(command: Command, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.json")
    assert f"{missing} cannot be read" in command("server", "import", missing, status=1)


def test_the_exit_code_tells_whether_something_is_left_to_do(
    command: Command, user: list[str], mcp: FakeMcpServer, write_config: WriteConfig
) -> None:
    mcp.tools = [tool("echo")]
    assert "the file has no servers" in command("server", "import", write_config({"mcpServers": {}}), *user)
    program = write_config({"mcpServers": {"local": {"command": "npx"}}})
    assert "skipped" in command("server", "import", program, *user)
    inside = write_config({"mcpServers": {"inside": {"url": "https://127.0.0.1/mcp"}, "files": {"url": mcp.url}}})
    output = command("server", "import", inside, *user)
    assert "imported  files" in output
    assert "skipped   inside                    127.0.0.1 is not a public address" in output
    refused = write_config({"mcpServers": {"gone": {"url": mcp.url.replace("/mcp", "/nothing-here")}}})
    output = command("server", "import", refused, *user, status=1)
    assert "gone: failed (" in output
    assert "imported  gone" in output
