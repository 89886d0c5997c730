"""Where the rows of each table are when Citus distributes the database.

All rows of a user are on one node. So a statement that names the user for each of its tables asks one node only, and
the other nodes may be away. Tests hold every table and every statement of a user's transaction to it.
"""

from collections.abc import Mapping

from app.db import tables

_ELSEWHERE = (tables.api_keys, tables.core_tools, tables.waiting_users)

TENANT_COLUMNS: Mapping[str, str] = {
    "users": "id",
    **{
        table.name: "user_id"
        for table in tables.metadata.sorted_tables
        if "user_id" in table.columns and table not in _ELSEWHERE
    },
}
"""The tables with rows of users, and the column that names the user. They are distributed alike, `users` first."""

KEY_COLUMNS: Mapping[str, str] = {
    "api_keys": "key_hash",
    "embedding_cache": "text_hash",
    "public_listings": "key",
}
"""The tables whose rows are looked up by a key before a user is known, or for no user, and the column of the key."""

REFERENCE_TABLES = ("core_tools", "embedding_models", "policy")
"""Each node has all rows of these: every search reads them, and they seldom change."""

COORDINATOR_TABLES = ("task_leases", "waiting_users")
"""Only the background work of the service reads these."""
