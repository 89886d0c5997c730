"""Postgres servers that lack something: the error says what, and the SQL that `toolscout doctor` prints mends it."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
from pydantic import SecretStr

from app.cli.doctor import run_checks
from app.db import requirements
from app.db.migrate import head_revision, migrate
from app.db.requirements import MissingRequirement, explain_connection_error
from app.db.scope import APP_ROLE
from app.doctor import CheckResult, check_installation
from app.errors import ConfigurationError
from app.local_postgres.postgres import EmbeddedPostgres, binaries_dir
from tests.support.database_owners import as_superuser, create_owned_database, owner_name
from tests.support.factories import make_settings


async def check_database(url: str, folder: Path, **settings: Any) -> list[CheckResult]:
    """Return what doctor finds wrong with the database."""
    results = await check_installation(make_settings(folder, database_url=SecretStr(url), **settings))
    return [result for result in results if result.subject == "database" and not result.ok]


def run_in_psql(cluster: EmbeddedPostgres, results: list[CheckResult]) -> None:
    """Run the SQL of these results as a superuser, as it would be pasted."""
    script = "\n".join(statement for result in results for statement in result.statements)
    command = [str(binaries_dir() / "psql"), "--set=ON_ERROR_STOP=1", "--no-psqlrc", "--quiet", cluster.url]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}\n{done.stderr}"


def refuse_extension_files(cluster: EmbeddedPostgres, url: str, folder: str) -> None:
    """Hide the files of all extensions from this database, as if pgvector were not installed on the server."""
    as_superuser(cluster, f"ALTER DATABASE {owner_name(url)} SET extension_control_path = '{folder}'")


async def test_a_server_without_pgvector_is_refused_with_what_to_install(
    cluster: EmbeddedPostgres, tmp_path: Path
) -> None:
    url = create_owned_database(cluster, extension=False)
    refuse_extension_files(cluster, url, "/no/such/folder")
    expected = r"has no pgvector: install pgvector 0\.8\.4 or later on the server \(the package postgresql-18-pgvector"
    with pytest.raises(ConfigurationError, match=expected):
        migrate(url)
    [missing] = await check_database(url, tmp_path)
    assert "this Postgres server has no pgvector" in missing.message
    as_superuser(cluster, f"ALTER DATABASE {owner_name(url)} RESET extension_control_path")  # it is installed now
    run_in_psql(cluster, [missing])
    assert migrate(url, production=True) == head_revision()


def test_a_superuser_of_a_server_without_pgvector_gets_the_same_sentence(cluster: EmbeddedPostgres) -> None:
    url = create_owned_database(cluster, "SUPERUSER", extension=False)
    refuse_extension_files(cluster, url, "/no/such/folder")
    with pytest.raises(ConfigurationError, match="this Postgres server has no pgvector"):
        migrate(url)
    as_superuser(cluster, f"ALTER DATABASE {owner_name(url)} RESET extension_control_path")
    assert migrate(url) == head_revision()


async def test_everything_that_is_missing_is_reported_at_once_and_mended(
    cluster: EmbeddedPostgres, tmp_path: Path
) -> None:
    """An owner who may create neither the extension nor roles, nor tables in the database."""
    url = create_owned_database(cluster, "", extension=False)
    as_superuser(cluster, f"ALTER DATABASE {owner_name(url)} OWNER TO postgres")
    results = await check_database(url, tmp_path, environment="production")
    extension, role, schema = [result.message for result in results]
    assert "may not create it: as a superuser, run `CREATE EXTENSION vector` in this database" in extension
    assert f"the role {APP_ROLE} does not exist" in role
    assert "may not create tables" in schema
    with pytest.raises(ConfigurationError) as error:
        migrate(url, production=True)
    assert all(message in str(error.value) for message in (extension, role, schema))
    run_in_psql(cluster, results)
    assert migrate(url, production=True) == head_revision()


async def test_a_missing_grant_is_reported_and_mended(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    as_superuser(cluster, f"CREATE ROLE {APP_ROLE} NOLOGIN")
    url = create_owned_database(cluster, "CREATEROLE")
    results = await check_database(url, tmp_path)
    assert [result.statements for result in results] == [[f'GRANT {APP_ROLE} TO "{owner_name(url)}";']]
    run_in_psql(cluster, results)
    assert migrate(url, production=True) == head_revision()


async def test_a_complete_database_lacks_only_its_schema(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    url = create_owned_database(cluster)
    [result] = await check_database(url, tmp_path, environment="production")
    assert "run `toolscout migrate`" in result.message
    assert result.statements == ()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [APP_ROLE]).fetchall() == []


async def test_doctor_changes_nothing(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    url = create_owned_database(cluster, "SUPERUSER", extension=False)
    await check_database(url, tmp_path)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT FROM pg_extension WHERE extname = 'vector'").fetchall() == []


async def test_a_superuser_in_production_gets_the_sql_for_an_owner(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    url = create_owned_database(cluster, "SUPERUSER", extension=False)
    results = await check_database(url, tmp_path, environment="production")
    run_in_psql(cluster, results)
    assert migrate(url.replace(f"{owner_name(url)}@", "toolscout@"), production=True) == head_revision()


async def test_a_database_that_does_not_exist_can_be_created(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    url = create_owned_database(cluster)
    as_superuser(cluster, f"DROP DATABASE {owner_name(url)}")
    with pytest.raises(ConfigurationError, match=rf'the database "{owner_name(url)}" does not exist: as a superuser'):
        migrate(url)
    run_in_psql(cluster, await check_database(url, tmp_path))
    assert migrate(url, production=True) == head_revision()


async def test_a_role_that_does_not_exist_is_named(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    url = create_owned_database(cluster)
    unknown = url.replace(f"//{owner_name(url)}@", "//owner_unknown@")
    [result] = await check_database(unknown, tmp_path)
    assert 'the role "owner_unknown" does not exist: as a superuser, run `CREATE ROLE' in result.message


@pytest.fixture
def password_required(cluster: EmbeddedPostgres) -> Iterator[None]:
    """Let owners log in with a password alone."""
    rules = cluster.data_dir / "postgres" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all postgres trust\nlocal all all scram-sha-256\n{before}")
    as_superuser(cluster, "SELECT pg_reload_conf()")
    yield
    rules.write_text(before)
    as_superuser(cluster, "SELECT pg_reload_conf()")


async def test_a_wrong_password_is_refused_and_can_be_changed(
    cluster: EmbeddedPostgres, tmp_path: Path, password_required: None
) -> None:
    url = create_owned_database(cluster, "CREATEROLE PASSWORD 'right'")
    name = owner_name(url)
    with pytest.raises(ConfigurationError, match=f'rejects the password of "{name}"') as error:
        migrate(url.replace(f"{name}@", f"{name}:wrong-canary@"))
    assert "canary" not in str(error.value)
    with pytest.raises(ConfigurationError, match="DATABASE_URL has none"):
        migrate(url)
    run_in_psql(cluster, await check_database(url.replace(f"{name}@", f"{name}:change-me@"), tmp_path))
    assert migrate(url.replace(f"{name}@", f"{name}:change-me@"), production=True) == head_revision()


def test_a_refused_host_is_explained() -> None:
    reason = 'connection failed: FATAL:  no pg_hba.conf entry for host "10.1.2.3", user "toolscout", database "x"'
    assert "pg_hba.conf" in explain_connection_error("postgresql://toolscout@db/x", reason).message


@pytest.mark.parametrize(
    "reason",
    [
        'FATAL:  password authentication failed for user "toolscout"',
        "fe_sendauth: no password supplied",
        'FATAL:  no pg_hba.conf entry for host "10.1.2.3", user "toolscout", database "x"',
    ],
)
def test_a_refusal_names_the_setting_of_the_url(reason: str) -> None:
    for setting in ("DATABASE_URL", "TOOLSCOUT_LISTEN_DATABASE_URL"):
        message = explain_connection_error("postgresql://toolscout@db/x", reason, setting).message
        assert re.findall(r"\w*DATABASE_URL", message) == [setting]


def test_a_superuser_is_refused_with_the_setting_of_the_url(cluster: EmbeddedPostgres) -> None:
    url = create_owned_database(cluster, "SUPERUSER")
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_LISTEN_DATABASE_URL logs in as a superuser"):
        migrate(url, production=True, setting="TOOLSCOUT_LISTEN_DATABASE_URL")


def test_other_reasons_are_kept() -> None:
    reason = "connection failed: Connection refused\nIs the server running?"
    expected = MissingRequirement("connection failed: Connection refused")
    assert explain_connection_error("postgresql://toolscout@db/x", reason) == expected


async def test_an_old_pgvector_gets_the_statement_that_updates_it(
    cluster: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, empty = create_owned_database(cluster), create_owned_database(cluster, extension=False)
    monkeypatch.setattr(requirements, "MINIMUM_PGVECTOR", (99, 0))
    for url, statement in ((installed, "ALTER EXTENSION vector UPDATE;"), (empty, "CREATE EXTENSION vector;")):
        [result] = await check_database(url, tmp_path)
        assert "is too old: version 99.0 or later is required; install pgvector 99.0" in result.message
        assert result.statements == [rf'\connect "{owner_name(url)}"', statement]


def test_the_command_prints_the_sql_after_its_table(
    cluster: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = create_owned_database(cluster, extension=False)
    for name, value in make_settings(tmp_path).model_dump(include={"secret_key"}).items():
        monkeypatch.setenv(f"TOOLSCOUT_{name.upper()}", value.get_secret_value())
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit) as exited:
        run_checks()
    assert exited.value.exit_code == 1
    printed = capsys.readouterr().out
    assert "FAIL  database" in printed
    expected = f'As a superuser, run this in psql:\n\n\\connect "{owner_name(url)}"\nCREATE EXTENSION vector;\n'
    assert printed.endswith(expected)
