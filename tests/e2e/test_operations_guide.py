"""The guides for operators work: backup and restore, an existing Postgres, partitions."""

import base64
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from app.container import open_container
from app.crypto import SecretOwner
from app.db.scope import APP_ROLE
from app.local_postgres.postgres import EmbeddedPostgres, binaries_dir
from tests.support.clients import new_user
from tests.support.database_owners import as_superuser, create_owned_database, owner_name
from tests.support.documents import DOCS, get_section, list_code_blocks
from tests.support.factories import OpenService, make_settings, resolve_nothing, tool
from tests.support.paths import ROOT
from tests.support.worker_steps import rows

OPERATIONS = (DOCS / "guides/operations.md").read_text()
SECURITY = (DOCS / "guides/security.md").read_text()
EXISTING_POSTGRES = (DOCS / "guides/existing-postgres.md").read_text()
BACKUP = get_section(OPERATIONS, "Backup and restore")
PARTITIONS = get_section((DOCS / "guides/scaling.md").read_text(), "Hash partitions")


@pytest.fixture
def other_postgres() -> Iterator[EmbeddedPostgres]:
    """A second Postgres, without the role of the app."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = EmbeddedPostgres(Path(folder) / "data")
        cluster.start()
        yield cluster
        cluster.stop()


@pytest.mark.usefixtures("container")  # which creates the role of the app on the first Postgres
async def test_a_dump_restored_on_another_postgres_answers_as_before(
    postgres: EmbeddedPostgres, other_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """With the commands of the guide, as owners that are not superusers."""
    old, new = create_owned_database(postgres), create_owned_database(other_postgres)
    as_superuser(postgres, f"GRANT {APP_ROLE} TO {owner_name(old)}")
    settings = make_settings(tmp_path)
    async with open_container(settings, old, resolve_nothing) as service, new_user(service) as user:
        await user.add_tools(tool("list_files", "Lists files."), tool("send_mail", "Sends a mail."))
        await user.add_server("closed", headers={"X-Key": "secret"})
        before = without_times(await user.discover("list the files"))
        dump, _, restore = list_code_blocks(BACKUP, "sh")
        run_shell(dump, tmp_path, DATABASE_URL=old)
        key = user.key
    run_shell(restore, tmp_path, NEW_DATABASE_URL=new)
    async with open_container(settings, new, resolve_nothing) as service, new_user(service) as another:
        another.http.headers["Authorization"] = f"Bearer {key}"
        assert without_times(await another.discover("list the files")) == before
        [(blob, user_id, server_id)] = await rows(
            service, "SELECT sealed_headers, user_id, id FROM mcp_servers WHERE sealed_headers IS NOT NULL"
        )
        assert b"secret" in service.sealer.open(bytes(blob), SecretOwner(user_id, server_id, "headers"))
        assert await rows(service, "SELECT current_user::text") == [("toolscout_app",)]


def test_the_embedded_postgres_is_dumped_with_the_commands_of_the_guide(
    other_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with psycopg.connect(other_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept_by_the_dump ()")
        [(data,)] = connection.execute("SHOW data_directory").fetchall()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / ".toolscout").symlink_to(Path(data).parent)
    _, dump, _ = list_code_blocks(BACKUP, "sh")
    run_shell(dump + "pg_restore --list toolscout.dump | grep kept_by_the_dump", tmp_path)


def prepare_as_administrator(cluster: EmbeddedPostgres, folder: Path) -> None:
    """Run the SQL of the guide, with psql, as a superuser of a server without any database of ours."""
    as_superuser(cluster, "DROP DATABASE toolscout", database="postgres")
    [check, prepare] = list_code_blocks(
        get_section(EXISTING_POSTGRES, "1. The administrator prepares the database"), "sql"
    )
    url = cluster.url.replace("/toolscout?", "/postgres?")
    (folder / "prepare.sql").write_text(check + prepare)
    run_shell('psql --set=ON_ERROR_STOP=1 --file=prepare.sql "$URL"', folder, URL=url)


def run_toolscout(folder: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "TOOLSCOUT_ENVIRONMENT": "production",
        "DATABASE_URL": url,
        "TOOLSCOUT_SECRET_KEY": base64.b64encode(bytes(32)).decode(),
    }
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_an_existing_postgres_is_ready_after_the_steps_of_the_guide(
    other_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    prepare_as_administrator(other_postgres, tmp_path)
    url = other_postgres.url.replace("postgres@/", "toolscout:change-me@/")
    migrated = run_toolscout(tmp_path, url, "migrate")
    assert migrated.returncode == 0, migrated.stderr
    checked = run_toolscout(tmp_path, url, "doctor")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert all(line.startswith("ok ") for line in checked.stdout.splitlines())
    [(is_superuser, may_create_roles)] = query(
        other_postgres, "SELECT rolsuper, rolcreaterole FROM pg_roles WHERE rolname = 'toolscout'"
    )
    assert (is_superuser, may_create_roles) == (False, False)


def test_production_refuses_the_superuser_of_an_existing_postgres(
    other_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    refused = run_toolscout(tmp_path, other_postgres.url, "migrate")
    assert refused.returncode == 1
    assert "superuser" in refused.stderr


def query(cluster: EmbeddedPostgres, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(cluster.url) as connection:
        return connection.execute(statement.encode()).fetchall()


def run_shell(commands: str, folder: Path, **variables: str) -> None:
    environment = {"PATH": f"{binaries_dir()}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["sh", "-euc", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def without_times(discovery: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in discovery.items() if name not in ("discovery_id", "search_duration_ms")}


async def test_the_service_works_on_the_partitioned_table_of_the_guide(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as user, new_user(service) as other:
        server_id = await user.add_tools(tool("list_files", "Lists files."))
        await other.add_tools(tool("list_secrets", "Lists secrets."))
        before = without_times(await user.discover("list the files"))
        [statements] = list_code_blocks(PARTITIONS, "sql")
        url = service.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
            await owner.execute(statements.encode())
        assert without_times(await user.discover("list the files")) | {"embedding_generated": True} == before
        async with service.database.transaction(user.id) as session:
            assert await session.rows("SELECT tool_name FROM mcp_tool_embeddings") == [("list_files",)]
        await user.push(server_id, [tool("list_files", "Lists files."), tool("read_file", "Reads a file.")])
        assert len((await user.discover("read a file", fill=True))["tools"]) == 2
        partitions = await rows(service, "SELECT tableoid::regclass::text FROM mcp_tool_embeddings")
        assert all(re.fullmatch(r"mcp_tool_embeddings_\d+", name) for (name,) in partitions)
        await user.http.delete(f"/servers/{server_id}")
        assert await rows(service, "SELECT tool_name FROM mcp_tool_embeddings") == [("list_secrets",)]


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", SECURITY))))
def test_a_test_that_the_security_guide_names_exists(named: str) -> None:
    path, _, function = named.partition("::")
    assert re.search(rf"^(?:async )?def {function}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_every_promise_of_the_security_guide_names_a_test() -> None:
    promises = [line for line in SECURITY.splitlines() if line.startswith("| **")]
    assert len(promises) >= 18
    assert all("::test_" in promise for promise in promises)
