"""Migrates the schema under an advisory lock, and refuses database servers that Toolscout cannot use."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from app.db.distribute import OnProgress, check_cluster, distribute, distribute_new_tables, is_distributed
from app.db.engine import driver_url
from app.db.poolers import refuse_shared_connections
from app.db.requirements import CREATE_EXTENSION, REFUSED_STATEMENTS, explain_connection_error, find_missing
from app.db.scope import APP_ROLE
from app.errors import ConfigurationError

logger = logging.getLogger("toolscout.db")

# An arbitrary number, but all versions must use the same one: replicas of two versions may start together.
MIGRATION_LOCK = 7_300_418_256

# Much shorter than Postgres' `deadlock_timeout` of a second, after which a replica that waits for a migration would be
# the one to fail: the migration gives up first.
_LOCK_TIMEOUT_MS = 100
_IMPATIENT_ATTEMPTS = 50
_PAUSE_S = 0.2

REVISIONS_OF_RELEASES = {"0.1.0": "2026_11_17_actions", "0.2.0": "2026_11_17_actions"}
"""The newest revision that each release knows. Its processes refuse a newer schema when they start."""


def migrate(url: str, *, revision: str = "head", production: bool = False, setting: str = "DATABASE_URL") -> str:
    """Upgrade or downgrade the schema to `revision`, or to that of a release, and return the resulting revision.

    Many replicas may call this at once. `setting` is where the URL comes from, for errors.
    """
    with migration_connection(url, production=production, setting=setting) as connection:
        _migrate_to(connection, REVISIONS_OF_RELEASES.get(revision, revision))
        reached = current_revision(connection) or "base"
        if reached == head_revision() and is_distributed(connection):
            distribute_new_tables(connection)
        return reached


def migrate_and_distribute(
    url: str, on_progress: OnProgress, *, production: bool = False, setting: str = "DATABASE_URL"
) -> str:
    """Upgrade the schema and distribute its tables with Citus. Return the resulting revision."""
    with migration_connection(url, production=production, setting=setting) as connection:
        check_cluster(connection)
        connection.rollback()
        _migrate_to(connection, "head")
        distribute(connection, on_progress)
        return current_revision(connection) or "base"


@contextmanager
def migration_connection(url: str, *, production: bool, setting: str = "DATABASE_URL") -> Iterator[Connection]:
    """Connect as the owner, check the server and hold the migration lock; commit at the end.

    Raises `ConfigurationError` if the server is unsuitable, if a pooler shares the connection with other clients, or if
    the owner may not use the app role afterwards.
    """
    engine = create_engine(driver_url(url, setting), poolclass=NullPool, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            refuse_shared_connections(connection, url, setting)
            connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": MIGRATION_LOCK})
            check_server(connection, production=production, setting=setting)
            connection.commit()
            yield connection
            connection.commit()
            if current_revision(connection) is not None:
                connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
            connection.rollback()
    except OperationalError as error:
        reason = explain_connection_error(url, str(error.orig), setting).message
        raise ConfigurationError(f"cannot connect to the database at {setting}: {reason}") from error
    except DBAPIError as error:
        if not isinstance(error.orig, REFUSED_STATEMENTS):
            raise
        reason = str(error.orig).partition("\n")[0]
        raise ConfigurationError(
            f"the database refuses a statement of the migration: {reason}; run `toolscout doctor`"
        ) from error
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
            f"start that version, or let it downgrade the schema: `toolscout migrate --to {head_revision()}`"
        )


def check_server(connection: Connection, *, production: bool, setting: str) -> None:
    """Raise `ConfigurationError` for what only an administrator can provide, and create the extension if it is missing.

    `toolscout doctor` prints the SQL for the administrator.
    """
    if missing := find_missing(connection, production=production, setting=setting):
        raise ConfigurationError("; ".join(requirement.message for requirement in missing))
    # Citus lets only the owner of an extension run this, even where there is nothing to do
    if connection.scalar(text("SELECT 1 FROM pg_extension WHERE extname = 'vector'")) is None:
        connection.execute(text(CREATE_EXTENSION))


def _migrate_to(connection: Connection, revision: str) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    current = current_revision(connection)
    connection.rollback()
    check_revision_known(current)
    is_downgrade = revision == "base" or revision.startswith("-") or revision in _revisions_up_to(current or "base")
    run = partial(command.downgrade if is_downgrade else command.upgrade, config, revision)
    try:
        # `-2` that was done in part cannot be repeated
        attempts = 0 if revision.startswith(("-", "+")) else _IMPATIENT_ATTEMPTS
        if not any(_try_without_waiting(connection, run) for _ in range(attempts)):
            run()
    except CommandError as error:
        releases = ", ".join(REVISIONS_OF_RELEASES)
        raise ConfigurationError(
            f"cannot migrate the schema to {revision!r}: {error}; releases with a schema of their own: {releases}"
        ) from error
    connection.commit()


def _try_without_waiting(connection: Connection, run: Callable[[], None]) -> bool:
    """Run migrations, and return whether all are done. False: one has waited too long for a lock.

    While a migration waits for a table that is in use, everybody else waits for the migration. So it steps back, and
    is tried again a little later; the migrations before it stay done.
    """
    connection.execute(text(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}"))
    connection.commit()
    try:
        run()
    except OperationalError as error:
        if not isinstance(error.orig, LockNotAvailable | DeadlockDetected):
            raise
        logger.info("a table is in use, the migration is tried again")
        connection.rollback()
        time.sleep(_PAUSE_S)
        return False
    finally:
        if not connection.closed and not connection.invalidated:
            connection.rollback()
            connection.execute(text("RESET lock_timeout"))
            connection.commit()
    return True


def _load_scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(alembic_config())


def _revisions_up_to(revision: str) -> set[str]:
    """Return all revisions from the first one to this one, inclusive."""
    return {script.revision for script in _load_scripts().walk_revisions("base", revision)}
