"""Response models of audit events."""

from datetime import datetime

from app.schemas.base import Output


class EventOut(Output):
    id: str
    user_id: str
    at: datetime
    actor: str
    action: str
    target: str | None
    outcome: str
    duration_ms: float | None
    request_id: str | None
