"""REST: who did what."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator

from app.api.middleware.body_limit import StrictRoute
from app.audit import events
from app.audit.events import EventFilter
from app.auth.authentication import Permission
from app.db.engine import Session
from app.dependencies import AuditReadCaller, ContainerDep, PageParams
from app.schemas.base import Items, Output, render_page

router = APIRouter(tags=["audit"], route_class=StrictRoute)

Text = Annotated[str | None, Query(max_length=256)]


def _in_utc(moment: datetime) -> datetime:
    """Without a zone, Postgres would take it for its own."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


Moment = Annotated[datetime, AfterValidator(_in_utc)]


class EventOut(Output):
    id: str
    user_id: str
    at: datetime
    actor: str
    action: str
    target: str | None
    outcome: str
    duration_ms: float | None
    request_id: str | None


async def get_reader(container: ContainerDep, caller: AuditReadCaller) -> AsyncIterator[tuple[Session, str | None]]:
    """An administrator who names no user reads what concerns all of them."""
    if caller.user is None and caller.may(Permission.ADMINISTER):
        async with container.database.system_transaction() as session:
            yield session, None
    else:
        user_id = caller.acting_for().id
        async with container.database.transaction(user_id) as session:
            yield session, user_id


Reader = Annotated[tuple[Session, str | None], Depends(get_reader, scope="function")]


@router.get("/audit")
async def list_events(
    reader: Reader,
    page: PageParams,
    *,
    action: Annotated[Text, Query(description="`tool.execute`, `server.reindex`, `server.create`, …")] = None,
    actor: Annotated[Text, Query(description="the kind and the id of a key: `user:<id>`")] = None,
    target: Annotated[Text, Query(description="the id of a server, tool, key or user")] = None,
    outcome: Annotated[Text, Query(description="`succeeded`, `tool_error`, a code or a cause")] = None,
    since: Moment | None = None,
    until: Moment | None = None,
) -> Items[EventOut]:
    """Newest first. Executions, reindexing, and every change of servers, tools, keys and users; never arguments or
    results. An admin key that names no user reads what concerns all of them."""
    session, user_id = reader
    wanted = EventFilter(action, actor, target, outcome, since, until)
    return render_page(await events.list_events(session, user_id, wanted, page), EventOut.model_validate)
