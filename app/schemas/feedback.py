"""Request model of `/feedback`, and response models of `/stats`."""

from datetime import datetime

from pydantic import Field

from app.schemas.base import Identifier, Input, Output, ToolKey, make_synonyms
from app.schemas.kept_tools import ConversationId
from app.usage.repository import FeedbackOutcome
from app.usage.stats import Step


class FeedbackBody(Input):
    synonyms = make_synonyms(
        tool_key="tool tool_name tool_id",
        discovery_id="id discovery",
        conversation_id="conversation",
        outcome="result status feedback",
    )

    discovery_id: Identifier = Field(description="the id of a discovery of the last 30 days")
    tool_key: ToolKey = Field(description="any tool that is visible to the caller, named as in `POST /execute`")
    outcome: FeedbackOutcome = Field(description="`called` if the result of the call is unknown")
    conversation_id: ConversationId | None = Field(
        None, description="the conversation of `keep` in which the tool was called: it stays there for longer"
    )


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
