"""A user's tools, as they are managed and as a model gets to see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, Select, any_, false, func, literal, select, update

from app.catalog.policy import EnabledBy, HiddenBy
from app.catalog.projects import project_number
from app.catalog.visibility import TAGS, VISIBLE, Scope, bump_catalog, lock_server, recompute_visibility
from app.db.engine import Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass
from app.db.tables import mcp_servers, mcp_tool_embeddings, mcp_tools, tool_changes, users
from app.errors import Conflict, NotFound
from app.text.strict_json import Json

State = Literal["approved", "changed"]


@dataclass(frozen=True)
class Tool:
    id: str
    server_id: str
    server_name: str
    name: str
    title: str | None
    description: str
    input_schema: Json
    output_schema: Json | None
    annotations: Json | None
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

    @property
    def flags(self) -> list[str]:
        return sorted({finding["flag"] for finding in self.findings})


@dataclass(frozen=True)
class ToolFilter:
    server_id: str | None = None
    name: str | None = None
    tag: str | None = None
    enabled: bool | None = None
    visible: bool | None = None
    state: State | None = None
    flag: str | None = None
    project_id: str | None = None
    """Only what this project sees."""


@dataclass(frozen=True)
class Change:
    """Of a tool's definition, as a listing brought it."""

    id: str
    at: datetime
    run_id: str
    fields: Sequence[str]
    old: Json
    new: Json


async def list_tools(session: Session, user_id: str, model: str, wanted: ToolFilter, page: PageRequest) -> Page[Tool]:
    statement = _managed(user_id, model, wanted.project_id)
    if wanted.server_id is not None:
        statement = statement.where(mcp_tools.c.server_id == wanted.server_id)
    if wanted.name is not None:
        statement = statement.where(mcp_tools.c.name.icontains(wanted.name, autoescape=True))
    if wanted.tag is not None:
        statement = statement.where(literal(wanted.tag) == any_(_tags(wanted.project_id)))
    if wanted.enabled is not None:
        statement = statement.where(mcp_tools.c.enabled == wanted.enabled)
    if wanted.visible is not None:
        statement = statement.where(_visible().is_(wanted.visible))
    if wanted.state is not None:
        statement = statement.where(mcp_tools.c.state == wanted.state)
    if wanted.flag is not None:
        statement = statement.where(mcp_tools.c.findings.contains([{"flag": wanted.flag}]))
    return await fetch_page(session, statement, (mcp_tools.c.name, mcp_tools.c.id), page, _tool)


async def get_tool(session: Session, user_id: str, tool_id: str, model: str, project_id: str | None = None) -> Tool:
    statement = _managed(user_id, model, project_id).where(mcp_tools.c.id == tool_id)
    row = (await session.execute(statement)).one_or_none()
    if row is None:
        raise _missing()
    return _tool(row)


async def tool_exists(session: Session, user_id: str, tool_id: str) -> bool:
    """Whether or not it may be used."""
    return await session.scalar(select(mcp_tools.c.id).where(*_this(user_id, tool_id))) is not None


async def find_tools_by_name(session: Session, user_id: str, name: str) -> str | None:
    """The id of the tool that `SERVER.TOOL` names."""
    server = (mcp_servers.c.user_id == mcp_tools.c.user_id) & (mcp_servers.c.id == mcp_tools.c.server_id)
    called = func.concat(mcp_servers.c.name, ".", mcp_tools.c.name) == name
    statement = select(mcp_tools.c.id).join(mcp_servers, server).where(*_offered(user_id), called)
    tool_id: str | None = await session.scalar(statement.limit(1))
    return tool_id


async def update_tool(session: Session, user_id: str, tool_id: str, changes: Mapping[str, Any]) -> None:
    """A person's own switch stands above what a rule decides; None gives it back to the rules."""
    values = dict(changes)
    if "enabled" in values:
        values["switched"] = values.pop("enabled")
    server_id = await _locked_server(session, user_id, tool_id)
    await session.execute(update(mcp_tools).where(*_this(user_id, tool_id)).values(**values, updated_at=func.now()))
    await recompute_visibility(session, user_id, server_id)


async def approve_tool(session: Session, user_id: str, tool_id: str, seen_hash: str | None = None) -> None:
    """The definition as it stands becomes the accepted one. `seen_hash` is of the one that was looked at: where
    another has come since, nobody has accepted that."""
    server_id = await _locked_server(session, user_id, tool_id)
    stored_hash = await session.scalar(select(mcp_tools.c.definition_hash).where(*_this(user_id, tool_id)))
    if seen_hash is not None and seen_hash != stored_hash:
        raise Conflict("the definition has changed again since you looked at it")
    accepted = {"state": "approved", "approved_hash": stored_hash}
    await session.execute(update(mcp_tools).where(*_this(user_id, tool_id)).values(**accepted))
    await recompute_visibility(session, user_id, server_id)


async def list_tool_changes(session: Session, user_id: str, tool_id: str, page: PageRequest) -> Page[Change]:
    """The newest first."""
    known = mcp_tools.c.user_id == user_id, mcp_tools.c.id == tool_id  # also one that has vanished
    if await session.scalar(select(mcp_tools.c.id).where(*known)) is None:
        raise _missing()
    changes = tool_changes.c
    statement = select(tool_changes).where(changes.user_id == user_id, changes.tool_id == tool_id)
    return await fetch_page(session, statement, (changes.at, changes.id), page, _change, descending=True)


async def list_tags(session: Session, scope: Scope) -> list[tuple[str, int]]:
    """Each tag of a visible tool, with the number of tools that have it."""
    statement = f"""
        SELECT tag, count(*) FROM mcp_tool_embeddings v, unnest({TAGS}) tag WHERE {VISIBLE} GROUP BY tag ORDER BY tag
    """
    return [(tag, count) for tag, count in await session.rows(statement, scope.parameters())]


async def _locked_server(session: Session, user_id: str, tool_id: str) -> str:
    server_id: str | None = await session.scalar(select(mcp_tools.c.server_id).where(*_this(user_id, tool_id)))
    if server_id is None or await lock_server(session, user_id, server_id) is None:
        raise _missing()
    return server_id


async def update_tool_counts(session: Session, user_id: str, ann_above: int) -> None:
    """Keeps the user's stored count, and moves the user's vectors into or out of HNSW when it crosses the line."""
    # first, since it waits for the user's row: the statement that counts must begin after other writers have ended
    await bump_catalog(session, user_id)
    count = await session.scalar(select(func.count()).select_from(mcp_tools).where(*_offered(user_id)))
    ann = count > ann_above
    await session.execute(update(users).where(users.c.id == user_id).values(tool_count=count, ann=ann))
    vectors = mcp_tool_embeddings
    misplaced = vectors.c.user_id == user_id, vectors.c.ann != ann
    await session.execute(update(vectors).where(*misplaced).values(ann=ann))


# a tool has no search row by the active model until it has been indexed by it
_ROW = mcp_tool_embeddings.c


def _managed(user_id: str, model: str, project_id: str | None) -> Select[Any]:
    """Within a project, only what it sees."""
    server = (mcp_servers.c.user_id == mcp_tools.c.user_id) & (mcp_servers.c.id == mcp_tools.c.server_id)
    row = (_ROW.user_id == mcp_tools.c.user_id) & (_ROW.tool_id == mcp_tools.c.id) & (_ROW.model == model)
    kept = [column for column in mcp_tools.c if column.name != "tags"]
    return (
        select(
            *kept,
            mcp_servers.c.name.label("server_name"),
            _tags(project_id).label("tags"),
            mcp_tools.c.tags.label("own_tags"),
            _visible().label("visible"),
            _ROW.embedding.is_not(None).label("embedded"),
        )
        .join(mcp_servers, server)
        .outerjoin(mcp_tool_embeddings, row)
        .where(*_offered(user_id), *_seen_in(project_id))
    )


def _seen_in(project_id: str | None) -> tuple[Any, ...]:
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


def _offered(user_id: str) -> tuple[Any, Any]:
    """By its server, the last time that it was asked."""
    return mcp_tools.c.user_id == user_id, mcp_tools.c.vanished_at.is_(None)


def _this(user_id: str, tool_id: str) -> tuple[Any, ...]:
    return *_offered(user_id), mcp_tools.c.id == tool_id


def _tool(row: Row[Any]) -> Tool:
    return to_dataclass(Tool, row)


def _change(row: Row[Any]) -> Change:
    return to_dataclass(Change, row)


def _missing() -> NotFound:
    return NotFound("there is no such tool")
