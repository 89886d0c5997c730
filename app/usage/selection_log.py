"""What was asked and what was chosen, for users who have said that they want it kept; of nobody else.

Each process gathers it in memory and writes it down within a second or so, so that no discovery waits. What waits to be
written when a process is killed is lost.
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
from app.usage.flusher import PeriodicFlusher

logger = logging.getLogger("toolscout.usage")

MOST_KEPT = 5_000
"""Selections that wait to be written; later ones are not kept while a database is away."""
MOST_EXPORTED = 10_000

# who has changed their mind meanwhile, or has gone, has nothing written any more
_WRITE = """
    INSERT INTO selections (user_id, id, at, message, tools, strategy, degraded_reason, no_match)
    SELECT owner.id, s.id, s.at, s.message, s.tools, s.strategy, s.degraded_reason, s.no_match
    FROM (SELECT id FROM users WHERE id = %(user_id)s AND settings -> 'selection_log' = 'true' FOR KEY SHARE) owner,
         jsonb_to_recordset(%(selections)s::jsonb) AS s (id text, at timestamptz, message text, tools jsonb,
             strategy text, degraded_reason text, no_match boolean)
    ON CONFLICT DO NOTHING
"""

_LABELLED = f"""
    SELECT s.id, s.message, s.tools, s.no_match,
           ARRAY(SELECT f.tool_id FROM tool_feedback f WHERE f.user_id = s.user_id AND f.discovery_id = s.id
                 AND f.outcome = 'called'),
           ARRAY(SELECT f.tool_id FROM tool_feedback f WHERE f.user_id = s.user_id AND f.discovery_id = s.id
                 AND f.outcome = 'irrelevant')
    FROM selections s
    WHERE s.user_id = %(user_id)s
      AND (%(since)s::timestamptz IS NULL OR s.at >= %(since)s::timestamptz)
      AND (%(until)s::timestamptz IS NULL OR s.at < %(until)s::timestamptz)
    ORDER BY s.at DESC, s.id DESC LIMIT {MOST_EXPORTED}
"""


@dataclass(frozen=True)
class Choice:
    """A tool of an answer."""

    tool_key: str
    server_name: str | None
    name: str
    source: str
    similarity: float | None
    score: float | None

    @property
    def called(self) -> str:
        return self.name if self.server_name is None else f"{self.server_name}.{self.name}"


@dataclass(frozen=True)
class Selection:
    id: str
    """The discovery's."""
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
        self._waiting: list[tuple[str, Selection]] = []
        self._writing = asyncio.Lock()
        self.flusher = PeriodicFlusher("selections", self.write, self.write, lambda: {"selections": len(self._waiting)})

    def note(self, user_id: str, selection: Selection) -> None:
        if len(self._waiting) < MOST_KEPT:
            self._waiting.append((user_id, selection))

    async def forget(self, user_id: str) -> None:
        """What waits to be written of a user who wants it gone; what is just being written is there afterwards."""
        async with self._writing:
            self._waiting = [each for each in self._waiting if each[0] != user_id]

    async def write(self) -> None:
        """What the database cannot take just now, or what was broken off, is kept for the next time; what it refuses is
        not."""
        async with self._writing:
            taken, self._waiting = self._waiting, []
            unwritten: defaultdict[str, list[Selection]] = defaultdict(list)
            for user_id, selection in taken:
                unwritten[user_id].append(selection)
            try:
                for user_id, of_user in list(unwritten.items()):
                    if await self._is_done(user_id, of_user):
                        del unwritten[user_id]
            finally:
                for user_id, of_user in unwritten.items():
                    for selection in of_user:
                        self.note(user_id, selection)

    async def _is_done(self, user_id: str, of_user: Sequence[Selection]) -> bool:
        try:
            async with self._database.transaction(user_id) as session:
                await session.rows(_WRITE, {"user_id": user_id, "selections": orjson.dumps(of_user).decode()})
        except (Unavailable, QueryInterrupted):
            return False
        except QueryFailed:
            logger.warning("a user's selections could not be written down", exc_info=True)
        return True


async def list_selections(
    session: Session, user_id: str | None, since: datetime | None, until: datetime | None, page: PageRequest
) -> Page[StoredSelection]:
    """Newest first; with no user, those of all, which needs the system's scope."""
    columns = selections.c
    statement = select(selections)
    if user_id is not None:
        statement = statement.where(columns.user_id == user_id)
    if since is not None:
        statement = statement.where(columns.at >= since)
    if until is not None:
        statement = statement.where(columns.at < until)
    return await fetch_page(session, statement, (columns.at, columns.id), page, _stored, descending=True)


async def wipe_selections(session: Session, user_id: str) -> int:
    return (await session.execute(delete(selections).where(selections.c.user_id == user_id))).rowcount


async def labelled_selections(
    session: Session, user_id: str, since: datetime | None = None, until: datetime | None = None
) -> list[dict[str, Any]]:
    """As `toolscout eval` reads them, the oldest first. The labels are guesses: what was called after all, where
    somebody told us, or else what was found. A message of which nothing is known is left out."""
    rows = await session.rows(_LABELLED, {"user_id": user_id, "since": since, "until": until})
    lines = [_line(*row) for row in reversed(rows)]
    return [line for line in lines if line is not None]


def _line(
    discovery_id: str, message: str, tools: Any, no_match: bool, used: list[str], unfit: list[str]
) -> dict[str, Any] | None:
    choices = [Choice(**each) for each in tools]
    names = {choice.tool_key: choice.called for choice in choices}
    found = [choice.tool_key for choice in choices if choice.source in ("semantic", "lexical")]
    right = [key for key in (used or found) if key not in unfit]
    if not (right or no_match):
        return None
    labels = [names.get(key, key) for key in right]
    return {"id": discovery_id, "message": message, "tools": labels, "meta": {"by": "use" if used else "search"}}


def expired_rows(kept: timedelta) -> list[Delete]:
    """What is to be forgotten, of all users."""
    return [delete(selections).where(selections.c.at < func.now() - kept)]


def _stored(row: Row[Any]) -> StoredSelection:
    return to_dataclass(StoredSelection, row)
