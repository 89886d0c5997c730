"""The schema that the migrations create, read from the catalog of Postgres."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.pool import NullPool

from app.db.distribution import TENANT_COLUMNS
from app.db.engine import driver_url
from app.db.migrate import migrate
from app.db.scope import APP_ROLE
from app.db.tables import metadata
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.factories import make_database

# a key is looked up before its user is known, and a user is the tenant itself
NOT_KEYED_BY_USER = {"users", "api_keys"}


@pytest.fixture(scope="module")
def owner(postgres: EmbeddedPostgres) -> Iterator[Connection]:
    """A connection as the owner of a freshly migrated database."""
    url = make_database(postgres)
    migrate(url)
    engine = create_engine(driver_url(url), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def tenant_tables() -> list[str]:
    return [name for name, table in metadata.tables.items() if "user_id" in table.c and name not in NOT_KEYED_BY_USER]


def fetch_column(connection: Connection, statement: str) -> list[Any]:
    return list(connection.scalars(text(statement)))


def test_the_tenant_tables_are_found() -> None:
    assert {"mcp_servers", "mcp_tools", "mcp_tool_embeddings", "index_runs"} <= set(tenant_tables())


def test_the_metadata_and_the_migrations_describe_the_same_schema(owner: Connection) -> None:
    context = MigrationContext.configure(owner, opts={"compare_type": True, "compare_server_default": True})
    assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("table", tenant_tables())
def test_every_key_of_a_tenant_table_starts_with_user_id(owner: Connection, table: str) -> None:
    schema = inspect(owner)
    keys: list[Sequence[str | None]] = [schema.get_pk_constraint(table)["constrained_columns"]]
    keys += [key["column_names"] for key in schema.get_unique_constraints(table)]
    keys += [index["column_names"] for index in schema.get_indexes(table) if index["unique"]]
    keys += [key["constrained_columns"] for key in schema.get_foreign_keys(table)]
    assert keys[0]
    assert {key[0] for key in keys} == {"user_id"}


@pytest.mark.parametrize("table", tenant_tables())
def test_a_foreign_key_between_tenant_tables_includes_user_id(owner: Connection, table: str) -> None:
    for key in inspect(owner).get_foreign_keys(table):
        assert key["referred_columns"][0] == ("id" if key["referred_table"] == "users" else "user_id")


@pytest.mark.parametrize("table", tenant_tables())
def test_user_id_is_not_null_in_tenant_tables(owner: Connection, table: str) -> None:
    [user_id] = [each for each in inspect(owner).get_columns(table) if each["name"] == "user_id"]
    assert user_id["nullable"] is False


@pytest.mark.parametrize("table", [*tenant_tables(), *sorted(NOT_KEYED_BY_USER)])
def test_row_level_security_is_enabled_with_a_policy_for_the_app_role(owner: Connection, table: str) -> None:
    enabled = fetch_column(owner, f"SELECT relrowsecurity FROM pg_class WHERE oid = '{table}'::regclass")
    roles = fetch_column(owner, f"SELECT roles FROM pg_policies WHERE tablename = '{table}' AND policyname = 'tenant'")
    assert enabled == [True]
    assert roles == [[APP_ROLE]]


def test_only_system_transactions_see_the_public_listings(owner: Connection) -> None:
    policies = fetch_column(owner, "SELECT qual FROM pg_policies WHERE tablename = 'public_listings'")
    assert len(policies) == 1
    assert "app.scope" in policies[0]


def test_no_policy_has_a_sub_select(owner: Connection) -> None:
    """Citus refuses them on distributed tables."""
    conditions = "concat(polqual::text, polwithcheck::text)"
    policies = f"SELECT polrelid::regclass FROM pg_policy WHERE {conditions} {{}} LIKE '%SUBLINK%'"
    assert fetch_column(owner, policies.format("")) == []
    assert len(fetch_column(owner, policies.format("NOT"))) > len(TENANT_COLUMNS)


def test_only_tables_without_user_data_lack_row_level_security(owner: Connection) -> None:
    unprotected = fetch_column(
        owner,
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        " AND NOT relrowsecurity",
    )
    assert set(unprotected) == {"alembic_version", "embedding_cache", "embedding_models", "policy", "task_leases"}


def test_row_level_security_applies_to_the_app_role(owner: Connection) -> None:
    role = owner.execute(
        text("SELECT rolsuper, rolbypassrls, rolcanlogin, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = :r"),
        {"r": APP_ROLE},
    ).one()
    assert not any(role)
    owners = fetch_column(owner, "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'")
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
def test_the_app_role_has_only_the_privileges_that_it_needs(owner: Connection, table: str, granted: set[str]) -> None:
    privileges = fetch_column(
        owner,
        f"SELECT privilege_type FROM information_schema.role_table_grants"
        f" WHERE table_name = '{table}' AND grantee = '{APP_ROLE}'",
    )
    assert set(privileges) == granted


@pytest.mark.parametrize("name", ["embedding", "lexical"])
def test_vectors_are_stored_inline(owner: Connection, name: str) -> None:
    storage = fetch_column(
        owner,
        f"SELECT attstorage FROM pg_attribute WHERE attrelid = 'mcp_tool_embeddings'::regclass AND attname = '{name}'",
    )
    assert storage == ["p"]
