"""What is ours on this machine, or was given to us: the database, and the key that seals stored credentials."""

import asyncio
import base64
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from app.crypto import Sealer
from app.db.engine import driver_url
from app.errors import ConfigurationError
from app.local_postgres.postgres import EmbeddedPostgres
from app.settings import SECRET_KEY_BYTES, Settings, decode_secret_key


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[str]:
    """For the service: its own Postgres, watched and started again when it dies, unless the settings name another."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
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
async def connect_database(settings: Settings, *, from_nothing: bool = False) -> AsyncIterator[str]:
    """For commands: beside a running service they use its Postgres; without one they start it for the while. Where
    there is no data most of them have nothing to do: they refuse rather than begin anew in what is a wrong folder."""
    if await is_running(settings):
        yield EmbeddedPostgres(settings.data_dir).url
        return
    if not (from_nothing or has_data(settings)):
        _refuse_embedded_in_production(settings)
        raise ConfigurationError(
            f"there is no data yet in {EmbeddedPostgres(settings.data_dir).data_dir}: run this where `toolscout serve` "
            "runs, or set TOOLSCOUT_DATA_DIR to the folder of its data; `toolscout migrate` begins anew here"
        )
    async with open_database(settings) as url:
        yield url


async def is_running(settings: Settings) -> bool:
    """Whether a service runs on the embedded Postgres: it lives no longer than its service."""
    return settings.uses_embedded_db and await asyncio.to_thread(_answers, EmbeddedPostgres(settings.data_dir).url)


def has_data(settings: Settings) -> bool:
    """False where the embedded Postgres was never started; of any other, its database will tell."""
    return not settings.uses_embedded_db or EmbeddedPostgres(settings.data_dir).exists


def _answers(url: str) -> bool:
    try:
        with owner_connection(url):
            return True
    except OperationalError:
        return False


def _refuse_embedded_in_production(settings: Settings) -> None:
    if settings.environment == "production":
        raise ConfigurationError(
            "TOOLSCOUT_ENVIRONMENT=production needs DATABASE_URL: the embedded Postgres is for trying out"
        )


def make_sealer(settings: Settings) -> Sealer:
    former = [decode_secret_key(key) for key in settings.former_secret_keys]
    return Sealer(secret_key(settings), former)


def secret_key(settings: Settings) -> bytes:
    """Made and kept beside the embedded database; anywhere else it is the operator's to set and to keep."""
    if settings.secret_key is not None:
        return decode_secret_key(settings.secret_key.get_secret_value())
    if not settings.uses_embedded_db:
        raise ConfigurationError(
            "TOOLSCOUT_SECRET_KEY is missing; it seals stored credentials: make one with `openssl rand -base64 32`"
        )
    return _load_secret_key(settings.data_dir / "secret_key")


def _load_secret_key(path: Path) -> bytes:
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64encode(secrets.token_bytes(SECRET_KEY_BYTES)))
    return decode_secret_key(path.read_text())


@contextmanager
def owner_connection(url: str, *, autocommit: bool = False) -> Iterator[Connection]:
    """As the owner, for what the app's role may not do: indexes and the list of models."""
    engine = create_engine(driver_url(url), poolclass=NullPool, isolation_level="AUTOCOMMIT" if autocommit else None)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()
