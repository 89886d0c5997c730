"""The SQL of categories: reads a user's tools and stored categories, and writes the differences at once."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pgvector import HalfVector
from sqlalchemy.dialects.postgresql import insert as upsert

from app.catalog import own_texts
from app.db.engine import Database, Session
from app.db.tables import SHARED_OWNER, tool_categories, tool_clusterings
from app.embeddings.base import Vector
from app.indexing.categories.naming import ToolText, list_term_ids
from app.search.pgvector_binary import decode_halfvecs

_PAGE_SIZE = 5_000

# whether a tool is visible is part of it: only visible tools name their category
_CONTENT = "hashtextextended(coalesce(v.content_hash, '') || v.enabled::text, 0)"

# A user whose runs follow one another does not wait for them for ever: not if an earlier one has long finished, and its
# tools are in no category yet. The order is that of Python, which merges the users of both statements.
_DUE_USERS = """
    SELECT u.{id} FROM {users} u
    WHERE {is_due} AND u.{id} COLLATE "C" > %(after)s AND u.{id} <> %(shared_owner)s
      AND (NOT EXISTS (SELECT 1 FROM index_runs r WHERE r.user_id = u.{id} AND r.state IN ('queued', 'running')
                       AND r.created_at > now() - make_interval(secs => %(patience_s)s))
           OR EXISTS (SELECT 1 FROM index_runs r LEFT JOIN tool_clusterings c ON c.user_id = r.user_id
                      WHERE r.user_id = u.{id} AND r.finished_at < now() - make_interval(secs => %(patience_s)s)
                      AND r.finished_at > coalesce(c.made_at, '-infinity')))
    ORDER BY u.{id} COLLATE "C" LIMIT %(limit)s
"""
_WITH_NEW_CATALOG = _DUE_USERS.format(id="id", users="users", is_due="u.categories_version <> u.catalog_version")
# `<` and `>` instead of `<>`, because an index helps with these
_WITH_OTHER_MODEL = _DUE_USERS.format(
    id="user_id", users="tool_clusterings", is_due="(u.model < %(model)s OR u.model > %(model)s)"
)
_CATALOG = """
    SELECT u.catalog_version,
           (SELECT count(*) FROM mcp_tool_embeddings v WHERE v.user_id = %(user_id)s AND v.model = %(model)s)
    FROM users u WHERE u.id = %(user_id)s
"""
_CLUSTERING = "SELECT model, mean, changed, revision FROM tool_clusterings WHERE user_id = %(user_id)s"
_CATEGORIES = """
    SELECT id, name, own_name, words, centroid FROM tool_categories WHERE user_id = %(user_id)s ORDER BY created_at, id
"""
_CHANGED = f"""
    SELECT v.tool_id FROM mcp_tool_embeddings v
    LEFT JOIN tool_category_members m ON m.user_id = v.user_id AND m.tool_id = v.tool_id
    WHERE v.user_id = %(user_id)s AND v.model = %(model)s AND m.content IS DISTINCT FROM {_CONTENT}
    ORDER BY v.tool_id
"""
_REMOVED = """
    SELECT m.tool_id, m.category_id FROM tool_category_members m
    WHERE m.user_id = %(user_id)s AND NOT EXISTS (
        SELECT 1 FROM mcp_tool_embeddings v
        WHERE v.user_id = %(user_id)s AND v.model = %(model)s AND v.tool_id = m.tool_id)
"""
# a sample that stays the same when tools come and go
_SAMPLE = f"""
    SELECT v.tool_id, {_CONTENT}, m.category_id, halfvec_send(v.embedding),
           t.name, {own_texts.TITLE}, {own_texts.DESCRIPTION}, v.tags, v.server_name,
           v.enabled AND t.findings = '[]'
    FROM (SELECT * FROM mcp_tool_embeddings v WHERE v.user_id = %(user_id)s AND v.model = %(model)s
          ORDER BY hashtextextended(v.tool_id, 0), v.tool_id LIMIT %(limit)s) v
    JOIN mcp_tools t ON t.user_id = %(user_id)s AND t.id = v.tool_id
    LEFT JOIN tool_category_members m ON m.user_id = %(user_id)s AND m.tool_id = v.tool_id
    ORDER BY v.tool_id
"""
# texts are read only where they decide
_TOOLS = f"""
    SELECT v.tool_id, {_CONTENT}, m.category_id, halfvec_send(v.embedding),
           t.name, NULL, CASE WHEN v.embedding IS NULL THEN {own_texts.DESCRIPTION} ELSE '' END, v.tags, v.server_name,
           false
    FROM mcp_tool_embeddings v
    JOIN mcp_tools t ON t.user_id = v.user_id AND t.id = v.tool_id
    LEFT JOIN tool_category_members m ON m.user_id = v.user_id AND m.tool_id = v.tool_id
    WHERE v.user_id = %(user_id)s AND v.model = %(model)s
"""
_TOOLS_AFTER = f"{_TOOLS} AND v.tool_id > %(after)s ORDER BY v.tool_id LIMIT %(limit)s"
_TOOLS_BY_ID = f"{_TOOLS} AND v.tool_id = ANY(%(tool_ids)s) ORDER BY v.tool_id"

_WRITE_VERSION = "UPDATE users SET categories_version = %(version)s WHERE id = %(user_id)s RETURNING id"
_WRITE_MEMBERS = """
    INSERT INTO tool_category_members AS m (user_id, tool_id, category_id, content)
    SELECT %(user_id)s, tool_id, category_id, content
    FROM unnest(%(tool_ids)s::text[], %(category_ids)s::text[], %(contents)s::bigint[])
         AS n (tool_id, category_id, content)
    ON CONFLICT (user_id, tool_id) DO UPDATE SET category_id = excluded.category_id, content = excluded.content
    WHERE (m.category_id, m.content) IS DISTINCT FROM (excluded.category_id, excluded.content)
"""
_DELETE_MEMBERS = "DELETE FROM tool_category_members WHERE user_id = %(user_id)s AND tool_id = ANY(%(tool_ids)s)"
# what its centroids and its mean say is of no use to another model, while the categories keep their tools and names
_DELETE_CLUSTERING = """
    DELETE FROM tool_clusterings WHERE user_id = %(user_id)s AND revision = %(revision)s RETURNING user_id
"""
_DELETE_MEMBERS_WITHOUT_TOOL = """
    DELETE FROM tool_category_members m WHERE m.user_id = %(user_id)s AND NOT EXISTS (
        SELECT 1 FROM mcp_tool_embeddings v WHERE v.user_id = %(user_id)s AND v.tool_id = m.tool_id)
"""
_DELETE_EMPTY = """
    DELETE FROM tool_categories c WHERE c.user_id = %(user_id)s AND NOT EXISTS (
        SELECT 1 FROM tool_category_members m WHERE m.user_id = %(user_id)s AND m.category_id = c.id)
"""


@dataclass(frozen=True)
class Category:
    id: str
    name: str
    own_name: str | None
    words: Sequence[str]
    centroid: Vector | None
    """None for the tools that are similar to no others."""


@dataclass(frozen=True)
class Clustering:
    """What tools are put into categories by."""

    model: str
    mean: Vector
    changed: int
    """How many tools have changed since the categories were made."""
    revision: int


@dataclass(frozen=True)
class Tool:
    id: str
    content: int
    """A hash of what the category depends on."""
    category_id: str | None
    """The stored one."""
    vector: Vector | None
    text: ToolText
    is_trusted: bool
    """Whether its text may name a category: it is visible, and a person need not review it."""


@dataclass(frozen=True)
class StoredState:
    catalog_version: int
    tool_count: int
    clustering: Clustering | None
    """None if there is none of the active model."""
    categories: Sequence[Category]
    changed: Sequence[str]
    """Tools that are new, or have changed since they were put into a category."""
    removed: Mapping[str, str]
    """Tools that no longer exist, with their categories."""
    revision: int
    """0: nothing is stored."""

    @property
    def has_changed(self) -> bool:
        """Whether the tools or the model have changed since the tools were put into categories."""
        is_outdated = self.clustering is None and bool(self.tool_count or self.revision)
        return bool(self.changed or self.removed) or is_outdated


async def list_due_users(database: Database, model: str, after: str, limit: int, patience_s: float) -> list[str]:
    """Return users whose catalogue, or the active model, has changed since their tools were put into categories: the
    first ones whose ids sort behind `after`.

    Users with index runs wait until these have finished, but no longer than `patience_s`.
    """
    filters = {"model": model, "shared_owner": SHARED_OWNER, "after": after}
    parameters = filters | {"limit": limit, "patience_s": patience_s}
    found = await database.system_fetch([(_WITH_NEW_CATALOG, parameters), (_WITH_OTHER_MODEL, parameters)])
    return sorted({user_id for rows in found for (user_id,) in rows})[:limit]


async def read_state(session: Session, user_id: str, model: str) -> StoredState | None:
    """Return None if the user no longer exists."""
    key = {"user_id": user_id, "model": model}
    catalog = await session.rows(_CATALOG, key)
    if not catalog:
        return None
    clusterings = [
        Clustering(of_model, mean.to_numpy(), changed, revision)
        for of_model, mean, changed, revision in await session.rows(_CLUSTERING, key)
    ]
    categories = [
        Category(category_id, name, own_name, words, None if centroid is None else centroid.to_numpy())
        for category_id, name, own_name, words, centroid in await session.rows(_CATEGORIES, key)
    ]
    [(catalog_version, tool_count)] = catalog
    return StoredState(
        catalog_version,
        tool_count,
        clustering=next((each for each in clusterings if each.model == model), None),
        categories=categories,
        changed=[tool_id for (tool_id,) in await session.rows(_CHANGED, key)],
        removed=dict(await session.rows(_REMOVED, key)),
        revision=clusterings[0].revision if clusterings else 0,
    )


async def read_sample(session: Session, user_id: str, model: str, limit: int) -> list[Tool]:
    """Return at most so many of the tools, always the same ones, with their texts."""
    return _to_tools(await session.rows(_SAMPLE, {"user_id": user_id, "model": model, "limit": limit}))


async def stream_tools(database: Database, user_id: str, model: str) -> AsyncIterator[list[Tool]]:
    """Yield all tools, a page at a time."""
    after = ""
    while True:
        parameters = {"user_id": user_id, "model": model, "after": after, "limit": _PAGE_SIZE}
        tools = _to_tools(await database.reader(user_id).rows(_TOOLS_AFTER, parameters))
        if tools:
            yield tools
        if len(tools) < _PAGE_SIZE:
            return
        after = tools[-1].id


async def stream_tools_by_id(
    database: Database, user_id: str, model: str, tool_ids: Sequence[str]
) -> AsyncIterator[list[Tool]]:
    for start in range(0, len(tool_ids), _PAGE_SIZE):
        parameters = {"user_id": user_id, "model": model, "tool_ids": list(tool_ids[start : start + _PAGE_SIZE])}
        yield _to_tools(await database.reader(user_id).rows(_TOOLS_BY_ID, parameters))


def _to_tools(rows: Sequence[tuple[Any, ...]]) -> list[Tool]:
    return [
        Tool(tool_id, content, category_id, _to_vector(sent), ToolText(*text), is_trusted)
        for tool_id, content, category_id, sent, *text, is_trusted in rows
    ]


def _to_vector(sent: bytes | None) -> Vector | None:
    return None if sent is None else decode_halfvecs(sent, (len(sent) - 4) // 2)[0]


async def write_version(database: Database, user_id: str, seen: StoredState) -> None:
    """Note that there is nothing to do for this version of the catalogue.

    What tools were put into categories by is deleted if another model made it: these categories keep their names until
    there are vectors to make new ones from.
    """
    async with database.exclusive_transaction(user_id) as session:
        await session.rows(_WRITE_VERSION, {"user_id": user_id, "version": seen.catalog_version})
        key = {"user_id": user_id, "revision": seen.revision}
        if seen.clustering is None and await session.rows(_DELETE_CLUSTERING, key):
            await session.rows(_DELETE_MEMBERS_WITHOUT_TOOL, key)
            await session.rows(_DELETE_EMPTY, key)


async def write(
    database: Database,
    user_id: str,
    seen: StoredState,
    clustering: Clustering,
    categories: Sequence[Category],
    members: Mapping[str, tuple[str, int]],
) -> bool:
    """Write the categories, and the category and content of each of the tools, at once.

    Return False if the user no longer exists, or if another process has written, or a person has given a name, since
    the state was `seen`.
    """
    async with database.exclusive_transaction(user_id) as session:
        if not await session.rows(_WRITE_VERSION, {"user_id": user_id, "version": seen.catalog_version}):
            return False
        if not await _write_clustering(session, user_id, clustering, seen.revision):
            await session.rows(_WRITE_VERSION, {"user_id": user_id, "version": 0})
            return False
        await _write_categories(session, user_id, categories)
        await session.rows(_DELETE_MEMBERS, {"user_id": user_id, "tool_ids": list(seen.removed)})
        await _write_members(session, user_id, members)
        await session.rows(_DELETE_EMPTY, {"user_id": user_id})
    return True


async def _write_clustering(session: Session, user_id: str, clustering: Clustering, seen_revision: int) -> bool:
    values = {"model": clustering.model, "mean": HalfVector(clustering.mean), "changed": clustering.changed}
    statement = upsert(tool_clusterings).values(user_id=user_id, **values)
    stored = tool_clusterings.c
    update = {**values, "revision": stored.revision + 1, "made_at": statement.excluded.made_at}
    statement = statement.on_conflict_do_update(
        index_elements=["user_id"], set_=update, where=stored.revision == seen_revision
    )
    return (await session.execute(statement.returning(stored.user_id))).one_or_none() is not None


async def _write_categories(session: Session, user_id: str, categories: Sequence[Category]) -> None:
    if not categories:
        return
    statement = upsert(tool_categories)
    new = {name: statement.excluded[name] for name in ("name", "words", "terms", "centroid")}
    rows = [
        {
            "user_id": user_id,
            "id": category.id,
            "name": category.name,
            "words": list(category.words),
            "terms": list_term_ids(category.name, category.words),
            "centroid": None if category.centroid is None else HalfVector(category.centroid.astype(np.float32)),
        }
        for category in sorted(categories, key=lambda each: each.id)
    ]
    await session.execute(statement.on_conflict_do_update(index_elements=["user_id", "id"], set_=new), rows)


async def _write_members(session: Session, user_id: str, members: Mapping[str, tuple[str, int]]) -> None:
    ordered = sorted(members.items())
    for start in range(0, len(ordered), _PAGE_SIZE):
        page = ordered[start : start + _PAGE_SIZE]
        parameters = {
            "user_id": user_id,
            "tool_ids": [tool_id for tool_id, _ in page],
            "category_ids": [category_id for _, (category_id, _) in page],
            "contents": [content for _, (_, content) in page],
        }
        await session.rows(_WRITE_MEMBERS, parameters)
