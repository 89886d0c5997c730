"""Distributes the tables of a database over the nodes of a Citus cluster: `toolscout migrate --distributed`.

Each table is a transaction of its own, and is skipped where it is done: an interrupted distribution is continued by
running it again. The service finds out by itself that a database is distributed (`engine.py`).
"""

from collections.abc import Callable, Iterator

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from app.db.distribution import KEY_COLUMNS, REFERENCE_TABLES, TENANT_COLUMNS
from app.db.nodes import ask_nodes
from app.db.requirements import MINIMUM_PGVECTOR, parse_version
from app.db.scope import APP_ROLE, DISTRIBUTED_SETTINGS
from app.errors import ConfigurationError

OnProgress = Callable[[str], object]

_MINIMUM_CITUS = (13, 0)

_CITUS_VERSION = "SELECT extversion FROM pg_extension WHERE extname = 'citus'"
_PLACED = "SELECT relname FROM pg_catalog.pg_dist_partition d JOIN pg_class c ON c.oid = d.logicalrelid"
# Of other roles' sessions, only an administrator sees the type.
_OTHER_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_backend_pid()
      AND coalesce(backend_type, 'client backend') = 'client backend' AND application_name NOT ILIKE 'citus%'
"""
_WORKERS = "SELECT count(*) FROM pg_catalog.pg_dist_node WHERE isactive AND shouldhaveshards AND noderole = 'primary'"
_PGVECTOR_OF_WORKERS = """
    SELECT nodename || ':' || nodeport, success, result
    FROM run_command_on_workers($$SELECT extversion FROM pg_extension WHERE extname = 'vector'$$) ORDER BY 1
"""
# Citus distributes no table with triggers. These keep the indexes of very large users, which a distributed database
# does without. Keys are on another node than the user and the project that they belong to; the service deletes them.
_PREPARATION_OF_USERS = (
    *(
        f"DROP TRIGGER IF EXISTS {trigger} ON mcp_tool_embeddings"
        for trigger in ("large_tenant_insert", "large_tenant_update", "large_tenant_delete")
    ),
    *(
        f"ALTER TABLE api_keys DROP CONSTRAINT IF EXISTS {constraint}"
        for constraint in ("api_keys_user_id_fkey", "api_keys_user_id_project_id_fkey")
    ),
    "UPDATE users SET ann = false WHERE ann",
    "UPDATE mcp_tool_embeddings SET ann = false WHERE ann",
    *(f"DELETE FROM {table}" for table in ("large_tenant_tools", "large_tenant_terms", "large_tenant_stats")),
)
_FILL_WAITING_USERS = """
    INSERT INTO waiting_users (user_id) SELECT DISTINCT user_id FROM index_runs WHERE state IN ('queued', 'running')
"""
_PREPARATION = {"users": _PREPARATION_OF_USERS, "index_runs": (_FILL_WAITING_USERS,)}
"""Statements that come before a table is distributed, in the same transaction."""


def is_distributed(connection: Connection) -> bool:
    """Return whether tables of this database are distributed, at least some of them."""
    return "users" in _list_placed(connection)


def find_remaining(connection: Connection) -> list[str]:
    """Return the tables that are still to be distributed."""
    placed = _list_placed(connection)
    return [table for table in _list_statements() if table not in placed]


def distribute(connection: Connection, on_progress: OnProgress) -> None:
    """Distribute all tables that are not distributed yet. Their schema is the newest, and `check_cluster` has passed.

    Raise `ConfigurationError` with what to do if something else is in the way.
    """
    if find_remaining(connection):
        # tables that a new version adds are empty: a service of the old version may run meanwhile
        has_rows = not is_distributed(connection) or bool(_find_filled(connection))
        if has_rows and (others := count_other_sessions(connection)):
            raise ConfigurationError(
                f"{others} other session(s) use this database: stop all processes of Toolscout, and poolers and "
                "consoles that are connected, and run the command again; a service that runs meanwhile finds no rows"
            )
        connection.rollback()
        _let_app_role_log_in(connection)
        _distribute_remaining(connection, on_progress)
    _drop_local_rows(connection, on_progress)


def count_other_sessions(connection: Connection) -> int:
    """Return how many other clients are connected to this database, of any role."""
    return int(connection.scalar(text(_OTHER_SESSIONS)))


def distribute_new_tables(connection: Connection) -> None:
    """Distribute the tables that a migration has just added to a distributed database.

    Raise `ConfigurationError` if there is more to do, since an earlier distribution was interrupted.
    """
    remaining, filled = find_remaining(connection), _find_filled(connection)
    connection.rollback()
    if filled:
        raise ConfigurationError(
            f"the distribution of this database was interrupted; {len(remaining)} tables remain ({', '.join(filled)} "
            "with rows): run `toolscout migrate --distributed`, which continues it"
        )
    _distribute_remaining(connection, lambda _: None)


def check_cluster(connection: Connection) -> None:
    """Raise `ConfigurationError` for what only an administrator of the cluster can provide."""
    if problems := list(_find_problems(connection)):
        raise ConfigurationError("; ".join(problems))


def _find_problems(connection: Connection) -> Iterator[str]:
    version = connection.scalar(text(_CITUS_VERSION))
    minimum = ".".join(map(str, _MINIMUM_CITUS))
    if version is None:
        yield (
            "this database has no Citus: on each node, set `shared_preload_libraries = 'citus'`, restart Postgres "
            "and, as a superuser, run `CREATE EXTENSION citus` in this database"
        )
        return
    if parse_version(version.replace("-", ".")) < _MINIMUM_CITUS:
        yield f"Citus {version} is too old: version {minimum} or later is required"
    if not connection.scalar(text(_WORKERS)):
        yield (
            "the cluster has no worker that takes rows: as a superuser, run "
            "`SELECT citus_set_coordinator_host('host')` and, for each worker, `SELECT citus_add_node('worker', 5432)`"
        )
    required = ".".join(map(str, MINIMUM_PGVECTOR))
    for node, answers, result in connection.execute(text(_PGVECTOR_OF_WORKERS)):
        if not answers:
            yield f"the node {node} does not answer: {result}"
        elif parse_version(result or "") < MINIMUM_PGVECTOR:
            found = f"pgvector {result}" if result else "no pgvector"
            yield f"the node {node} has {found}: version {required} or later is required"


def _list_placed(connection: Connection) -> set[str]:
    """Return the tables that Citus distributes or replicates."""
    has_citus = connection.scalar(text(_CITUS_VERSION)) is not None
    return set(connection.scalars(text(_PLACED))) if has_citus else set()


def _list_statements() -> dict[str, str]:
    """Return the statement that distributes each table. `users` comes first: it says that a database is distributed."""
    distribute_table = "SELECT create_distributed_table('{}', '{}', colocate_with => '{}')"
    tenants = {
        table: distribute_table.format(table, column, "none" if table == "users" else "users")
        for table, column in TENANT_COLUMNS.items()
    }
    keys = {table: distribute_table.format(table, column, "none") for table, column in KEY_COLUMNS.items()}
    return tenants | keys | {table: f"SELECT create_reference_table('{table}')" for table in REFERENCE_TABLES}


def _find_filled(connection: Connection) -> list[str]:
    """Return the tables that are still to be distributed and have rows."""
    remaining = find_remaining(connection)
    return [table for table in remaining if connection.scalar(text(f"SELECT EXISTS (SELECT 1 FROM {table})"))]


def _distribute_remaining(connection: Connection, on_progress: OnProgress) -> None:
    """Distribute tables one by one, each in a transaction. After an error, those before it stay done."""
    remaining = find_remaining(connection)
    statements = _list_statements()
    connection.rollback()
    for number, table in enumerate(remaining, start=1):
        on_progress(f"distributing {table} ({number} of {len(remaining)})")
        try:
            for statement in (*_PREPARATION.get(table, ()), statements[table]):
                connection.execute(text(statement))
        except DBAPIError as error:
            connection.rollback()
            raise ConfigurationError(
                f"Citus does not distribute the table {table}: {str(error.orig).strip()}; remove the cause and run "
                "the command again, which continues with this table"
            ) from error
        connection.commit()


def _drop_local_rows(connection: Connection, on_progress: OnProgress) -> None:
    """Remove the rows that were copied to the nodes: they stay on the coordinator, unseen, and take space."""
    on_progress("removing the copied rows from the coordinator")
    for table in reversed(_list_statements()):
        connection.execute(text("SELECT truncate_local_data_after_distributing_table(:table)"), {"table": table})
        connection.commit()


def _let_app_role_log_in(connection: Connection) -> None:
    """Let the app role log in to the workers, where Citus connects as the role of the transaction.

    Settings of a session do not reach the workers, those of a role do.
    """
    settings = [f"SET {name} = '{value}'" for name, value in DISTRIBUTED_SETTINGS.items()]
    changes = [f"ALTER ROLE {APP_ROLE} {change}" for change in ("LOGIN", *settings)]
    try:
        for change in changes:
            connection.execute(text(change))
    except DBAPIError as error:
        connection.rollback()
        commands = ", ".join(f"`{change}`" for change in changes)
        raise ConfigurationError(
            f"this role may not change the role {APP_ROLE}: as a superuser, run {commands}"
        ) from error
    connection.commit()
    connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
    refused = [f"{node}: {result}" for node, answers, result in ask_nodes(connection) if not answers]
    connection.rollback()
    if refused:
        raise ConfigurationError(
            f"the role {APP_ROLE} cannot log in on every node: it needs a line in pg_hba.conf there, and a password "
            f"that the coordinator knows by pg_dist_authinfo or a .pgpass of the server ({'; '.join(refused)})"
        )
