"""What the migrations have made, read from Postgres's own catalogue."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.pool import NullPool

from app.db.engine import APP_ROLE, driver_url
from app.db.migrate import migrate
from app.db.tables import metadata
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.factories import make_database

# a key must be found before its user is known, and a user is the tenant itself
NOT_LED_BY_A_USER = {"users", "api_keys"}


@pytest.fixture(scope="module")
def owner(postgres: EmbeddedPostgres) -> Iterator[Connection]:
    """In a database that has just been migrated."""
    url = make_database(postgres)
    migrate(url)
    engine = create_engine(driver_url(url), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def tenant_tables() -> list[str]:
    return [name for name, table in metadata.tables.items() if "user_id" in table.c and name not in NOT_LED_BY_A_USER]


def column(connection: Connection, statement: str) -> list[Any]:
    return list(connection.scalars(text(statement)))


def test_there_are_tenant_tables_to_look_at() -> None:
    assert {"mcp_servers", "mcp_tools", "mcp_tool_embeddings", "index_runs"} <= set(tenant_tables())


def test_the_models_and_the_migrations_describe_the_same_schema(owner: Connection) -> None:
    context = MigrationContext.configure(owner, opts={"compare_type": True, "compare_server_default": True})
    assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("table", tenant_tables())
def test_every_key_of_a_tenant_table_begins_with_the_user(owner: Connection, table: str) -> None:
    schema = inspect(owner)
    keys: list[Sequence[str | None]] = [schema.get_pk_constraint(table)["constrained_columns"]]
    keys += [key["column_names"] for key in schema.get_unique_constraints(table)]
    keys += [index["column_names"] for index in schema.get_indexes(table) if index["unique"]]
    keys += [key["constrained_columns"] for key in schema.get_foreign_keys(table)]
    assert keys[0]
    assert {key[0] for key in keys} == {"user_id"}


@pytest.mark.parametrize("table", tenant_tables())
def test_a_foreign_key_between_tenant_tables_stays_with_one_user(owner: Connection, table: str) -> None:
    for key in inspect(owner).get_foreign_keys(table):
        assert key["referred_columns"][0] == ("id" if key["referred_table"] == "users" else "user_id")


@pytest.mark.parametrize("table", tenant_tables())
def test_no_row_of_a_tenant_table_is_without_its_user(owner: Connection, table: str) -> None:
    [user_id] = [each for each in inspect(owner).get_columns(table) if each["name"] == "user_id"]
    assert user_id["nullable"] is False


@pytest.mark.parametrize("table", [*tenant_tables(), *sorted(NOT_LED_BY_A_USER)])
def test_row_level_security_is_on_with_a_policy_for_the_app(owner: Connection, table: str) -> None:
    enabled = column(owner, f"SELECT relrowsecurity FROM pg_class WHERE oid = '{table}'::regclass")
    roles = column(owner, f"SELECT roles FROM pg_policies WHERE tablename = '{table}' AND policyname = 'tenant'")
    assert enabled == [True]
    assert roles == [[APP_ROLE]]


def test_tables_without_row_level_security_hold_nothing_of_a_user(owner: Connection) -> None:
    unguarded = column(
        owner,
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        " AND NOT relrowsecurity",
    )
    assert set(unguarded) == {"alembic_version", "embedding_cache", "embedding_models", "policy"}


def test_the_role_that_serves_is_bound_by_row_level_security(owner: Connection) -> None:
    role = owner.execute(
        text("SELECT rolsuper, rolbypassrls, rolcanlogin, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = :r"),
        {"r": APP_ROLE},
    ).one()
    assert not any(role)
    owners = column(owner, "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'")
    assert APP_ROLE not in owners


@pytest.mark.parametrize(
    ("table", "granted"),
    [
        ("mcp_tools", {"SELECT", "INSERT", "UPDATE", "DELETE"}),
        ("embedding_models", {"SELECT"}),
        ("tool_feedback", {"SELECT", "INSERT", "DELETE"}),
        ("alembic_version", set()),
    ],
)
def test_the_role_that_serves_may_do_no_more_than_it_must(owner: Connection, table: str, granted: set[str]) -> None:
    privileges = column(
        owner,
        f"SELECT privilege_type FROM information_schema.role_table_grants"
        f" WHERE table_name = '{table}' AND grantee = '{APP_ROLE}'",
    )
    assert set(privileges) == granted


@pytest.mark.parametrize("name", ["embedding", "lexical"])
def test_what_a_search_reads_stands_in_the_row_itself(owner: Connection, name: str) -> None:
    storage = column(
        owner,
        f"SELECT attstorage FROM pg_attribute WHERE attrelid = 'mcp_tool_embeddings'::regclass AND attname = '{name}'",
    )
    assert storage == ["p"]
