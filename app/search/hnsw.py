"""The HNSW indexes, through which only the few very large tenants are searched.

One HNSW index over all tenants with a filter by user looks right and silently loses answers. Ordinary tenants are
therefore searched exactly (`postgres.py`). A tenant above `SEARCH_ANN_ABOVE` tools has `ann` set on its rows, and each
model has one partial index over these rows.
"""

import hashlib

from sqlalchemy import Connection, text

from app.search.examples import nearest_examples_sql

EF_SEARCH = 400

_INDEX_PREFIX = "mcp_tool_embeddings_ann_"

# A build that was killed leaves an invalid index behind: it is never used, and it blocks `IF NOT EXISTS`.
_IS_INVALID = """
    SELECT NOT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass(:name)
"""

# `relaxed_order` may return rows slightly out of order; the search scores and sorts them anyway.
HNSW_SETTINGS = f"""
    SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '{EF_SEARCH}', true)
"""

_USER_ROWS = "user_id = %(user_id)s AND model = %(model)s AND enabled"
_BEST_BY_BM25 = f"""
    (SELECT tool_id FROM mcp_tool_embeddings
     WHERE {_USER_ROWS} AND (lexical <#> %(terms_0)s::sparsevec) < 0
     ORDER BY lexical <#> %(terms_0)s::sparsevec LIMIT {EF_SEARCH})
"""
_NAMED_IN_MESSAGE = f"""
    (SELECT tool_id FROM mcp_tool_embeddings
     WHERE {_USER_ROWS} AND lower(tool_name) = ANY(%(names)s::text[]) LIMIT {EF_SEARCH})
"""


def candidate_ids_join(model: str, dimension: int, texts: int) -> str:
    """Return the join that restricts a large tenant's rows `v` to the candidates.

    Candidates are the nearest tools to each text of the query through the model's partial index, the best tools by
    BM25, tools that the message names, and tools with examples like the message.
    """
    nearest = [_nearest_ids(model, dimension, text) for text in range(texts)]
    subqueries = " UNION ".join([*nearest, _BEST_BY_BM25, _NAMED_IN_MESSAGE, nearest_examples_sql(texts)])
    return f"JOIN ({subqueries}) candidates ON candidates.tool_id = v.tool_id"


def _nearest_ids(model: str, dimension: int, text: int) -> str:
    """The model is a literal, not a parameter: the planner uses a partial index only if it can prove the predicate."""
    return f"""
        (SELECT tool_id FROM mcp_tool_embeddings
         WHERE user_id = %(user_id)s AND ann AND enabled AND model = {_quote_literal(model)}
         ORDER BY embedding::halfvec({dimension}) <=> %(vector_{text})s::halfvec({dimension}) LIMIT {EF_SEARCH})
    """


def hnsw_index_name(model: str) -> str:
    return _INDEX_PREFIX + hashlib.sha256(model.encode()).hexdigest()[:12]


def ensure_hnsw_index(connection: Connection, model: str, dimension: int, *, concurrently: bool = False) -> None:
    """Create the model's partial index unless it exists.

    Each model has its own index, since a cast to another model's dimension would fail. `concurrently` does not block
    writers and must run outside a transaction.
    """
    name = hnsw_index_name(model)
    if concurrently and connection.scalar(text(_IS_INVALID), {"name": name}):
        drop_hnsw_index(connection, name)
    statement = (
        f"CREATE INDEX {'CONCURRENTLY' if concurrently else ''} IF NOT EXISTS {name} ON mcp_tool_embeddings "
        f"USING hnsw ((embedding::halfvec({dimension})) halfvec_cosine_ops) WITH (m = 16, ef_construction = 128) "
        f"WHERE ann AND model = {_quote_literal(model)}"
    )
    connection.execute(text(statement.replace(":", "\\:")))


def list_hnsw_indexes(connection: Connection) -> list[str]:
    statement = "SELECT indexname FROM pg_indexes WHERE tablename = 'mcp_tool_embeddings'"
    return [name for name in connection.scalars(text(statement)) if name.startswith(_INDEX_PREFIX)]


def drop_hnsw_index(connection: Connection, name: str) -> None:
    """Drop an index; must run outside a transaction."""
    connection.execute(text(f"DROP INDEX CONCURRENTLY IF EXISTS {name}"))


def _quote_literal(model: str) -> str:
    return "'" + model.replace("'", "''").replace("%", "%%") + "'"
