"""`toolscout key list`, `key revoke`, `user list` and `user delete`."""

import re
import sys

import psycopg
import pytest

from tests.integration.cli.conftest import Command
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.terminal import FakeTerminal


@pytest.fixture
def own_database(command: Command, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DATABASE_URL", fresh_database)
    return fresh_database


def answer_at_terminal(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let a person at a terminal give this answer. Call it in the test itself: pytest resets streams before it."""
    monkeypatch.setattr(sys, "stdin", FakeTerminal())
    monkeypatch.setattr(sys, "stderr", FakeTerminal())
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _: text)


def find_line(output: str, word: str) -> str:
    """Return the line with this word, or with a key that begins with it. Ids of other lines may contain "ada", too."""

    def is_found(line: str) -> bool:
        return any(each == word or (word.startswith("ts_") and each.startswith(word)) for each in line.split())

    [line] = filter(is_found, output.splitlines())
    return line


@pytest.mark.usefixtures("own_database")
def test_keys_are_listed_by_prefix_and_never_shown(command: Command) -> None:
    assert "no keys yet" in command("key", "list")
    secrets = [
        command("key", "create", "--user", "ada", "--name", "laptop").strip(),
        command("key", "create", "--kind", "service", "--days", "30").strip(),
    ]
    output = command("key", "list")
    for secret in secrets:
        prefix = secret[: secret.index("_", 3) + 7]
        assert f"{prefix}…" in output
        assert secret not in output
    assert re.search(r"…  +user +ada +active +never +[0-9a-f-]{36}  laptop$", find_line(output, "ts_user_"))
    assert re.search(r"…  +service +until \d{4}-\d\d-\d\d +never +[0-9a-f-]{36}$", find_line(output, "ts_service_"))
    assert "ts_service_" not in command("key", "list", "--user", "ada")
    assert "laptop" in command("key", "list", "--user", "ada")


@pytest.mark.parametrize("by", ["id", "prefix"])
@pytest.mark.usefixtures("own_database")
def test_a_key_is_revoked_by_its_id_or_its_prefix(command: Command, by: str) -> None:
    secret = command("key", "create", "--user", "ada").strip()
    other = command("key", "create", "--user", "bob").strip()
    line = find_line(command("key", "list"), "ada")
    chosen = line.split()[0] if by == "prefix" else line.split()[-1]
    assert "there is no such key" in (refused := command("key", "revoke", secret, status=1))
    assert secret not in refused
    assert ": revoked" in command("key", "revoke", chosen)
    output = command("key", "list")
    assert " revoked " in find_line(output, "ada")
    assert " active " in find_line(output, other[:14])


def test_two_keys_with_one_prefix_are_told_apart_by_their_ids(command: Command, own_database: str) -> None:
    for user in ("ada", "bob"):
        command("key", "create", "--user", user)
    with psycopg.connect(own_database, autocommit=True) as connection:
        connection.execute("UPDATE api_keys SET prefix = 'ts_user_same00'")
    assert "several keys have this prefix: give the id" in command("key", "revoke", "ts_user_same00", status=1)
    command("key", "revoke", find_line(command("key", "list"), "ada").split()[-1])
    assert " active " in find_line(command("key", "list"), "bob")


@pytest.mark.usefixtures("own_database")
def test_a_person_is_asked_before_a_key_is_revoked(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command("key", "create", "--user", "ada")
    key = find_line(command("key", "list"), "ada").split()[-1]
    answer_at_terminal(monkeypatch, "n")
    command("key", "revoke", key, status=1)
    assert " active " in find_line(command("key", "list"), "ada")
    answer_at_terminal(monkeypatch, "y")
    command("key", "revoke", key)
    assert " revoked " in find_line(command("key", "list"), "ada")


@pytest.mark.usefixtures("own_database")
def test_users_are_listed_and_deleted_with_what_they_own(command: Command, mcp: FakeMcpServer) -> None:
    assert "no users yet" in command("user", "list")
    for user in ("ada", "bob"):
        command("key", "create", "--user", user)
    mcp.tools = [tool("echo"), tool("shout")]
    command("server", "add", "files", mcp.url, "--user", "ada")
    assert re.fullmatch(r"ada +2 tools +on +\d{4}-\d\d-\d\d", find_line(command("user", "list"), "ada"))
    assert "add --yes" in command("user", "delete", "ada", status=1)
    assert "ada" in command("user", "list")
    assert command("user", "delete", "ada", "--yes") == "ada: deleted, with 1 servers, 2 tools\n"
    assert "ada" not in command("user", "list") + command("key", "list")
    assert "bob" in command("user", "list")
    assert "bob" in command("key", "list")
    assert "there is no user 'ada'" in command("user", "delete", "ada", "--yes", status=1)


@pytest.mark.usefixtures("own_database")
def test_users_are_listed_with_whether_their_messages_are_searched(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("key", "create", "--user", "anna")
    assert "on" in command("user", "list").split()
    monkeypatch.setenv("TOOLSCOUT_ROLLOUT_PERCENT", "0")
    assert "off" in command("user", "list").split()


@pytest.mark.usefixtures("own_database")
def test_a_person_is_asked_before_a_user_is_deleted(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command("key", "create", "--user", "ada")
    answer_at_terminal(monkeypatch, "n")
    command("user", "delete", "ada", status=1)
    assert "ada" in command("user", "list")
    answer_at_terminal(monkeypatch, "y")
    command("user", "delete", "ada")
    assert "no users yet" in command("user", "list")


def test_both_changes_are_in_the_audit(command: Command, own_database: str) -> None:
    command("key", "create", "--user", "ada")
    command("key", "revoke", find_line(command("key", "list"), "ada").split()[-1])
    command("user", "delete", "ada", "--yes")
    with psycopg.connect(own_database) as connection:
        events = connection.execute("SELECT action, actor FROM audit_events ORDER BY at").fetchall()
    assert events[-2:] == [("key.revoke", "operator:cli"), ("user.delete", "operator:cli")]
