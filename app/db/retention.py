"""Deletes expired rows in the background. Each package defines which of its rows have expired."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy import Delete, Select, delete, select

from app.db.engine import Database
from app.errors import QueryFailed, Unavailable

_FIRST_RUN_S = 60.0
_INTERVAL_S = 3600.0
_BATCH_ROWS = 5_000
_PAUSE_S = 0.05

BATCH = "batch"
"""The parameter of a `Select` that calls a function which deletes: the maximum number of rows."""

Deletion = Delete | Select[tuple[int]]
"""The rows of one table that have expired, or a call of a function that deletes some and returns how many."""


async def run_retention(database: Database, deletions: Sequence[Deletion]) -> None:
    """Run the deletions every hour, so that one failure does not stop the others."""
    pause_s = _FIRST_RUN_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _INTERVAL_S
        for deletion in deletions:
            with suppress(Unavailable, QueryFailed):
                await delete_in_batches(database, deletion)


async def delete_in_batches(database: Database, deletion: Deletion, rows: int = _BATCH_ROWS) -> int:
    """Delete the expired rows, a batch in each transaction, so that locks are short. Return their number."""
    total = 0
    while True:
        async with database.system_transaction() as session:
            if isinstance(deletion, Delete):
                deleted = (await session.execute(_limit(deletion, rows))).rowcount
            else:
                deleted = int(await session.scalar(deletion.params({BATCH: rows})))
        total += deleted
        if deleted < rows:
            return total
        await asyncio.sleep(_PAUSE_S)


def _limit(deletion: Delete, rows: int) -> Delete:
    """Return the deletion of at most so many of the rows.

    They are named by their primary keys: a `ctid` would name rows of other partitions, too.
    """
    assert deletion.whereclause is not None  # noqa: S101 nobody deletes whole tables
    key = list(deletion.table.primary_key)
    expired = select(*key).where(deletion.whereclause).limit(rows).subquery("expired")
    return delete(deletion.table).where(*(column == expired.c[column.name] for column in key))
