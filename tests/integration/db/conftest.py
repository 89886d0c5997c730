"""The tests of this folder run the migrations themselves."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import insert

from app.db.engine import Database
from app.db.migrate import migrate
from app.db.scope import APP_ROLE
from app.db.tables import mcp_servers, users
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.factories import make_database, make_empty_database


@pytest.fixture
def fresh_database(postgres: EmbeddedPostgres) -> str:
    """The URL of a database without a schema, as its owner."""
    return make_empty_database(postgres)


@pytest.fixture
def migrated_database(postgres: EmbeddedPostgres) -> str:
    """The URL of a database with the newest schema, as its owner: for tests of what follows the first migration."""
    return make_database(postgres)


@pytest.fixture(scope="module")
async def url(postgres: EmbeddedPostgres) -> str:
    """Two users, with one server each."""
    url = make_database(postgres)
    await asyncio.to_thread(migrate, url)
    database = Database(url, pool_size=1)
    async with database.system_transaction() as session:
        for user_id in ("alice", "bob"):
            await session.execute(insert(users).values(id=user_id))
            await session.execute(insert(mcp_servers).values(user_id=user_id, id=user_id, name="s", transport="push"))
    await database.close()
    return url


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder) / "data")
        server.start()
        yield server
        server.stop()


@pytest.fixture
def cluster(own_postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A cluster in which the app role does not exist yet."""
    yield own_postgres
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        databases = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'owner_%'").fetchall()
        owners = connection.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'owner_%'").fetchall()
        for (name,) in databases:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        for name in (APP_ROLE, "toolscout", *(name for (name,) in owners)):
            connection.execute(f"DROP ROLE IF EXISTS {name}".encode())
