"""Which tools can be found and run: decided in one place, stored as one fact, read through one filter.

Whatever may hide a tool (its own switch, its server's) is weighed in `_DECISION` and the outcome is stored in the
tool's narrow search row. Search, fallback, listing and execution read that row through `VISIBLE`, so that what is
visible is what is callable.

The tenant predicate is the first barrier; row-level security, which the transaction's user id feeds, is the second.
Each alone suffices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update

from app.database.engine import Session
from app.errors import NotFound
from app.models import catalog_versions, mcp_servers, users

VISIBLE = """
    v.user_id = %(user_id)s
    AND v.model = %(model)s
    AND v.enabled
    AND (%(server_ids)s::text[] IS NULL OR v.server_id = ANY(%(server_ids)s::text[]))
    AND (%(tags)s::text[] IS NULL OR v.tags && %(tags)s::text[])
"""
"""Follows WHERE; `v` is `mcp_tool_embeddings`."""

_NEXT_VERSION = catalog_versions.next_value()

_DECISION = "t.enabled AND s.enabled AS enabled, t.tags || s.tags AS tags"
_TOOLS = """
    mcp_tools t JOIN mcp_servers s ON s.user_id = t.user_id AND s.id = t.server_id
    WHERE t.user_id = %(user_id)s AND t.server_id = %(server_id)s
"""


@dataclass(frozen=True)
class Scope:
    """A user's visible tools, narrowed further by a request. Narrowing never widens."""

    user_id: str
    model: str
    server_ids: Sequence[str] | None = None
    tags: Sequence[str] | None = None

    @property
    def narrowed(self) -> bool:
        return self.server_ids is not None or self.tags is not None

    def parameters(self) -> dict[str, Any]:
        return {
            "user_id": self.user_id,
            "model": self.model,
            "server_ids": None if self.server_ids is None else list(self.server_ids),
            "tags": None if self.tags is None else list(self.tags),
        }


@dataclass(frozen=True)
class Decision:
    enabled: bool
    tags: Sequence[str]


async def decisions(session: Session, user_id: str, server_id: str) -> dict[str, Decision]:
    """By tool id; for rows that are about to be written."""
    statement = f"SELECT t.id, {_DECISION} FROM {_TOOLS}"
    rows = await session.rows(statement, {"user_id": user_id, "server_id": server_id})
    return {tool_id: Decision(enabled, tags) for tool_id, enabled, tags in rows}


@dataclass(frozen=True)
class Locked:
    name: str
    config_version: int


async def lock_server(session: Session, user_id: str, server_id: str) -> Locked | None:
    """None where the server has gone. Whoever changes what is visible of a server holds this lock first, so
    that a decision is never made beside another that has not been committed yet."""
    this = mcp_servers.c.user_id == user_id, mcp_servers.c.id == server_id
    columns = mcp_servers.c.name, mcp_servers.c.config_version
    row = (await session.execute(select(*columns).where(*this).with_for_update(key_share=True))).one_or_none()
    return None if row is None else Locked(*row)


async def decide_again(session: Session, user_id: str, server_id: str) -> None:
    """After a switch or a tag of the server or of one of its tools has changed."""
    statement = f"""
        UPDATE mcp_tool_embeddings v SET enabled = decided.enabled, tags = decided.tags
        FROM (SELECT t.id, {_DECISION} FROM {_TOOLS}) decided
        WHERE v.user_id = %(user_id)s AND v.tool_id = decided.id
          AND (v.enabled, v.tags) IS DISTINCT FROM (decided.enabled, decided.tags)
    """
    await session.rows(statement, {"user_id": user_id, "server_id": server_id})
    await bump_catalog(session, user_id)


async def bump_catalog(session: Session, user_id: str) -> None:
    """What any process remembers of the user's catalogue ends with this transaction's commit."""
    statement = update(users).where(users.c.id == user_id).values(catalog_version=_NEXT_VERSION)
    if (await session.execute(statement)).rowcount == 0:
        raise NotFound("there is no such user")  # deleted since the caller was recognised


async def bump_every_catalog(session: Session) -> None:
    """After a change that all users see; needs the system's scope."""
    await session.execute(update(users).values(catalog_version=_NEXT_VERSION))
