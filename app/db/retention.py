"""Deletes expired rows in the background. Each package defines which of its rows have expired."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy import Delete

from app.db.engine import Database
from app.errors import QueryFailed, Unavailable

_FIRST_RUN_S = 60.0
_INTERVAL_S = 3600.0


async def run_retention(database: Database, deletions: Sequence[Delete]) -> None:
    """Run the deletions every hour, each in its own transaction, so that one failure does not stop the others."""
    pause_s = _FIRST_RUN_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _INTERVAL_S
        for statement in deletions:
            with suppress(Unavailable, QueryFailed):
                async with database.system_transaction() as session:
                    await session.execute(statement)
