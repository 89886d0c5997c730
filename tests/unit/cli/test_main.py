"""The `toolscout` command: its contract, its help, and what it imports."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup

from app import __version__
from app.cli.group import LazyCommand
from app.cli.main import build_cli, main
from app.settings import Settings
from tests.support.paths import ROOT

CONTRACT = {
    "serve": [],
    "reload": [],
    "migrate": ["--to", "--distributed"],
    "doctor": [],
    "key create": ["--kind", "--user", "--project", "--name", "--days"],
    "key list": ["--user"],
    "key revoke": ["KEY", "--yes"],
    "user list": [],
    "user delete": ["ID", "--yes"],
    "rotate-secrets": [],
    "server add": [
        "[NAME]",
        "[URL]",
        "--transport",
        "--header...",
        "--from-registry",
        "--variable...",
        "--description",
        "--user",
    ],
    "server search": ["[WORD]", "--limit", "--json"],
    "server import": ["FILE", "--set...", "--user"],
    "server list": ["--user"],
    "server connect": ["NAME", "--wait", "--user"],
    "server disconnect": ["NAME", "--user"],
    "server remove": ["NAME", "--user"],
    "server reindex": ["[NAME]...", "--force", "--user"],
    "shared-server add": [
        "NAME",
        "[URL]",
        "--everyone",
        "--group...",
        "--user...",
        "--credentials",
        "--transport",
        "--header...",
        "--description",
    ],
    "shared-server list": [],
    "shared-server show": ["NAME"],
    "shared-server update": [
        "NAME",
        "--everyone",
        "--group...",
        "--user...",
        "--no-groups",
        "--no-users",
        "--credentials",
    ],
    "shared-server remove": ["NAME", "--yes"],
    "shared-server reindex": ["NAME", "--force"],
    "shared-server connect": ["NAME", "--wait"],
    "shared-server disconnect": ["NAME"],
    "tool show": ["TOOL", "--user"],
    "tool approve": ["TOOL...", "--user"],
    "tool edit": ["TOOL", "--description", "--title", "--annotations", "--reset", "--user"],
    "categories list": ["--user"],
    "categories rename": ["CATEGORY", "[NAME]", "--user"],
    "categories remake": ["--user"],
    "discover": ["MESSAGE", "--limit", "--strategy", "--fill", "--max-tokens", "--project", "--user"],
    "execute": ["TOOL", "[ARGUMENTS]", "--timeout", "--yes", "--user"],
    "eval": ["[FILE]", "--limit", "--project", "--suggest", "--json", "--user"],
    "calibrate": ["[FILE]", "--dry-run", "--reset", "--user", "--for-all"],
    "examples list": ["TOOL", "--user"],
    "examples set": ["TOOL", "MESSAGE...", "--user"],
    "examples forget": ["[TOOL]", "--source", "--yes", "--user"],
    "selections export": ["--user"],
    "model list": [],
    "model use": ["NAME", "--provider", "--incomplete"],
    "model drop": ["NAME"],
}
"""Arguments and options of each command. Scripts rely on them: add to them, but do not rename or remove any."""

HEAVY = ["sqlalchemy", "fastapi", "numpy", "mcp", "openai", "pydantic_settings"]


def load_commands() -> dict[str, Any]:
    """Return each command by its full name, with its module imported."""
    loaded: dict[str, Any] = {}
    for name, lazy in build_cli().commands.items():
        assert isinstance(lazy, LazyCommand)
        command = lazy.load()
        if isinstance(command, TyperGroup):
            loaded |= {f"{name} {child}": nested for child, nested in command.commands.items()}
        else:
            loaded[name] = command
    return loaded


def describe(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        [option] = parameter.opts
        return f"{option}..." if parameter.multiple else option
    name = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
    return f"{name}..." if parameter.nargs == -1 else name


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_all_commands_take_the_same_arguments_and_options_as_before() -> None:
    described = {
        name: [describe(parameter) for parameter in command.params] for name, command in load_commands().items()
    }
    assert {name: sorted(parameters) for name, parameters in described.items()} == {
        name: sorted(parameters) for name, parameters in CONTRACT.items()
    }
    for name, parameters in CONTRACT.items():
        assert [each for each in described[name] if each[0] != "-"] == [each for each in parameters if each[0] != "-"]


def test_the_list_of_commands_says_the_same_as_the_commands() -> None:
    for lazy in build_cli().commands.values():
        assert isinstance(lazy, LazyCommand)
        command = lazy.load()
        assert command.help.partition("\n\n")[0].replace("\n", " ") == lazy.help


def test_every_command_argument_and_option_has_a_help_text() -> None:
    for name, command in load_commands().items():
        assert command.help.endswith("."), name
        for parameter in command.params:
            assert parameter.help.endswith("."), f"{name} {parameter.name}"


def test_help_imports_no_heavy_module() -> None:
    code = f"""
import json, sys
from app.cli.main import main
try:
    main(["--help"])
finally:
    loaded = [name for name in {HEAVY} if name in sys.modules]
    print(json.dumps(loaded), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Find, for each chat message" in done.stdout
    assert json.loads(done.stderr) == []


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_is_plain_text_in_a_pipe(option: str) -> None:
    done = run(option, FORCE_COLOR="1", GITHUB_ACTIONS="1")
    assert done.returncode == 0
    assert "\033" not in done.stdout
    assert re.findall(r"^  ([a-z-]+) ", done.stdout.partition("Commands:")[2], re.MULTILINE) == list(
        build_cli().commands
    )


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"toolscout {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "usage", "message"),
    [
        (["server", "add", "files", "--nonsense"], "toolscout server add ", "No such option: --nonsense"),
        (["discover", "read a file", "--nonsense"], "toolscout discover ", "No such option: --nonsense"),
        (["server", "--nonsense", "list"], "toolscout server ", "No such option: --nonsense"),
        (["--nonsense", "doctor"], "toolscout [OPTIONS] ", "No such option: --nonsense"),
        (["servr"], "toolscout [OPTIONS] ", "No such command 'servr'. Did you mean 'server', 'serve', 'user'?"),
        (["server", "lst"], "toolscout server ", "No such command 'lst'. Did you mean 'list'?"),
        (["serve", "now"], "toolscout serve ", "unexpected extra argument"),
        (["discover"], "toolscout discover ", "Missing argument 'MESSAGE'"),
        (["discover", "x", "--limit", "51"], "toolscout discover ", "Invalid value for '--limit'"),
        (["discover", "x", "--strategy", "magic"], "toolscout discover ", "Invalid value for '--strategy'"),
        (["key", "create", "--days", "0"], "toolscout key create ", "Invalid value for '--days'"),
        (["key", "create", "--kind", "root"], "toolscout key create ", "Invalid value for '--kind'"),
        (["model", "use", "x", "--provider", "me"], "toolscout model use ", "Invalid value for '--provider'"),
    ],
)
def test_a_wrong_command_line_is_answered_with_the_usage_of_its_command(
    arguments: list[str], usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    printed = capsys.readouterr().err
    assert printed.startswith(f"Usage: {usage}")
    assert message in printed


@pytest.mark.parametrize("arguments", [[], ["key"], ["server"], ["model"], ["examples"], ["selections"]])
def test_a_group_without_a_command_shows_its_help_and_fails(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "Commands:" in capsys.readouterr().err


def test_a_revision_may_begin_with_a_dash() -> None:
    assert load_commands()["migrate"].make_context("migrate", ["--to", "-1"]).params["revision"] == "-1"


def test_invalid_settings_are_named_without_a_traceback(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TOOLSCOUT_REINDEX_EVERY": "often"}
    (tmp_path / ".env").write_text("TOOLSCOUT_PORT=many\nTOOLSCOUT_OUTBOUND_ALLOW=nowhere\n")
    done = subprocess.run(
        [sys.executable, "-m", "app", "doctor"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    first, *lines = done.stderr.splitlines()
    assert first == "toolscout: invalid settings:"
    assert {line.partition(":")[0].strip() for line in lines} == {
        "TOOLSCOUT_PORT",
        "TOOLSCOUT_OUTBOUND_ALLOW",
        "TOOLSCOUT_REINDEX_EVERY",
    }
    assert any("'nowhere' is not host:port" in line and "Value error" not in line for line in lines)


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def interrupt(_: Settings) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.cli.context.configure_logging", lambda *_: None)
    monkeypatch.setattr("app.cli.doctor.set_log_level", lambda *_: None)
    monkeypatch.setattr("app.cli.doctor.check_installation", interrupt)
    with pytest.raises(SystemExit, match="130"):
        main(["doctor"])


def test_a_closed_pipe_ends_the_command_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "app", "--help"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_shell_completion_lists_commands_without_importing_them() -> None:
    done = run(_TOOLSCOUT_COMPLETE="complete_bash", COMP_WORDS="toolscout ser", COMP_CWORD="1")
    assert done.returncode == 0
    assert done.stdout.split() == ["serve", "server"]


def test_shell_completion_knows_the_options_of_a_command() -> None:
    done = run(_TOOLSCOUT_COMPLETE="complete_bash", COMP_WORDS="toolscout server add --tr", COMP_CWORD="3")
    assert done.stdout.split() == ["--transport"]
