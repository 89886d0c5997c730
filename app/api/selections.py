"""REST: the selection log of users who have turned it on."""

from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query, Response

from app.api.openapi import describe_text
from app.api.strict_route import StrictRoute
from app.dependencies import (
    AuditReadCaller,
    AuditReader,
    CatalogWriteCaller,
    ContainerDep,
    PageParams,
    Session,
    Tenant,
)
from app.management import selections as manage_selections
from app.schemas.base import Items, UtcDatetime, render_page
from app.schemas.selections import SelectionOut
from app.usage import selection_log

router = APIRouter(tags=["usage"], route_class=StrictRoute)

_JSON_LINES, _TEXT = "application/x-ndjson", "text/plain"
_LINES = "labelled messages, one JSON object a line"
_EXPORT = describe_text(_JSON_LINES, _LINES) | describe_text(_TEXT, _LINES)

Since = Annotated[UtcDatetime | None, Query(description="from this time on")]
Until = Annotated[UtcDatetime | None, Query(description="before this time")]


@router.get("/selections")
async def list_selections(
    reader: AuditReader, page: PageParams, since: Since = None, until: Until = None
) -> Items[SelectionOut]:
    """List messages and the tools selected for them, newest first. Empty unless the user's `selection_log` is on."""
    session, user_id = reader
    found = await selection_log.list_selections(session, user_id, since, until, page)
    return render_page(found, SelectionOut.model_validate)


@router.get("/selections/export", response_class=Response, responses={200: {"content": _EXPORT}})
async def export_selections(
    session: Session,
    tenant: Tenant,
    _caller: AuditReadCaller,
    *,
    since: Since = None,
    until: Until = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Return the newest 10,000 as labelled messages for `toolscout eval`. The labels are guesses to be corrected.

    With `Accept: text/plain` the same lines are sent as plain text."""
    lines = await selection_log.export_labelled_selections(session, tenant.id, since, until)
    media_type = _TEXT if _TEXT in accept else _JSON_LINES
    return Response(b"".join(orjson.dumps(line) + b"\n" for line in lines), media_type=media_type)


@router.delete("/selections", status_code=204)
async def delete_selections(tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller) -> Response:
    """Delete all selections of the user. The setting stays as it is."""
    await manage_selections.delete_selections(container.database, container.selections, tenant.id, actor=caller.actor)
    return Response(status_code=204)
