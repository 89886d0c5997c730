"""The users and tools of the benchmarks: one user through the API, all others as copies in SQL."""

from collections.abc import Sequence
from pathlib import Path

import psycopg
from psycopg import sql

from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service

USER = "user-0"
VERBS = ["create", "list", "get", "update", "delete", "search", "export", "archive", "share", "watch"]
THINGS = ["invoice", "ticket", "branch", "calendar event", "contact"]
PRODUCTS = ["acorn", "birch", "cedar", "dahlia", "elder", "fern", "gorse", "hazel", "iris", "juniper"]
TOOLS_PER_PRODUCT = len(VERBS) * len(THINGS)

_TABLES = ("mcp_servers", "mcp_tools", "mcp_tool_embeddings")
"""The tables of a user that a search reads."""
_IDS = {"mcp_servers": ["id"], "mcp_tools": ["id", "server_id"], "mcp_tool_embeddings": ["tool_id", "server_id"]}
_NAMES = {"mcp_servers": ["name"], "mcp_tools": ["name"], "mcp_tool_embeddings": ["server_name", "tool_name"]}

_COPY_ROWS = "INSERT INTO {table} ({columns}) SELECT {values} FROM {table} o, generate_series(1, %(copies)s) n {source}"
_COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_name = %s AND is_generated = 'NEVER' ORDER BY ordinal_position
"""
_COPY_USERS = """
INSERT INTO users (id, tool_count) SELECT 'user-' || n, %(tools)s FROM generate_series(1, %(copies)s) n
"""
_NOISE = """
CREATE TEMPORARY TABLE noise AS
SELECT n, (SELECT array_agg((random() - 0.5) * %(width)s) FROM generate_series(1, %(dimension)s) WHERE n > 0)::halfvec
AS vector FROM generate_series(1, %(copies)s) n
"""
_NOISE_WIDTH = 0.1
"""Of 384 dimensions, such noise is about half as long as a vector: copies of a tool differ, and stay related."""


def product_tools(product: str) -> list[dict[str, object]]:
    return [
        {
            "name": f"{verb}_{thing.replace(' ', '_')}",
            "description": f"{verb.capitalize()} a {thing} in {product}, for a user who wants to {verb} a {thing}.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": f"The {thing}'s identifier"},
                    "query": {"type": "string", "description": f"Words that the {thing} must contain"},
                    "limit": {"type": "integer", "description": "How many to answer at most"},
                },
            },
        }
        for verb in VERBS
        for thing in THINGS
    ]


def push_tools(service: Service, products: Sequence[str], user: str = USER) -> None:
    """Create one server for each product, with 50 tools each."""
    with service.admin(user) as client:
        for product in products:
            server = client.post("/servers", json={"name": product, "transport": "push"}).raise_for_status().json()
            pushed = client.put(f"/servers/{server['id']}/tools?wait=true", json={"tools": product_tools(product)})
            assert pushed.json()["state"] == "succeeded", pushed.text


def database_url(folder: Path) -> str:
    """Return the URL of the embedded Postgres of a service in this folder, for its superuser."""
    return EmbeddedPostgres(folder / "data").url


def copy_users(service: Service, copies: int, tools: int) -> None:
    """Copy the first user to `user-1`, `user-2`, …: through the API this would take half an hour."""
    with psycopg.connect(database_url(service.folder)) as connection:
        connection.execute(_COPY_USERS, {"copies": copies, "tools": tools})
        for table in _TABLES:
            changed = {"user_id": "'user-' || n"} | {name: f"md5(o.{name} || n)" for name in _IDS[table]}
            _copy_rows(connection, table, changed, copies)
    vacuum(service)


def create_large_user(service: Service, user: str, copies: int, tools: int) -> None:
    """Create a user with the first user's tools many times, each with another name and another vector.

    The user is not marked as large, so that no indexes are built while others are measured: it is searched in memory.
    `make bench-scale` measures the indexes of large users.
    """
    with psycopg.connect(database_url(service.folder)) as connection:
        [(dimension,)] = connection.execute("SELECT vector_dims(embedding) FROM mcp_tool_embeddings LIMIT 1").fetchall()
        connection.execute(_NOISE, {"copies": copies, "dimension": dimension, "width": _NOISE_WIDTH})
        connection.execute("INSERT INTO users (id, tool_count) VALUES (%s, %s)", [user, copies * tools])
        for table in _TABLES:
            changed = {"user_id": f"'{user}'"}
            changed |= {name: f"md5(o.{name} || '{user}' || n)" for name in _IDS[table]}
            changed |= {name: f"o.{name} || '_' || n" for name in _NAMES[table]}
            if table == "mcp_tool_embeddings":
                noise = "(SELECT vector FROM noise WHERE noise.n = n.n)"
                changed |= {"embedding": f"l2_normalize(o.embedding + {noise})"}
            _copy_rows(connection, table, changed, copies)
    vacuum(service)


def vacuum(service: Service) -> None:
    with psycopg.connect(database_url(service.folder), autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _copy_rows(connection: psycopg.Connection, table: str, changed: dict[str, str], copies: int) -> None:
    """Insert `copies` copies of the first user's rows, in which the columns of `changed` have other values."""
    columns = [name for (name,) in connection.execute(_COLUMNS, [table])]
    values = [f"{changed[name]} AS {name}" if name in changed else f'o."{name}"' for name in columns]
    statement = _COPY_ROWS.format(
        table=table,
        columns=", ".join(f'"{name}"' for name in columns),
        values=", ".join(values),
        source=f"WHERE o.user_id = '{USER}'",
    )
    with psycopg.ClientCursor(connection) as cursor:
        cursor.execute(sql.SQL(statement), {"copies": copies})
