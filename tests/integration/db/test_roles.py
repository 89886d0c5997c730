"""Owners that are not superusers, as on a hosted Postgres. The tests have their own Postgres, since they drop roles."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from app.container import open_container
from app.db.engine import Database
from app.db.migrate import head_revision, migrate
from app.db.scope import APP_ROLE
from app.errors import ConfigurationError
from app.local_postgres.database import open_database
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import new_user
from tests.support.database_owners import as_superuser, create_owned_database, owner_name
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import make_settings, tool


async def current_user(url: str) -> str:
    database = Database(url, pool_size=1)
    try:
        async with database.system_transaction() as session:
            [(name,)] = await session.rows("SELECT current_user::text FROM (SELECT count(*) FROM users) AS readable")
    finally:
        await database.close()
    return str(name)


async def test_an_ordinary_owner_is_sufficient_in_production(
    cluster: EmbeddedPostgres, embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    """End to end: migrate, add a server with tools, discover; then start a second time."""
    settings = make_settings(
        tmp_path,
        environment="production",
        database_url=SecretStr(create_owned_database(cluster)),
        **embedding_server.settings(),
    )
    for _ in range(2):
        async with open_database(settings) as url, open_container(settings, url) as service:
            async with new_user(service) as user:
                await user.add_tools(tool("get_forecast", "Weather forecast for a city."))
                answer = await user.discover("weather forecast for a city")
                assert answer["tools"][0]["source"] == "semantic"
            async with service.database.system_transaction() as session:
                assert await session.rows("SELECT current_user::text") == [(APP_ROLE,)]


async def test_without_the_extension_the_error_says_that_a_superuser_must_create_it(cluster: EmbeddedPostgres) -> None:
    url = create_owned_database(cluster, extension=False)
    with pytest.raises(ConfigurationError, match="as a superuser, run `CREATE EXTENSION vector`"):
        migrate(url, production=True)
    as_superuser(cluster, "CREATE EXTENSION vector", database=owner_name(url))
    assert migrate(url, production=True) == head_revision()


async def test_an_owner_needs_no_createrole_if_the_app_role_is_granted(cluster: EmbeddedPostgres) -> None:
    url = create_owned_database(cluster, "")
    as_superuser(cluster, f"CREATE ROLE {APP_ROLE} NOLOGIN", f"GRANT {APP_ROLE} TO {owner_name(url)}")
    assert migrate(url, production=True) == head_revision()
    assert await current_user(url) == APP_ROLE


@pytest.mark.parametrize("options", ["", "CREATEROLE"])
async def test_an_owner_without_the_app_role_gets_an_error(cluster: EmbeddedPostgres, options: str) -> None:
    """The owner of another database has created the role, and only that owner or a superuser can grant it."""
    migrate(create_owned_database(cluster), production=True)
    url = create_owned_database(cluster, options)
    with pytest.raises(ConfigurationError, match=APP_ROLE):
        migrate(url, production=True)
    as_superuser(cluster, f"GRANT {APP_ROLE} TO {owner_name(url)}")
    assert migrate(url, production=True) == head_revision()
    assert await current_user(url) == APP_ROLE


async def test_an_owner_who_may_not_create_the_app_role_gets_an_error(cluster: EmbeddedPostgres) -> None:
    url = create_owned_database(cluster, "")
    with pytest.raises(ConfigurationError, match=APP_ROLE):
        migrate(url, production=True)
    as_superuser(cluster, f"ALTER ROLE {owner_name(url)} CREATEROLE")
    assert migrate(url, production=True) == head_revision()
    assert await current_user(url) == APP_ROLE
