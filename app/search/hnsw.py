"""Where cosines come from: exactly, by scanning one user's rows, or through HNSW for the few very large users.

Exact by construction: the distance is computed in the select list of a scan of its own, which no other clause is moved
into, so that no plan can answer it from an index. One HNSW index with a user filter looks right and silently loses
answers.
"""

import hashlib

from sqlalchemy import Connection, text

EF_SEARCH = 400

_INDEX_PREFIX = "mcp_tool_embeddings_ann_"

# by somebody who was killed while making it: it is never used, and would keep another from being made
_IS_HALF_MADE = """
    SELECT NOT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass(:name)
"""

# relaxed_order may hand rows out slightly out of order; hybrid.py weighs and sorts them anyway
HNSW_SETTINGS = f"""
    SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '{EF_SEARCH}', true)
"""


def similarity(text: int) -> str:
    """Of a row to one of the query's texts."""
    return f"1 - (v.embedding <=> %(vector_{text})s::halfvec)"


def candidate_ids(model: str, dimension: int, texts: int) -> str:
    """Joined to `v`: of a large user's rows only those that are worth weighing, the nearest to each text through the
    model's partial index, and the best by words.

    The model is spelled out, not bound: the planner uses a partial index only where it can prove the predicate.
    """
    near = [_nearest(model, dimension, text) for text in range(texts)]
    return f"JOIN ({' UNION '.join([*near, _BY_WORDS, _BY_NAME])}) promising ON promising.tool_id = v.tool_id"


_OF_THE_USER = "user_id = %(user_id)s AND model = %(model)s AND enabled"
_BY_WORDS = f"""
    (SELECT tool_id FROM mcp_tool_embeddings
     WHERE {_OF_THE_USER} AND (lexical <#> %(terms_0)s::sparsevec) < 0
     ORDER BY lexical <#> %(terms_0)s::sparsevec LIMIT {EF_SEARCH})
"""
_BY_NAME = f"""
    (SELECT tool_id FROM mcp_tool_embeddings
     WHERE {_OF_THE_USER} AND lower(tool_name) = ANY(%(names)s::text[]) LIMIT {EF_SEARCH})
"""


def _nearest(model: str, dimension: int, text: int) -> str:
    return f"""
        (SELECT tool_id FROM mcp_tool_embeddings
         WHERE user_id = %(user_id)s AND ann AND enabled AND model = {_literal(model)}
         ORDER BY embedding::halfvec({dimension}) <=> %(vector_{text})s::halfvec({dimension}) LIMIT {EF_SEARCH})
    """


def hnsw_name(model: str) -> str:
    return _INDEX_PREFIX + hashlib.sha256(model.encode()).hexdigest()[:12]


def ensure_hnsw(connection: Connection, model: str, dimension: int, *, concurrently: bool = False) -> None:
    """One partial index for each model, since a cast to the wrong dimension would fail; small users never enter it.
    `concurrently`, outside of a transaction, nobody waits for it who writes."""
    name = hnsw_name(model)
    if concurrently and connection.scalar(text(_IS_HALF_MADE), {"name": name}):
        drop_hnsw(connection, name)
    statement = (
        f"CREATE INDEX {'CONCURRENTLY' if concurrently else ''} IF NOT EXISTS {name} ON mcp_tool_embeddings "
        f"USING hnsw ((embedding::halfvec({dimension})) halfvec_cosine_ops) WITH (m = 16, ef_construction = 128) "
        f"WHERE ann AND model = {_literal(model)}"
    )
    connection.execute(text(statement.replace(":", "\\:")))


def hnsw_indexes(connection: Connection) -> list[str]:
    statement = "SELECT indexname FROM pg_indexes WHERE tablename = 'mcp_tool_embeddings'"
    return [name for name in connection.scalars(text(statement)) if name.startswith(_INDEX_PREFIX)]


def drop_hnsw(connection: Connection, name: str) -> None:
    """Outside of a transaction."""
    connection.execute(text(f"DROP INDEX CONCURRENTLY IF EXISTS {name}"))


def _literal(model: str) -> str:
    return "'" + model.replace("'", "''").replace("%", "%%") + "'"
