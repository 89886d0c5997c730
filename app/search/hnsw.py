"""The indexes of very large tenants, each of which has its own: one HNSW index and one index of terms for each model.

One HNSW index over all tenants with a filter by user loses answers, and under row-level security the planner does not
use it, since it expects that few of the rows it reads belong to the user. The predicate of a partial index names the
user and the model as literals, and so does the statement that searches it (`large_tenant.py`).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from sqlalchemy import Connection, text

_HNSW_PREFIX = "large_tenant_hnsw_"
_WORDS_PREFIX = "large_tenant_words_"
_EARLIER_PREFIX = "mcp_tool_embeddings_ann_"
"""Up to 0.3.0, each model had one index for all large tenants."""
INDEX_PREFIXES = (_HNSW_PREFIX, _WORDS_PREFIX, _EARLIER_PREFIX)

# A build within memory is several times as fast as one beyond it. One process, since parallel builds need more shared
# memory than containers have, and other users are searched meanwhile.
_BUILD_SETTINGS = """
    SELECT set_config('maintenance_work_mem', :memory, false),
           set_config('max_parallel_maintenance_workers', '0', false), set_config('statement_timeout', '0', false)
"""
_MIN_BUILD_MB = 64
_MAX_BUILD_MB = 1024
_GRAPH_BYTES = 600
"""What a vector takes in the graph while it is built, beside its own bytes."""

_LIST_INDEXES = """
    SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid IN (to_regclass('mcp_tool_embeddings'), to_regclass('large_tenant_tools'))
"""


@dataclass(frozen=True)
class LargeTenant:
    """A user who is searched through indexes of their own, with one model."""

    user_id: str
    model: str
    dimension: int

    @property
    def predicate(self) -> str:
        """The condition of the indexes. The planner uses them only for statements that contain the same literals."""
        return f"user_id = {quote_literal(self.user_id)} AND model = {quote_literal(self.model)}"

    @property
    def hnsw_index(self) -> str:
        return _HNSW_PREFIX + self._digest

    @property
    def words_index(self) -> str:
        return _WORDS_PREFIX + self._digest

    @property
    def distance(self) -> str:
        """What the HNSW index sorts by, with the place of the query's vector."""
        return f"embedding::halfvec({self.dimension}) <=> {{vector}}::halfvec({self.dimension})"

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(f"{self.user_id}\n{self.model}".encode()).hexdigest()[:16]


def quote_literal(value: str) -> str:
    """Return an SQL literal, whatever `standard_conforming_strings` is."""
    quoted = value.replace("'", "''")
    return f"E'{quoted.replace(chr(92), chr(92) * 2)}'" if chr(92) in value else f"'{quoted}'"


def list_indexes(connection: Connection) -> dict[str, bool]:
    """Return the indexes that this module creates, and whether each is valid, by name."""
    rows = connection.execute(text(_LIST_INDEXES))
    return {name: valid for name, valid in rows if name.startswith(INDEX_PREFIXES)}


def ensure_indexes(connection: Connection, tenant: LargeTenant, tools: int) -> None:
    """Create the tenant's indexes unless they exist, without blocking writers; must run outside a transaction."""
    memory = min(max(tools * (2 * tenant.dimension + _GRAPH_BYTES) >> 20, _MIN_BUILD_MB), _MAX_BUILD_MB)
    connection.execute(text(_BUILD_SETTINGS), {"memory": f"{memory}MB"})
    vector = f"embedding::halfvec({tenant.dimension})"
    hnsw = f"USING hnsw (({vector}) halfvec_cosine_ops) WITH (m = 24, ef_construction = 128)"
    # Without fastupdate, a search never has to read a list of entries that are not sorted in yet.
    for name, method in (
        (tenant.hnsw_index, hnsw),
        (tenant.words_index, "USING gin (terms) WITH (fastupdate = off)"),
    ):
        if list_indexes(connection).get(name) is False:
            drop_index(connection, name)  # of a build that was interrupted: never used, and it blocks `IF NOT EXISTS`
        connection.exec_driver_sql(
            f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON large_tenant_tools {method} "
            f"WHERE {tenant.predicate.replace('%', '%%')}"
        )


def drop_index(connection: Connection, name: str) -> None:
    """Drop an index; must run outside a transaction."""
    connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
