"""What has grown old goes, in the background; each room says itself what that is."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy import Delete

from app.db.engine import Database
from app.errors import QueryFailed, Unavailable

_FIRST_S = 60.0
_EVERY_S = 3600.0


async def run_retention(database: Database, outdated: Sequence[Delete]) -> None:
    """Every hour; each by itself, so that one that fails keeps none of the others."""
    pause_s = _FIRST_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _EVERY_S
        for statement in outdated:
            with suppress(Unavailable, QueryFailed):
                async with database.system_transaction() as session:
                    await session.execute(statement)
