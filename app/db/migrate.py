"""Migrates the schema under an advisory lock, and refuses database servers that Toolscout cannot use."""

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
# An arbitrary number, but all versions must use the same one: replicas of two versions may start together.
MIGRATION_LOCK = 7_300_418_256


def migrate(url: str, *, revision: str = "head", production: bool = False) -> str:
    """Upgrade or downgrade the schema to `revision` and return the resulting revision.

    Many replicas may call this at once.
    """
    with migration_connection(url, production=production) as connection:
        _migrate_to(connection, revision)
        return current_revision(connection) or "base"


@contextmanager
def migration_connection(url: str, *, production: bool) -> Iterator[Connection]:
    """Connect as the owner, check the server and hold the migration lock; commit at the end.

    Raises `ConfigurationError` if the server is unsuitable, or if the owner may not use the app role afterwards.
    """
    engine = create_engine(driver_url(url), poolclass=NullPool, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": MIGRATION_LOCK})
            check_server(connection, production=production)
            connection.commit()
            with _explain_missing_role(connection):
                yield connection
                connection.commit()
                if current_revision(connection) is not None:
                    connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
            connection.rollback()
    except OperationalError as error:
        raise ConfigurationError(f"cannot connect to the database at DATABASE_URL: {_first_line(error)}") from error
    finally:
        engine.dispose()


def alembic_config() -> Config:
    """Return the configuration for a run inside the app, which works without `alembic.ini`."""
    root = Path(__file__).resolve().parents[2]
    config = Config()
    config.set_main_option("script_location", str(root / "migrations"))
    return config


def head_revision() -> str | None:
    """Return the newest revision that this version knows."""
    return _load_scripts().get_current_head()


def current_revision(connection: Connection) -> str | None:
    """Return the revision of the database's schema, or None if the database is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def check_revision_known(revision: str | None) -> None:
    """Raise `ConfigurationError` if a newer version has migrated the schema.

    This happens after a rollback to an older version, or while a new version is rolled out.
    """
    if revision is not None and revision not in _revisions_up_to("heads"):
        raise ConfigurationError(
            f"the schema is at revision {revision}, which this version does not know: a newer version has migrated it; "
            "start that version, or downgrade first with its `toolscout migrate --to -1`"
        )


def check_server(connection: Connection, *, production: bool) -> None:
    """Raise `ConfigurationError` for a superuser in production, and for a missing or outdated pgvector.

    Creates the extension if it is missing and the owner may create it.
    """
    if production and connection.scalar(text("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")):
        raise ConfigurationError(
            "DATABASE_URL logs in as a superuser, which TOOLSCOUT_ENVIRONMENT=production refuses, because row-level "
            "security does not apply to superusers: use a role that owns the database instead"
        )
    _ensure_extension(connection)
    version = connection.scalar(text("SELECT extversion FROM pg_extension WHERE extname = 'vector'"))
    if parse_version(str(version)) < MINIMUM_PGVECTOR:
        raise ConfigurationError(
            f"pgvector {version} is too old: version 0.8.4 or later is required (`ALTER EXTENSION vector UPDATE`)"
        )


def parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@contextmanager
def _explain_missing_role(connection: Connection) -> Iterator[None]:
    """Translate the error of an owner who may neither create the app role nor use it."""
    try:
        yield
    except ProgrammingError as error:
        if not isinstance(error.orig, postgres_errors.InsufficientPrivilege):
            raise
        connection.rollback()
        owner = connection.scalar(text("SELECT current_user"))
        raise ConfigurationError(
            f"the database's owner may not use the role {APP_ROLE} ({_first_line(error)}); "
            f"as a superuser, run `CREATE ROLE {APP_ROLE} NOLOGIN` if the role does not exist, "
            f"and `GRANT {APP_ROLE} TO {owner}`"
        ) from error


def _ensure_extension(connection: Connection) -> None:
    try:
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    except ProgrammingError as error:
        if not isinstance(error.orig, postgres_errors.InsufficientPrivilege):
            raise
        raise ConfigurationError(
            "the extension pgvector is not installed in this database, and this role may not create it: "
            "as a superuser, run `CREATE EXTENSION vector` in this database"
        ) from error
    except OperationalError as error:
        raise ConfigurationError(f"this Postgres server has no pgvector: {_first_line(error)}") from error


def _migrate_to(connection: Connection, revision: str) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    current = current_revision(connection)
    connection.rollback()
    check_revision_known(current)
    is_downgrade = revision == "base" or revision.startswith("-") or revision in _revisions_up_to(current or "base")
    try:
        (command.downgrade if is_downgrade else command.upgrade)(config, revision)
    except CommandError as error:
        raise ConfigurationError(f"cannot migrate the schema to {revision!r}: {error}") from error
    connection.commit()


def _load_scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(alembic_config())


def _revisions_up_to(revision: str) -> set[str]:
    """Return all revisions from the first one to this one, inclusive."""
    return {script.revision for script in _load_scripts().walk_revisions("base", revision)}


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).partition("\n")[0]
