"""REST: read the audit log."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.api.strict_route import StrictRoute
from app.audit import events
from app.audit.events import EventFilter
from app.dependencies import AuditReadCaller, AuditReader, PageParams
from app.schemas.audit import EventOut
from app.schemas.base import Items, UtcDatetime, render_page

router = APIRouter(tags=["audit"], route_class=StrictRoute)

Text = Annotated[str | None, Query(max_length=256)]


@router.get("/audit")
async def list_audit_events(
    reader: AuditReader,
    caller: AuditReadCaller,
    page: PageParams,
    *,
    action: Annotated[Text, Query(description="`tool.execute`, `server.reindex`, `server.create`, …")] = None,
    actor: Annotated[Text, Query(description="kind and id of a key: `user:<id>`")] = None,
    target: Annotated[Text, Query(description="id of a server, tool, key or user")] = None,
    outcome: Annotated[Text, Query(description="`succeeded`, `tool_error`, an error code or a cause")] = None,
    since: UtcDatetime | None = None,
    until: UtcDatetime | None = None,
) -> Items[EventOut]:
    """List audit events, newest first: executions, index runs, and every change of servers, tools, keys and users.

    Events never hold arguments or results. An admin key that names no user gets the events of all users. Events of a
    deleted user are read by admin keys alone: a new user with the same id does not see them."""
    session, user_id = reader
    event_filter = EventFilter(action, actor, target, outcome, since, until)
    found = await events.list_events(session, user_id, event_filter, page, not_before=caller.audit_since)
    return render_page(found, EventOut.model_validate)
