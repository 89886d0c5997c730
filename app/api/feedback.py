"""REST: what became of the tools that were found, and figures of it all."""

from datetime import datetime

from fastapi import APIRouter
from pydantic import Field

from app.api.strict_json import StrictRoute
from app.catalog.visibility import Scope
from app.dependencies import AuditReader, ContainerDep, DiscoverCaller
from app.discovery.feedback import give_feedback
from app.schemas.base import Identifier, Input, Output, UtcDatetime
from app.usage.repository import FeedbackOutcome
from app.usage.stats import Step, Window, read_stats

router = APIRouter(tags=["usage"], route_class=StrictRoute)


class FeedbackBody(Input):
    discovery_id: Identifier = Field(description="of an answer of the last 30 days")
    tool_key: Identifier = Field(description="any tool that the caller may see")
    outcome: FeedbackOutcome = Field(description="`called` where it is not known how it went")


class FiguresOut(Output):
    discoveries: int
    degraded: int
    no_match: int
    cache_hits: int
    tokens_saved: int
    p50_ms: float | None
    p95_ms: float | None


class PointOut(FiguresOut):
    at: datetime


class TotalsOut(FiguresOut):
    degraded_rate: float
    no_match_rate: float
    cache_hit_rate: float
    tokens_saved_percent: float


class NamedToolOut(Output):
    tool_key: str
    server_name: str
    name: str


class UsedToolOut(NamedToolOut):
    discovered: int
    called: int
    succeeded: int


class StatsOut(Output):
    since: datetime
    until: datetime
    step: Step
    points: list[PointOut]
    totals: TotalsOut
    most_used: list[UsedToolOut]
    never_found: list[NamedToolOut]
    never_found_count: int | None


@router.post("/feedback", status_code=204)
async def post_feedback(body: FeedbackBody, caller: DiscoverCaller, container: ContainerDep) -> None:
    """What became of a tool of a discovery; told again, it counts no more. What `/execute` runs is counted anyway."""
    scope = Scope(caller.require_user().id, container.model.id, project_id=caller.project_id)
    await give_feedback(container.discoverer, scope, body.discovery_id, body.tool_key, body.outcome)


@router.get("/stats")
async def get_stats(
    reader: AuditReader, since: UtcDatetime | None = None, until: UtcDatetime | None = None, step: Step = "hour"
) -> StatsOut:
    """Discoveries over time (the last 24 hours, unless told otherwise; kept for 30 days), the most used tools, and
    those never found. An admin key that names no user gets all users' sums, without tools."""
    session, user_id = reader
    return StatsOut.model_validate(await read_stats(session, user_id, Window.of(since, until, step)))
