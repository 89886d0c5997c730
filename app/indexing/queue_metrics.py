"""Measures the queue for `/metrics` every few seconds, so that a scrape never waits for the database."""

import asyncio
import math

from app.db.engine import Database
from app.errors import QueryFailed, Unavailable
from app.observability.metrics import Metrics

_INTERVAL_S = 5.0

# a running run whose lease has expired has no worker: it counts as queued
_QUEUE = """
    SELECT count(*) FILTER (WHERE waits), count(*) FILTER (WHERE NOT waits),
           coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE waits)), 0)::float
    FROM (SELECT created_at, state = 'queued' OR coalesce(lease_until < now(), false) AS waits
          FROM index_runs WHERE state IN ('queued', 'running')) AS unfinished
"""
_PENDING = "SELECT coalesce(sum(pending_count), 0)::float FROM mcp_servers WHERE pending_count > 0"


async def watch_queue(database: Database, metrics: Metrics, every_s: float = _INTERVAL_S) -> None:
    while True:
        await update_queue_metrics(database, metrics)
        await asyncio.sleep(every_s)


async def update_queue_metrics(database: Database, metrics: Metrics) -> None:
    """Set the gauges for the whole queue; every process reports the same values.

    While the database is down the gauges are NaN: the last known values would look like an idle queue.
    """
    gauges = metrics.runs_queued, metrics.runs_running, metrics.oldest_queued, metrics.tools_pending
    try:
        [[runs], [pending]] = await database.system_fetch([(_QUEUE, None), (_PENDING, None)])
        values = *runs, *pending
    except (Unavailable, QueryFailed):
        values = (math.nan,) * len(gauges)
    for gauge, value in zip(gauges, values, strict=True):
        gauge.set(value)
