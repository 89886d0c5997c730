"""Finds the servers that need an index run without a request: missing vectors, or a list that is too old.

How old a list may be is the operator's setting, or what its server says by `ttlMs`.
"""

from collections.abc import Sequence

from sqlalchemy import and_, case, func, not_, or_, select, update

from app.db.engine import Session
from app.db.tables import index_runs, mcp_servers
from app.indexing.queue import interval

_MAX_SERVERS = 100
_DISCONNECTED_INTERVAL_S = 300.0
_MAX_PENDING_RETRY_S = 3600.0
MIN_TTL_S = 60.0
MAX_TTL_S = 86_400.0
"""The limits of what a server can ask for by its `ttlMs`."""

ServerKey = tuple[str, str]
"""User id and server id."""


async def find_servers_with_pending_tools(session: Session, retry_s: float) -> Sequence[ServerKey]:
    """Return servers with tools that have no vector yet and no run under way. Needs a system transaction.

    After every failed attempt the pause before the next one doubles, up to an hour.
    """
    unfinished = select(index_runs.c.id).where(
        index_runs.c.user_id == mcp_servers.c.user_id,
        index_runs.c.server_id == mcp_servers.c.id,
        index_runs.c.state.in_(["queued", "running"]),
    )
    pause_s = func.least(retry_s * func.power(2, mcp_servers.c.pending_tries - 1), _MAX_PENDING_RETRY_S)
    is_due = mcp_servers.c.updated_at < func.now() - interval(pause_s)
    statement = select(mcp_servers.c.user_id, mcp_servers.c.id).where(
        mcp_servers.c.pending_count > 0, is_due, ~unfinished.exists()
    )
    rows = await session.execute(statement.limit(_MAX_SERVERS))
    return [(row.user_id, row.id) for row in rows]


async def schedule_listing(session: Session, user_id: str, server_id: str, ttl_s: float | None) -> None:
    """Store when the server is to be listed again, by its own `ttlMs`. None: the general schedule applies."""
    server = mcp_servers.c.user_id == user_id, mcp_servers.c.id == server_id
    if ttl_s is None:
        has_ttl = mcp_servers.c.list_again_at.is_not(None)
        await session.execute(update(mcp_servers).where(*server, has_ttl).values(list_again_at=None))
    else:
        pause_s = min(max(ttl_s, MIN_TTL_S), MAX_TTL_S)
        await session.execute(update(mcp_servers).where(*server).values(list_again_at=func.now() + interval(pause_s)))


async def find_servers_to_refresh(session: Session, every_s: float) -> Sequence[ServerKey]:
    """Return servers without a run in the last `every_s` seconds. Needs a system transaction.

    A server that says how long its list is valid is due when that time is over, if it answered the last time.
    Disconnected servers are retried after five minutes at the latest. Copies of shared servers follow their source.
    """
    servers = mcp_servers.c
    has_ttl = and_(servers.status == "connected", servers.list_again_at.is_not(None))
    pause_s = case(
        (has_ttl, MIN_TTL_S),
        (servers.status == "disconnected", min(every_s, _DISCONNECTED_INTERVAL_S)),
        else_=every_s,
    )
    recent = select(index_runs.c.id).where(
        index_runs.c.user_id == servers.user_id,
        index_runs.c.server_id == servers.id,
        index_runs.c.created_at > func.now() - interval(pause_s),
    )
    statement = select(servers.user_id, servers.id).where(
        servers.enabled,
        servers.transport != "push",
        servers.shared_id.is_(None),
        or_(not_(has_ttl), servers.list_again_at <= func.now()),
        ~recent.exists(),
    )
    # those without `ttlMs` first: servers that want to be listed every minute must not delay the others
    rows = await session.execute(statement.order_by(servers.list_again_at.nulls_first()).limit(_MAX_SERVERS))
    return [(row.user_id, row.id) for row in rows]
