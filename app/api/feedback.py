"""REST: `POST /feedback` on discovered tools, and `GET /stats` of discoveries and tools."""

from fastapi import APIRouter

from app.api.strict_route import StrictRoute
from app.catalog.visibility import Scope
from app.conversations.repository import make_key
from app.dependencies import AuditReader, ContainerDep, DiscoverCaller
from app.discovery.feedback import give_feedback
from app.schemas.base import UtcDatetime
from app.schemas.feedback import FeedbackBody, StatsOut
from app.usage.stats import Step, Window, read_stats

router = APIRouter(tags=["usage"], route_class=StrictRoute)


@router.post("/feedback", status_code=204)
async def send_feedback(body: FeedbackBody, caller: DiscoverCaller, container: ContainerDep) -> None:
    """Report what became of a tool of a discovery.

    Repeated feedback counts once. Tools that `/execute` runs are counted without feedback.
    """
    scope = Scope(caller.require_user().id, container.model.id, project_id=caller.project_id)
    conversation = None if body.conversation_id is None else make_key(caller, body.conversation_id)
    await give_feedback(container.discoverer, scope, body.discovery_id, body.tool_key, body.outcome, conversation)


@router.get("/stats")
async def get_stats(
    reader: AuditReader, since: UtcDatetime | None = None, until: UtcDatetime | None = None, step: Step = "hour"
) -> StatsOut:
    """Return discoveries over time, the most used tools, and the tools that were never found.

    The default period is the last 24 hours; figures are kept for 30 days. An admin key that names no user gets the sums
    of all users, without tools.
    """
    session, user_id = reader
    return StatsOut.model_validate(await read_stats(session, user_id, Window.create(since, until, step)))
