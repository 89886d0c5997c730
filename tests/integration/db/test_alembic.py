"""The `alembic` command line in a checkout: the commands that a maintainer uses, each in its own process."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from app.db.migrate import MIGRATION_LOCK, head_revision, migrate
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.factories import OpenService
from tests.support.paths import ROOT


def run_alembic(
    *arguments: str, folder: Path, url: str | None = None, status: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in the folder, with its `alembic.ini`, and check the exit status."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    if url is not None:
        environment["DATABASE_URL"] = url
    command = [sys.executable, "-m", "alembic", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what Alembic reads and writes, so that no test adds a file to the repository."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "migrations", folder / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "alembic.ini", folder)
    return folder


def test_upgrade_current_and_downgrade(fresh_database: str, checkout: Path) -> None:
    head = str(head_revision())
    assert run_alembic("current", folder=checkout, url=fresh_database).stdout == ""
    upgrade = run_alembic("upgrade", "head", folder=checkout, url=fresh_database)
    assert f"-> {head}" in upgrade.stderr
    assert run_alembic("current", folder=checkout, url=fresh_database).stdout == f"{head} (head)\n"
    run_alembic("downgrade", "-1", folder=checkout, url=fresh_database)
    assert head not in run_alembic("current", folder=checkout, url=fresh_database).stdout
    assert migrate(fresh_database) == head


def test_history_and_sql_need_no_database(checkout: Path) -> None:
    history = run_alembic("history", folder=checkout).stdout
    assert f"{head_revision()} (head)" in history
    assert "<base> -> 2026_11_16_foundation" in history
    assert "CREATE TABLE users" in run_alembic("upgrade", "head", "--sql", folder=checkout).stdout


async def test_check_finds_no_difference_in_a_database_that_has_served(
    open_service: OpenService, checkout: Path
) -> None:
    """The app has created the HNSW index of its model by then, which is in no migration."""
    async with open_service() as service:
        url = service.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    assert "No new upgrade operations detected" in run_alembic("check", folder=checkout, url=url).stdout


def test_autogenerate_writes_a_migration_that_can_be_applied(fresh_database: str, checkout: Path) -> None:
    migrate(fresh_database)
    with psycopg.connect(fresh_database, autocommit=True) as owner:
        owner.execute("ALTER TABLE mcp_tool_embeddings DROP COLUMN embedding CASCADE")
    run_alembic("check", folder=checkout, url=fresh_database, status=255)
    options = "-m", "vectors return", "--rev-id", "2999_12_31_vectors_return"
    run_alembic("revision", "--autogenerate", *options, folder=checkout, url=fresh_database)
    [written] = checkout.glob("migrations/versions/*_vectors_return.py")
    assert "pgvector.sqlalchemy" in written.read_text()
    run_alembic("upgrade", "head", folder=checkout, url=fresh_database)
    assert "2999_12_31_vectors_return" in run_alembic("current", folder=checkout, url=fresh_database).stdout


def test_upgrade_waits_for_the_lock_of_a_replica_that_migrates(fresh_database: str, checkout: Path) -> None:
    with psycopg.connect(fresh_database, autocommit=True) as replica, ThreadPoolExecutor(1) as pool:
        replica.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
        upgrade = pool.submit(run_alembic, "upgrade", "head", folder=checkout, url=fresh_database)
        wait_until_blocked(replica)
        assert not upgrade.done()
        replica.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK])
        upgrade.result(60)
    assert str(head_revision()) in run_alembic("current", folder=checkout, url=fresh_database).stdout


def wait_until_blocked(connection: psycopg.Connection) -> None:
    statement = """
        SELECT count(*) FROM pg_locks
        WHERE locktype = 'advisory' AND NOT granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    """
    deadline = time.monotonic() + 60
    while connection.execute(statement).fetchone() == (0,):
        assert time.monotonic() < deadline, "nobody waits for the lock"
        time.sleep(0.02)


def test_the_embedded_database_of_a_running_service_is_used(checkout: Path, tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "data")
    postgres.start()
    try:
        run_alembic("upgrade", "head", folder=checkout, TOOLSCOUT_DATA_DIR=str(tmp_path / "data"))
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(head_revision(),)]
    finally:
        postgres.stop()


def test_without_a_database_the_message_says_what_to_do(checkout: Path, tmp_path: Path) -> None:
    failed = run_alembic("current", folder=checkout, status=255, TOOLSCOUT_DATA_DIR=str(tmp_path / "nothing"))
    assert "no database found in" in failed.stdout
    assert "set DATABASE_URL" in failed.stdout
    assert not (tmp_path / "nothing").exists()


def test_a_schema_of_a_newer_version_is_refused(fresh_database: str, checkout: Path) -> None:
    migrate(fresh_database)
    with psycopg.connect(fresh_database, autocommit=True) as owner:
        owner.execute("UPDATE alembic_version SET version_num = '2999_newer'")
    failed = run_alembic("upgrade", "head", folder=checkout, url=fresh_database, status=255)
    assert "Can't locate revision identified by '2999_newer'" in failed.stdout
