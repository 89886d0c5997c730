"""Alembic's environment, for the `alembic` command line as well as for `toolscout migrate`.

`toolscout migrate` and the service pass a connection that already holds the migration lock. The command line connects
to the database that the settings name, takes the same lock and makes the same checks of the server.
"""

import asyncio
from logging.config import fileConfig

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from app.db.migrate import migration_connection
from app.db.tables import metadata
from app.errors import ToolscoutError
from app.local_postgres.database import connect_database
from app.search.hnsw import list_indexes
from app.settings import Settings


def run_migrations() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        run_on_connection(connection)
        return
    if context.config.config_file_name is not None:
        fileConfig(context.config.config_file_name, disable_existing_loggers=False)
    if context.is_offline_mode():
        print_sql()
        return
    try:
        asyncio.run(run_on_configured_database())
    except ToolscoutError as error:
        raise CommandError(error.message) from error


async def run_on_configured_database() -> None:
    settings = Settings()
    async with connect_database(settings) as url:
        production, setting = settings.environment == "production", settings.direct_database_setting
        await asyncio.to_thread(run_on_url, url, production=production, setting=setting)


def run_on_url(url: str, *, production: bool, setting: str) -> None:
    with migration_connection(url, production=production, setting=setting) as connection:
        run_on_connection(connection)


def run_on_connection(connection: Connection) -> None:
    # the indexes of large users: the app creates them, no migration does
    managed_by_app = set(list_indexes(connection))
    connection.rollback()

    def include_name(name: str | None, kind: str, _parents: object) -> bool:
        return not (kind == "index" and name in managed_by_app)

    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=include_name,
        compare_server_default=True,
        # all of them together would lock many tables at once, and deadlock with a replica that serves
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def print_sql() -> None:
    """For `--sql`: print the statements and connect to nothing."""
    context.configure(dialect_name="postgresql", target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


run_migrations()
