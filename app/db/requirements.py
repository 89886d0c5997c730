"""What Toolscout needs of a Postgres server, and the SQL with which an administrator provides it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from psycopg import errors, sql
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DBAPIError

from app.db.engine import driver_url
from app.db.scope import APP_ROLE

MINIMUM_PGVECTOR = (0, 8, 4)
CREATE_EXTENSION = "CREATE EXTENSION IF NOT EXISTS vector"
REFUSED_STATEMENTS = (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.UndefinedFile)
"""For want of a privilege, or of the files of an extension."""
_OWNER = "toolscout"
_PASSWORD = "'change-me'"  # noqa: S105 for the administrator to replace


@dataclass(frozen=True)
class MissingRequirement:
    """`message` says what is missing and what to do; `statements` are for psql, as a superuser."""

    message: str
    statements: Sequence[str] = ()


@dataclass(frozen=True)
class _Facts:
    """What the server says about itself, the database of the connection and its role."""

    role: str
    database: str
    is_superuser: bool
    may_create_roles: bool
    server_version: int
    installed_pgvector: str | None
    offered_pgvector: str | None
    app_role_exists: bool
    may_use_app_role: bool
    may_create_tables: bool
    may_create_extension: bool = True


# Until Postgres 16, every member of a role could switch to it.
_FACTS = f"""
    SELECT r.rolname, current_database(), r.rolsuper, r.rolcreaterole, current_setting('server_version_num')::int,
           (SELECT extversion FROM pg_extension WHERE extname = 'vector'),
           (SELECT default_version FROM pg_available_extensions WHERE name = 'vector'),
           a.oid IS NOT NULL,
           coalesce(pg_has_role(a.oid, CASE WHEN current_setting('server_version_num')::int < 160000
                                       THEN 'MEMBER' ELSE 'SET' END), false),
           coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
    FROM pg_roles r LEFT JOIN pg_roles a ON a.rolname = '{APP_ROLE}'
    WHERE r.rolname = current_user
"""


def find_missing(connection: Connection, *, production: bool, setting: str) -> list[MissingRequirement]:
    """Return everything that only an administrator of the server can provide. Nothing is changed.

    `setting` is where the URL of the connection comes from.
    """
    facts = _Facts(*connection.execute(text(_FACTS)).one())
    if facts.installed_pgvector is None and facts.offered_pgvector is not None:
        facts = replace(facts, may_create_extension=_may_create_extension(connection))
    checks = (_check_extension, _check_app_role, _check_schema)
    found = [missing for check in checks for missing in check(facts)]
    return [*_check_not_superuser(facts, setting), *found] if production else found


def _may_create_extension(connection: Connection) -> bool:
    """Try it: hosted Postgres servers let some roles create extensions that are not superusers."""
    with connection.begin_nested() as savepoint:
        try:
            connection.execute(text(CREATE_EXTENSION))
        except DBAPIError as error:
            if not isinstance(error.orig, REFUSED_STATEMENTS):
                raise
            return False
        finally:
            savepoint.rollback()
    return True


def parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _check_not_superuser(facts: _Facts, setting: str) -> Iterator[MissingRequirement]:
    if not facts.is_superuser:
        return
    message = (
        f"{setting} logs in as a superuser, which TOOLSCOUT_ENVIRONMENT=production refuses, because row-level "
        "security does not apply to superusers: use a role that owns the database instead"
    )
    statements = [
        f"CREATE ROLE {_OWNER} LOGIN PASSWORD {_PASSWORD};",
        None if facts.app_role_exists else f"CREATE ROLE {APP_ROLE} NOLOGIN;",
        f"GRANT {APP_ROLE} TO {_OWNER};",
        f"ALTER DATABASE {_quote(facts.database)} OWNER TO {_OWNER};",
        rf"\connect {_quote(facts.database)}",
        f"{CREATE_EXTENSION};",
    ]
    yield MissingRequirement(message, [statement for statement in statements if statement is not None])


def _check_extension(facts: _Facts) -> Iterator[MissingRequirement]:
    connect = rf"\connect {_quote(facts.database)}"
    minimum = ".".join(map(str, MINIMUM_PGVECTOR))
    version = facts.installed_pgvector or facts.offered_pgvector
    install = (
        f"install pgvector {minimum} or later on the server (the package postgresql-{facts.server_version // 10_000}"
        f"-pgvector of Debian and Ubuntu, or the Docker image pgvector/pgvector)"
    )
    if version is None:
        message = (
            f"this Postgres server has no pgvector: {install}; then, as a superuser, run `CREATE EXTENSION vector`"
        )
        yield MissingRequirement(message, [connect, "CREATE EXTENSION vector;"])
    elif parse_version(version) < MINIMUM_PGVECTOR:
        message = f"pgvector {version} is too old: version {minimum} or later is required"
        if parse_version(facts.offered_pgvector or "") < MINIMUM_PGVECTOR:
            message += f"; {install}"
        action = "CREATE EXTENSION vector" if facts.installed_pgvector is None else "ALTER EXTENSION vector UPDATE"
        yield MissingRequirement(f"{message}; as a superuser, run `{action}`", [connect, f"{action};"])
    elif facts.installed_pgvector is None and not facts.may_create_extension:
        message = (
            "the extension pgvector is not installed in this database, and this role may not create it: "
            "as a superuser, run `CREATE EXTENSION vector` in this database"
        )
        yield MissingRequirement(message, [connect, "CREATE EXTENSION vector;"])


def _check_app_role(facts: _Facts) -> Iterator[MissingRequirement]:
    grant = f"GRANT {APP_ROLE} TO {_quote(facts.role)}"
    if not facts.app_role_exists and not facts.may_create_roles and not facts.is_superuser:
        create = f"CREATE ROLE {APP_ROLE} NOLOGIN"
        message = f"the role {APP_ROLE} does not exist, and {facts.role} may not create it: "
        yield MissingRequirement(f"{message}as a superuser, run `{create}` and `{grant}`", [f"{create};", f"{grant};"])
    elif facts.app_role_exists and not facts.may_use_app_role:
        message = f"{facts.role} may not use the role {APP_ROLE}: as a superuser, run `{grant}`"
        yield MissingRequirement(message, [f"{grant};"])


def _check_schema(facts: _Facts) -> Iterator[MissingRequirement]:
    if not facts.may_create_tables:
        change = f"ALTER DATABASE {_quote(facts.database)} OWNER TO {_quote(facts.role)}"
        message = f"{facts.role} may not create tables in the database {facts.database}: as a superuser, run `{change}`"
        yield MissingRequirement(message, [f"{change};"])


def explain_connection_error(url: str, reason: str, setting: str = "DATABASE_URL") -> MissingRequirement:
    """Say what to do about a connection that Postgres refuses. Other reasons are returned as they are.

    `setting` is where the URL comes from.

    The driver reports no SQLSTATE for these, so that the words decide; a server that speaks another language than
    English gets its own words back.
    """
    for pattern, explain in _REFUSALS.items():
        if (match := re.search(pattern, reason)) is not None:
            return explain(url, setting, *match.groups())
    return MissingRequirement(reason.partition("\n")[0])


def _explain_missing_database(url: str, setting: str, database: str) -> MissingRequirement:
    create = f"CREATE DATABASE {_quote(database)}"
    if (role := make_url(driver_url(url, setting)).username) is not None:
        create += f" OWNER {_quote(role)}"
    statements = [f"{create};", rf"\connect {_quote(database)}", f"{CREATE_EXTENSION};"]
    return MissingRequirement(f'the database "{database}" does not exist: as a superuser, run `{create}`', statements)


def _explain_missing_login(_url: str, _setting: str, role: str) -> MissingRequirement:
    create = f"CREATE ROLE {_quote(role)} LOGIN PASSWORD {_PASSWORD}"
    return MissingRequirement(f'the role "{role}" does not exist: as a superuser, run `{create}`', [f"{create};"])


def _explain_wrong_password(_url: str, setting: str, role: str) -> MissingRequirement:
    change = f"ALTER ROLE {_quote(role)} PASSWORD {_PASSWORD}"
    return MissingRequirement(
        f'Postgres rejects the password of "{role}", or has no such role: correct {setting} (characters such as '
        f"`@`, `:`, `/` and `%` must be percent-encoded), or, as a superuser, run `{change}`",
        [f"{change};"],
    )


def _explain_missing_password(_url: str, setting: str) -> MissingRequirement:
    return MissingRequirement(f"Postgres asks for a password, and {setting} has none: postgresql://user:password@…")


def _explain_access_rules(_url: str, setting: str) -> MissingRequirement:
    return MissingRequirement(
        "the server's pg_hba.conf lets this role not connect from this machine to this database: the administrator "
        f"adds a line for it, or, if the line demands TLS, {setting} gets `?sslmode=require`"
    )


_REFUSALS: dict[str, Callable[..., MissingRequirement]] = {
    r'FATAL: +database "(.+?)" does not exist': _explain_missing_database,
    r'FATAL: +role "(.+?)" does not exist': _explain_missing_login,
    r'FATAL: +password authentication failed for user "(.+?)"': _explain_wrong_password,
    r"no password supplied": _explain_missing_password,
    r"FATAL: +no pg_hba.conf entry": _explain_access_rules,
}


def _quote(identifier: str) -> str:
    return sql.Identifier(identifier).as_string(None)
