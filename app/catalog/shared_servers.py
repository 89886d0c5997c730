"""Shared servers: who may use them, and with whose credentials.

A shared server is a server of `SHARED_OWNER`, which nobody can sign in as. Each member has a copy of it, see
`server_copies.py`. All functions take a session of that owner, or one of the system where they say so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Row, insert, select, update

from app.auth.users import User
from app.catalog.servers import Server, get_server, list_servers
from app.db.engine import Session
from app.db.notifications import Channel, notify
from app.db.pagination import Page, PageRequest
from app.db.rows import to_dataclass
from app.db.tables import SHARED_OWNER, shared_servers
from app.errors import NotFound

Credentials = Literal["member", "operator"]


@dataclass(frozen=True)
class Sharing:
    """Who may use a server: everyone, or the users of a list and of some groups."""

    everyone: bool = False
    groups: Sequence[str] = ()
    user_ids: Sequence[str] = ()
    credentials: Credentials = "member"
    """Whose credentials calls use."""

    def includes(self, user: User) -> bool:
        """Like `_IS_MEMBER`, for a user that has been read already."""
        return self.everyone or user.id in self.user_ids or not set(self.groups).isdisjoint(user.groups)


@dataclass(frozen=True)
class SharedServer:
    server: Server
    sharing: Sharing
    version: int
    """Increases with every change that copies must follow."""


@dataclass(frozen=True)
class MemberCount:
    total: int
    ready: int
    """Members whose copy is up to date, with its tools indexed."""


# a condition on `users u`; `Sharing.includes` decides the same
_IS_MEMBER = """
    u.id <> %(owner)s
    AND (%(everyone)s OR u.id = ANY(%(user_ids)s::text[]) OR u.groups && %(groups)s::text[])
"""

# Citus joins a reference table with the rows of a distributed one only if these have been collected first.
_COUNT_MEMBERS = f"""
    WITH copies AS MATERIALIZED (
        SELECT c.user_id, c.shared_version >= %(version)s AND 'succeeded' = (
            SELECT r.state FROM index_runs r WHERE r.user_id = c.user_id AND r.server_id = c.id
            ORDER BY r.created_at DESC LIMIT 1) AS is_ready
        FROM mcp_servers c WHERE c.shared_id = %(shared_id)s
    )
    SELECT count(*), count(*) FILTER (WHERE copies.is_ready)
    FROM users u LEFT JOIN copies ON copies.user_id = u.id WHERE {_IS_MEMBER}
"""

_FIND_DIFFERENCES = f"""
    WITH copies AS MATERIALIZED (
        SELECT user_id, shared_version FROM mcp_servers WHERE shared_id = %(shared_id)s
    ), members AS MATERIALIZED (
        SELECT u.id FROM users u WHERE {_IS_MEMBER}
    )
    SELECT coalesce(members.id, copies.user_id), members.id IS NOT NULL
    FROM members FULL JOIN copies ON copies.user_id = members.id
    WHERE (members.id IS NULL OR copies.user_id IS NULL OR copies.shared_version < %(version)s)
      AND coalesce(members.id, copies.user_id) <> ALL(%(skipped)s::text[])
    ORDER BY 2, 1 LIMIT %(limit)s
"""

_FIND_ORPHANS = """
    WITH shared AS MATERIALIZED (SELECT server_id FROM shared_servers WHERE user_id = %(owner)s)
    SELECT user_id, shared_id FROM mcp_servers
    WHERE shared_id IS NOT NULL AND shared_id NOT IN (SELECT server_id FROM shared)
      AND user_id <> ALL(%(skipped)s::text[])
    ORDER BY user_id, id LIMIT %(limit)s
"""


async def insert_sharing(session: Session, server_id: str, sharing: Sharing) -> None:
    values = {"user_id": SHARED_OWNER, "server_id": server_id, **_to_columns(vars(sharing))}
    await session.execute(insert(shared_servers).values(**values))
    await notify(session, Channel.SHARED_SERVERS)


async def update_sharing(session: Session, server_id: str, changes: Mapping[str, Any] | None = None) -> None:
    """Change who may use the server, and give it a new version, so that the members' copies follow."""
    values = {**_to_columns(changes or {}), "version": shared_servers.c.version + 1}
    await session.execute(update(shared_servers).where(*_by_id(server_id)).values(**values))
    await notify(session, Channel.SHARED_SERVERS)


async def get_shared_server(session: Session, server_id: str) -> SharedServer:
    row = (await session.execute(select(shared_servers).where(*_by_id(server_id)))).one_or_none()
    if row is None:
        raise NotFound("there is no such shared server")
    return _to_shared_server(await get_server(session, SHARED_OWNER, server_id), row)


async def list_shared_servers(session: Session, page: PageRequest) -> Page[SharedServer]:
    """Return a page of the shared servers, by name."""
    found = await list_servers(session, SHARED_OWNER, page)
    statement = select(shared_servers).where(
        shared_servers.c.user_id == SHARED_OWNER, shared_servers.c.server_id.in_([server.id for server in found.items])
    )
    rows = {row.server_id: row for row in await session.execute(statement)}
    items = [_to_shared_server(server, rows[server.id]) for server in found.items if server.id in rows]
    return Page(items, found.next_cursor)


async def list_shared_ids(session: Session) -> list[str]:
    statement = select(shared_servers.c.server_id).where(shared_servers.c.user_id == SHARED_OWNER)
    return list((await session.scalars(statement.order_by(shared_servers.c.server_id))).all())


async def count_members(session: Session, shared: SharedServer) -> MemberCount:
    """Needs a system transaction."""
    [(total, ready)] = await session.rows(_COUNT_MEMBERS, _to_parameters(shared))
    return MemberCount(total, ready)


async def find_differences(
    session: Session, shared: SharedServer, skipped: Sequence[str], limit: int
) -> list[tuple[str, bool]]:
    """Return users whose copy is missing, outdated or too many, and whether they are members; the latter come last.

    Needs a system transaction. Users in `skipped` are left out.
    """
    parameters = {**_to_parameters(shared), "skipped": list(skipped), "limit": limit}
    return [(user_id, is_member) for user_id, is_member in await session.rows(_FIND_DIFFERENCES, parameters)]


async def find_orphans(session: Session, skipped: Sequence[str], limit: int) -> list[tuple[str, str]]:
    """Return users with copies of shared servers that exist no more, and the ids of these.

    Needs a system transaction.
    """
    parameters = {"owner": SHARED_OWNER, "skipped": list(skipped), "limit": limit}
    return [(user_id, shared_id) for user_id, shared_id in await session.rows(_FIND_ORPHANS, parameters)]


def _to_parameters(shared: SharedServer) -> dict[str, Any]:
    return {
        "owner": SHARED_OWNER,
        "shared_id": shared.server.id,
        "version": shared.version,
        "everyone": shared.sharing.everyone,
        "groups": list(shared.sharing.groups),
        "user_ids": list(shared.sharing.user_ids),
    }


def _to_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: sorted(set(value)) if name in ("groups", "user_ids") else value for name, value in values.items()}


def _to_shared_server(server: Server, row: Row[Any]) -> SharedServer:
    return SharedServer(server, to_dataclass(Sharing, row), row.version)


def _by_id(server_id: str) -> tuple[Any, Any]:
    return shared_servers.c.user_id == SHARED_OWNER, shared_servers.c.server_id == server_id
