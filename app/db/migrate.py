"""Brings the schema up to date, once, under a lock; and refuses a server that would not do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from psycopg import errors as postgres_errors
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool

from app.db.engine import APP_ROLE, driver_url
from app.errors import ConfigurationError

MINIMUM_PGVECTOR = (0, 8, 4)
# any number will do, as long as every replica takes the same
_MIGRATION_LOCK = 7_300_418_256


def migrate(url: str, *, revision: str = "head", production: bool = False) -> str:
    """Upgrades to `revision` and answers with it. Safe to call from many replicas at once."""
    engine = create_engine(driver_url(url), poolclass=NullPool, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _MIGRATION_LOCK})
            check_server(connection, production=production)
            connection.commit()
            with _role_explained(connection):
                _move(connection, revision)
                connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
            connection.rollback()
            return current_revision(connection) or "base"
    except OperationalError as error:
        raise ConfigurationError(f"the database at DATABASE_URL does not answer: {_first_line(error)}") from error
    finally:
        engine.dispose()


def alembic_config() -> Config:
    root = Path(__file__).resolve().parents[2]
    config = Config()
    config.set_main_option("script_location", str(root / "migrations"))
    return config


def newest_revision() -> str | None:
    return _scripts().get_current_head()


def check_known(revision: str | None) -> None:
    """On the way back from an upgrade, or amid one, the schema may be ahead of the code."""
    if revision is not None and revision not in _steps_to("heads"):
        raise ConfigurationError(
            f"the schema is at {revision}, which this version does not know: a newer one has made it. Start that one, "
            "or go back first with its `toolscout migrate --to -1`."
        )


def current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def check_server(connection: Connection, *, production: bool) -> None:
    if production and connection.scalar(text("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")):
        raise ConfigurationError(
            "DATABASE_URL logs in as a superuser, which TOOLSCOUT_ENVIRONMENT=production refuses: "
            "a superuser is bound by no row-level security. Use a role that owns the database instead."
        )
    _ensure_extension(connection)
    version = connection.scalar(text("SELECT extversion FROM pg_extension WHERE extname = 'vector'"))
    if parsed_version(str(version)) < MINIMUM_PGVECTOR:
        raise ConfigurationError(
            f"pgvector {version} is too old: 0.8.4 or later is needed (`ALTER EXTENSION vector UPDATE`)"
        )


@contextmanager
def _role_explained(connection: Connection) -> Iterator[None]:
    """Making the app's role, and taking it on, are what an owner may lack the right to."""
    try:
        yield
    except ProgrammingError as error:
        if not isinstance(error.orig, postgres_errors.InsufficientPrivilege):
            raise
        connection.rollback()
        owner = connection.scalar(text("SELECT current_user"))
        raise ConfigurationError(
            f"the database's owner may not use the role {APP_ROLE} ({_first_line(error)}); "
            f"have a superuser run `CREATE ROLE {APP_ROLE} NOLOGIN` unless it is there, "
            f"and `GRANT {APP_ROLE} TO {owner}`"
        ) from error


def parsed_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _ensure_extension(connection: Connection) -> None:
    try:
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    except ProgrammingError as error:
        if not isinstance(error.orig, postgres_errors.InsufficientPrivilege):
            raise
        raise ConfigurationError(
            "the extension pgvector is missing and this role may not add it: "
            "have a superuser run `CREATE EXTENSION vector` in this database"
        ) from error
    except OperationalError as error:
        raise ConfigurationError(f"this Postgres has no pgvector to install: {_first_line(error)}") from error


def _move(connection: Connection, revision: str) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    current = current_revision(connection)
    connection.rollback()
    check_known(current)
    is_back = revision == "base" or revision.startswith("-") or revision in _steps_to(current or "base")
    try:
        (command.downgrade if is_back else command.upgrade)(config, revision)
    except CommandError as error:
        raise ConfigurationError(f"the schema cannot be brought to {revision!r}: {error}") from error
    connection.commit()


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(alembic_config())


def _steps_to(revision: str) -> set[str]:
    """With the last."""
    return {step.revision for step in _scripts().walk_revisions("base", revision)}


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).partition("\n")[0]
