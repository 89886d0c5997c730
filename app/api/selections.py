"""REST: what was asked and chosen, of users who have said that they want it kept."""

from datetime import datetime
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Response
from pydantic import Field

from app.api.audit import Moment, Reader
from app.api.middleware.body_limit import StrictRoute
from app.dependencies import AuditReadCaller, CatalogWriteCaller, ContainerDep, PageParams, Session, Tenant
from app.discovery.selection import Source
from app.management import selections as manage_selections
from app.schemas.base import Items, Output, render_page
from app.search.scoring import Strategy
from app.usage.selection_log import export_labelled_selections, list_selections

router = APIRouter(tags=["usage"], route_class=StrictRoute)

_JSON_LINES = "application/x-ndjson"

Since = Annotated[Moment | None, Query(description="from this moment on")]
Until = Annotated[Moment | None, Query(description="before this moment")]


class ChoiceOut(Output):
    tool_key: str
    server_name: str | None
    name: str
    source: Source
    similarity: float | None
    score: float | None


class SelectionOut(Output):
    discovery_id: str = Field(validation_alias="id")
    user_id: str
    at: datetime
    message: str
    tools: list[ChoiceOut]
    strategy: Strategy
    degraded_reason: str | None
    no_match: bool


@router.get("/selections")
async def get_selections(
    reader: Reader, page: PageParams, since: Since = None, until: Until = None
) -> Items[SelectionOut]:
    """Newest first. Empty unless the user's setting `selection_log` is on."""
    session, user_id = reader
    return render_page(await list_selections(session, user_id, since, until, page), SelectionOut.model_validate)


@router.get("/selections/export", response_class=Response, responses={200: {"content": {_JSON_LINES: {}}}})
async def export_selections(
    session: Session, tenant: Tenant, _caller: AuditReadCaller, since: Since = None, until: Until = None
) -> Response:
    """The newest 10,000 as `toolscout eval` reads them. Their labels are guesses, for a person to correct."""
    lines = await export_labelled_selections(session, tenant.id, since, until)
    return Response(b"".join(orjson.dumps(line) + b"\n" for line in lines), media_type=_JSON_LINES)


@router.delete("/selections", status_code=204)
async def delete_selections(tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller) -> Response:
    """All of the user's. The setting stays as it is."""
    await manage_selections.delete_selections(container.database, container.selections, tenant.id, actor=caller.actor)
    return Response(status_code=204)
