"""The SQL of indexing: what is there, which vectors are known already, and one write for a whole plan."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pgvector import HalfVector
from sqlalchemy import bindparam, case, delete, func, insert, null, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from app.catalog.policy import VisibilityDecision
from app.catalog.tools import update_tool_counts
from app.catalog.visibility import evaluate_tools, write_decisions
from app.db.engine import Session
from app.db.tables import embedding_cache, mcp_servers, mcp_tool_embeddings, mcp_tools, tool_changes, users
from app.embeddings.base import Vector
from app.indexing.parsing import ListedTool, sanitize_definition
from app.indexing.plan import IndexTarget, ModelUpdate, StoredTool, ToolRow
from app.indexing.sanitize import Finding
from app.text.strict_json import Json, ToolDefinition, canonical_json
from app.usage.learning import write_priors

CHANGES_KEPT = 20
VANISHED_KEPT = 1_000

_DEFINITION = tuple(
    mcp_tools.c[name]
    for name in ("name", "title", "description", "input_schema", "output_schema", "annotations", "meta")
)


async def stored_tools(session: Session, user_id: str, server_id: str, model: str) -> dict[str, StoredTool]:
    """By name; also those that have vanished, since what they were is remembered."""
    t, vectors = mcp_tools.c, mcp_tool_embeddings.c
    row = (vectors.user_id == t.user_id) & (vectors.tool_id == t.id) & (vectors.model == model)
    columns = t.id, t.definition_hash, t.index_hash, t.approved_hash, t.findings, t.vanished_at, vectors.content_hash
    indexed = vectors.tool_id.is_not(None).label("indexed")
    joined = mcp_tools.outerjoin(mcp_tool_embeddings, row)
    rows = await session.execute(select(t.name, *columns, indexed).select_from(joined).where(*_of(user_id, server_id)))
    return {
        row.name: StoredTool(
            tool_id=row.id,
            definition_hash=row.definition_hash,
            index_hash=row.index_hash,
            approved_hash=row.approved_hash,
            findings=_findings(row.findings),
            vanished=row.vanished_at is not None,
            content_hash=row.content_hash,
            indexed=row.indexed,
        )
        for row in rows
    }


async def stored_listing(session: Session, user_id: str, server_id: str) -> list[ListedTool]:
    """What is known of a server, for when that is enough: a pushed list is the only one there is."""
    t = mcp_tools.c
    offered = *_of(user_id, server_id), t.vanished_at.is_(None)
    rows = await session.execute(select(*_DEFINITION, t.definition_hash, t.findings).where(*offered).order_by(t.name))
    again = (
        _listed_again(ToolDefinition(*definition), fingerprint, _findings(findings))
        for *definition, fingerprint, findings in rows
    )
    return [tool for tool in again if tool is not None]


def _listed_again(definition: ToolDefinition, fingerprint: str, findings: Sequence[Finding]) -> ListedTool | None:
    """What was hidden in it is gone from what is stored, but not forgotten. None of what was stored before texts were
    cleaned, and cannot be."""
    hidden = [finding for finding in findings if finding.flag == "hidden_characters"]
    try:
        anew = sanitize_definition(definition)
    except ValueError:
        return None
    return ListedTool(anew.definition, fingerprint, [*hidden, *anew.findings])


def _findings(stored: Sequence[Json]) -> list[Finding]:
    return [Finding(**finding) for finding in stored]


async def cached_vectors(session: Session, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
    statement = """
        SELECT text_hash, embedding FROM embedding_cache WHERE model = %(model)s AND text_hash = ANY(%(hashes)s)
    """
    rows = await session.rows(statement, {"model": model, "hashes": list(hashes)})
    return {text_hash: vector.to_numpy() for text_hash, vector in rows}


async def cache_vectors(session: Session, model: str, vectors: Mapping[bytes, Vector]) -> None:
    # in one order, whoever writes: two that write the same keys must not wait for each other
    known = sorted(vectors.items())
    rows = [{"model": model, "text_hash": key, "embedding": HalfVector(vector)} for key, vector in known]
    statement = upsert(embedding_cache)
    newest = {"embedding": statement.excluded.embedding}
    await session.execute(statement.on_conflict_do_update(index_elements=["model", "text_hash"], set_=newest), rows)


async def apply_updates(
    session: Session, user_id: str, shares: Sequence[ModelUpdate], *, run_id: str, ann_above: int
) -> None:
    """All of it or nothing, for every model: a reader sees the old tools until the transaction ends, then the new."""
    place, plan = shares[0].place, shares[0].plan
    await _soft_delete(session, user_id, place.server_id, plan.removed_ids)
    await _write_history(session, user_id, place.server_id, run_id, plan.rows)
    await _write_tools(session, user_id, place.server_id, plan.rows)
    decided = await evaluate_tools(session, user_id, place.server_id)
    for share in shares:
        await _write_index(session, user_id, share, decided)
    await write_decisions(session, user_id, decided)
    if any(share.plan.rows for share in shares):
        await write_priors(session, user_id, place.server_id)
    for share in shares:
        await _write_vectors(session, user_id, share)
    await _write_counts(session, user_id, place)
    await update_tool_counts(session, user_id, ann_above)


async def apply_inactive_model(session: Session, user_id: str, share: ModelUpdate) -> None:
    """Nobody searches it yet: what the tools are, and what is remembered of the catalogue, stays."""
    server_id = share.place.server_id
    await _write_index(session, user_id, share, await evaluate_tools(session, user_id, server_id))
    if share.plan.rows:
        await write_priors(session, user_id, server_id)
    await _write_vectors(session, user_id, share)


async def _soft_delete(session: Session, user_id: str, server_id: str, tool_ids: Sequence[str]) -> None:
    """Not to be found any more, but remembered: a tool that returns is what it was, for better or worse."""
    if not tool_ids:
        return
    vectors = mcp_tool_embeddings
    await session.execute(
        delete(vectors).where(vectors.c.user_id == user_id, vectors.c.tool_id.in_(tool_ids)),
    )
    t = mcp_tools.c
    gone = t.user_id == user_id, t.id.in_(tool_ids)
    await session.execute(update(mcp_tools).where(*gone).values(vanished_at=func.now()))
    # what a person has switched off must not come back by being forgotten
    vanished = select(t.id).where(*_of(user_id, server_id), t.vanished_at.is_not(None), t.switched.is_(None))
    oldest = vanished.order_by(t.vanished_at.desc(), t.id).offset(VANISHED_KEPT)
    await session.execute(delete(mcp_tools).where(t.user_id == user_id, t.id.in_(oldest)))


async def _write_history(session: Session, user_id: str, server_id: str, run_id: str, rows: Sequence[ToolRow]) -> None:
    """Before the new definitions take the old ones' place."""
    new = {row.tool_id: row for row in rows}
    t = mcp_tools.c
    statement = select(t.id, t.definition_hash, *_DEFINITION).where(t.user_id == user_id, t.id.in_(new))
    changes = [
        {
            "user_id": user_id,
            "id": str(uuid.uuid4()),
            "server_id": server_id,
            "tool_id": tool_id,
            "run_id": run_id,
            **_difference(ToolDefinition(*old).as_mcp(), new[tool_id].definition.as_mcp()),
        }
        for tool_id, definition_hash, *old in await session.execute(statement)
        if definition_hash != new[tool_id].definition_hash
    ]
    if changes:
        await session.execute(insert(tool_changes), changes)
        await _forget_oldest_changes(session, user_id, [change["tool_id"] for change in changes])


def _difference(old: Json, new: Json) -> dict[str, Any]:
    # by their JSON: to Python 1 is True
    fields = [name for name in (old | new) if canonical_json(old.get(name)) != canonical_json(new.get(name))]
    # nothing that anybody could see: then it is what nobody can
    return {"fields": fields or ["hidden_characters"], "old": old, "new": new}


async def _forget_oldest_changes(session: Session, user_id: str, tool_ids: Sequence[str]) -> None:
    statement = """
        DELETE FROM tool_changes c USING (
            SELECT id, row_number() OVER (PARTITION BY tool_id ORDER BY at DESC, id DESC) AS age
            FROM tool_changes WHERE user_id = %(user_id)s AND tool_id = ANY(%(tool_ids)s)
        ) aged
        WHERE c.user_id = %(user_id)s AND c.id = aged.id AND aged.age > %(kept)s
    """
    await session.rows(statement, {"user_id": user_id, "tool_ids": list(tool_ids), "kept": CHANGES_KEPT})


async def _write_tools(session: Session, user_id: str, server_id: str, rows: Sequence[ToolRow]) -> None:
    if not rows:
        return
    statement = upsert(mcp_tools)
    new = statement.excluded
    # what a person decided about the tool (its switch, tags, pin and what was approved) is not the server's to change
    rewritten = {name: new[name] for name in _from_the_server} | {
        "state": case((new.definition_hash == mcp_tools.c.approved_hash, "approved"), else_="changed"),
        "vanished_at": null(),
        "updated_at": func.now(),
    }
    statement = statement.on_conflict_do_update(index_elements=["user_id", "id"], set_=rewritten)
    await session.execute(statement, [_tool_values(user_id, server_id, row) for row in rows])


_from_the_server = (
    "title",
    "description",
    "input_schema",
    "output_schema",
    "annotations",
    "meta",
    "findings",
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
        "findings": [asdict(finding) for finding in row.findings],
        "definition_hash": row.definition_hash,
        "approved_hash": row.definition_hash,
        "index_hash": row.index_hash,
        "enriched_description": row.enriched_description,
        "tokens": row.tokens,
    }


async def _write_index(
    session: Session, user_id: str, share: ModelUpdate, decided: Mapping[str, VisibilityDecision]
) -> None:
    """The narrow rows of new and changed tools. An older text's vector goes even before the new one is there: better
    found by words than found wrongly. Where the text is as it was, the vector stays."""
    place, plan, vectors = share.place, share.plan, share.vectors
    if not plan.rows:
        return
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
            "lexical": row.lexical,
            "action": row.action,
            "tokens": row.tokens,
            **_stored(decided[row.tool_id]),
            "ann": ann,
        }
        for row in plan.rows
    ]
    anew = [row | _vector(hashes, vectors, row["tool_id"]) for row in rows if row["tool_id"] in hashes]
    await _upsert_index(session, anew)
    await _upsert_index(session, [row for row in rows if row["tool_id"] not in hashes])


async def _upsert_index(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    statement = upsert(mcp_tool_embeddings)
    key = "user_id", "model", "tool_id"
    rewritten = {name: statement.excluded[name] for name in rows[0] if name not in key}
    await session.execute(statement.on_conflict_do_update(index_elements=key, set_=rewritten), rows)


def _vector(hashes: Mapping[str, str], vectors: Mapping[str, Vector], tool_id: str) -> dict[str, Any]:
    if tool_id not in vectors:
        return {"embedding": None, "content_hash": None}
    return {"embedding": HalfVector(vectors[tool_id]), "content_hash": hashes[tool_id]}


def _stored(verdict: VisibilityDecision) -> dict[str, Any]:
    stored = verdict.to_row()
    return {"enabled": stored["visible"], **{name: stored[name] for name in ("tags", "projects", "project_tags")}}


async def _write_vectors(session: Session, user_id: str, share: ModelUpdate) -> None:
    """Of tools that are unchanged, but had no vector yet or are embedded anew by force."""
    plan, vectors = share.plan, share.vectors
    rewritten = {row.tool_id for row in plan.rows}
    rows = [
        {"key": tool.tool_id, "vector": HalfVector(vectors[tool.tool_id]), "hash": tool.content_hash}
        for tool in plan.wanted
        if tool.tool_id in vectors and tool.tool_id not in rewritten
    ]
    if not rows:
        return
    table = mcp_tool_embeddings
    this = table.c.user_id == user_id, table.c.model == share.place.model, table.c.tool_id == bindparam("key")
    statement = update(table).where(*this).values(embedding=bindparam("vector"), content_hash=bindparam("hash"))
    await session.execute(statement, rows)


async def _write_counts(session: Session, user_id: str, place: IndexTarget) -> None:
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
