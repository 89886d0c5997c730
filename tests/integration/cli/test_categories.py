"""`toolscout categories`."""

import re

from tests.integration.cli.conftest import Command
from tests.support.categories import BRANCHES, EVENTS
from tests.support.mcp_server import FakeMcpServer


def test_categories_are_made_listed_and_renamed(command: Command, mcp: FakeMcpServer) -> None:
    command("key", "create", "--user", "cara")
    mcp.tools = [*EVENTS, *BRANCHES]
    command("server", "add", "office", mcp.url, "--user", "cara")
    assert command("categories", "list", "--user", "cara").startswith("no categories yet")
    made = command("categories", "remake", "--user", "cara")
    assert made == command("categories", "list", "--user", "cara")
    names = {name: category_id for category_id, name in re.findall(r"^(\S{36})       3 tools  (.+)$", made, re.M)}
    assert {name.split(",")[0] for name in names} == {"event", "branch"}

    [event] = (name for name in names if name.startswith("event"))
    assert command("categories", "rename", event, "My week", "--user", "cara") == f"{names[event]}: My week\n"
    assert "3 tools  My week\n" in command("categories", "remake", "--user", "cara")
    assert command("categories", "rename", names[event], "--user", "cara") == f"{names[event]}: {event}\n"
    assert made == command("categories", "list", "--user", "cara")


def test_names_that_cannot_be_are_refused(command: Command, mcp: FakeMcpServer) -> None:
    command("key", "create", "--user", "carl")
    mcp.tools = [*EVENTS, *BRANCHES]
    command("server", "add", "office", mcp.url, "--user", "carl")
    command("categories", "remake", "--user", "carl")
    names = re.findall(r"tools  (.+)$", command("categories", "list", "--user", "carl"), re.M)
    first, second = names
    assert "another category is called" in command("categories", "rename", first, second, "--user", "carl", status=1)
    unknown = command("categories", "rename", "holidays", "x", "--user", "carl", status=1)
    assert first in unknown
    assert second in unknown
    missing = "00000000-0000-4000-8000-000000000000"
    assert "no such category" in command("categories", "rename", missing, "x", "--user", "carl", status=1)
    assert "name" in command("categories", "rename", first, "x" * 300, "--user", "carl", status=1)
    assert re.findall(r"tools  (.+)$", command("categories", "list", "--user", "carl"), re.M) == names
