"""Who did what to what, when, and how it went. Rows are added and never changed: the app's role may not.

What was said (arguments, results, messages) is not here: an audit that holds secrets is one more thing to steal.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select

from app.db.engine import Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass
from app.db.tables import EVERYONE, audit_events
from app.observability.metrics import elapsed_ms, request_id

SUCCEEDED = "succeeded"


@dataclass(frozen=True)
class Event:
    id: str
    user_id: str
    at: datetime
    actor: str
    action: str
    target: str | None
    outcome: str
    duration_ms: float | None
    request_id: str | None


@dataclass(frozen=True)
class EventFilter:
    action: str | None = None
    actor: str | None = None
    target: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def record(
    session: Session,
    user_id: str | None,
    actor: str,
    action: str,
    target: str | None,
    *,
    outcome: str = SUCCEEDED,
    duration_ms: float | None = None,
) -> None:
    """In the transaction of the deed itself, so that there is never one without the other."""
    values = {
        "user_id": EVERYONE if user_id is None else user_id,
        "id": str(uuid.uuid4()),
        "actor": actor,
        "action": action,
        "target": target,
        "outcome": outcome,
        "duration_ms": round(elapsed_ms() if duration_ms is None else duration_ms, 2),
        "request_id": request_id.get(),
    }
    await session.execute(insert(audit_events).values(**values))


async def list_events(session: Session, user_id: str | None, wanted: EventFilter, page: PageRequest) -> Page[Event]:
    """Newest first; with no user, those of all, which needs the system's scope."""
    events = audit_events.c
    statement = select(audit_events)
    if user_id is not None:
        statement = statement.where(events.user_id == user_id)
    for name in ("action", "actor", "target", "outcome"):
        if (value := getattr(wanted, name)) is not None:
            statement = statement.where(events[name] == value)
    if wanted.since is not None:
        statement = statement.where(events.at >= wanted.since)
    if wanted.until is not None:
        statement = statement.where(events.at < wanted.until)
    return await fetch_page(session, statement, (events.at, events.id), page, _event, descending=True)


def _event(row: Row[Any]) -> Event:
    return to_dataclass(Event, row)
