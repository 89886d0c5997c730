"""Settings, databases and definitions for tests."""

import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors, sql
from pydantic import SecretStr

from app.container import Container
from app.db.migrate import migrate
from app.local_postgres.postgres import EmbeddedPostgres
from app.settings import Settings
from tests.support.mcp_server import FakeMcpServer

ADMIN_KEY = "an-admin-key-for-tests"
SECRET_KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
SLOW_MACHINE_ENV = {"TOOLSCOUT_QUERY_EMBED_BUDGET_MS": "60000", "TOOLSCOUT_CONNECT_TIMEOUT_S": "120"}
"""For services in other processes: on a busy machine everything may take longer than a user would wait."""

OpenService = Callable[..., AbstractAsyncContextManager[Container]]

_TEMPLATE = "migrated_template"


def make_settings(data_dir: Path, **changes: Any) -> Settings:
    values = {
        "data_dir": data_dir,
        "secret_key": SecretStr(SECRET_KEY),
        "admin_api_key": SecretStr(ADMIN_KEY),
        "demo": False,
        "database_pool_size": 5,
        "categories": False,  # tests that need them make them, and others need not wait for them
        "reindex_every_s": 0,  # servers of finished tests would be asked again
        "query_embed_budget_ms": 60_000,  # see SLOW_MACHINE_ENV
        "catalog_embed_budget_s": 60.0,
        **changes,
    }
    return Settings(_env_file=None, **values)


def make_database(postgres: EmbeddedPostgres) -> str:
    """Create a database with the newest schema and return its URL, as its owner.

    It is a copy of a template database, which is migrated once for each Postgres.
    """
    try:
        return _create_database(postgres, template=_TEMPLATE)
    except errors.InvalidCatalogName:
        migrate(_create_database(postgres, name=_TEMPLATE))
        return _create_database(postgres, template=_TEMPLATE)


def make_empty_database(postgres: EmbeddedPostgres) -> str:
    """Create a database without a schema, for tests of the migrations."""
    return _create_database(postgres)


def _create_database(postgres: EmbeddedPostgres, *, name: str | None = None, template: str = "template1") -> str:
    name = name or f"test_{uuid.uuid4().hex}"
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(statement)
    return postgres.url.replace("/toolscout?", f"/{name}?")


def outbound_allow(*servers: FakeMcpServer) -> str:
    """Return the setting that lets a service connect to these servers."""
    return ",".join(f"127.0.0.1:{server.port}" for server in servers)


async def resolve_nothing(host: str, _port: int) -> Sequence[str]:
    """Refuse every host name, so that no test asks a name server."""
    raise OSError(f"tests resolve no names: {host}")


def tool(name: str, description: str = "", **fields: Any) -> dict[str, Any]:
    """Return a tool's definition as an MCP server lists it."""
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": {}}, **fields}
