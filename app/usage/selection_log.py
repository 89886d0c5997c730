"""The selection log: messages and the tools chosen for them, of users who have opted in.

Each process collects selections in memory and flushes them about every second, so that no discovery waits. Pending
selections are lost if the process is killed.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Delete, Row, delete, func, select

from app.db.engine import Database, Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass
from app.db.tables import selections
from app.errors import QueryFailed, QueryInterrupted, Unavailable
from app.usage.periodic_flusher import PeriodicFlusher

logger = logging.getLogger("toolscout.usage")

MAX_PENDING = 5_000
"""Pending selections; further ones are dropped while the database is down."""
MAX_EXPORTED = 10_000

# Nothing is written for a user who has opted out meanwhile or was deleted.
_INSERT = """
    INSERT INTO selections (user_id, id, at, message, tools, strategy, degraded_reason, no_match)
    SELECT owner.id, s.id, s.at, s.message, s.tools, s.strategy, s.degraded_reason, s.no_match
    FROM (SELECT id FROM users WHERE id = %(user_id)s AND settings -> 'selection_log' = 'true' FOR KEY SHARE) owner,
         jsonb_to_recordset(%(selections)s::jsonb) AS s (id text, at timestamptz, message text, tools jsonb,
             strategy text, degraded_reason text, no_match boolean)
    ON CONFLICT DO NOTHING
"""

_SELECT_LABELLED = f"""
    SELECT s.id, s.message, s.tools, s.no_match,
           ARRAY(SELECT f.tool_id FROM tool_feedback f WHERE f.user_id = s.user_id AND f.discovery_id = s.id
                 AND f.outcome = 'called'),
           ARRAY(SELECT f.tool_id FROM tool_feedback f WHERE f.user_id = s.user_id AND f.discovery_id = s.id
                 AND f.outcome = 'irrelevant')
    FROM selections s
    WHERE s.user_id = %(user_id)s
      AND (%(since)s::timestamptz IS NULL OR s.at >= %(since)s::timestamptz)
      AND (%(until)s::timestamptz IS NULL OR s.at < %(until)s::timestamptz)
    ORDER BY s.at DESC, s.id DESC LIMIT {MAX_EXPORTED}
"""


@dataclass(frozen=True)
class Choice:
    """A tool of the result."""

    tool_key: str
    server_name: str | None
    name: str
    source: str
    similarity: float | None
    score: float | None

    @property
    def qualified_name(self) -> str:
        return self.name if self.server_name is None else f"{self.server_name}.{self.name}"


@dataclass(frozen=True)
class Selection:
    id: str
    """The id of the discovery."""
    at: datetime
    message: str
    tools: Sequence[Choice]
    strategy: str
    degraded_reason: str | None
    no_match: bool


@dataclass(frozen=True)
class StoredSelection:
    user_id: str
    id: str
    at: datetime
    message: str
    tools: Sequence[Mapping[str, Any]]
    strategy: str
    degraded_reason: str | None
    no_match: bool


class SelectionLog:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._pending: list[tuple[str, Selection]] = []
        self._flushing = asyncio.Lock()
        self.flusher = PeriodicFlusher("selections", self.flush, self.flush, lambda: {"selections": len(self._pending)})

    def append(self, user_id: str, selection: Selection) -> None:
        if len(self._pending) < MAX_PENDING:
            self._pending.append((user_id, selection))

    async def discard_pending(self, user_id: str) -> None:
        """Drop a user's pending selections. A flush in progress ends first, so that the caller can delete its rows."""
        async with self._flushing:
            self._pending = [entry for entry in self._pending if entry[0] != user_id]

    async def flush(self) -> None:
        """Write the pending selections. If the database is down or interrupts a statement, they stay pending; if it
        rejects them, they are dropped."""
        async with self._flushing:
            pending, self._pending = self._pending, []
            unwritten: defaultdict[str, list[Selection]] = defaultdict(list)
            for user_id, selection in pending:
                unwritten[user_id].append(selection)
            try:
                for user_id, batch in list(unwritten.items()):
                    if await self._write(user_id, batch):
                        del unwritten[user_id]
            finally:
                for user_id, batch in unwritten.items():
                    for selection in batch:
                        self.append(user_id, selection)

    async def _write(self, user_id: str, batch: Sequence[Selection]) -> bool:
        """Return whether the batch is done with: written, or rejected for good."""
        try:
            async with self._database.transaction(user_id) as session:
                await session.rows(_INSERT, {"user_id": user_id, "selections": orjson.dumps(batch).decode()})
        except (Unavailable, QueryInterrupted):
            return False
        except QueryFailed:
            logger.warning("failed to write the selections of a user", exc_info=True)
        return True


async def list_selections(
    session: Session, user_id: str | None, since: datetime | None, until: datetime | None, page: PageRequest
) -> Page[StoredSelection]:
    """Return a page of selections, newest first. Without a user, those of all users, which needs the system scope."""
    columns = selections.c
    statement = select(selections)
    if user_id is not None:
        statement = statement.where(columns.user_id == user_id)
    if since is not None:
        statement = statement.where(columns.at >= since)
    if until is not None:
        statement = statement.where(columns.at < until)
    return await fetch_page(session, statement, (columns.at, columns.id), page, _build_selection, descending=True)


async def delete_user_selections(session: Session, user_id: str) -> int:
    return (await session.execute(delete(selections).where(selections.c.user_id == user_id))).rowcount


async def export_labelled_selections(
    session: Session, user_id: str, since: datetime | None = None, until: datetime | None = None
) -> list[dict[str, Any]]:
    """Return the selections in the format of `toolscout eval`, oldest first.

    The labels are guesses: the tools that were called, if the client reported any, else the tools that were found.
    Messages without any label are left out.
    """
    rows = await session.rows(_SELECT_LABELLED, {"user_id": user_id, "since": since, "until": until})
    lines = [_make_line(*row) for row in reversed(rows)]
    return [line for line in lines if line is not None]


def _make_line(
    discovery_id: str, message: str, tools: Any, no_match: bool, called: list[str], irrelevant: list[str]
) -> dict[str, Any] | None:
    choices = [Choice(**each) for each in tools]
    names = {choice.tool_key: choice.qualified_name for choice in choices}
    found = [choice.tool_key for choice in choices if choice.source in ("semantic", "lexical")]
    relevant = [key for key in (called or found) if key not in irrelevant]
    if not (relevant or no_match):
        return None
    labels = [names.get(key, key) for key in relevant]
    return {"id": discovery_id, "message": message, "tools": labels, "meta": {"by": "use" if called else "search"}}


def expired_rows(retention: timedelta) -> list[Delete]:
    """Return the statements that delete expired rows of all users."""
    return [delete(selections).where(selections.c.at < func.now() - retention)]


def _build_selection(row: Row[Any]) -> StoredSelection:
    return to_dataclass(StoredSelection, row)
