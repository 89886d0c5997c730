"""Reads the tables of usage, and records the outcomes of calls."""

from app.container import Container
from app.db.engine import Database
from app.usage.counters import DiscoverySample, UsageCounters
from app.usage.repository import STAT_COLUMNS, USAGE_KINDS

FAST = DiscoverySample(0.0045, degraded=False, no_match=False, cache_hit=True, tokens_all=1_000, tokens_selected=100)


async def uses(database: Database, user_id: str) -> dict[str, dict[str, int]]:
    """Return the counters of each tool of a user, without those that are zero."""
    statement = f"SELECT tool_id, {', '.join(USAGE_KINDS)} FROM tool_usage WHERE user_id = %(user_id)s"
    async with database.transaction(user_id) as session:
        rows = await session.rows(statement, {"user_id": user_id})
    return {tool_id: {use: n for use, n in zip(USAGE_KINDS, counts, strict=True) if n} for tool_id, *counts in rows}


async def figures(database: Database, user_id: str) -> list[tuple[int, ...]]:
    """Return the discovery statistics of a user, one row a minute."""
    statement = f"SELECT {', '.join(STAT_COLUMNS)} FROM discovery_stats WHERE user_id = %(user_id)s ORDER BY at"
    async with database.transaction(user_id) as session:
        return await session.rows(statement, {"user_id": user_id})


async def live_through(container: Container, user_id: str, tool_id: str, *outcomes: bool) -> None:
    """Record calls with these outcomes, and update the priors from them."""
    usage_counters = UsageCounters(container.database)
    for succeeded in outcomes:
        usage_counters.record_call(user_id, tool_id, succeeded=succeeded)
    await usage_counters.flush()
    await usage_counters.update_priors()
