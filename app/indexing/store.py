"""The SQL of indexing: reads the stored tools and the cached vectors, and writes a whole plan at once."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from pgvector import HalfVector
from sqlalchemy import bindparam, case, delete, false, func, insert, null, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from app.catalog.own_texts import OwnTexts
from app.catalog.tools import update_tool_counts
from app.catalog.visibility import evaluate_tools, read_policy, recompute_visibility, write_decisions
from app.catalog.visibility_policy import VisibilityDecision
from app.db.engine import Database, Session
from app.db.tables import embedding_cache, mcp_servers, mcp_tool_embeddings, mcp_tools, tool_changes, users
from app.embeddings.base import Vector
from app.errors import NodeDown
from app.indexing.parsing import ListedTool, sanitize_definition
from app.indexing.plan import IndexTarget, ModelUpdate, RehashedTool, StoredTool, ToolRow
from app.indexing.sanitize import Finding
from app.mcp_types import FINGERPRINT_VERSION, ToolDefinition
from app.text.strict_json import Json, canonical_json
from app.usage.priors import write_priors

MAX_CHANGES_PER_TOOL = 20
MAX_DELETED_TOOLS = 1_000
"""Soft-deleted tools that are kept for each server."""

_DEFINITION_COLUMNS = tuple(
    mcp_tools.c[name]
    for name in (
        "name",
        "title",
        "description",
        "input_schema",
        "output_schema",
        "annotations",
        "meta",
        "icons",
        "execution",
    )
)

_SERVER_COLUMNS = (
    "title",
    "description",
    "input_schema",
    "output_schema",
    "annotations",
    "meta",
    "icons",
    "execution",
    "findings",
    "definition_hash",
    "hash_version",
    "index_hash",
    "enriched_description",
    "tokens",
)
"""Columns of `mcp_tools` that come from the server; all others are decided here."""


async def read_tools(session: Session, user_id: str, server_id: str, model: str) -> dict[str, StoredTool]:
    """Return the server's tools by name, soft-deleted ones included, with the state of the model's vectors."""
    t, vectors = mcp_tools.c, mcp_tool_embeddings.c
    of_model = (vectors.user_id == t.user_id) & (vectors.tool_id == t.id) & (vectors.model == model)
    hashes = t.definition_hash, t.index_hash, t.approved_hash, t.hash_version
    columns = t.id, t.state, *hashes, t.findings, t.vanished_at, t.tags
    own_texts = t.own_title, t.own_description, t.own_annotations
    is_indexed = vectors.tool_id.is_not(None).label("is_indexed")
    tools = mcp_tools.outerjoin(mcp_tool_embeddings, of_model)
    statement = (
        select(t.name, *columns, *own_texts, vectors.content_hash, is_indexed)
        .select_from(tools)
        .where(*_by_server(user_id, server_id))
    )
    return {
        row.name: StoredTool(
            tool_id=row.id,
            definition_hash=row.definition_hash,
            index_hash=row.index_hash,
            approved_hash=row.approved_hash,
            findings=_to_findings(row.findings),
            is_deleted=row.vanished_at is not None,
            content_hash=row.content_hash,
            is_indexed=row.is_indexed,
            own_tags=row.tags,
            hash_version=row.hash_version,
            state=row.state,
            own_texts=OwnTexts(row.own_title, row.own_description, row.own_annotations),
        )
        for row in await session.execute(statement)
    }


async def read_listing(session: Session, user_id: str, server_id: str) -> list[ListedTool]:
    """Return the stored tools as a listing, for runs that neither got a pushed list nor fetch one."""
    t = mcp_tools.c
    not_deleted = *_by_server(user_id, server_id), t.vanished_at.is_(None)
    statement = select(*_DEFINITION_COLUMNS, t.definition_hash, t.findings).where(*not_deleted).order_by(t.name)
    tools = (
        _sanitize_stored(ToolDefinition(*definition), fingerprint, _to_findings(findings))
        for *definition, fingerprint, findings in await session.execute(statement)
    )
    return [tool for tool in tools if tool is not None]


async def read_effective_listing(session: Session, user_id: str, server_id: str) -> list[ListedTool]:
    """Return the stored tools of a shared server as its members see them: with the texts that replace the server's."""
    t = mcp_tools.c
    own = select(t.name, t.own_title, t.own_description, t.own_annotations).where(*_by_server(user_id, server_id))
    own_texts = {name: OwnTexts(*texts) for name, *texts in await session.execute(own)}
    listed = await read_listing(session, user_id, server_id)
    return [replace(tool, definition=own_texts[tool.definition.name].apply(tool.definition)) for tool in listed]


@dataclass(frozen=True)
class Approval:
    state: str
    approved_hash: str


async def read_approvals(session: Session, user_id: str, server_id: str) -> dict[str, Approval]:
    """Return what has been approved of the server's tools, by name."""
    t = mcp_tools.c
    listed = *_by_server(user_id, server_id), t.vanished_at.is_(None)
    rows = await session.execute(select(t.name, t.state, t.approved_hash).where(*listed))
    return {name: Approval(state, approved_hash) for name, state, approved_hash in rows}


async def write_approvals(session: Session, user_id: str, server_id: str, approvals: Mapping[str, Approval]) -> None:
    """Let the tools of a copy be approved, or held, as those of the shared server are."""
    stored = await read_approvals(session, user_id, server_id)
    t = mcp_tools.c
    changed = [name for name in stored if name in approvals and stored[name] != approvals[name]]
    for name in changed:
        statement = update(mcp_tools).where(*_by_server(user_id, server_id), t.name == name)
        await session.execute(statement.values(**asdict(approvals[name])))
    if changed:
        await recompute_visibility(session, user_id, server_id)


def _sanitize_stored(definition: ToolDefinition, fingerprint: str, findings: Sequence[Finding]) -> ListedTool | None:
    """Sanitize a stored definition again. Return None if that fails, for tools stored before texts were sanitized.

    Findings of hidden characters are kept: the stored text does not contain the characters any more.
    """
    hidden = [finding for finding in findings if finding.flag == "hidden_characters"]
    try:
        sanitized = sanitize_definition(definition)
    except ValueError:
        return None
    return ListedTool(sanitized.definition, fingerprint, [*hidden, *sanitized.findings])


def _to_findings(stored: Sequence[Json]) -> list[Finding]:
    return [Finding(**finding) for finding in stored]


async def read_vector_cache(database: Database, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
    """Return the cached vectors by text hash; none while a node of a distributed database is away."""
    statement = """
        SELECT text_hash, embedding FROM embedding_cache WHERE model = %(model)s AND text_hash = ANY(%(hashes)s)
    """
    try:
        async with database.system_transaction() as session:
            rows = await session.rows(statement, {"model": model, "hashes": list(hashes)})
    except NodeDown:
        return {}
    return {text_hash: vector.to_numpy() for text_hash, vector in rows}


async def write_vector_cache(database: Database, model: str, vectors: Mapping[bytes, Vector]) -> None:
    """Cache vectors by text hash; not while a node of a distributed database is away."""
    # sorted, so that two writers of the same keys cannot deadlock
    ordered = sorted(vectors.items())
    rows = [{"model": model, "text_hash": key, "embedding": HalfVector(vector)} for key, vector in ordered]
    statement = upsert(embedding_cache)
    values = {"embedding": statement.excluded.embedding}
    statement = statement.on_conflict_do_update(index_elements=["model", "text_hash"], set_=values)
    with suppress(NodeDown):
        async with database.system_transaction() as session:
            await session.execute(statement, rows)


async def apply_updates(
    session: Session, user_id: str, updates: Sequence[ModelUpdate], *, run_id: str, ann_above: int
) -> None:
    """Write the updates of all models, the active one first. Readers see the old tools until the transaction ends."""
    target, plan = updates[0].target, updates[0].plan
    await _soft_delete(session, user_id, target.server_id, plan.removed_ids)
    await _update_old_hashes(session, user_id, plan.rehashed)
    await _write_history(session, user_id, target.server_id, run_id, plan.rows)
    await _write_tools(session, user_id, target, plan.rows)
    decisions = await evaluate_tools(session, user_id, target.server_id)
    for model_update in updates:
        await _write_search_rows(session, user_id, model_update, decisions)
    await write_decisions(session, user_id, decisions)
    if any(model_update.plan.rows for model_update in updates):
        await write_priors(session, user_id, target.server_id)
    for model_update in updates:
        await _write_vectors(session, user_id, model_update)
    await _write_counts(session, user_id, target)
    await update_tool_counts(session, user_id, ann_above)


async def apply_inactive_model(session: Session, user_id: str, model_update: ModelUpdate) -> None:
    """Write the rows and vectors of a model that does not serve yet. The tools and the counts do not change."""
    server_id = model_update.target.server_id
    await _write_search_rows(session, user_id, model_update, await evaluate_tools(session, user_id, server_id))
    if model_update.plan.rows:
        await write_priors(session, user_id, server_id)
    await _write_vectors(session, user_id, model_update)


async def _soft_delete(session: Session, user_id: str, server_id: str, tool_ids: Sequence[str]) -> None:
    """Remove the tools from search, but keep their rows: a tool that returns keeps its switch, texts, tags and
    approval."""
    if not tool_ids:
        return
    vectors, t = mcp_tool_embeddings, mcp_tools.c
    await session.execute(delete(vectors).where(vectors.c.user_id == user_id, vectors.c.tool_id.in_(tool_ids)))
    removed = t.user_id == user_id, t.id.in_(tool_ids)
    await session.execute(update(mcp_tools).where(*removed).values(vanished_at=func.now()))
    # never delete what a person has decided: a tool would return without its switch and its own texts
    undecided = t.switched.is_(None), t.own_texts_based_on.is_(None)
    deleted = select(t.id).where(*_by_server(user_id, server_id), t.vanished_at.is_not(None), *undecided)
    oldest = deleted.order_by(t.vanished_at.desc(), t.id).offset(MAX_DELETED_TOOLS)
    await session.execute(delete(mcp_tools).where(t.user_id == user_id, t.id.in_(oldest)))


async def _update_old_hashes(session: Session, user_id: str, tools: Sequence[RehashedTool]) -> None:
    """Write what an older version of Toolscout did not store. Must run before definitions are compared."""
    if not tools:
        return
    names = "definition_hash", "approved_hash", "icons", "execution"
    t = mcp_tools.c
    # with types: Citus does not find the value of a parameter that a CASE returns as it is
    values: dict[str, Any] = {name: bindparam(f"new_{name}", type_=t[name].type) for name in names}
    values["hash_version"] = FINGERPRINT_VERSION
    based_on_current = t.own_texts_based_on == t.definition_hash
    values["own_texts_based_on"] = case((based_on_current, values["definition_hash"]), else_=t.own_texts_based_on)
    by_tool = t.user_id == user_id, t.id == bindparam("key")
    rows = [{"key": tool.tool_id, **{f"new_{name}": getattr(tool, name) for name in names}} for tool in tools]
    await session.execute(update(mcp_tools).where(*by_tool).values(**values), rows)


async def _write_history(session: Session, user_id: str, server_id: str, run_id: str, rows: Sequence[ToolRow]) -> None:
    """Record the changed definitions. Must run before the new definitions are written."""
    new = {row.tool_id: row for row in rows}
    t = mcp_tools.c
    statement = select(t.id, t.definition_hash, *_DEFINITION_COLUMNS).where(t.user_id == user_id, t.id.in_(new))
    changes = [
        {
            "user_id": user_id,
            "id": str(uuid.uuid4()),
            "server_id": server_id,
            "tool_id": tool_id,
            "run_id": run_id,
            **_diff_definitions(ToolDefinition(*old).as_mcp(), new[tool_id].definition.as_mcp()),
        }
        for tool_id, definition_hash, *old in await session.execute(statement)
        if definition_hash != new[tool_id].definition_hash
    ]
    if changes:
        await session.execute(insert(tool_changes), changes)
        await _delete_oldest_changes(session, user_id, [change["tool_id"] for change in changes])


def _diff_definitions(old: Json, new: Json) -> dict[str, Any]:
    # compare as JSON, because 1 == True in Python
    fields = [name for name in (old | new) if canonical_json(old.get(name)) != canonical_json(new.get(name))]
    # if the sanitized definitions are equal, only hidden characters have changed
    return {"fields": fields or ["hidden_characters"], "old": old, "new": new}


async def _delete_oldest_changes(session: Session, user_id: str, tool_ids: Sequence[str]) -> None:
    statement = """
        DELETE FROM tool_changes c USING (
            SELECT id, row_number() OVER (PARTITION BY tool_id ORDER BY at DESC, id DESC) AS age
            FROM tool_changes WHERE user_id = %(user_id)s AND tool_id = ANY(%(tool_ids)s)
        ) aged
        WHERE c.user_id = %(user_id)s AND c.id = aged.id AND aged.age > %(limit)s
    """
    await session.rows(statement, {"user_id": user_id, "tool_ids": list(tool_ids), "limit": MAX_CHANGES_PER_TOOL})


async def _write_tools(session: Session, user_id: str, target: IndexTarget, rows: Sequence[ToolRow]) -> None:
    """Upsert the tools. A person's decisions (switch, own texts, tags, pin, approval) are kept.

    The tools of the first listing count as approved. A tool that is held because it is new stays new when its
    definition changes: nobody has used the old one.
    """
    if not rows:
        return
    statement = upsert(mcp_tools)
    new, old = statement.excluded, mcp_tools.c
    is_new = old.state == "new"
    is_held = is_new if (await read_policy(session)).hold_new else false()
    values = {name: new[name] for name in _SERVER_COLUMNS} | {
        "state": case(
            (is_held, "new"), (new.definition_hash != old.approved_hash, "changed"), (is_new, "new"), else_="approved"
        ),
        "approved_hash": case((is_held, new.definition_hash), else_=old.approved_hash),
        "vanished_at": null(),
        "updated_at": new.updated_at,
    }
    statement = statement.on_conflict_do_update(index_elements=["user_id", "id"], set_=values)
    await session.execute(statement, [_tool_values(user_id, target, row) for row in rows])


def _tool_values(user_id: str, target: IndexTarget, row: ToolRow) -> dict[str, Any]:
    definition = row.definition
    return {
        "user_id": user_id,
        "server_id": target.server_id,
        "id": row.tool_id,
        "name": definition.name,
        "title": definition.title,
        "description": definition.description,
        "input_schema": definition.input_schema,
        "output_schema": definition.output_schema,
        "annotations": definition.annotations,
        "meta": definition.meta,
        "icons": definition.icons,
        "execution": definition.execution,
        "findings": [asdict(finding) for finding in row.findings],
        "definition_hash": row.definition_hash,
        "state": "new" if target.was_listed else "approved",
        "approved_hash": row.definition_hash,
        "hash_version": FINGERPRINT_VERSION,
        "index_hash": row.index_hash,
        "enriched_description": row.enriched_description,
        "tokens": row.tokens,
    }


async def _write_search_rows(
    session: Session, user_id: str, model_update: ModelUpdate, decisions: Mapping[str, VisibilityDecision]
) -> None:
    """Upsert the search rows of new and changed tools.

    The vector of an outdated text is removed even if the new one is missing: lexical search alone is better than wrong
    matches. If the text is unchanged, the vector stays.
    """
    target, plan, vectors = model_update.target, model_update.plan, model_update.vectors
    if not plan.rows:
        return
    ann = await session.scalar(select(users.c.ann).where(users.c.id == user_id))
    hashes = {missing.tool_id: missing.content_hash for missing in plan.count_missing_vectors}
    rows = [
        {
            "user_id": user_id,
            "model": target.model,
            "tool_id": row.tool_id,
            "server_id": target.server_id,
            "server_name": target.server_name,
            "tool_name": row.definition.name,
            "lexical": row.lexical,
            "action": row.action,
            "tokens": row.tokens,
            **_visibility_values(decisions[row.tool_id]),
            "ann": ann,
        }
        for row in plan.rows
    ]
    outdated = [row | _vector_values(hashes, vectors, row["tool_id"]) for row in rows if row["tool_id"] in hashes]
    await _upsert_search_rows(session, outdated)
    await _upsert_search_rows(session, [row for row in rows if row["tool_id"] not in hashes])


async def _upsert_search_rows(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    statement = upsert(mcp_tool_embeddings)
    key = "user_id", "model", "tool_id"
    values = {name: statement.excluded[name] for name in rows[0] if name not in key}
    await session.execute(statement.on_conflict_do_update(index_elements=key, set_=values), rows)


def _vector_values(hashes: Mapping[str, str], vectors: Mapping[str, Vector], tool_id: str) -> dict[str, Any]:
    if tool_id not in vectors:
        return {"embedding": None, "content_hash": None}
    return {"embedding": HalfVector(vectors[tool_id]), "content_hash": hashes[tool_id]}


def _visibility_values(decision: VisibilityDecision) -> dict[str, Any]:
    stored = decision.to_row()
    return {"enabled": stored["visible"], **{name: stored[name] for name in ("tags", "projects", "project_tags")}}


async def _write_vectors(session: Session, user_id: str, model_update: ModelUpdate) -> None:
    """Write the new vectors of tools that are otherwise unchanged: missing ones, and all of them after `force`."""
    plan, vectors = model_update.plan, model_update.vectors
    written = {row.tool_id for row in plan.rows}
    rows = [
        {"key": tool.tool_id, "vector": HalfVector(vectors[tool.tool_id]), "hash": tool.content_hash}
        for tool in plan.count_missing_vectors
        if tool.tool_id in vectors and tool.tool_id not in written
    ]
    if not rows:
        return
    v = mcp_tool_embeddings.c
    by_tool = v.user_id == user_id, v.model == model_update.target.model, v.tool_id == bindparam("key")
    statement = update(mcp_tool_embeddings).where(*by_tool)
    statement = statement.values(embedding=bindparam("vector"), content_hash=bindparam("hash"))
    await session.execute(statement, rows)


async def _write_counts(session: Session, user_id: str, target: IndexTarget) -> None:
    rows = mcp_tool_embeddings.c
    of_server = rows.user_id == user_id, rows.model == target.model, rows.server_id == target.server_id
    pending = select(func.count()).where(*of_server, rows.embedding.is_(None)).scalar_subquery()
    counts = {
        "tool_count": select(func.count()).where(*of_server).scalar_subquery(),
        "pending_count": pending,
        "pending_tries": case((pending > 0, mcp_servers.c.pending_tries + 1), else_=0),
        "updated_at": func.now(),
    }
    server = mcp_servers.c.user_id == user_id, mcp_servers.c.id == target.server_id
    await session.execute(update(mcp_servers).where(*server).values(**counts))


def _by_server(user_id: str, server_id: str) -> tuple[Any, Any]:
    return mcp_tools.c.user_id == user_id, mcp_tools.c.server_id == server_id
