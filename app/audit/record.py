"""Write audit events: who did what to what, when, and with which outcome.

Only use cases record events; an import contract keeps this module out of the interfaces. An event never holds
arguments, results or messages: an audit log with secrets in it would be one more thing to steal.
"""

import uuid

from sqlalchemy import insert

from app.audit.actions import Action
from app.db.engine import Session
from app.db.tables import EVERYONE, audit_events
from app.observability.logging import elapsed_ms, request_id

SUCCEEDED = "succeeded"


async def record_event(
    session: Session,
    user_id: str | None,
    actor: str,
    action: Action,
    target: str | None,
    *,
    outcome: str = SUCCEEDED,
    duration_ms: float | None = None,
) -> None:
    """Insert an event in the transaction of the change itself, so that neither exists without the other."""
    values = {
        "user_id": EVERYONE if user_id is None else user_id,
        "id": str(uuid.uuid4()),
        "actor": actor,
        "action": action,
        "target": target,
        "outcome": outcome,
        "duration_ms": round(elapsed_ms() if duration_ms is None else duration_ms, 2),
        "request_id": request_id.get(),
    }
    await session.execute(insert(audit_events).values(**values))
