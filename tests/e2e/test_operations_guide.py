"""What the guides say is done here: a dump restored on another Postgres, a table partitioned, the rules of Citus."""

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
from sqlalchemy import ForeignKeyConstraint, PrimaryKeyConstraint, Table, UniqueConstraint

from app.container import open_container
from app.crypto import SecretOwner
from app.db.engine import APP_ROLE
from app.db.tables import metadata
from app.local_postgres.postgres import EmbeddedPostgres, binaries_dir
from tests.conftest import OpenService, make_settings, new_user, no_names, tool
from tests.support.database_owners import as_superuser, create_owned_database, owner_name
from tests.support.documents import DOCS
from tests.support.worker_steps import rows

GUIDE = (DOCS / "operations.md").read_text()
SECURITY = (DOCS / "security.md").read_text()


def passage(heading: str) -> str:
    return GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def elsewhere() -> Iterator[EmbeddedPostgres]:
    """A Postgres that nobody has prepared."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = EmbeddedPostgres(Path(folder) / "data")
        cluster.start()
        yield cluster
        cluster.stop()


@pytest.mark.usefixtures("container")  # by which the first Postgres has the app's role
async def test_a_dump_restored_on_another_postgres_answers_as_before(
    postgres: EmbeddedPostgres, elsewhere: EmbeddedPostgres, tmp_path: Path
) -> None:
    """By the guide's own commands, as owners that are no superusers."""
    old, new = create_owned_database(postgres), create_owned_database(elsewhere)
    as_superuser(postgres, f"GRANT {APP_ROLE} TO {owner_name(old)}")
    settings = make_settings(tmp_path)
    async with open_container(settings, old, no_names) as service, new_user(service) as user:
        await user.add_tools(tool("list_files", "Lists files."), tool("send_mail", "Sends a mail."))
        await user.add_server("closed", headers={"X-Key": "secret"})
        before = lasting(await user.discover("list the files"))
        dump, _, restore = blocks(passage("Backup and restore"), "sh")
        run(dump, tmp_path, DATABASE_URL=old)
        key = user.key
    run(restore, tmp_path, NEW_DATABASE_URL=new)
    async with open_container(settings, new, no_names) as service, new_user(service) as another:
        another.http.headers["Authorization"] = f"Bearer {key}"
        assert lasting(await another.discover("list the files")) == before
        [(blob, user_id, server_id)] = await rows(
            service, "SELECT sealed_headers, user_id, id FROM mcp_servers WHERE sealed_headers IS NOT NULL"
        )
        assert b"secret" in service.sealer.open(bytes(blob), SecretOwner(user_id, server_id, "headers"))
        assert await rows(service, "SELECT current_user::text") == [("toolscout_app",)]


def test_the_embedded_postgres_of_a_laptop_is_dumped_as_the_guide_says(
    elsewhere: EmbeddedPostgres, tmp_path: Path
) -> None:
    with psycopg.connect(elsewhere.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE to_be_kept ()")
        [(data,)] = connection.execute("SHOW data_directory").fetchall()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / ".toolscout").symlink_to(Path(data).parent)
    _, dump, _ = blocks(passage("Backup and restore"), "sh")
    run(dump + "pg_restore --list toolscout.dump | grep to_be_kept", tmp_path)


def run(commands: str, folder: Path, **variables: str) -> None:
    environment = {"PATH": f"{binaries_dir()}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["sh", "-euc", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def lasting(discovery: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in discovery.items() if name not in ("discovery_id", "search_duration_ms")}


async def test_the_largest_table_can_be_partitioned_by_user_and_all_goes_on(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as user, new_user(service) as other:
        server_id = await user.add_tools(tool("list_files", "Lists files."))
        await other.add_tools(tool("list_secrets", "Lists secrets."))
        before = lasting(await user.discover("list the files"))
        [statements, _] = blocks(passage("Scaling out"), "sql")
        url = service.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
            await owner.execute(statements.encode())
        assert lasting(await user.discover("list the files")) | {"embedding_generated": True} == before
        async with service.database.transaction(user.id) as session:
            assert await session.rows("SELECT tool_name FROM mcp_tool_embeddings") == [("list_files",)]
        await user.push(server_id, [tool("list_files", "Lists files."), tool("read_file", "Reads a file.")])
        assert len((await user.discover("read a file"))["tools"]) == 2
        partitions = await rows(service, "SELECT tableoid::regclass::text FROM mcp_tool_embeddings")
        assert all(re.fullmatch(r"mcp_tool_embeddings_\d+", name) for (name,) in partitions)
        await user.http.delete(f"/servers/{server_id}")
        assert await rows(service, "SELECT tool_name FROM mcp_tool_embeddings") == [("list_secrets",)]


def keys(table: Table) -> list[set[str]]:
    """Of all primary and unique ones, their columns."""
    constraints = (each for each in table.constraints if isinstance(each, PrimaryKeyConstraint | UniqueConstraint))
    indexes = (index for index in table.indexes if index.unique)
    return [{column.name for column in each.columns} for each in (*constraints, *indexes)]


def references(table: Table) -> list[tuple[str, dict[str, str]]]:
    """The table that a foreign key refers to, and the columns by which."""
    return [
        (key.referred_table.name, {element.parent.name: element.column.name for element in key.elements})
        for key in table.constraints
        if isinstance(key, ForeignKeyConstraint)
    ]


CITUS = blocks(passage("Scaling out"), "sql")[1]
DISTRIBUTED = dict(re.findall(r"create_distributed_table\('(\w+)', '(\w+)'", CITUS))
REFERENCE = re.findall(r"create_reference_table\('(\w+)'\)", CITUS)


def test_citus_is_told_of_every_table_once_and_of_no_other() -> None:
    assert sorted([*DISTRIBUTED, *REFERENCE]) == sorted(metadata.tables)
    assert len(CITUS.splitlines()) == len(metadata.tables)


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_every_key_of_a_distributed_table_holds_the_column_that_distributes_it(name: str) -> None:
    column = DISTRIBUTED[name]
    assert all(column in key for key in keys(metadata.tables[name]))
    assert not metadata.tables[name].c[column].nullable
    for referred, columns in references(metadata.tables[name]):
        if referred in DISTRIBUTED:
            assert columns[column] == DISTRIBUTED[referred]
        else:
            assert referred in REFERENCE


@pytest.mark.parametrize("name", REFERENCE)
def test_a_reference_table_refers_to_reference_tables_alone_and_could_not_be_distributed(name: str) -> None:
    assert {referred for referred, _ in references(metadata.tables[name])} <= set(REFERENCE)
    has_user_in_every_key = all("user_id" in key for key in keys(metadata.tables[name]))
    referred_to = {referred for other in REFERENCE for referred, _ in references(metadata.tables[other])}
    assert not has_user_in_every_key or name in referred_to


def test_tables_exist_before_others_refer_to_them() -> None:
    order = re.findall(r"_table\('(\w+)'", CITUS)
    for name in order:
        for referred, _ in references(metadata.tables[name]):
            assert order.index(referred) < order.index(name)


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", SECURITY))))
def test_every_test_that_shows_a_promise_exists(named: str) -> None:
    path, _, function = named.partition("::")
    assert re.search(rf"^(?:async )?def {function}\(", (DOCS.parent / path).read_text(), re.MULTILINE)


def test_every_promise_is_shown_by_some_test() -> None:
    promises = [line for line in SECURITY.splitlines() if line.startswith("| **")]
    assert len(promises) == 16
    assert all("::test_" in promise for promise in promises)
