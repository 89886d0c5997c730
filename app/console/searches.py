"""The part "Searches" of the activity page: the decision log, newest first.

An administrator who acts for no user sees the searches of all users.
"""

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.responses import Response

from app.catalog.projects import list_all_projects
from app.console.forms import parse_time
from app.console.page_context import AuditReadPage, PageContext, page_router
from app.db.pagination import Page, PageRequest
from app.errors import ToolscoutError
from app.usage.decision_log import Decision, DecisionFilter, list_decisions

router = page_router()

_FILTERS = ("result", "request_id", "discovery_id", "project_id", "since", "until")


@router.get("/activity/searches")
async def show_searches(context: AuditReadPage) -> Response:
    query = context.query
    page, error = None, None
    projects: Mapping[str, str] = {}
    try:
        page, projects = await _list_decisions(context)
    except ToolscoutError as filter_error:
        error = filter_error
    filters = urlencode({name: query.text(name) for name in _FILTERS if query.text(name)})
    is_logged = context.container.decisions.enabled
    return context.render(
        "searches.html", error, page=page, form=query, filters=filters, projects=projects, is_logged=is_logged
    )


async def _list_decisions(context: PageContext) -> tuple[Page[Decision], Mapping[str, str]]:
    """Return a page of decisions, and the names of the user's projects by id."""
    query, user = context.query, context.caller.user
    result = query.text("result")
    decision_filter = DecisionFilter(
        discovery_id=query.optional_text("discovery_id"),
        request_id=query.optional_text("request_id"),
        project_id=query.optional_text("project_id"),
        degraded=True if result == "degraded" else None,
        no_match=True if result == "no_match" else None,
        since=parse_time(query.optional_text("since")),
        until=parse_time(query.optional_text("until")),
    )
    request = PageRequest(cursor=query.optional_text("cursor"))
    async with context.read_transaction() as session:
        projects = () if user is None else await list_all_projects(session, user.id)
        page = await list_decisions(session, None if user is None else user.id, decision_filter, request)
    return page, {project.id: project.name for project in projects}
