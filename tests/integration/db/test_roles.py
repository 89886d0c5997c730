"""Owners that are no superusers, as a hosted Postgres gives them; on a Postgres of its own, whose roles are its own."""

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from app.container import open_container
from app.db.engine import APP_ROLE, Database
from app.db.migrate import migrate, newest_revision
from app.errors import ConfigurationError
from app.local_postgres.database import open_database
from app.local_postgres.postgres import EmbeddedPostgres
from tests.conftest import make_settings, new_user, tool
from tests.support.embedding_server import FakeEmbeddingServer


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder) / "data")
        server.start()
        yield server
        server.stop()


@pytest.fixture
def cluster(own_postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """Where nobody has made the app's role yet."""
    yield own_postgres
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        owners = connection.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'owner_%'").fetchall()
        for (name,) in owners:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        for name in (APP_ROLE, *(name for (name,) in owners)):
            connection.execute(f"DROP ROLE IF EXISTS {name}".encode())


def as_superuser(cluster: EmbeddedPostgres, *statements: str, database: str = "toolscout") -> None:
    with psycopg.connect(cluster.url.replace("/toolscout?", f"/{database}?"), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def owned(cluster: EmbeddedPostgres, options: str = "CREATEROLE", *, extension: bool = True) -> str:
    """The URL of a database whose owner is no superuser."""
    name = f"owner_{uuid.uuid4().hex[:8]}"
    as_superuser(cluster, f"CREATE ROLE {name} LOGIN {options}", f"CREATE DATABASE {name} OWNER {name}")
    if extension:
        as_superuser(cluster, "CREATE EXTENSION vector", database=name)
    return cluster.url.replace("postgres@/toolscout?", f"{name}@/{name}?")


def owner_in(url: str) -> str:
    return url.partition("://")[2].partition("@")[0]


async def current_user(url: str) -> str:
    database = Database(url, pool_size=1)
    try:
        async with database.system_transaction() as session:
            [(name,)] = await session.rows("SELECT current_user::text FROM (SELECT count(*) FROM users) AS readable")
    finally:
        await database.close()
    return str(name)


async def test_an_ordinary_owner_is_all_that_production_needs(
    cluster: EmbeddedPostgres, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    """End to end: migrations, a server, its tools, a discovery; and a second start."""
    settings = make_settings(
        tmp_path, environment="production", database_url=SecretStr(owned(cluster)), **embedding_server.settings()
    )
    for _ in range(2):
        async with open_database(settings) as url, open_container(settings, url) as service:
            async with new_user(service) as user:
                await user.add_tools(tool("get_forecast", "Weather forecast for a city."))
                answer = await user.discover("weather forecast for a city")
                assert answer["tools"][0]["source"] == "semantic"
            async with service.database.system_transaction() as session:
                assert await session.rows("SELECT current_user::text") == [(APP_ROLE,)]


async def test_without_the_extension_an_ordinary_owner_is_told_who_must_add_it(cluster: EmbeddedPostgres) -> None:
    url = owned(cluster, extension=False)
    with pytest.raises(ConfigurationError, match="superuser run `CREATE EXTENSION vector`"):
        migrate(url, production=True)
    as_superuser(cluster, "CREATE EXTENSION vector", database=owner_in(url))
    assert migrate(url, production=True) == newest_revision()


async def test_an_owner_may_be_given_the_apps_role_instead_of_the_right_to_make_it(cluster: EmbeddedPostgres) -> None:
    url = owned(cluster, "")
    as_superuser(cluster, f"CREATE ROLE {APP_ROLE} NOLOGIN", f"GRANT {APP_ROLE} TO {owner_in(url)}")
    assert migrate(url, production=True) == newest_revision()
    assert await current_user(url) == APP_ROLE


@pytest.mark.parametrize("options", ["", "CREATEROLE"])
async def test_an_owner_who_may_not_take_the_apps_role_is_told_so(cluster: EmbeddedPostgres, options: str) -> None:
    """Another database of the cluster has made the role already, and its maker alone can hand it out."""
    migrate(owned(cluster), production=True)
    url = owned(cluster, options)
    with pytest.raises(ConfigurationError, match=APP_ROLE):
        migrate(url, production=True)
    as_superuser(cluster, f"GRANT {APP_ROLE} TO {owner_in(url)}")
    assert migrate(url, production=True) == newest_revision()
    assert await current_user(url) == APP_ROLE


async def test_an_owner_who_may_not_make_the_apps_role_is_told_so(cluster: EmbeddedPostgres) -> None:
    url = owned(cluster, "")
    with pytest.raises(ConfigurationError, match=APP_ROLE):
        migrate(url, production=True)
    as_superuser(cluster, f"ALTER ROLE {owner_in(url)} CREATEROLE")
    assert migrate(url, production=True) == newest_revision()
    assert await current_user(url) == APP_ROLE
