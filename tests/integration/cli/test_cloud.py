"""The commands with a cloud: `doctor` checks it, `discover` searches through it."""

import asyncio
from collections.abc import Iterator

import pytest

from app.cli.main import main
from app.db.engine import Database
from app.management.projects import create_project
from app.management.quotas import Quotas
from tests.integration.cli.conftest import Command
from tests.support.cloud_server import FakeCloud, running_cloud
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    with running_cloud() as running:
        monkeypatch.setenv("TOOLSCOUT_CLOUD_URL", running.url)
        yield running


QUOTAS = Quotas(servers=1, projects=1, keys=1, tags=1)


def make_project(url: str, user_id: str) -> str:
    """Create a project that is searched through the cloud, and return its id."""

    async def create() -> str:
        database = Database(url, pool_size=1)
        values = {"name": "searched by the cloud", "optimization": "cloud"}
        try:
            return (await create_project(database, user_id, values, (), QUOTAS, actor="test", has_cloud=True)).id
        finally:
            await database.close()

    return asyncio.run(create())


def test_doctor_says_whether_the_cloud_answers(
    command: Command, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("key", "create", "--user", "ann")
    assert f"{cloud.url} answers" in command("doctor")
    cloud.mode, cloud.status = "status", 401
    output = command("doctor", status=1)
    assert "FAIL" in output
    assert "it answered with status 401: check TOOLSCOUT_CLOUD_KEY" in " ".join(output.split())
    monkeypatch.delenv("TOOLSCOUT_CLOUD_URL")
    assert " cloud " not in command("doctor")


@pytest.mark.usefixtures("command")
def test_the_report_of_doctor_has_no_log_lines(cloud: FakeCloud, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.mode = "status"
    with pytest.raises(SystemExit):
        main(["doctor"])
    printed = capsys.readouterr()
    assert "it answered with status 503" in " ".join(printed.out.split())
    assert "search through the cloud failed" not in printed.out
    assert printed.err == ""


def test_discover_uses_the_strategy_of_the_project_unless_an_option_sets_it(
    command: Command, cloud: FakeCloud, mcp: FakeMcpServer, database: str
) -> None:
    mcp.tools = [tool("get_forecast", "Weather forecast for a city")]
    command("key", "create", "--user", "bob")
    command("server", "add", "weather", mcp.url, "--user", "bob")
    project_id = make_project(database, "bob")
    arguments = ["discover", "weather forecast", "--user", "bob"]
    assert "(cloud)" in command(*arguments, "--project", project_id)
    assert "(cloud)" in command(*arguments, "--project", "searched by the cloud")
    misspelt = command(*arguments, "--project", "searched by the clout", status=1)
    assert misspelt.endswith("unknown project `searched by the clout`; did you mean `searched by the cloud`?")
    assert command("key", "create", "--user", "bob", "--project", "searched by the cloud").startswith("ts_user_")
    assert "(bm25)" in command(*arguments, "--project", project_id, "--strategy", "bm25")
    assert "(hybrid)" in command(*arguments)
    cloud.mode = "status"
    assert "(bm25, degraded: cloud_status_503)" in command(*arguments, "--project", project_id)
