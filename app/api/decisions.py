"""REST: the decision log."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.api.strict_route import StrictRoute
from app.dependencies import AuditReader, PageParams
from app.schemas.base import Items, UtcDatetime, render_page
from app.schemas.decisions import DecisionOut
from app.usage import decision_log
from app.usage.decision_log import DecisionFilter

router = APIRouter(tags=["usage"], route_class=StrictRoute)

Text = Annotated[str | None, Query(max_length=256)]


@router.get("/decisions")
async def list_decisions(
    reader: AuditReader,
    page: PageParams,
    *,
    discovery_id: Text = None,
    request_id: Annotated[Text, Query(description="as in `X-Request-Id`; one call over MCP may search often")] = None,
    project_id: Text = None,
    degraded: Annotated[bool | None, Query(description="whether the search fell back to a lesser one")] = None,
    no_match: Annotated[bool | None, Query(description="whether no tool was found")] = None,
    since: Annotated[UtcDatetime | None, Query(description="from this time on")] = None,
    until: Annotated[UtcDatetime | None, Query(description="before this time")] = None,
) -> Items[DecisionOut]:
    """List searches and the tools that they chose, newest first, without the messages.

    Searches are listed about a second later, for as many days as `TOOLSCOUT_DECISION_LOG_DAYS` says. An admin key that
    names no user gets those of all users. The messages of users who have turned `selection_log` on are in
    `GET /selections`, under the same `discovery_id`."""
    session, user_id = reader
    decision_filter = DecisionFilter(discovery_id, request_id, project_id, degraded, no_match, since, until)
    found = await decision_log.list_decisions(session, user_id, decision_filter, page)
    return render_page(found, DecisionOut.model_validate)
