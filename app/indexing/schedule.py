"""Finds the servers that need an index run without a request: missing vectors, or a list that is too old."""

from collections.abc import Sequence

from sqlalchemy import case, func, select

from app.db.engine import Session
from app.db.tables import index_runs, mcp_servers
from app.indexing.queue import interval

_MAX_SERVERS = 100
_DISCONNECTED_INTERVAL_S = 300.0
_MAX_PENDING_RETRY_S = 3600.0

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


async def find_servers_to_refresh(session: Session, every_s: float) -> Sequence[ServerKey]:
    """Return servers without a run in the last `every_s` seconds. Needs a system transaction.

    Disconnected servers are retried after five minutes at the latest.
    """
    is_disconnected = mcp_servers.c.status == "disconnected"
    pause_s = case((is_disconnected, min(every_s, _DISCONNECTED_INTERVAL_S)), else_=every_s)
    recent = select(index_runs.c.id).where(
        index_runs.c.user_id == mcp_servers.c.user_id,
        index_runs.c.server_id == mcp_servers.c.id,
        index_runs.c.created_at > func.now() - interval(pause_s),
    )
    statement = select(mcp_servers.c.user_id, mcp_servers.c.id).where(
        mcp_servers.c.enabled, mcp_servers.c.transport != "push", ~recent.exists()
    )
    rows = await session.execute(statement.limit(_MAX_SERVERS))
    return [(row.user_id, row.id) for row in rows]
