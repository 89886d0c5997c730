"""Who did what, newest first. An administrator who acts for nobody sees what concerns all users."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from urllib.parse import urlencode

from starlette.responses import Response

from app.audit.events import Event, EventFilter, list_events
from app.console.forms import Form
from app.console.page_context import AuditReadCaller, PageContext, page_router
from app.db.engine import Session
from app.db.pagination import Page, PageRequest
from app.errors import InvalidInput, ToolscoutError

router = page_router()

_FILTERS = ("action", "actor", "target", "outcome", "since", "until")


@router.get("/activity")
async def show_activity(visit: AuditReadCaller) -> Response:
    query = visit.query
    page, error = None, None
    try:
        page = await _events(visit, query)
    except ToolscoutError as found:
        error = found
    asked = urlencode({name: query.text(name) for name in _FILTERS if query.text(name)})
    return visit.show("activity.html", error, page=page, form=query, asked=asked)


async def _events(visit: PageContext, query: Form) -> Page[Event]:
    wanted = EventFilter(
        action=query.given("action"),
        actor=query.given("actor"),
        target=query.given("target"),
        outcome=query.given("outcome"),
        since=_moment(query.given("since")),
        until=_moment(query.given("until")),
    )
    user = visit.caller.user
    async with _reader(visit) as session:
        request = PageRequest(cursor=query.given("cursor"))
        return await list_events(session, None if user is None else user.id, wanted, request)


def _reader(visit: PageContext) -> AbstractAsyncContextManager[Session]:
    return visit.container.database.system_transaction() if visit.caller.user is None else visit.transaction()


def _moment(text: str | None) -> datetime | None:
    """As a browser's own field writes it; in UTC, as the page shows it."""
    try:
        moment = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput("a moment is written like 2030-01-31T12:00") from error
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=UTC)
