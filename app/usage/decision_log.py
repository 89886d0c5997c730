"""The decision log: what each search looked at and chose, and how long it took. It holds no messages.

Each process collects decisions in memory and flushes them about every second, so that no discovery waits. Pending
decisions are lost if the process is killed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Delete, Row, delete, func, select

from app.db.engine import Database, Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass
from app.db.tables import decisions
from app.usage.batch_writer import BatchWriter, LogTable
from app.usage.choices import Choice

Interface = Literal["rest", "mcp", "cli"]

_TABLE = LogTable(
    "decisions",
    {
        "id": "text",
        "at": "timestamptz",
        "request_id": "text",
        "actor": "text",
        "interface": "text",
        "project_id": "text",
        "strategy": "text",
        "degraded_reason": "text",
        "confidence": "text",
        "no_match": "boolean",
        "no_match_reason": "text",
        "searched": "integer",
        "omitted": "jsonb",
        "tools": "jsonb",
        "duration_ms": "double precision",
    },
)


@dataclass(frozen=True)
class Decision:
    user_id: str
    id: str
    """The id of the discovery."""
    at: datetime
    request_id: str | None
    actor: str
    interface: Interface
    project_id: str | None
    strategy: str | None
    """None: the project does not search."""
    degraded_reason: str | None
    confidence: str
    no_match: bool
    no_match_reason: str | None
    searched: int
    omitted: Mapping[str, Any] | None
    tools: Sequence[Choice]
    duration_ms: float


@dataclass(frozen=True)
class DecisionFilter:
    discovery_id: str | None = None
    request_id: str | None = None
    project_id: str | None = None
    degraded: bool | None = None
    no_match: bool | None = None
    since: datetime | None = None
    until: datetime | None = None


class DecisionLog(BatchWriter[Decision]):
    def __init__(self, database: Database, *, enabled: bool = True) -> None:
        super().__init__(database, "decisions", _TABLE)
        self.enabled = enabled


async def list_decisions(
    session: Session, user_id: str | None, decision_filter: DecisionFilter, page: PageRequest
) -> Page[Decision]:
    """Return a page of decisions, newest first. Without a user, those of all users, which needs the system scope."""
    columns = decisions.c
    exact = {
        columns.user_id: user_id,
        columns.id: decision_filter.discovery_id,
        columns.request_id: decision_filter.request_id,
        columns.project_id: decision_filter.project_id,
        columns.no_match: decision_filter.no_match,
    }
    statement = select(decisions).where(*(column == value for column, value in exact.items() if value is not None))
    if decision_filter.degraded is not None:
        statement = statement.where(columns.degraded_reason.is_not(None) == decision_filter.degraded)
    if decision_filter.since is not None:
        statement = statement.where(columns.at >= decision_filter.since)
    if decision_filter.until is not None:
        statement = statement.where(columns.at < decision_filter.until)
    return await fetch_page(session, statement, (columns.at, columns.id), page, _build_decision, descending=True)


def expired_rows(retention: timedelta) -> list[Delete]:
    """Return the statements that delete expired rows of all users."""
    return [delete(decisions).where(decisions.c.at < func.now() - retention)]


def _build_decision(row: Row[Any]) -> Decision:
    return replace(to_dataclass(Decision, row), tools=[Choice(**tool) for tool in row.tools])
