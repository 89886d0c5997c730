"""A user's tools: list, filter, change and approve them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, any_, false, func, literal, literal_column, or_, select, update

from app.catalog.availability import Availability, Status, get_availability, server_status_sql
from app.catalog.categories import read_names
from app.catalog.own_texts import OwnTexts, Texts
from app.catalog.projects import project_number
from app.catalog.visibility import TAGS, VISIBLE, Scope, bump_catalog, lock_server, lock_user, recompute_visibility
from app.catalog.visibility_policy import EnabledBy, HiddenBy, State
from app.db.engine import Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass
from app.db.tables import (
    mcp_servers,
    mcp_tool_embeddings,
    mcp_tools,
    tool_categories,
    tool_category_members,
    tool_changes,
    users,
)
from app.errors import Conflict, NotFound
from app.text.strict_json import Json

_TEXT_FIELDS = frozenset({"title", "description", "annotations"})
_OWN_COLUMNS = {"enabled": "switched", **{name: f"own_{name}" for name in _TEXT_FIELDS}}
"""What a person can change, and the column where the server or the rules have one of the same name."""


@dataclass(frozen=True)
class Tool:
    id: str
    server_id: str
    server_name: str
    name: str
    title: str | None
    description: str
    annotations: Json | None
    original: Texts | None
    """The server's texts, if the user's own replace them in the fields above."""
    own_texts: OwnTexts | None
    own_texts_at: datetime | None
    original_changed: bool
    """Whether the server's definition has changed since the user's own texts were written."""
    input_schema: Json
    output_schema: Json | None
    icons: list[Json] | None
    execution: Json | None
    enabled: bool
    enabled_by: EnabledBy
    visible: bool
    hidden_by: HiddenBy | None
    tags: Sequence[str]
    own_tags: Sequence[str]
    pinned: bool
    state: State
    definition_hash: str
    findings: Sequence[Mapping[str, str]]
    tokens: int
    embedded: bool
    updated_at: datetime
    server_status: Status
    category_id: str | None
    category: str | None
    """The name of its category; None until it is in one."""

    @property
    def server_description(self) -> str:
        return self.description if self.original is None else self.original.description

    @property
    def flags(self) -> list[str]:
        return sorted({finding["flag"] for finding in self.findings})

    @property
    def availability(self) -> Availability:
        return get_availability(self.server_status, visible=self.visible)

    @property
    def runnable(self) -> bool:
        return self.availability in ("runnable", "failing", "needs_authorization")


@dataclass(frozen=True)
class ToolFilter:
    server_id: str | None = None
    name: str | None = None
    tag: str | None = None
    enabled: bool | None = None
    visible: bool | None = None
    state: State | None = None
    flag: str | None = None
    own_texts: bool | None = None
    """Whether the user has written texts for it."""
    original_changed: bool | None = None
    project_id: str | None = None
    """Only tools that this project sees."""
    category_ids: Sequence[str] | None = None


@dataclass(frozen=True)
class Change:
    """A change of a tool's definition, found by an index run."""

    id: str
    at: datetime
    run_id: str
    fields: Sequence[str]
    old: Json
    new: Json


async def list_tools(
    session: Session, user_id: str, model: str, tool_filter: ToolFilter, page: PageRequest
) -> Page[Tool]:
    statement = _select_tools(user_id, model, tool_filter.project_id)
    if tool_filter.server_id is not None:
        statement = statement.where(mcp_tools.c.server_id == tool_filter.server_id)
    if tool_filter.name is not None:
        statement = statement.where(mcp_tools.c.name.icontains(tool_filter.name, autoescape=True))
    if tool_filter.tag is not None:
        statement = statement.where(literal(tool_filter.tag) == any_(_tags(tool_filter.project_id)))
    if tool_filter.enabled is not None:
        statement = statement.where(mcp_tools.c.enabled == tool_filter.enabled)
    if tool_filter.visible is not None:
        statement = statement.where(_visible().is_(tool_filter.visible))
    if tool_filter.state is not None:
        statement = statement.where(mcp_tools.c.state == tool_filter.state)
    if tool_filter.flag is not None:
        statement = statement.where(mcp_tools.c.findings.contains([{"flag": tool_filter.flag}]))
    if tool_filter.own_texts is not None:
        statement = statement.where(mcp_tools.c.own_texts_based_on.is_not(None).is_(tool_filter.own_texts))
    if tool_filter.original_changed is not None:
        statement = statement.where(_original_changed().is_(tool_filter.original_changed))
    if tool_filter.category_ids is not None:
        statement = statement.where(tool_category_members.c.category_id.in_(tool_filter.category_ids))
    found = await fetch_page(session, statement, (mcp_tools.c.name, mcp_tools.c.id), page, _to_tool)
    return replace(found, items=await _name_categories(session, user_id, model, tool_filter.project_id, found.items))


async def get_tool(session: Session, user_id: str, tool_id: str, model: str, project_id: str | None = None) -> Tool:
    statement = _select_tools(user_id, model, project_id).where(mcp_tools.c.id == tool_id)
    row = (await session.execute(statement)).one_or_none()
    if row is None:
        raise _not_found()
    [tool] = await _name_categories(session, user_id, model, project_id, [_to_tool(row)])
    return tool


async def _name_categories(
    session: Session, user_id: str, model: str, project_id: str | None, found: Sequence[Tool]
) -> Sequence[Tool]:
    """Give the tools the names that their categories have in the project."""
    if project_id is None or not any(tool.category_id for tool in found):
        return found
    names = await read_names(session, Scope(user_id, model, project_id=project_id))
    return [replace(tool, category=names.get(tool.category_id or "")) for tool in found]


async def tool_exists(session: Session, user_id: str, tool_id: str) -> bool:
    """Whether the tool exists, visible or not."""
    return await session.scalar(select(mcp_tools.c.id).where(*_by_id(user_id, tool_id))) is not None


async def get_definition_hash(session: Session, user_id: str, tool_id: str) -> str | None:
    """Return the hash of the stored definition, or None if the tool no longer exists."""
    definition_hash: str | None = await session.scalar(
        select(mcp_tools.c.definition_hash).where(*_by_id(user_id, tool_id))
    )
    return definition_hash


async def require_tool(session: Session, user_id: str, tool_id: str) -> None:
    """Raise `NotFound` unless the tool exists, visible or not."""
    if not await tool_exists(session, user_id, tool_id):
        raise _not_found()


async def update_tool(session: Session, user_id: str, tool_id: str, changes: Mapping[str, Any]) -> bool:
    """Change a tool, and return whether what is searched of it has changed: its own tags or texts.

    `enabled` sets the person's own switch, which overrides the rules; None resets it. `title`, `description` and
    `annotations` set the person's own texts; None restores the server's.
    """
    values = {_OWN_COLUMNS.get(name, name): value for name, value in changes.items()}
    server_id = await _lock_server_of(session, user_id, tool_id)
    stored = (await session.execute(select(mcp_tools).where(*_by_id(user_id, tool_id)))).one()
    own_texts = replace(_own_texts(stored), **{name: changes[name] for name in _TEXT_FIELDS & changes.keys()})
    if changes.keys() & _TEXT_FIELDS:
        values |= {
            "own_texts_based_on": stored.definition_hash if own_texts else None,
            "own_texts_at": func.now() if own_texts else None,
        }
    await session.execute(update(mcp_tools).where(*_by_id(user_id, tool_id)).values(**values, updated_at=func.now()))
    await recompute_visibility(session, user_id, server_id)
    return own_texts != _own_texts(stored) or set(values.get("tags", stored.tags)) != set(stored.tags)


async def approve_tool(session: Session, user_id: str, tool_id: str, seen_hash: str | None = None) -> None:
    """Approve the stored definition. Raise `Conflict` if `seen_hash` is given and is not the hash of that one."""
    server_id = await _lock_server_of(session, user_id, tool_id)
    stored_hash = await session.scalar(select(mcp_tools.c.definition_hash).where(*_by_id(user_id, tool_id)))
    if seen_hash is not None and seen_hash != stored_hash:
        raise Conflict("the definition has changed since you looked at it")
    approval = {"state": "approved", "approved_hash": stored_hash}
    await session.execute(update(mcp_tools).where(*_by_id(user_id, tool_id)).values(**approval))
    await recompute_visibility(session, user_id, server_id)


async def approve_tools(session: Session, user_id: str, seen_hashes: Mapping[str, str]) -> None:
    """Approve several definitions, by tool id, or none: raise `Conflict` if one of them is not the stored one.

    Tools that no longer exist are left out.
    """
    await lock_user(session, user_id)
    t = mcp_tools.c
    chosen = *_still_listed(user_id), t.id.in_(seen_hashes)
    stored = (await session.execute(select(t.id, t.server_id, t.name, t.definition_hash).where(*chosen))).all()
    if outdated := sorted(row.name for row in stored if row.definition_hash != seen_hashes[row.id]):
        raise Conflict(f"the definition of {outdated[0]} has changed since you looked at it; nothing was approved")
    approval = {"state": "approved", "approved_hash": t.definition_hash}
    await session.execute(update(mcp_tools).where(*chosen).values(**approval))
    for server_id in sorted({row.server_id for row in stored}):
        await recompute_visibility(session, user_id, server_id)


async def list_tool_changes(session: Session, user_id: str, tool_id: str, page: PageRequest) -> Page[Change]:
    """Return the changes of a tool's definition, newest first."""
    existing = mcp_tools.c.user_id == user_id, mcp_tools.c.id == tool_id  # also one that its server no longer lists
    if await session.scalar(select(mcp_tools.c.id).where(*existing)) is None:
        raise _not_found()
    changes = tool_changes.c
    statement = select(tool_changes).where(changes.user_id == user_id, changes.tool_id == tool_id)
    return await fetch_page(session, statement, (changes.at, changes.id), page, _to_change, descending=True)


async def list_tags(session: Session, scope: Scope) -> list[tuple[str, int]]:
    """Return each tag of a visible tool with the number of tools that have it."""
    statement = f"""
        SELECT tag, count(*) FROM mcp_tool_embeddings v, unnest({TAGS}) tag WHERE {VISIBLE} GROUP BY tag ORDER BY tag
    """
    return [(tag, count) for tag, count in await session.rows(statement, scope.parameters())]


async def _lock_server_of(session: Session, user_id: str, tool_id: str) -> str:
    server_id: str | None = await session.scalar(select(mcp_tools.c.server_id).where(*_by_id(user_id, tool_id)))
    if server_id is None or await lock_server(session, user_id, server_id) is None:
        raise _not_found()
    return server_id


KEEP_INDEXES_SHARE = 0.8
"""A large user keeps the indexes until fewer than this share of `SEARCH_ANN_ABOVE` tools are left."""


async def update_tool_counts(session: Session, user_id: str, ann_above: int) -> None:
    """Store the number of the user's tools, and whether there are so many that the search needs indexes.

    `indexing/large_tenants.py` then makes or drops them. A user whose number goes up and down around `ann_above` keeps
    them.
    """
    # First, since it waits for the lock of the user's row: the count below must see what other writers commit.
    await bump_catalog(session, user_id)
    count = await session.scalar(select(func.count()).select_from(mcp_tools).where(*_still_listed(user_id)))
    if session.is_distributed:
        ann_above = sys.maxsize  # see db/distribute.py
    ann = or_(literal(count > ann_above), and_(users.c.ann, literal(count > KEEP_INDEXES_SHARE * ann_above)))
    await session.execute(update(users).where(users.c.id == user_id).values(tool_count=count, ann=ann))


# a tool has no search row of the active model until it is indexed with that model
_ROW = mcp_tool_embeddings.c


def _select_tools(user_id: str, model: str, project_id: str | None) -> Select[Any]:
    """Select tools with their search rows; with `project_id`, only those that the project sees."""
    server = (mcp_servers.c.user_id == mcp_tools.c.user_id) & (mcp_servers.c.id == mcp_tools.c.server_id)
    row = (_ROW.user_id == mcp_tools.c.user_id) & (_ROW.tool_id == mcp_tools.c.id) & (_ROW.model == model)
    columns = [column for column in mcp_tools.c if column.name != "tags"]
    member, category = tool_category_members.c, tool_categories.c
    is_member = (member.user_id == mcp_tools.c.user_id) & (member.tool_id == mcp_tools.c.id)
    of_member = (category.user_id == member.user_id) & (category.id == member.category_id)
    return (
        select(
            *columns,
            mcp_servers.c.name.label("server_name"),
            literal_column(server_status_sql("mcp_servers")).label("server_status"),
            _tags(project_id).label("tags"),
            mcp_tools.c.tags.label("own_tags"),
            _original_changed().label("original_changed"),
            _visible().label("visible"),
            _ROW.embedding.is_not(None).label("embedded"),
            member.category_id,
            func.coalesce(category.own_name, category.name).label("category"),
        )
        .join(mcp_servers, server)
        .outerjoin(mcp_tool_embeddings, row)
        .outerjoin(tool_category_members, is_member)
        .outerjoin(tool_categories, of_member)
        .where(*_still_listed(user_id), *_visible_in(project_id))
    )


def _visible_in(project_id: str | None) -> tuple[Any, ...]:
    return () if project_id is None else (_visible(), literal(project_number(project_id)) == any_(_ROW.projects))


def _visible() -> ColumnElement[bool]:
    return func.coalesce(_ROW.enabled, false())


def _tags(project_id: str | None) -> ColumnElement[Any]:
    tags = func.coalesce(_ROW.tags, mcp_tools.c.tags)
    if project_id is None:
        return tags
    tags_added = select(func.jsonb_array_elements_text(_ROW.project_tags[project_id]))
    added = tags_added.correlate(mcp_tool_embeddings).scalar_subquery()
    return tags.op("||")(func.array(added))


def _still_listed(user_id: str) -> tuple[Any, Any]:
    """Tools that their servers still list."""
    return mcp_tools.c.user_id == user_id, mcp_tools.c.vanished_at.is_(None)


def _by_id(user_id: str, tool_id: str) -> tuple[Any, ...]:
    return *_still_listed(user_id), mcp_tools.c.id == tool_id


def _original_changed() -> ColumnElement[bool]:
    return func.coalesce(mcp_tools.c.own_texts_based_on != mcp_tools.c.definition_hash, false())


def _own_texts(row: Row[Any]) -> OwnTexts:
    return OwnTexts(row.own_title, row.own_description, row.own_annotations)


def _to_tool(row: Row[Any]) -> Tool:
    own_texts, original = _own_texts(row), Texts(row.title, row.description, row.annotations)
    effective = own_texts.apply(original)
    return to_dataclass(
        Tool,
        row,
        title=effective.title,
        description=effective.description,
        annotations=effective.annotations,
        original=original if own_texts else None,
        own_texts=own_texts or None,
    )


def _to_change(row: Row[Any]) -> Change:
    return to_dataclass(Change, row)


def _not_found() -> NotFound:
    return NotFound("there is no such tool")
