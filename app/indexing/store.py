"""The SQL of indexing: what is there, which vectors are known already, and one write for a whole plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from pgvector import HalfVector
from sqlalchemy import bindparam, case, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.catalog.tools import recount
from app.catalog.visibility import decisions
from app.database.engine import Session
from app.embeddings.base import Vector
from app.indexing.plan import Place, Plan, StoredTool, ToolRow
from app.models import embedding_cache, mcp_servers, mcp_tool_embeddings, mcp_tools, users
from app.protocol import ToolDefinition


async def stored_tools(session: Session, user_id: str, server_id: str, model: str) -> dict[str, StoredTool]:
    vectors = mcp_tool_embeddings
    joined = mcp_tools.outerjoin(
        vectors,
        (vectors.c.user_id == mcp_tools.c.user_id) & (vectors.c.tool_id == mcp_tools.c.id) & (vectors.c.model == model),
    )
    columns = mcp_tools.c.name, mcp_tools.c.id, mcp_tools.c.definition_hash, mcp_tools.c.index_hash
    statement = select(*columns, vectors.c.content_hash).select_from(joined).where(*_of(user_id, server_id))
    rows = await session.execute(statement)
    return {name: StoredTool(*rest) for name, *rest in rows}


async def stored_definitions(session: Session, user_id: str, server_id: str) -> list[ToolDefinition]:
    """For a pushed server, whose own list is the only one there is."""
    t = mcp_tools.c
    columns = t.name, t.title, t.description, t.input_schema, t.output_schema, t.annotations, t.meta
    rows = await session.execute(select(*columns).where(*_of(user_id, server_id)).order_by(t.name))
    return [ToolDefinition(*row) for row in rows]


async def cached_vectors(session: Session, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
    statement = """
        SELECT text_hash, embedding FROM embedding_cache WHERE model = %(model)s AND text_hash = ANY(%(hashes)s)
    """
    rows = await session.rows(statement, {"model": model, "hashes": list(hashes)})
    return {text_hash: vector.to_numpy() for text_hash, vector in rows}


async def remember_vectors(session: Session, model: str, vectors: Mapping[bytes, Vector]) -> None:
    # in one order, whoever writes: two that write the same keys must not wait for each other
    known = sorted(vectors.items())
    rows = [{"model": model, "text_hash": key, "embedding": HalfVector(vector)} for key, vector in known]
    statement = insert(embedding_cache)
    newest = {"embedding": statement.excluded.embedding}
    await session.execute(statement.on_conflict_do_update(index_elements=["model", "text_hash"], set_=newest), rows)


async def apply(
    session: Session, user_id: str, place: Place, plan: Plan, vectors: Mapping[str, Vector], ann_above: int
) -> None:
    """All of it or nothing: a reader sees the old tools until the transaction ends, then the new ones."""
    if plan.removed_ids:
        gone = mcp_tools.c.user_id == user_id, mcp_tools.c.id.in_(plan.removed_ids)
        await session.execute(delete(mcp_tools).where(*gone))
    await _write_tools(session, user_id, place.server_id, plan.rows)
    await _write_index(session, user_id, place, plan, vectors)
    await _write_vectors(session, user_id, place, plan, vectors)
    await _write_counts(session, user_id, place)
    await recount(session, user_id, ann_above)


async def _write_tools(session: Session, user_id: str, server_id: str, rows: Sequence[ToolRow]) -> None:
    if not rows:
        return
    statement = insert(mcp_tools)
    # what a person decided about the tool (enabled, tags, pinned) is not the server's to change
    rewritten = {name: statement.excluded[name] for name in _from_the_server} | {"updated_at": func.now()}
    statement = statement.on_conflict_do_update(index_elements=["user_id", "id"], set_=rewritten)
    await session.execute(statement, [_tool_values(user_id, server_id, row) for row in rows])


_from_the_server = (
    "title",
    "description",
    "input_schema",
    "output_schema",
    "annotations",
    "meta",
    "definition_hash",
    "index_hash",
    "enriched_description",
    "tokens",
)


def _tool_values(user_id: str, server_id: str, row: ToolRow) -> dict[str, Any]:
    definition = row.definition
    return {
        "user_id": user_id,
        "server_id": server_id,
        "id": row.tool_id,
        "name": definition.name,
        "title": definition.title,
        "description": definition.description,
        "input_schema": definition.input_schema,
        "output_schema": definition.output_schema,
        "annotations": definition.annotations,
        "meta": definition.meta,
        "definition_hash": row.definition_hash,
        "index_hash": row.index_hash,
        "enriched_description": row.enriched_description,
        "tokens": row.tokens,
    }


async def _write_index(session: Session, user_id: str, place: Place, plan: Plan, vectors: Mapping[str, Vector]) -> None:
    """The narrow rows of new and changed tools. An older text's vector goes even before the new one is there:
    better found by words than found wrongly."""
    if not plan.rows:
        return
    decided = await decisions(session, user_id, place.server_id)
    ann = await session.scalar(select(users.c.ann).where(users.c.id == user_id))
    hashes = {wanted.tool_id: wanted.content_hash for wanted in plan.wanted}
    rows = [
        {
            "user_id": user_id,
            "model": place.model,
            "tool_id": row.tool_id,
            "server_id": place.server_id,
            "server_name": place.server_name,
            "tool_name": row.definition.name,
            "embedding": HalfVector(vectors[row.tool_id]) if row.tool_id in vectors else None,
            "content_hash": hashes[row.tool_id] if row.tool_id in vectors else None,
            "lexical": row.lexical,
            "tokens": row.tokens,
            "enabled": decided[row.tool_id].enabled,
            "tags": decided[row.tool_id].tags,
            "ann": ann,
        }
        for row in plan.rows
    ]
    statement = insert(mcp_tool_embeddings)
    key = "user_id", "model", "tool_id"
    rewritten = {name: statement.excluded[name] for name in rows[0] if name not in key}
    await session.execute(statement.on_conflict_do_update(index_elements=key, set_=rewritten), rows)


async def _write_vectors(
    session: Session, user_id: str, place: Place, plan: Plan, vectors: Mapping[str, Vector]
) -> None:
    """Of tools that are unchanged, but had no vector yet or are embedded anew by force."""
    rewritten = {row.tool_id for row in plan.rows}
    rows = [
        {"key": tool.tool_id, "vector": HalfVector(vectors[tool.tool_id]), "hash": tool.content_hash}
        for tool in plan.wanted
        if tool.tool_id in vectors and tool.tool_id not in rewritten
    ]
    if not rows:
        return
    table = mcp_tool_embeddings
    this = table.c.user_id == user_id, table.c.model == place.model, table.c.tool_id == bindparam("key")
    statement = update(table).where(*this).values(embedding=bindparam("vector"), content_hash=bindparam("hash"))
    await session.execute(statement, rows)


async def _write_counts(session: Session, user_id: str, place: Place) -> None:
    rows = mcp_tool_embeddings.c
    mine = rows.user_id == user_id, rows.model == place.model, rows.server_id == place.server_id
    pending = select(func.count()).where(*mine, rows.embedding.is_(None)).scalar_subquery()
    counts = {
        "tool_count": select(func.count()).where(*mine).scalar_subquery(),
        "pending_count": pending,
        "pending_tries": case((pending > 0, mcp_servers.c.pending_tries + 1), else_=0),
        "updated_at": func.now(),
    }
    server = mcp_servers.c.user_id == user_id, mcp_servers.c.id == place.server_id
    await session.execute(update(mcp_servers).where(*server).values(**counts))


def _of(user_id: str, server_id: str) -> tuple[Any, Any]:
    return mcp_tools.c.user_id == user_id, mcp_tools.c.server_id == server_id
