"""The activity page: audit events, newest first.

An administrator who acts for no user sees the events of all users.
"""

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.responses import Response

from app.audit.actions import ACTIONS
from app.audit.events import Event, EventFilter, list_events
from app.audit.names import read_names
from app.console.forms import parse_time
from app.console.page_context import AuditReadPage, PageContext, page_router
from app.db.pagination import Page, PageRequest
from app.errors import ToolscoutError

router = page_router()

_FILTERS = ("action", "actor", "target", "outcome", "since", "until")


@router.get("/activity")
async def show_activity(context: AuditReadPage) -> Response:
    query = context.query
    page, error = None, None
    names: Mapping[str, str] = {}
    try:
        page, names = await _list_events(context)
    except ToolscoutError as filter_error:
        error = filter_error
    filters = urlencode({name: query.text(name) for name in _FILTERS if query.text(name)})
    return context.render("activity.html", error, page=page, names=names, form=query, filters=filters, actions=ACTIONS)


async def _list_events(context: PageContext) -> tuple[Page[Event], Mapping[str, str]]:
    """Return a page of events, and the names of what they refer to, by id."""
    query, user = context.query, context.caller.user
    event_filter = EventFilter(
        action=query.optional_text("action"),
        actor=query.optional_text("actor"),
        target=query.optional_text("target"),
        outcome=query.optional_text("outcome"),
        since=parse_time(query.optional_text("since")),
        until=parse_time(query.optional_text("until")),
    )
    request = PageRequest(cursor=query.optional_text("cursor"))
    async with context.audit_transaction() as session:
        user_id, not_before = None if user is None else user.id, context.caller.audit_since
        page = await list_events(session, user_id, event_filter, request, not_before=not_before)
        return page, await read_names(session, page.items)
