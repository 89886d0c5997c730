"""`toolscout shared-server …`, without a service, and the copies that a service then makes."""

import asyncio
from pathlib import Path

import pytest

from app.container import open_container
from tests.integration.cli.conftest import Command
from tests.support.clients import new_user, open_client
from tests.support.factories import ADMIN_KEY, make_settings, outbound_allow, resolve_nothing, tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.shared_servers import list_shared, settle

pytestmark = pytest.mark.usefixtures("own_database")


@pytest.fixture
def own_database(command: Command, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DATABASE_URL", fresh_database)
    return fresh_database


def test_a_server_is_shared_shown_changed_and_removed(command: Command, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read_page"), tool("write_page")]
    assert "no shared servers yet" in command("shared-server", "list")
    options = ["--group", "CN=staff,OU=people", "--user", "kim", "--header", "X-Token: operators-canary"]
    added = command("shared-server", "add", "wiki", mcp.url, *options)
    assert "2 added" in added
    listed, shown = command("shared-server", "list"), command("shared-server", "show", "wiki")
    for part in ("wiki", "connected", "2 tools", "0 of 0 members ready", "member"):
        assert part in listed
    assert "shared with  group CN=staff,OU=people, user kim" in shown
    assert "operators-canary" not in added + listed + shown
    command("shared-server", "update", "wiki", "--everyone", "--no-groups", "--credentials", "operator")
    shown = command("shared-server", "show", "wiki")
    assert "shared with  everyone, user kim" in shown
    assert "credentials  operator" in shown
    mcp.tools = [tool("read_page")]
    assert "1 removed" in command("shared-server", "reindex", "wiki")
    assert "add --yes" in command("shared-server", "remove", "wiki", status=1)
    command("shared-server", "remove", "wiki", "--yes")
    assert "no shared servers yet" in command("shared-server", "list")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "unknown"], "server"),
        (["update", "wiki"], "nothing to change: see `toolscout shared-server update --help`"),
        (["update", "wiki", "--user", "*"], "user_ids"),
        (["add", "wiki", "http://127.0.0.1:1/mcp"], "TOOLSCOUT_OUTBOUND_ALLOW"),
        (["disconnect", "wiki"], "nobody has signed in to this server"),
        (["connect", "wiki"], "sign"),
    ],
)
def test_a_command_says_why_it_cannot_be_done(
    command: Command, mcp: FakeMcpServer, arguments: list[str], reason: str
) -> None:
    mcp.tools = [tool("read_page")]
    command("shared-server", "add", "wiki", mcp.url)
    assert reason in command("shared-server", *arguments, status=1)
    assert "1 tools" in command("shared-server", "list")


def test_an_empty_list_is_accepted_only_by_force(command: Command, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read_page")]
    command("shared-server", "add", "wiki", mcp.url)
    mcp.tools = []
    command("shared-server", "reindex", "wiki", status=1)
    command("shared-server", "reindex", "wiki", "--force")
    assert "    0 tools" in command("shared-server", "list")


def test_members_get_what_the_command_line_shares_as_soon_as_a_service_runs(
    command: Command, mcp: FakeMcpServer, own_database: str, tmp_path: Path
) -> None:
    mcp.tools = [tool("read_page")]
    command("shared-server", "add", "wiki", mcp.url, "--everyone")

    async def look() -> tuple[list[str], list[str]]:
        settings = make_settings(tmp_path, outbound_allow=outbound_allow(mcp))
        async with (
            open_container(settings, own_database, resolve_nothing) as service,
            open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as admin,
            new_user(service) as user,
        ):
            await settle(service)
            [shared] = (await admin.get("/shared-servers")).json()["items"]
            assert shared["members"] == {"total": 1, "ready": 1}
            return list(await list_shared(user)), list(await user.tools())

    assert asyncio.run(look()) == (["wiki"], ["read_page"])
