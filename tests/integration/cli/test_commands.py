"""The commands, run in this process on a Postgres that no service uses."""

import base64
import json
import os
import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import psycopg
import pytest

from app.cli import models
from app.embeddings import local_models
from app.embeddings.local_models import find_shipped_model
from tests.integration.cli.conftest import Command
from tests.support.calls import raise_disk_full
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import SECRET_KEY, outbound_allow, tool
from tests.support.local_model import make_base_model, write_adapter
from tests.support.mcp_server import FakeMcpServer, Fault, status

STDIO_SERVER = """
    import json, sys

    RESULTS = {
        "initialize": {
            "protocolVersion": "2025-11-25", "serverInfo": {"name": "s", "version": "1"}, "capabilities": {"tools": {}}
        },
        "tools/list": {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]},
    }
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            result = RESULTS.get(request["method"])
            error = {"code": -32601, "message": "Method not found"}
            response = {"error": error} if result is None else {"result": result}
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **response}), flush=True)
"""


def test_new_tools_are_approved_together(command: Command, mcp: FakeMcpServer, database: str) -> None:
    mcp.tools = [tool("echo")]
    command("key", "create", "--user", "holder")
    command("server", "add", "files", mcp.url, "--user", "holder")
    mcp.tools = [tool("echo"), tool("wipe"), tool("shred")]
    command("server", "reindex", "--user", "holder")

    def read_states() -> dict[str, str]:
        with psycopg.connect(database) as owner:
            return dict(owner.execute("SELECT name, state FROM mcp_tools WHERE user_id = 'holder'").fetchall())

    assert read_states() == {"echo": "approved", "wipe": "new", "shred": "new"}
    assert "2 approved" in command("tool", "approve", "files.wipe", "files.shred", "--user", "holder")
    assert set(read_states().values()) == {"approved"}
    command("server", "remove", "files", "--user", "holder")


def test_a_destructive_call_is_confirmed_by_an_option_or_an_answer(
    command: Command, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_CONFIRM_DESTRUCTIVE", "1")
    mcp.tools = [tool("wipe", annotations={"destructiveHint": True})]
    command("key", "create", "--user", "wiper")
    command("server", "add", "files", mcp.url, "--user", "wiper")
    call = "execute", "files.wipe", '{"a": 1}', "--user", "wiper"
    assert "confirm the call with --yes" in command(*call, status=1)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: False)
    assert "nothing was run" in command(*call, status=1)
    assert mcp.calls == []
    monkeypatch.setattr("typer.confirm", lambda _question: True)
    command(*call)
    command(*call, "--yes")
    assert mcp.calls == [("wipe", {"a": 1})] * 2
    command("server", "remove", "files", "--user", "wiper")


def test_a_server_is_added_used_reindexed_and_removed(command: Command, mcp: FakeMcpServer) -> None:
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
    mcp.on_call["echo"] = raise_disk_full
    failed = command("execute", "files.echo", "--user", "ada", status=1)
    assert failed.startswith("toolscout: files.echo: "), failed

    mcp.tools = [tool("echo", "Gives back what it is given."), tool("bad\0")]
    output = command("server", "reindex", "--user", "ada")
    assert "1 unchanged" in output
    assert "refused" in output
    mcp.tools = []
    output = command("server", "reindex", "files", "--user", "ada", status=1)
    assert "empty_listing" in output
    assert "the server stays registered; to retry, run `toolscout server reindex files --user ada`\n" in output
    output = command("server", "add", "files", mcp.url, "--user", "ada", status=1)
    advice = "to index it again, run `toolscout server reindex files --user ada`; to add another one, give another NAME"
    assert output.endswith(f"a server named 'files'; {advice}")
    assert "removed" in command("server", "remove", "files", "--user", "ada")
    assert "no servers yet" in command("server", "list", "--user", "ada")


def test_a_new_server_that_wants_a_sign_in_is_no_failure_and_a_listing_without_one_is(
    command: Command, mcp: FakeMcpServer
) -> None:
    mcp.fault = Fault(status(401, headers={"WWW-Authenticate": 'Bearer scope="tools:read"'}))
    command("key", "create", "--user", "pat")
    sign_in = "it wants you to sign in: run `toolscout server connect notes --user pat`, or Connect in the console\n"
    assert f"notes: registered; {sign_in}" in command("server", "add", "notes", mcp.url, "--user", "pat")
    output = command("server", "reindex", "notes", "--user", "pat", status=1)
    assert f"notes: not listed; {sign_in}" in output


def test_a_url_that_ends_in_sse_needs_no_transport(
    command: Command, sse_mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_OUTBOUND_ALLOW", outbound_allow(sse_mcp))
    sse_mcp.tools = [tool("echo")]
    command("key", "create", "--user", "sam")
    assert "1 added" in command("server", "add", "guessed", sse_mcp.url, "--user", "sam")
    output = command("server", "add", "given", sse_mcp.url, "--transport", "http", "--user", "sam", status=1)
    assert "an older server may need the transport `sse`" in output
    assert "an older server may need the transport `sse`" in command("server", "list", "--user", "sam")


@pytest.mark.parametrize(
    ("written", "value"),
    [("X-Token: one=two: 3", "one=two: 3"), ("X-Token:one", "one"), ("X-Token=one: two=3", "one: two=3")],
)
def test_a_header_is_written_with_a_colon_or_an_equals_sign(
    command: Command, mcp: FakeMcpServer, written: str, value: str
) -> None:
    command("key", "create", "--user", "tom")
    mcp.tools = [tool("echo")]
    command("server", "add", "files", mcp.url, "--transport", "http", "--header", written, "--user", "tom")
    assert {request.headers["x-token"] for request in mcp.requests} == {value}
    assert "streamable_http" in command("server", "list", "--user", "tom")
    command("server", "remove", "files", "--user", "tom")


def test_labelled_messages_are_evaluated(command: Command, mcp: FakeMcpServer, tmp_path: Path) -> None:
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
    output = command("eval", str(labelled), "--suggest", "--limit", "1", "--user", "lin")
    assert "4 messages" in output
    assert re.search(r"^[01]\.\d tools in a response on average$", output, re.MULTILINE)
    assert re.search(r"of the messages that need no tool got none; on average they got [01]\.0$", output, re.MULTILINE)
    assert re.search(r"^[\d.]+% of the responses have low confidence$", output, re.MULTILINE)
    assert "0.667   0.500   0.500    0.538   0.667" in output
    assert "notes: things.no_such_tool" in output
    assert "things.do: it ranks" in output
    assert "things.do: no description" in output

    response = json.loads(command("eval", str(labelled), "--limit", "1", "--json", "--user", "lin"))
    assert response["measures"]["hit_at_1"] == pytest.approx(2 / 3, abs=1e-3)
    assert response["suggestions"] is None
    assert all(len(answer["ranked"]) <= 1 for answer in response["answers"])

    labelled.write_text('{"message": "read", "tools": []}\n{"message": "read"}')
    assert "line 2: `tools` must be a list" in command("eval", str(labelled), "--user", "lin", status=1)


def test_discover_prints_the_confidence_and_fills_the_answer(command: Command, mcp: FakeMcpServer) -> None:
    command("key", "create", "--user", "kim")
    mcp.tools = [
        tool("send_message", "Send a direct message to a person."),
        tool("post_message", "Post a message to a channel."),
        tool("get_forecast", "The weather of the coming days."),
        tool("create_invoice", "Create an invoice for a customer."),
        tool("resize_image", "Change the size of an image."),
    ]
    command("server", "add", "chat", mcp.url, "--user", "kim")
    message = "send a direct message to Kim"
    short = command("discover", message, "--user", "kim")
    assert "\nhigh confidence\n5 tools searched (hybrid), " in short
    filled = command("discover", message, "--fill", "--user", "kim")
    assert short.count("chat.") < filled.count("chat.")
    assert "no tool fits this message\n" in command("discover", "thanks, that is all", "--user", "kim")
    command("key", "create", "--user", "kom")
    assert "there are no tools to search: add a server, or check" in command("discover", message, "--user", "kom")
    tight = command("discover", message, "--max-tokens", "1", "--user", "kim")
    assert "chat." not in tight
    assert re.search(r"^no room for \d+ more tools?: raise max_tokens$", tight, re.MULTILINE)
    assert "no room" not in filled
    words = command("discover", "message plonk frobnicate xyzzy", "--strategy", "bm25", "--user", "kim")
    assert "\nlow confidence: the best 2\n" in words


def test_a_glossary_file_adds_words_and_a_wrong_line_is_named(
    command: Command, mcp: FakeMcpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("key", "create", "--user", "zoe")
    mcp.tools = [tool("refund_payment", "Give customers their money back.")]
    command("server", "add", "shop", mcp.url, "--user", "zoe")
    discover = ["discover", "zorp", "--strategy", "bm25", "--user", "zoe"]
    assert "shop.refund_payment" not in command(*discover)
    glossary = tmp_path / "glossary.txt"
    monkeypatch.setenv("TOOLSCOUT_GLOSSARY_FILE", str(glossary))
    assert f"cannot read the glossary {glossary}" in command(*discover, status=1)
    glossary.write_text("# ours\nzorp, zorping = refund payment\n")
    assert "shop.refund_payment" in command(*discover)
    glossary.write_text("# ours\nzorp: refund payment\n")
    assert f"glossary {glossary}: line 2 must be `phrase, phrase = plain words`" in command(*discover, status=1)


def test_tools_that_are_not_ranked_first_are_counted_and_five_are_listed(
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
    output = command("eval", str(labelled), "--user", "amy")
    assert "5 found, but not ranked first:" in output
    assert output.count("sky.get_weather: at rank 2, behind sky.get_forecast") == 5
    assert "more" not in output
    labelled.write_text(right + wrong * 7)
    output = command("eval", str(labelled), "--user", "amy")
    assert "7 found, but not ranked first:" in output
    assert output.count("sky.get_weather: at rank 2, behind sky.get_forecast") == 5
    assert "and 2 more" in output
    labelled.write_text(right)
    assert "not ranked first" not in command("eval", str(labelled), "--user", "amy")


@pytest.fixture
def empty_data_dir(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder for the embedded Postgres in which no service has run."""
    for name in ("DATABASE_URL", "TOOLSCOUT_SECRET_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLSCOUT_DATA_DIR", str(tmp_path / "empty"))
    return tmp_path / "empty"


@pytest.mark.parametrize(
    "arguments",
    [
        ["discover", "read a file"],
        ["key", "create", "--user", "ada"],
        ["key", "list"],
        ["user", "list"],
        ["server", "list"],
        ["model", "list"],
        ["selections", "export"],
        ["eval", "--suggest"],
        ["calibrate", "--reset"],
        ["doctor"],
    ],
)
def test_a_command_without_a_data_folder_names_it_and_does_not_create_it(
    command: Command, empty_data_dir: Path, arguments: list[str]
) -> None:
    assert f"no database found in {empty_data_dir}: " in command(*arguments, status=1)
    assert not empty_data_dir.exists()


def test_migrate_creates_the_data_folder(command: Command, empty_data_dir: Path) -> None:
    assert "the schema is at" in command("migrate")
    assert (empty_data_dir / "postgres").exists()
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
        (["server", "add", "odd", "https://example.com", "--header", "canary"], "'Name: value' or NAME=VALUE"),
        (["server", "add", "odd", "https://example.com", "--header", ": canary"], "'Name: value' or NAME=VALUE"),
        (["server", "reindex", "nobody"], "no server named 'nobody'"),
        (["server", "remove", "nobody"], "no server named 'nobody'"),
        (["execute", "files.echo", "[]"], "must be a JSON object"),
        (["execute", "files.echo", "{bad"], "the text of the arguments is not valid JSON"),
        (["execute", "files.echo", "{bad"], "(column 2)"),
        (["execute", "files.echo", '{"a":\n bad}'], "(line 2, column 2)"),
        (["execute", "files.echo", "\udcff"], "the text of the arguments is not valid JSON"),
        (["execute", "files.nothing"], "this tool does not exist, or you may not use it"),
        (["execute", "nothing"], "or you may not use it: give it as SERVER.TOOL, or by its key"),
        (["discover", " "], "the message has no text"),
        (["eval"], "give a file of labelled messages, or --suggest"),
        (["eval", "no-such-file"], "no-such-file cannot be read"),
        (["eval", os.devnull], "holds no messages"),
        (["eval", "--suggest", "--project", "unknown"], "unknown project `unknown`: give the id or the name"),
        (["rotate-secrets"], "nothing to rotate from"),
        (["key", "create", "--kind", "service"], "service and admin keys take none"),
        (["key", "create", "--project", "unknown"], "unknown project `unknown`: give the id or the name"),
        (["discover", "read", "--project", "unknown"], "give the id or the name of a project of the user 'ada'"),
    ],
)
def test_a_command_that_fails_says_why(command: Command, arguments: list[str], reason: str) -> None:
    command("key", "create", "--user", "ada")
    user = [] if arguments == ["rotate-secrets"] else ["--user", "ada"]
    assert reason in command(*arguments, *user, status=1)


@pytest.mark.parametrize(
    "arguments",
    [["server", "list"], ["discover", "read a file"], ["user", "delete", "--yes"], ["calibrate", "--reset"]],
)
def test_an_unknown_user_is_named_with_what_creates_it(command: Command, arguments: list[str]) -> None:
    user = ["bob smith"] if arguments[0] == "user" else ["--user", "bob smith"]
    output = command(*arguments, *user, status=1)
    assert "there is no user 'bob smith'" in output
    assert "`toolscout key create --user 'bob smith'` creates it, and so does the first request" in output


def test_secrets_are_rotated_and_doctor_reports_credentials_that_cannot_be_read(
    command: Command, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("key", "create", "--user", "eve")
    command("server", "add", "sealed", mcp.url, "--user", "eve", "--header", "X-Token=canary")
    assert "FAIL" not in command("doctor")

    new_key = base64.b64encode(os.urandom(32)).decode()
    monkeypatch.setenv("TOOLSCOUT_SECRET_KEY", new_key)
    assert "cannot be decrypted with these keys" in command("doctor", status=1)
    monkeypatch.setenv("TOOLSCOUT_OLD_SECRET_KEYS", SECRET_KEY)
    assert "FAIL" not in command("doctor")
    output = command("rotate-secrets")
    assert "stored credentials were re-encrypted" in output
    monkeypatch.delenv("TOOLSCOUT_OLD_SECRET_KEYS")
    assert "FAIL" not in command("doctor")
    mcp.requests.clear()
    command("server", "reindex", "sealed", "--user", "eve")
    assert {request.headers["x-token"] for request in mcp.requests} == {"canary"}

    # the tests of this module share a database: doctor would fail in the others
    monkeypatch.setenv("TOOLSCOUT_OLD_SECRET_KEYS", new_key)
    monkeypatch.setenv("TOOLSCOUT_SECRET_KEY", SECRET_KEY)
    command("rotate-secrets")


def test_doctor_recommends_a_multilingual_endpoint_if_many_messages_are_not_english(
    command: Command, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", fresh_database)
    command("key", "create", "--user", "ana")
    command("discover", "anything", "--user", "ana")  # registers the model
    insert = """
        INSERT INTO discovery_stats (user_id, at, discoveries, degraded, no_match, cache_hits, tokens_all,
                                     tokens_selected, not_english, latencies)
        VALUES ('ana', now() - %s * interval '1 day', %s, 0, 0, 0, 0, 0, %s, '{}')
    """
    with psycopg.connect(fresh_database, autocommit=True) as owner:
        for day, discoveries, not_english, recommends in (
            (40, 900, 900, False),
            (3, 40, 20, False),
            (2, 80, 3, False),
            (1, 10, 4, True),
        ):
            owner.execute(insert, (day, discoveries, not_english))
            output = command("doctor")
            assert "FAIL" not in output
            assert ("Other languages" in output) == recommends, output
    assert "21% of the last 131 messages are not English" in output


def test_examples_are_set_listed_and_forgotten(command: Command, mcp: FakeMcpServer) -> None:
    command("key", "create", "--user", "eve")
    mcp.tools = [tool("echo", "Gives back what it is given.")]
    command("server", "add", "files", mcp.url, "--user", "eve")
    of_eve = ("files.echo", "--user", "eve")
    counts = "2 in words, 0 learnt from use, 0 learnt against it"
    assert command("examples", "set", "files.echo", "say it again", "repeat that", "--user", "eve").endswith(
        f"{counts}\n"
    )
    assert command("examples", "list", *of_eve).splitlines() == ["say it again", "repeat that", counts]
    assert "at most 500 characters" in command("examples", "set", "files.echo", "x" * 501, "--user", "eve", status=1)
    assert "add --yes" in command("examples", "forget", *of_eve, status=1)
    command("examples", "forget", *of_eve, "--source", "use", "--yes")
    assert counts in command("examples", "list", *of_eve)
    command("examples", "forget", "--user", "eve", "--yes")
    assert command("examples", "list", *of_eve).startswith("0 in words")
    assert "no such tool" in command("examples", "list", "files.nothing", "--user", "eve", status=1)


def test_exported_selections_can_be_evaluated(
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


def test_a_model_is_used_and_dropped(
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
    shipped = find_shipped_model().id
    name = shipped.removeprefix("local:").rpartition(":")[0]
    assert "is already active" in command("model", "use", name, "--provider", "local")

    output = command("model", "use", "beta@48")
    assert "openai:beta@48 is active" in output
    [previous] = re.findall(r"to switch back: toolscout model use (\S+);", output)
    assert re.search(r"\* openai:beta@48 +48 dimensions +(\d+) of \1 tools", command("model", "list"))
    assert "echo" in command("discover", "echo", "--user", "max")
    assert "is the active model: switch to another one first" in command("model", "drop", "beta@48", status=1)
    report = " ".join(command("doctor", status=1).split())
    assert f"the settings name {shipped}" in report
    assert f"run `toolscout model use {shipped}`" in report

    learned = """
        INSERT INTO tool_examples (user_id, model, tool_id, id, vector, weight, source, used_on)
        SELECT user_id, 'openai:beta@48', id, 'learnt', array_fill(1, ARRAY[48])::vector, 1, 'use', CURRENT_DATE
        FROM mcp_tools WHERE user_id = 'max'
    """
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(learned)
    output = command("model", "use", previous)
    assert f"{previous} is active" in output
    assert "1 example was learnt from use with openai:beta@48: back when you switch back to it, gone when" in output
    output = command("model", "drop", "beta@48")
    assert "dropped, with all its vectors" in output
    assert "1 example was learnt from use with it: deleted, too" in output
    assert "beta@48" not in command("model", "list")
    last_events = "SELECT action, target FROM audit_events WHERE action LIKE 'model.%' ORDER BY at DESC LIMIT 3"
    with psycopg.connect(database) as connection:
        assert connection.execute(last_events).fetchall() == [
            ("model.drop", "openai:beta@48"),
            ("model.use", previous),
            ("model.use", "openai:beta@48"),
        ]
    assert "model 'beta@48' not found" in command("model", "drop", "beta@48", status=1)
    assert "there is no local model 'other'; there are: local:granite" in command(
        "model", "use", "other", "--provider", "local", status=1
    )
    assert "there is no local model 'local:other'" in command("model", "use", "local:other", status=1)
    embedding_server.mode = "zeros"
    assert "zero vector" in command("model", "use", "gamma@96", status=1)
    assert "gamma" not in command("model", "list")


def test_a_database_of_0_1_0_is_served_until_the_model_of_this_version_takes_over(
    command: Command,
    fresh_database: str,
    mcp: FakeMcpServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABASE_URL", fresh_database)
    monkeypatch.setattr(local_models, "SHIPPED_ADAPTER", None)
    monkeypatch.setattr(local_models, "SHIPPED_PRECISION", "fp32")
    command("key", "create", "--user", "eva")
    mcp.tools = [tool("echo", "Gives back what it is given.")]
    command("server", "add", "echoes", mcp.url, "--user", "eva")

    path = tmp_path / "granite+tools-9.npz"
    write_adapter(path, {"query_map": np.eye(384, dtype=np.float16)}, name="tools-9")
    monkeypatch.setattr(local_models, "SHIPPED_ADAPTER", "tools-9")
    monkeypatch.setattr(local_models, "get_adapter_path", lambda _name: path)
    old, new = make_base_model().id, find_shipped_model().id
    report = " ".join(command("doctor").split())
    assert f"{old} is the active model; this version ships {new}: run `toolscout model use {new}`" in report
    assert "echo" in command("discover", "give back what I say", "--user", "eva")

    assert f"{new} is active" in command("model", "use", new)
    assert f"{new} works, 384 dimensions" in " ".join(command("doctor").split())
    assert "echo" in command("discover", "give back what I say", "--user", "eva")
    assert f"{old} is active" in command("model", "use", old)


def test_an_embedder_of_the_operators_own_takes_over_and_goes(
    command: Command, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_GRACE_S", 0.0)
    provider = "python:examples.own_embedder:make_embedder"
    model = f"{provider}:trigrams-512-v1"
    command("key", "create", "--user", "pia")
    mcp.tools = [tool("echo", "Gives back what it is given.")]
    command("server", "add", "echoes", mcp.url, "--user", "pia")
    assert "is an embedder of your own: set TOOLSCOUT_EMBEDDING_PROVIDER" in command("model", "use", model, status=1)
    monkeypatch.setenv("TOOLSCOUT_EMBEDDING_PROVIDER", provider)
    assert f"provides {model}, not 'other'" in command("model", "use", "other", "--provider", "python", status=1)

    output = command("model", "use", "trigrams-512-v1", "--provider", "python")
    assert f"{model} is active" in output
    assert f"* {model} " in command("model", "list")
    assert "echo" in command("discover", "echo", "--user", "pia")
    assert f"{model} works, 512 dimensions" in " ".join(command("doctor").split())

    monkeypatch.delenv("TOOLSCOUT_EMBEDDING_PROVIDER")
    [previous] = re.findall(r"to switch back: toolscout model use (\S+);", output)
    assert f"{previous} is active" in command("model", "use", previous)
    assert "dropped" in command("model", "drop", model)


@pytest.mark.parametrize("provider", ["local", "openai"])
def test_switching_back_from_a_model_does_not_need_its_settings(
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
    [previous] = re.findall(r"to switch back: toolscout model use (\S+);", command("model", "use", "beta@48"))
    command("model", "use", previous)
    command("model", "use", "gamma@48")

    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.setenv("TOOLSCOUT_EMBEDDING_PROVIDER", provider)
    assert "needs OPENAI_API_KEY or OPENAI_BASE_URL" in command("discover", "echo", "--user", "max", status=1)
    assert "* openai:gamma@48 " in command("model", "list")
    assert "openai:beta@48: dropped" in command("model", "drop", "beta@48")
    assert f"{previous} is active" in command("model", "use", previous)
    assert "openai:gamma@48: dropped" in command("model", "drop", "gamma@48")
    assert "needs OPENAI_API_KEY or OPENAI_BASE_URL" in command("model", "use", "delta@48", status=1)


@pytest.fixture
def stdio(command: Command, fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the file with stdio servers, which does not exist yet. Doctor finds no other problem."""
    monkeypatch.setenv("DATABASE_URL", fresh_database)
    monkeypatch.setenv("TOOLSCOUT_STDIO_SERVERS", str(tmp_path / "stdio.json"))
    command("migrate")
    return tmp_path / "stdio.json"


@pytest.mark.parametrize("arguments", [["doctor"], ["server", "list"], ["key", "list"]])
def test_another_database_is_refused_before_a_secret_key_is_asked_for(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.delenv("TOOLSCOUT_SECRET_KEY")
    assert "sqlite" not in command(*arguments, status=0 if arguments[0] == "key" else 1)
    monkeypatch.setenv("DATABASE_URL", "sqlite:///x.db")
    assert "DATABASE_URL names a sqlite database" in " ".join(command(*arguments, status=1).split())


def test_doctor_reports_a_stdio_program_that_does_not_exist(command: Command, stdio: Path) -> None:
    stdio.write_text('{"time": {"argv": ["no-such-program-here"]}}')
    assert "'no-such-program-here' is not in the PATH" in command("doctor", status=1)
    stdio.write_text('{"time": {"argv": ["/no/such/program"]}}')
    assert "'/no/such/program' is not an executable file\n" in command("doctor", status=1)
    stdio.write_text(json.dumps({"time": {"argv": [sys.executable]}}))
    assert "stdio" not in command("doctor")


def test_doctor_reports_a_misspelt_setting_and_continues(
    command: Command, stdio: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdio.write_text("{}")
    monkeypatch.setenv("TOOLSCOUT_MAX_TOLS", "5")
    output = command("doctor", status=1)
    assert "unknown setting TOOLSCOUT_MAX_TOLS; did you mean TOOLSCOUT_MAX_TOOLS?" in output
    assert re.findall(r"^FAIL +(\w+)", output, re.MULTILINE) == ["misspelt"]


def test_doctor_reports_an_unusable_stdio_file_and_continues(command: Command, stdio: Path) -> None:
    for reason in ("No such file or directory", "}}: Input should be an object", "}}: Invalid JSON"):
        first, wrong, *others = command("doctor", status=1).splitlines()
        assert re.match(rf"FAIL  stdio +TOOLSCOUT_STDIO_SERVERS: .*{reason}", wrong)
        assert [line.split()[:2] for line in (first, *others)] == [
            ["ok", subject] for subject in ("settings", "database", "secrets", "embedder")
        ]
        stdio.write_text("{bad" if stdio.exists() else "[]")


def test_a_server_without_a_url_must_be_a_listed_stdio_server(command: Command, stdio: Path, tmp_path: Path) -> None:
    code = tmp_path / "server.py"
    code.write_text(textwrap.dedent(STDIO_SERVER))
    stdio.write_text(json.dumps({name: {"argv": [sys.executable, str(code)]} for name in ("time", "notes")}))
    command("key", "create", "--user", "joe")
    assert "TOOLSCOUT_STDIO_SERVERS lists (time, notes)" in command("server", "add", "tim", "--user", "joe", status=1)
    assert "1 added" in command("server", "add", "time", "--user", "joe")


def test_adding_a_server_that_cannot_be_reached_fails_without_waiting_for_retries(
    command: Command, stdio: Path, tmp_path: Path
) -> None:
    stdio.write_text(json.dumps({"gone": {"argv": [str(tmp_path / "nothing-there")]}}))
    command("key", "create", "--user", "kim")
    output = command("server", "add", "gone", "--user", "kim", status=1)
    assert "gone: failed (" in output
    retry = "`toolscout server reindex gone --user kim`"
    assert f"a running service retries by itself; to retry now, run {retry}\n" in output
    assert "gone" in command("server", "list", "--user", "kim")


def test_a_worker_without_slots_is_refused_and_the_setting_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ROLE", "worker")
    monkeypatch.setenv("TOOLSCOUT_INDEX_CONCURRENCY", "0")
    error = command("doctor", status=1)
    assert error.startswith("toolscout: invalid settings:\n  TOOLSCOUT_INDEX_CONCURRENCY: must be at least 1")


def test_a_schema_that_is_newer_than_the_command_is_reported(
    command: Command, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", fresh_database)
    command("migrate")
    assert "a newer version has migrated it" not in command("doctor")
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '2999_newer'")
    for name in ("migrate", "doctor"):
        assert "a newer version has migrated it" in command(name, status=1)
