"""Read audit events. Rows are only ever added: the app's database role can neither change them nor delete them before
they have expired."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Integer, Row, bindparam, func, select

from app.db.engine import Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.retention import BATCH, Deletion
from app.db.rows import to_dataclass
from app.db.tables import audit_events


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


async def list_events(
    session: Session,
    user_id: str | None,
    event_filter: EventFilter,
    page: PageRequest,
    *,
    not_before: datetime | None = None,
) -> Page[Event]:
    """Return events, newest first. Without a user, those of all users, which needs a system transaction.

    `not_before`: when the user was created, for a reader who may not know about a former user with the same id.
    """
    events = audit_events.c
    statement = select(audit_events)
    if user_id is not None:
        statement = statement.where(events.user_id == user_id)
    if not_before is not None:
        statement = statement.where(events.at >= not_before)
    for name in ("action", "actor", "target", "outcome"):
        if (value := getattr(event_filter, name)) is not None:
            statement = statement.where(events[name] == value)
    if event_filter.since is not None:
        statement = statement.where(events.at >= event_filter.since)
    if event_filter.until is not None:
        statement = statement.where(events.at < event_filter.until)
    return await fetch_page(session, statement, (events.at, events.id), page, _event, descending=True)


def expired_rows(days: int) -> list[Deletion]:
    """Return the statement that deletes older events; none if `days` is 0."""
    batch = bindparam(BATCH, type_=Integer)
    return [select(func.delete_old_audit_events(days, batch, type_=BigInteger))] if days else []


def _event(row: Row[Any]) -> Event:
    return to_dataclass(Event, row)
