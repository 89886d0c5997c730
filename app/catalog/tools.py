"""A user's tools, as they are managed and as a model gets to see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, any_, func, literal, select, update

from app.catalog.visibility import bump_catalog, decide_again, lock_server
from app.database.engine import Session
from app.database.paging import Page, PageRequest, fetch_page
from app.database.rows import record
from app.errors import NotFound
from app.models import mcp_servers, mcp_tool_embeddings, mcp_tools, users
from app.protocol import Json


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
    enabled_by: str
    tags: Sequence[str]
    pinned: bool
    state: str
    tokens: int
    embedded: bool
    updated_at: datetime


@dataclass(frozen=True)
class ToolFilter:
    server_id: str | None = None
    name: str | None = None
    tag: str | None = None
    enabled: bool | None = None


async def list_tools(session: Session, user_id: str, model: str, wanted: ToolFilter, page: PageRequest) -> Page[Tool]:
    statement = _managed(user_id, model)
    if wanted.server_id is not None:
        statement = statement.where(mcp_tools.c.server_id == wanted.server_id)
    if wanted.name is not None:
        statement = statement.where(mcp_tools.c.name.icontains(wanted.name, autoescape=True))
    if wanted.tag is not None:
        statement = statement.where(literal(wanted.tag) == any_(mcp_tools.c.tags))
    if wanted.enabled is not None:
        statement = statement.where(mcp_tools.c.enabled == wanted.enabled)
    return await fetch_page(session, statement, (mcp_tools.c.name, mcp_tools.c.id), page, _tool)


async def get_tool(session: Session, user_id: str, tool_id: str, model: str) -> Tool:
    row = (await session.execute(_managed(user_id, model).where(mcp_tools.c.id == tool_id))).one_or_none()
    if row is None:
        raise _missing()
    return _tool(row)


async def find_named(session: Session, user_id: str, name: str) -> str | None:
    """The id of the tool that `SERVER.TOOL` names."""
    server = (mcp_servers.c.user_id == mcp_tools.c.user_id) & (mcp_servers.c.id == mcp_tools.c.server_id)
    called = func.concat(mcp_servers.c.name, ".", mcp_tools.c.name) == name
    statement = select(mcp_tools.c.id).join(mcp_servers, server).where(mcp_tools.c.user_id == user_id, called)
    tool_id: str | None = await session.scalar(statement.limit(1))
    return tool_id


async def update_tool(session: Session, user_id: str, tool_id: str, changes: Mapping[str, Any]) -> None:
    """A person's own switch is told apart from what a default or a rule decided."""
    values = dict(changes) | ({"enabled_by": "user"} if "enabled" in changes else {})
    this = mcp_tools.c.user_id == user_id, mcp_tools.c.id == tool_id
    server_id = await session.scalar(select(mcp_tools.c.server_id).where(*this))
    if server_id is None or await lock_server(session, user_id, server_id) is None:
        raise _missing()
    await session.execute(update(mcp_tools).where(*this).values(**values, updated_at=func.now()))
    await decide_again(session, user_id, server_id)


async def recount(session: Session, user_id: str, ann_above: int) -> None:
    """Keeps the user's stored count, and moves the user's vectors into or out of HNSW when it crosses the line."""
    # first, since it waits for the user's row: the statement that counts must begin after other writers have ended
    await bump_catalog(session, user_id)
    count = await session.scalar(select(func.count()).select_from(mcp_tools).where(mcp_tools.c.user_id == user_id))
    ann = count > ann_above
    await session.execute(update(users).where(users.c.id == user_id).values(tool_count=count, ann=ann))
    vectors = mcp_tool_embeddings
    misplaced = vectors.c.user_id == user_id, vectors.c.ann != ann
    await session.execute(update(vectors).where(*misplaced).values(ann=ann))


def _managed(user_id: str, model: str) -> Select[Any]:
    vectors = mcp_tool_embeddings.c
    embedded = (
        select(vectors.tool_id)
        .where(vectors.user_id == mcp_tools.c.user_id, vectors.tool_id == mcp_tools.c.id)
        .where(vectors.model == model, vectors.embedding.is_not(None))
        .exists()
    )
    server = (mcp_servers.c.user_id == mcp_tools.c.user_id) & (mcp_servers.c.id == mcp_tools.c.server_id)
    return (
        select(mcp_tools, mcp_servers.c.name.label("server_name"), embedded.label("embedded"))
        .join(mcp_servers, server)
        .where(mcp_tools.c.user_id == user_id)
    )


def _tool(row: Row[Any]) -> Tool:
    return record(Tool, row)


def _missing() -> NotFound:
    return NotFound("there is no such tool")
