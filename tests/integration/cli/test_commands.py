"""The commands, as a terminal runs them, but in this process: on a Postgres beside which no service runs."""

import base64
import json
import os
import re
import sys
import textwrap
from pathlib import Path

import psycopg
import pytest

from app.cli import models
from app.cli.main import main
from tests.conftest import SECRET_KEY, tool
from tests.integration.cli.conftest import Command
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.mcp_server import FakeMcpServer
from tests.support.stdio_programs import MINIMAL_SERVER


def test_a_servers_life_from_a_terminal(command: Command, mcp: FakeMcpServer) -> None:
    assert command("key", "create", "--user", "ada").startswith("ts_user_")
    assert "no servers yet" in command("server", "list", "--user", "ada")
    mcp.tools = [tool("echo", "Gives back what it is given."), tool("shout")]
    mcp.progress["echo"] = 2
    mcp.on_call["shout"] = lambda _: {"content": [{"type": "text", "text": "\x1b[31mno"}], "isError": True}

    assert "2 added" in command("server", "add", "files", mcp.url, "--user", "ada", "--header", "X-Token=canary")
    assert "canary" in {request.headers.get("x-token") for request in mcp.requests}
    assert "2 tools" in command("server", "list", "--user", "ada")
    assert "echo" in command("discover", "echo", "--user", "ada")
    assert command("execute", "files.echo", '{"a": 1}', "--user", "ada").strip() == '{"a": 1}'
    assert command("execute", "files.shout", "--user", "ada", status=1).strip() == "\N{REPLACEMENT CHARACTER}[31mno"

    mcp.tools = [tool("echo", "Gives back what it is given."), tool("bad\0")]
    told = command("server", "reindex", "--user", "ada")
    assert "1 unchanged" in told
    assert "refused" in told
    mcp.tools = []
    told = command("server", "reindex", "files", "--user", "ada", status=1)
    assert "empty_listing" in told
    assert "it stays registered: `toolscout server reindex files` asks it again\n" in told
    told = command("server", "add", "files", mcp.url, "--user", "ada", status=1)
    assert told.endswith("a server named 'files': `toolscout server reindex files` asks it again")
    assert "removed" in command("server", "remove", "files", "--user", "ada")
    assert "no servers yet" in command("server", "list", "--user", "ada")


def test_labelled_messages_from_a_terminal(command: Command, mcp: FakeMcpServer, tmp_path: Path) -> None:
    command("key", "create", "--user", "lin")
    mcp.tools = [
        tool("get_forecast", "The weather forecast for a city, with rain and wind."),
        tool("read_file", "Read a text file from the disk."),
        tool("do"),
    ]
    command("server", "add", "things", mcp.url, "--user", "lin")
    labelled = tmp_path / "labelled.jsonl"
    labelled.write_text(
        """{"message": "weather forecast for Oslo", "tools": ["things.get_forecast"]}
        {"message": "read my notes.txt file", "tools": ["read_file", "things.no_such_tool"], "id": "notes"}
        {"message": "weather forecast for Rome", "tools": ["do"]}
        {"message": "sing me a song about love", "tools": []}"""
    )
    told = command("eval", str(labelled), "--suggest", "--limit", "1", "--user", "lin")
    assert "4 messages" in told
    assert "0.667   0.500   0.500    0.538   0.667" in told
    assert "notes: things.no_such_tool" in told
    assert "things.do: it ranks" in told
    assert "things.do: no description" in told

    shown = json.loads(command("eval", str(labelled), "--limit", "1", "--json", "--user", "lin"))
    assert shown["measures"]["hit_at_1"] == pytest.approx(2 / 3, abs=1e-3)
    assert shown["suggestions"] is None
    assert all(len(answer["ranked"]) <= 1 for answer in shown["answers"])

    labelled.write_text('{"message": "read", "tools": []}\n{"message": "read"}')
    assert "line 2: `tools` must be a list" in command("eval", str(labelled), "--user", "lin", status=1)


def test_tools_that_are_found_but_not_first_are_counted_and_a_handful_shown(
    command: Command, mcp: FakeMcpServer, tmp_path: Path
) -> None:
    command("key", "create", "--user", "amy")
    mcp.tools = [
        tool("get_forecast", "The weather forecast for a city."),
        tool("get_weather", "The weather in a city."),
    ]
    command("server", "add", "sky", mcp.url, "--user", "amy")
    labelled = tmp_path / "labelled.jsonl"
    right = '{"message": "get the weather forecast for a city", "tools": ["get_forecast"]}\n'
    wrong = right.replace('["get_forecast"]', '["get_weather"]')
    labelled.write_text(right + wrong * 5)
    told = command("eval", str(labelled), "--user", "amy")
    assert "5 found, but not at the first place:" in told
    assert told.count("sky.get_weather: at place 2, behind sky.get_forecast") == 5
    assert "more" not in told
    labelled.write_text(right + wrong * 7)
    told = command("eval", str(labelled), "--user", "amy")
    assert "7 found, but not at the first place:" in told
    assert told.count("sky.get_weather: at place 2, behind sky.get_forecast") == 5
    assert "and 2 more" in told
    labelled.write_text(right)
    assert "not at the first place" not in command("eval", str(labelled), "--user", "amy")


@pytest.fixture
def elsewhere(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which no service has run, with no Postgres but the embedded one."""
    for name in ("DATABASE_URL", "TOOLSCOUT_SECRET_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLSCOUT_DATA_DIR", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


@pytest.mark.parametrize(
    "arguments",
    [
        ["discover", "read a file"],
        ["key", "create", "--user", "ada"],
        ["server", "list"],
        ["model", "list"],
        ["selections", "export"],
        ["eval", "--suggest"],
        ["calibrate", "--reset"],
        ["doctor"],
    ],
)
def test_a_command_in_a_folder_without_data_names_it_and_makes_none(
    command: Command, elsewhere: Path, arguments: list[str]
) -> None:
    assert f"there is no data yet in {elsewhere}: " in command(*arguments, status=1)
    assert not elsewhere.exists()


def test_a_folder_without_data_is_begun_by_migrating(command: Command, elsewhere: Path) -> None:
    assert "the schema is at" in command("migrate")
    assert (elsewhere / "postgres").exists()
    assert command("key", "create", "--user", "ada").startswith("ts_user_")
    assert "FAIL" not in command("doctor")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["server", "add", "inside", "https://127.0.0.1/mcp"], "not a public address"),
        (["server", "add", "shell"], "give the URL of its MCP endpoint (`toolscout server add shell URL`"),
        (["server", "add", "shell", "--transport", "stdio"], "TOOLSCOUT_STDIO_SERVERS lists (it lists none)"),
        (["server", "add", "odd", "--transport", "sse"], "needs a URL"),
        (["server", "add", "odd", "https://example.com", "--header", "Host=elsewhere"], "set by the connection itself"),
        (["server", "add", "odd", "https://example.com", "--header", "nothing"], "NAME=VALUE"),
        (["server", "reindex", "nobody"], "no server named 'nobody'"),
        (["server", "remove", "nobody"], "no server named 'nobody'"),
        (["execute", "files.echo", "[]"], "must be a JSON object"),
        (["execute", "files.echo", "{bad"], "the text of the arguments is not valid JSON"),
        (["execute", "files.echo", "{bad"], "(column 2)"),
        (["execute", "files.echo", '{"a":\n bad}'], "(line 2, column 2)"),
        (["execute", "files.echo", "\udcff"], "the text of the arguments is not valid JSON"),
        (["execute", "files.nothing"], "this tool does not exist, or you may not use it"),
        (["execute", "nothing"], "or you may not use it: give it as SERVER.TOOL, or by its key"),
        (["discover", " "], "no text"),
        (["eval"], "give a file of labelled messages, or --suggest"),
        (["eval", "no-such-file"], "no-such-file cannot be read"),
        (["eval", os.devnull], "holds no messages"),
        (["eval", "--suggest", "--project", "unknown"], "no such project"),
        (["rotate-secrets"], "nothing to rotate from"),
        (["key", "create", "--kind", "service"], "service and admin keys take none"),
        (["key", "create", "--project", "unknown"], "no such project"),
        (["discover", "read a file", "--project", "unknown"], "no such project"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(command: Command, arguments: list[str], reason: str) -> None:
    command("key", "create", "--user", "ada")
    user = [] if arguments == ["rotate-secrets"] else ["--user", "ada"]
    assert reason in command(*arguments, *user, status=1)


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["server", "add", "files", "--nonsense"], "usage: toolscout server add "),
        (["discover", "read a file", "--nonsense"], "usage: toolscout discover "),
        (["server", "--nonsense", "list"], "usage: toolscout server "),
        (["--nonsense", "doctor"], "usage: toolscout [-h]"),
    ],
)
def test_an_option_that_a_command_does_not_know_is_answered_with_its_own_usage(
    arguments: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    told = capsys.readouterr().err
    assert told.startswith(usage)
    assert "unrecognized arguments: --nonsense" in told


def test_a_new_key_takes_over_and_doctor_sees_where_it_did_not(
    command: Command, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("key", "create", "--user", "eve")
    command("server", "add", "sealed", mcp.url, "--user", "eve", "--header", "X-Token=canary")
    assert "FAIL" not in command("doctor")

    monkeypatch.setenv("TOOLSCOUT_SECRET_KEY", base64.b64encode(os.urandom(32)).decode())
    assert "do not open with these keys" in command("doctor", status=1)
    monkeypatch.setenv("TOOLSCOUT_OLD_SECRET_KEYS", SECRET_KEY)
    assert "FAIL" not in command("doctor")
    told = command("rotate-secrets")
    assert "stored credentials sealed anew" in told
    monkeypatch.delenv("TOOLSCOUT_OLD_SECRET_KEYS")
    assert "FAIL" not in command("doctor")
    mcp.requests.clear()
    command("server", "reindex", "sealed", "--user", "eve")
    assert {request.headers["x-token"] for request in mcp.requests} == {"canary"}


def test_selections_from_a_terminal_are_a_file_for_eval(
    command: Command, database: str, mcp: FakeMcpServer, tmp_path: Path
) -> None:
    command("key", "create", "--user", "sue")
    mcp.tools = [tool("read_file", "Read a text file from the disk.")]
    command("server", "add", "things", mcp.url, "--user", "sue")
    assert command("selections", "export", "--user", "sue") == ""
    choice = {"tool_key": "a", "server_name": "things", "name": "read_file", "source": "semantic"}
    tools = json.dumps([choice | {"similarity": 0.8, "score": 1.0}])
    statement = "INSERT INTO selections VALUES ('sue', 'one', now(), 'read a text file', %s, 'hybrid', NULL, false)"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(statement, (tools,))
    exported = tmp_path / "exported.jsonl"
    exported.write_text(command("selections", "export", "--user", "sue"))
    assert json.loads(exported.read_text())["tools"] == ["things.read_file"]
    assert "1 messages" in command("eval", str(exported), "--user", "sue")


def test_a_models_life_from_a_terminal(
    command: Command,
    database: str,
    mcp: FakeMcpServer,
    embedding_server: FakeEmbeddingServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(models, "_GRACE_S", 0.0)
    monkeypatch.setenv("OPENAI_BASE_URL", embedding_server.base_url)
    command("key", "create", "--user", "max")
    mcp.tools = [tool("echo", "Gives back what it is given.")]
    command("server", "add", "echoes", mcp.url, "--user", "max")
    assert "is active already" in command("model", "use", "granite-embedding-30m-english", "--provider", "local")

    told = command("model", "use", "beta@48")
    assert "openai:beta@48 is active" in told
    [way_back] = re.findall(r"the way back: toolscout model use (\S+);", told)
    assert re.search(r"\* openai:beta@48 +48 dimensions +(\d+) of \1 tools", command("model", "list"))
    assert "echo" in command("discover", "echo", "--user", "max")
    assert "is active: let another one" in command("model", "drop", "beta@48", status=1)
    assert "settings name local:granite" in command("doctor", status=1).replace("the settings", "settings")

    assert f"{way_back} is active" in command("model", "use", way_back)
    assert "dropped, with all its vectors" in command("model", "drop", "beta@48")
    assert "beta@48" not in command("model", "list")
    told_last = "SELECT action, target FROM audit_events WHERE action LIKE 'model.%' ORDER BY at DESC LIMIT 3"
    with psycopg.connect(database) as connection:
        assert connection.execute(told_last).fetchall() == [
            ("model.drop", "openai:beta@48"),
            ("model.use", way_back),
            ("model.use", "openai:beta@48"),
        ]
    assert "there is no model 'beta@48'" in command("model", "drop", "beta@48", status=1)
    assert "there is no local model 'other' here, but: local:granite" in command(
        "model", "use", "other", "--provider", "local", status=1
    )
    embedding_server.mode = "zeros"
    assert "zero vector" in command("model", "use", "gamma@96", status=1)
    assert "gamma" not in command("model", "list")


@pytest.mark.parametrize("provider", ["local", "openai"])
def test_the_way_back_from_a_model_needs_none_of_its_settings(
    command: Command,
    fresh_database: str,
    embedding_server: FakeEmbeddingServer,
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
) -> None:
    monkeypatch.setattr(models, "_GRACE_S", 0.0)
    monkeypatch.setenv("DATABASE_URL", fresh_database)
    monkeypatch.setenv("OPENAI_BASE_URL", embedding_server.base_url)
    command("key", "create", "--user", "max")
    [way_back] = re.findall(r"the way back: toolscout model use (\S+);", command("model", "use", "beta@48"))
    command("model", "use", way_back)
    command("model", "use", "gamma@48")

    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.setenv("TOOLSCOUT_EMBEDDING_PROVIDER", provider)
    assert "needs OPENAI_API_KEY or OPENAI_BASE_URL" in command("discover", "echo", "--user", "max", status=1)
    assert "* openai:gamma@48 " in command("model", "list")
    assert "openai:beta@48: dropped" in command("model", "drop", "beta@48")
    assert f"{way_back} is active" in command("model", "use", way_back)
    assert "openai:gamma@48: dropped" in command("model", "drop", "gamma@48")
    assert "needs OPENAI_API_KEY or OPENAI_BASE_URL" in command("model", "use", "delta@48", status=1)


@pytest.fixture
def stdio(command: Command, fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's file, which is not there yet, beside a database of which doctor has nothing to say."""
    monkeypatch.setenv("DATABASE_URL", fresh_database)
    monkeypatch.setenv("TOOLSCOUT_STDIO_SERVERS", str(tmp_path / "stdio.json"))
    command("migrate")
    return tmp_path / "stdio.json"


def test_doctor_names_a_program_that_is_not_there(command: Command, stdio: Path) -> None:
    stdio.write_text('{"time": {"argv": ["no-such-program-here"]}}')
    assert "no program 'no-such-program-here' in the PATH of this process" in command("doctor", status=1)
    stdio.write_text('{"time": {"argv": ["/no/such/program"]}}')
    assert "no program '/no/such/program' that can be run\n" in command("doctor", status=1)
    stdio.write_text(json.dumps({"time": {"argv": [sys.executable]}}))
    assert "stdio" not in command("doctor")


def test_doctor_names_a_setting_that_is_misspelt_and_goes_on(
    command: Command, stdio: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdio.write_text("{}")
    monkeypatch.setenv("TOOLSCOUT_MAX_TOLS", "5")
    told = command("doctor", status=1)
    assert "TOOLSCOUT_MAX_TOLS is no setting: is TOOLSCOUT_MAX_TOOLS meant?" in told
    assert re.findall(r"^FAIL +(\w+)", told, re.MULTILINE) == ["misspelt"]


def test_doctor_tells_of_a_stdio_file_of_no_use_under_its_own_name_and_goes_on(command: Command, stdio: Path) -> None:
    for reason in ("No such file or directory", "}}: Input should be an object", "}}: Invalid JSON"):
        first, wrong, *others = command("doctor", status=1).splitlines()
        assert re.match(rf"FAIL  stdio +TOOLSCOUT_STDIO_SERVERS: .*{reason}", wrong)
        assert [line.split()[:2] for line in (first, *others)] == [
            ["ok", subject] for subject in ("settings", "database", "secrets", "embedder")
        ]
        stdio.write_text("{bad" if stdio.exists() else "[]")


def test_a_server_without_a_url_is_one_of_those_that_the_operator_has_listed(
    command: Command, stdio: Path, tmp_path: Path
) -> None:
    code = tmp_path / "server.py"
    code.write_text(textwrap.dedent(MINIMAL_SERVER).replace("BEFORE", "").replace("AFTER", ""))
    stdio.write_text(json.dumps({name: {"argv": [sys.executable, str(code)]} for name in ("time", "notes")}))
    command("key", "create", "--user", "joe")
    assert "TOOLSCOUT_STDIO_SERVERS lists (time, notes)" in command("server", "add", "tim", "--user", "joe", status=1)
    assert "1 added" in command("server", "add", "time", "--user", "joe")


def test_a_server_that_does_not_answer_is_not_waited_for_until_it_does(
    command: Command, stdio: Path, tmp_path: Path
) -> None:
    stdio.write_text(json.dumps({"gone": {"argv": [str(tmp_path / "nothing-there")]}}))
    command("key", "create", "--user", "kim")
    told = command("server", "add", "gone", "--user", "kim", status=1)
    assert "gone: failed (" in told
    assert "a service that runs asks it again by itself, as does `toolscout server reindex gone`\n" in told
    assert "gone" in command("server", "list", "--user", "kim")


def test_a_worker_without_work_is_told_which_setting_is_wrong(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ROLE", "worker")
    monkeypatch.setenv("TOOLSCOUT_INDEX_CONCURRENCY", "0")
    assert "TOOLSCOUT_INDEX_CONCURRENCY" in command("doctor", status=1)


def test_a_schema_that_is_newer_than_the_command_is_told_by_all_who_look(
    command: Command, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", fresh_database)
    command("migrate")
    assert "a newer one has made it" not in command("doctor")
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '2999_newer'")
    for name in ("migrate", "doctor"):
        assert "a newer one has made it" in command(name, status=1)
