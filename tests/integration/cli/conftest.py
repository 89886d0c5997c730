"""Runs commands in this process, on a database of their own that no service uses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import run_progress
from app.cli.main import main
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.factories import SECRET_KEY, SLOW_MACHINE_ENV, make_database, outbound_allow
from tests.support.mcp_server import FakeMcpServer

Command = Callable[..., str]


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> str:
    return make_database(postgres)


@pytest.fixture
def command(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mcp: FakeMcpServer,
) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_progress, "_SERVICE_WAIT_S", 0.0)
    settings = {
        "DATABASE_URL": database,
        "TOOLSCOUT_SECRET_KEY": SECRET_KEY,
        "TOOLSCOUT_DATA_DIR": str(tmp_path),
        "TOOLSCOUT_OUTBOUND_ALLOW": outbound_allow(mcp),
        **SLOW_MACHINE_ENV,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str, status: int = 0) -> str:
        """Run a command and return what it prints to stdout, or the error message with which it exits."""
        with pytest.raises(SystemExit) as exited:
            main(list(arguments))
        code = exited.value.code
        printed = capsys.readouterr()
        if isinstance(code, str):
            assert status == 1, code
            return code
        assert code == status, printed
        return printed.out

    return run
