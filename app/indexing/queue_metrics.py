"""How the queue fares, for `/metrics`: looked up every few seconds, so that a scrape never waits for the database."""

import asyncio
import math

from app.db.engine import Database
from app.errors import QueryFailed, Unavailable
from app.observability.metrics import Metrics

_EVERY_S = 5.0

# one whose lease has run out has no worker, whatever its state says: it waits for the next
_QUEUE = """
    SELECT count(*) FILTER (WHERE waits), count(*) FILTER (WHERE NOT waits),
           coalesce(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE waits)), 0)::float,
           (SELECT coalesce(sum(pending_count), 0)::float FROM mcp_servers WHERE pending_count > 0)
    FROM (SELECT created_at, state = 'queued' OR coalesce(lease_until < now(), false) AS waits
          FROM index_runs WHERE state IN ('queued', 'running')) AS unfinished
"""


async def watch_queue(database: Database, metrics: Metrics, every_s: float = _EVERY_S) -> None:
    while True:
        await update_queue_metrics(database, metrics)
        await asyncio.sleep(every_s)


async def update_queue_metrics(database: Database, metrics: Metrics) -> None:
    """Every process tells the same of all. While the database is away nothing is known: a last known value would look
    like peace."""
    gauges = metrics.runs_queued, metrics.runs_running, metrics.oldest_queued, metrics.tools_pending
    try:
        async with database.system_transaction() as session:
            [figures] = await session.rows(_QUEUE)
    except (Unavailable, QueryFailed):
        figures = (math.nan,) * len(gauges)
    for gauge, figure in zip(gauges, figures, strict=True):
        gauge.set(figure)
