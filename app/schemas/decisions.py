"""Response models of the decision log."""

from collections import Counter
from datetime import datetime

from pydantic import Field, computed_field

from app.schemas.base import Output
from app.schemas.discovery import OmittedOut
from app.schemas.selections import ChoiceOut
from app.usage.decision_log import Interface


class DecisionOut(Output):
    discovery_id: str = Field(validation_alias="id")
    user_id: str
    at: datetime
    request_id: str | None = Field(description="as in the log and in the header `X-Request-Id`")
    actor: str = Field(description="kind and id of the key")
    interface: Interface
    project_id: str | None
    strategy: str | None = Field(description="null: the project does not search")
    degraded_reason: str | None
    confidence: str
    no_match: bool
    no_match_reason: str | None
    searched: int = Field(description="the number of tools that were searched")
    omitted: OmittedOut | None = Field(description="tools that were left out of the answer for want of room")
    tools: list[ChoiceOut] = Field(description="the tools of the answer, with names and scores as they were then")
    duration_ms: float = Field(description="the time that the search took, the embedding of the message included")

    @computed_field(description="the number of tools in the answer by source")  # type: ignore[prop-decorator]
    @property
    def returned(self) -> dict[str, int]:
        return Counter(tool.source for tool in self.tools)
