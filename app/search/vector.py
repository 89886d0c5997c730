"""Where cosines come from: exactly, by scanning one user's rows, or through HNSW for the few very large users.

Exact by construction: the distance is computed in the select list of a materialized scan, so that no plan can answer
it from an index. One HNSW index with a user filter looks right and silently loses answers.
"""

import hashlib

from sqlalchemy import Connection, text

EXACT = "1 - (v.embedding <=> %(vector)s::halfvec)"
"""The similarity of every row."""

NEAREST = "near.similarity"
"""The similarity of the rows that HNSW has found; the others have none."""

EF_SEARCH = 400

# relaxed_order may hand rows out slightly out of order; the outer sort in hybrid.py puts them right
HNSW_SETTINGS = f"""
    SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '{EF_SEARCH}', true)
"""


def nearest(model: str, dimension: int) -> str:
    """The nearest rows of a large user, through the model's partial index; joined to `v` as `near`.

    The model is spelled out, not bound: the planner uses a partial index only where it can prove the predicate.
    """
    distance = f"embedding::halfvec({dimension}) <=> %(vector)s::halfvec({dimension})"
    return f"""
        LEFT JOIN (
            SELECT tool_id, 1 - ({distance}) AS similarity
            FROM mcp_tool_embeddings
            WHERE user_id = %(user_id)s AND ann AND enabled AND model = {_literal(model)}
            ORDER BY {distance}
            LIMIT {EF_SEARCH}
        ) near ON near.tool_id = v.tool_id
    """


def ensure_hnsw(connection: Connection, model: str, dimension: int) -> None:
    """One partial index for each model, since a cast to the wrong dimension would fail; small users never enter it."""
    suffix = hashlib.sha256(model.encode()).hexdigest()[:12]
    statement = (
        f"CREATE INDEX IF NOT EXISTS mcp_tool_embeddings_ann_{suffix} ON mcp_tool_embeddings "
        f"USING hnsw ((embedding::halfvec({dimension})) halfvec_cosine_ops) WITH (m = 16, ef_construction = 128) "
        f"WHERE ann AND model = {_literal(model)}"
    )
    connection.execute(text(statement.replace(":", "\\:")))


def _literal(model: str) -> str:
    return "'" + model.replace("'", "''").replace("%", "%%") + "'"
