"""Response models of the selection log."""

from datetime import datetime

from pydantic import Field

from app.discovery.selection import Source
from app.schemas.base import Output
from app.search.scoring import AnsweredStrategy


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
    strategy: AnsweredStrategy
    degraded_reason: str | None
    no_match: bool
