"""Migrations: upgrade, downgrade, concurrent replicas, and the servers that are refused."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

import app.db.requirements
from app.catalog.visibility import apply_policy, recompute_visibility
from app.catalog.visibility_policy import Policy
from app.container import open_container
from app.db.engine import Database
from app.db.migrate import REVISIONS_OF_RELEASES, head_revision, migrate
from app.db.requirements import parse_version
from app.errors import ConfigurationError
from app.local_postgres.database import open_database
from bench.service import free_port
from tests.support.factories import OpenService, make_settings
from tests.support.version_0_1_0 import restore_dump


def list_tables(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {name for (name,) in rows}


def test_upgrade_downgrade_and_upgrade_again(fresh_database: str) -> None:
    assert list_tables(fresh_database) == set()
    assert migrate(fresh_database) == head_revision()
    created = list_tables(fresh_database)
    assert {"users", "mcp_tools", "index_runs"} < created
    assert migrate(fresh_database, revision="base") == "base"
    assert list_tables(fresh_database) == {"alembic_version"}
    assert migrate(fresh_database) == head_revision()
    assert list_tables(fresh_database) == created


def test_downgrade_by_one_revision_and_upgrade_again(migrated_database: str) -> None:
    assert migrate(migrated_database, revision="-1") != head_revision()
    assert migrate(migrated_database) == head_revision()


def test_a_named_revision_is_reached_from_either_direction(migrated_database: str) -> None:
    for revision in (BEFORE_RULES, BEFORE_RULES, head_revision() or ""):
        assert migrate(migrated_database, revision=revision) == revision


def test_each_release_in_the_changelog_names_a_target(migrated_database: str) -> None:
    changelog = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
    assert list(REVISIONS_OF_RELEASES) == re.findall(r"^## \[([\d.]+)\]", changelog, re.MULTILINE)[::-1]
    for release, revision in REVISIONS_OF_RELEASES.items():
        assert migrate(migrated_database, revision=release) == revision
    assert migrate(migrated_database) == head_revision()


def test_the_schema_of_0_1_0_is_the_one_that_it_made(fresh_database: str) -> None:
    restore_dump(fresh_database)
    with psycopg.connect(fresh_database) as connection:
        made = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    assert made == (REVISIONS_OF_RELEASES["0.1.0"],)


def test_an_unknown_revision_is_refused(migrated_database: str) -> None:
    before = migrate(migrated_database)
    for unknown in ("unknown", "-99"):
        with pytest.raises(ConfigurationError, match=f"cannot migrate the schema to '{unknown}'"):
            migrate(migrated_database, revision=unknown)
    assert migrate(migrated_database, revision=before) == before


def test_a_schema_of_a_newer_version_is_refused(migrated_database: str) -> None:
    with psycopg.connect(migrated_database, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '2999_newer'")
    for revision in ("head", "-1"):
        advice = f"let it downgrade the schema: `toolscout migrate --to {head_revision()}`"
        with pytest.raises(ConfigurationError, match=f"at revision 2999_newer, which .* not know: .*{advice}"):
            migrate(migrated_database, revision=revision)


def test_migrating_an_up_to_date_schema_changes_nothing(migrated_database: str) -> None:
    with psycopg.connect(migrated_database, autocommit=True) as connection:
        connection.execute("INSERT INTO users (id) VALUES ('alice')")
        assert migrate(migrated_database) == head_revision()
        assert connection.execute("SELECT id FROM users").fetchall() == [("alice",)]


BEFORE_RULES = "2026_11_16_connections"

# by server and tool: server enabled, tool enabled, enabled by, and whether the tool can be found
BEFORE: dict[tuple[str, str], tuple[bool, bool, str, bool]] = {
    ("on", "left_alone"): (True, True, "default", True),
    ("on", "switched_on"): (True, True, "user", True),
    ("on", "switched_off"): (True, False, "user", False),
    ("off", "left_alone"): (False, True, "default", False),
    ("off", "switched_off"): (False, False, "user", False),
}
HIDDEN_BY = {
    ("on", "left_alone"): None,
    ("on", "switched_on"): None,
    ("on", "switched_off"): "user",
    ("off", "left_alone"): "server",
    ("off", "switched_off"): "server",
}


def insert_old_rows(url: str) -> None:
    """Insert the rows of a service at that revision, the same for two users."""
    with psycopg.connect(url) as connection:
        for user in ("alice", "bob"):
            connection.execute("INSERT INTO users (id) VALUES (%s)", [user])
            for server, enabled in (("on", True), ("off", False)):
                columns = "user_id, id, name, transport, enabled, tags"
                values = [user, f"{user}-{server}", server, enabled]
                connection.execute(
                    f"INSERT INTO mcp_servers ({columns}) VALUES (%s, %s, %s, 'push', %s, '{{s}}')", values
                )
            for (server, name), (_, enabled, enabled_by, visible) in BEFORE.items():
                key = user, f"{user}-{server}-{name}", f"{user}-{server}", name
                connection.execute(
                    """
                    INSERT INTO mcp_tools (user_id, id, server_id, name, description, input_schema, tags, pinned,
                        enabled, enabled_by, definition_hash, index_hash, enriched_description, tokens)
                    VALUES (%s, %s, %s, %s, '', '{}', '{t}', true, %s, %s, %s, '', '', 1)
                    """,
                    [*key, enabled, enabled_by, f"hash of {name}"],
                )
                connection.execute(
                    """
                    INSERT INTO mcp_tool_embeddings (user_id, tool_id, server_id, tool_name, server_name, model,
                        lexical, tokens, enabled, tags)
                    VALUES (%s, %s, %s, %s, %s, 'local:x', '{}/1000000000', 1, %s, '{t,s}')
                    """,
                    [*key, server, visible],
                )


def read_tools(url: str, *columns: str) -> dict[tuple[str, str], Any]:
    """Return the columns of alice's tools by server and tool; bob's must be the same."""
    statement = f"""
        SELECT v.server_name, v.tool_name, {", ".join(columns)}
        FROM mcp_tool_embeddings v
        JOIN mcp_tools t ON t.user_id = v.user_id AND t.id = v.tool_id
        JOIN mcp_servers s ON s.user_id = v.user_id AND s.id = v.server_id
        WHERE v.user_id = %s
    """
    with psycopg.connect(url) as connection:
        alice, bob = (connection.execute(statement.encode(), [user]).fetchall() for user in ("alice", "bob"))
    assert sorted(alice) == sorted(bob)
    return {(server, tool): rest if len(columns) > 1 else rest[0] for server, tool, *rest in alice}


async def recompute_all(url: str) -> None:
    database = Database(url, 1)
    await apply_policy(database, Policy(hold_changed=True))
    for user in ("alice", "bob"):
        async with database.transaction(user) as session:
            await recompute_visibility(session, user)
    await database.close()


async def test_the_rules_migration_keeps_visible_tools_visible_and_hidden_tools_hidden(
    fresh_database: str,
) -> None:
    url = fresh_database
    assert await asyncio.to_thread(migrate, url, revision=BEFORE_RULES) == BEFORE_RULES
    await asyncio.to_thread(insert_old_rows, url)
    before = read_tools(url, "s.enabled", "t.enabled", "t.enabled_by", "v.enabled")
    assert before == {tool: list(each) for tool, each in BEFORE.items()}

    assert await asyncio.to_thread(migrate, url) == head_revision()
    assert read_tools(url, "s.enabled", "t.enabled", "t.enabled_by", "v.enabled") == before
    assert read_tools(url, "t.hidden_by") == HIDDEN_BY
    switched = {tool: enabled if by == "user" else None for tool, (_, enabled, by, _) in BEFORE.items()}
    assert read_tools(url, "t.switched") == switched
    accepted = read_tools(url, "t.approved_hash = t.definition_hash AND t.state = 'approved' AND t.pinned")
    assert accepted == dict.fromkeys(BEFORE, True)

    rows = read_tools(url, "t.xmin::text", "v.xmin::text")
    await recompute_all(url)
    assert read_tools(url, "t.xmin::text", "v.xmin::text") == rows, "recomputing the decisions must change no row"

    while await asyncio.to_thread(migrate, url, revision="-1") != BEFORE_RULES:
        pass
    assert read_tools(url, "s.enabled", "t.enabled", "t.enabled_by", "v.enabled") == before
    assert await asyncio.to_thread(migrate, url) == head_revision()
    assert read_tools(url, "t.hidden_by") == HIDDEN_BY


async def test_tools_hidden_for_a_reason_unknown_to_the_older_schema_stay_hidden_after_a_downgrade(
    fresh_database: str,
) -> None:
    """A downgrade makes no hidden tool visible, and removed tools do not return."""
    url = fresh_database
    await asyncio.to_thread(migrate, url, revision=BEFORE_RULES)
    await asyncio.to_thread(insert_old_rows, url)
    await asyncio.to_thread(migrate, url)
    with psycopg.connect(url) as connection:
        connection.execute(
            """
            INSERT INTO tool_rules (user_id, project_id, position, patterns, enabled)
            SELECT id, '', 1, '{left_alone}', false FROM users
            """
        )
        connection.execute("UPDATE mcp_tools SET state = 'changed' WHERE name = 'switched_on'")
        connection.execute("DELETE FROM mcp_tool_embeddings WHERE server_name = 'off' AND tool_name = 'left_alone'")
        connection.execute("UPDATE mcp_tools SET vanished_at = now() WHERE id LIKE '%off-left_alone'")
    await recompute_all(url)
    hidden = dict.fromkeys(BEFORE, False)
    del hidden["off", "left_alone"]
    assert read_tools(url, "v.enabled") == hidden
    while await asyncio.to_thread(migrate, url, revision="-1") != BEFORE_RULES:
        pass
    assert read_tools(url, "v.enabled") == hidden
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM mcp_tools").fetchall() == [(2 * len(hidden),)]


async def test_a_database_that_has_served_can_be_downgraded_to_base(open_service: OpenService) -> None:
    """It has an HNSW index that no migration created."""
    async with open_service() as service:
        url = service.database.engine.url.render_as_string(hide_password=False)
    assert await asyncio.to_thread(migrate, url, revision="base") == "base"


def test_a_migration_that_waits_for_a_table_lets_others_use_it(fresh_database: str) -> None:
    restore_dump(fresh_database)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(fresh_database) as reader:
        reader.execute("SELECT count(*) FROM mcp_servers")
        with psycopg.connect(fresh_database, autocommit=True) as other:
            migration = pool.submit(migrate, fresh_database)
            waits = "SELECT FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
            while not other.execute(waits).fetchall():
                assert not migration.done()
            other.execute("SET statement_timeout = '20s'")
            other.execute("SELECT count(*) FROM mcp_servers")  # behind the migration, which steps back
            assert not migration.done()
        reader.rollback()
        assert migration.result() == head_revision()


def test_replicas_that_start_together_migrate_once(fresh_database: str) -> None:
    with ThreadPoolExecutor(4) as replicas:
        revisions = list(replicas.map(migrate, [fresh_database] * 4))
    assert revisions == [head_revision()] * 4
    assert "users" in list_tables(fresh_database)


def test_a_superuser_is_refused_in_production_and_accepted_in_development(fresh_database: str) -> None:
    with pytest.raises(ConfigurationError, match=r"superuser.*production"):
        migrate(fresh_database, production=True)
    assert list_tables(fresh_database) == set()
    assert migrate(fresh_database, production=False) == head_revision()


def test_an_old_pgvector_is_refused_and_the_message_says_how_to_update_it(
    fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(app.db.requirements, "MINIMUM_PGVECTOR", (99, 0))
        with psycopg.connect(fresh_database, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
        with pytest.raises(ConfigurationError, match=r"too old.*ALTER EXTENSION vector UPDATE"):
            migrate(fresh_database)
    assert list_tables(fresh_database) == set()
    assert migrate(fresh_database) == head_revision()


@pytest.mark.parametrize(
    ("version", "parsed"), [("0.8.4", (0, 8, 4)), ("0.10.0", (0, 10, 0)), ("1.0", (1, 0)), ("0.8", (0, 8))]
)
def test_versions_are_compared_by_number(version: str, parsed: tuple[int, ...]) -> None:
    assert parse_version(version) == parsed


def test_a_later_version_is_greater() -> None:
    assert parse_version("0.10.0") > parse_version("0.8.4") > parse_version("0.8.3") > parse_version("0.8")


@pytest.mark.parametrize("setting", ["DATABASE_URL", "TOOLSCOUT_LISTEN_DATABASE_URL"])
def test_an_unreachable_database_is_refused_with_its_setting_and_the_reason(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"cannot connect to the database at {setting}: .*refused"):
        migrate(f"postgresql://someone:canary@127.0.0.1:{free_port()}/nothing", setting=setting)


def test_a_missing_database_is_refused_with_the_reason(fresh_database: str) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        migrate(fresh_database.replace("/test_", "/no_such_"))


@pytest.mark.parametrize(
    "url", ["nonsense", "postgresql://u:canary@127.0.0.1:port/x", "://", "postgresql://[::1/x"], ids=ascii
)
def test_an_invalid_url_is_refused_without_repeating_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="DATABASE_URL") as error:
        migrate(url)
    assert "canary" not in str(error.value)


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite", "mysql+pymysql", "mariadb", "mongodb", "SQLite"])
def test_another_database_is_refused_by_its_name(scheme: str) -> None:
    name = scheme.partition("+")[0].lower()
    with pytest.raises(ConfigurationError, match=f"names a {name} database.*Postgres.*leave DATABASE_URL out") as error:
        migrate(f"{scheme}://someone:canary@127.0.0.1/x")
    assert "canary" not in str(error.value)


@pytest.mark.parametrize("url", ["sqlite:///toolscout.db", "sqlite://", "sqlite:////var/lib/toolscout.db"])
def test_every_form_of_a_sqlite_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="names a sqlite database"):
        migrate(url)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg", "POSTGRESQL"])
def test_every_common_scheme_of_a_postgres_url_is_accepted(migrated_database: str, scheme: str) -> None:
    assert migrate(migrated_database.replace("postgresql:", f"{scheme}:")) == head_revision()


def list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


SECRET_KEYS = {
    "missing": (None, "TOOLSCOUT_SECRET_KEY is missing"),
    "short": ("c2hvcnQ=", "holds 5 bytes, not 32"),
    "not base64": ("?" * 44, "is not base64"),
}


@pytest.mark.parametrize(("secret_key", "reason"), SECRET_KEYS.values(), ids=SECRET_KEYS)
async def test_a_configured_database_needs_a_valid_secret_key(
    migrated_database: str, tmp_path: Path, secret_key: str | None, reason: str
) -> None:
    settings = make_settings(tmp_path, database_url=SecretStr(migrated_database))
    changes = {"secret_key": None if secret_key is None else SecretStr(secret_key)}
    with pytest.raises(ConfigurationError, match=f"{reason}.*openssl rand -base64 32"):
        async with open_container(settings.model_copy(update=changes), migrated_database):
            pass
    async with open_container(settings, migrated_database) as service:
        await service.database.ping()


async def test_the_embedded_postgres_is_refused_in_production(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="production needs DATABASE_URL"):
        async with open_database(make_settings(tmp_path, environment="production")):
            pass
    assert list_files(tmp_path) == []


async def test_database_url_is_used_unchanged_in_any_environment(tmp_path: Path) -> None:
    url = "postgresql://db/toolscout"
    for environment in ("development", "production"):
        settings = make_settings(tmp_path, environment=environment, database_url=SecretStr(url))
        async with open_database(settings) as opened:
            assert opened == url
    assert list_files(tmp_path) == []
