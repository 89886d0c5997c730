"""Opens the database that the settings name: `DATABASE_URL`, or an embedded Postgres in the data folder."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from app.db import poolers
from app.db.engine import Database, driver_url
from app.errors import ConfigurationError
from app.local_postgres.postgres import EmbeddedPostgres
from app.observability.metrics import Metrics
from app.settings import Settings


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[str]:
    """Yield the owner's URL for the service. An embedded Postgres is started, and restarted whenever it dies.

    It leads around a pooler in transaction mode; `make_pool` goes through it.
    """
    if settings.direct_database_url is not None:
        url = settings.direct_database_url.get_secret_value()
        # refuses other databases before anything else is asked for
        driver_url(url, settings.direct_database_setting)
        yield url
        return
    _refuse_embedded_in_production(settings)
    postgres = EmbeddedPostgres(settings.data_dir)
    await asyncio.to_thread(postgres.start)
    supervisor = asyncio.create_task(postgres.supervise())
    try:
        yield postgres.url
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
        await asyncio.to_thread(postgres.stop)


@asynccontextmanager
async def connect_database(settings: Settings, *, create: bool = False) -> AsyncIterator[str]:
    """Yield the owner's URL for a command.

    Beside a running service the command uses the service's Postgres; otherwise it starts the embedded one until it is
    done. Without `create` an empty data folder is an error: most commands have nothing to do there, and the folder is
    probably the wrong one.
    """
    if await is_service_running(settings):
        yield EmbeddedPostgres(settings.data_dir).url
        return
    if not (create or has_data(settings)):
        _refuse_embedded_in_production(settings)
        raise ConfigurationError(
            f"no database found in {EmbeddedPostgres(settings.data_dir).data_dir}: set DATABASE_URL, run this command "
            "where `toolscout serve` runs, or set TOOLSCOUT_DATA_DIR to its data folder; `toolscout migrate` creates a "
            "new database here"
        )
    async with open_database(settings) as url:
        yield url


def make_pool(settings: Settings, url: str, size: int, metrics: Metrics | None = None) -> Database:
    """Return the pool of connections for the app role. `url` is the owner's, which leads around a pooler."""
    return Database(_pooled_url(settings) or url, size, metrics, pooler=settings.database_pooler)


async def check_pooler(settings: Settings, url: str) -> str | None:
    """Return what could be better about the pooler of the settings, if there is one. `url` is the owner's.

    Raise `ConfigurationError` if it cannot be used as they say.
    """
    pooled_url = _pooled_url(settings)
    return None if pooled_url is None else await poolers.check_pooler(pooled_url, url, settings.database_pooler)


async def refuse_another_database(settings: Settings, url: str) -> None:
    """Raise `ConfigurationError` if the pooler of the settings leads to another database than the owner's URL."""
    if (pooled_url := _pooled_url(settings)) is not None:
        await poolers.refuse_another_database(pooled_url, url)


async def is_service_running(settings: Settings) -> bool:
    """Return whether a service runs on the embedded Postgres, which stops when its service stops."""
    return settings.uses_embedded_db and await asyncio.to_thread(
        _accepts_connections, EmbeddedPostgres(settings.data_dir).url
    )


def has_data(settings: Settings) -> bool:
    """Return False if the embedded Postgres has never been started. Any other database counts as existing."""
    return not settings.uses_embedded_db or EmbeddedPostgres(settings.data_dir).exists


@contextmanager
def owner_connection(url: str, *, autocommit: bool = False) -> Iterator[Connection]:
    """Connect as the database's owner, for what the app role may not do: create indexes, register models."""
    engine = create_engine(driver_url(url), poolclass=NullPool, isolation_level="AUTOCOMMIT" if autocommit else None)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@asynccontextmanager
async def async_owner_connection(url: str) -> AsyncIterator[AsyncConnection]:
    """Connect as the database's owner in autocommit mode, for long statements that end when the task is cancelled."""
    engine = create_async_engine(driver_url(url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


def _pooled_url(settings: Settings) -> str | None:
    if settings.database_url is None or settings.database_pooler == "none":
        return None
    return settings.database_url.get_secret_value()


def _accepts_connections(url: str) -> bool:
    try:
        with owner_connection(url):
            return True
    except OperationalError:
        return False


def _refuse_embedded_in_production(settings: Settings) -> None:
    if settings.environment == "production":
        raise ConfigurationError(
            "TOOLSCOUT_ENVIRONMENT=production needs DATABASE_URL (or DATABASE_URL_FILE), the URL of a Postgres with "
            "pgvector: the embedded Postgres is for development"
        )
