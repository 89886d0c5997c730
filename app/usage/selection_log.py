"""The selection log: messages and the tools chosen for them, of users who have opted in.

Each process collects selections in memory and flushes them about every second, so that no discovery waits. Pending
selections are lost if the process is killed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Delete, Row, delete, func, select

from app.db.engine import Database, Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass
from app.db.tables import selections
from app.usage.batch_writer import BatchWriter, LogTable
from app.usage.choices import Choice

MAX_EXPORTED = 10_000

_COLUMNS = {
    "id": "text",
    "at": "timestamptz",
    "message": "text",
    "tools": "jsonb",
    "strategy": "text",
    "degraded_reason": "text",
    "no_match": "boolean",
}
# nothing is written for a user who has opted out meanwhile
_TABLE = LogTable("selections", _COLUMNS, owner="settings -> 'selection_log' = 'true'")

_SELECT_LABELLED = f"""
    SELECT s.id, s.message, s.tools, s.no_match,
           ARRAY(SELECT f.tool_id FROM tool_feedback f WHERE f.user_id = %(user_id)s AND f.discovery_id = s.id
                 AND f.outcome = 'called'),
           ARRAY(SELECT f.tool_id FROM tool_feedback f WHERE f.user_id = %(user_id)s AND f.discovery_id = s.id
                 AND f.outcome = 'irrelevant')
    FROM selections s
    WHERE s.user_id = %(user_id)s
      AND (%(since)s::timestamptz IS NULL OR s.at >= %(since)s::timestamptz)
      AND (%(until)s::timestamptz IS NULL OR s.at < %(until)s::timestamptz)
    ORDER BY s.at DESC, s.id DESC LIMIT {MAX_EXPORTED}
"""


@dataclass(frozen=True)
class Selection:
    user_id: str
    id: str
    """The id of the discovery."""
    at: datetime
    message: str
    tools: Sequence[Choice]
    strategy: str
    degraded_reason: str | None
    no_match: bool


class SelectionLog(BatchWriter[Selection]):
    def __init__(self, database: Database) -> None:
        super().__init__(database, "selections", _TABLE)


async def list_selections(
    session: Session, user_id: str | None, since: datetime | None, until: datetime | None, page: PageRequest
) -> Page[Selection]:
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


def _build_selection(row: Row[Any]) -> Selection:
    return replace(to_dataclass(Selection, row), tools=[Choice(**tool) for tool in row.tools])
