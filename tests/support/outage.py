"""Simulate an outage of one database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import sql

from app.db.engine import Database
from app.local_postgres.postgres import EmbeddedPostgres


@asynccontextmanager
async def close_database(postgres: EmbeddedPostgres, database: Database) -> AsyncIterator[None]:
    """Terminate every connection to this database and reject new ones, as if its Postgres had stopped."""
    name = database.engine.url.database
    assert name is not None
    reject = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name))
    accept = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(sql.Identifier(name))
    connection = await psycopg.AsyncConnection.connect(postgres.url, autocommit=True)
    async with connection:
        await connection.execute(reject)
        await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            await connection.execute(accept)
