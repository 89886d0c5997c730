"""From what was counted to what ranking adds: the priors, written into the rows that a search reads."""

import orjson

from app.db.engine import Session
from app.usage.prior import Outcomes, compute_priors

STEP = 0.001
"""What moved less than this is left as it is: it would change no order, and a row is not rewritten for nothing."""

# exclusive, as for a change of rules: whoever indexes a server holds the user's row shared, and writes the same rows
_LOCK = "SELECT FROM users WHERE id = %(user_id)s FOR UPDATE"

_OUTCOMES = """
    SELECT tool_id, succeeded, failed, irrelevant FROM tool_usage
    WHERE user_id = %(user_id)s AND succeeded + failed + irrelevant > 0
"""

_WRITE = """
    UPDATE mcp_tool_embeddings v SET prior = learnt.prior
    FROM jsonb_to_recordset(%(learnt)s::jsonb) AS learnt (tool_id text, prior real)
    WHERE v.user_id = %(user_id)s AND v.tool_id = learnt.tool_id
      AND (%(server_id)s::text IS NULL OR v.server_id = %(server_id)s::text)
      AND (abs(v.prior - learnt.prior) >= %(step)s OR (learnt.prior = 0) <> (v.prior = 0))
"""


async def update_priors(session: Session, user_id: str) -> None:
    await session.rows(_LOCK, {"user_id": user_id})
    await write_priors(session, user_id)


async def write_priors(session: Session, user_id: str, server_id: str | None = None) -> None:
    """Into all rows of the user's tools; or of one server's, whose lock the caller holds, since rows that are new know
    nothing of their tool's past."""
    rows = await session.rows(_OUTCOMES, {"user_id": user_id})
    learnt = compute_priors({tool_id: Outcomes(*counts) for tool_id, *counts in rows})
    if learnt:
        told = orjson.dumps([{"tool_id": tool_id, "prior": prior} for tool_id, prior in learnt.items()]).decode()
        await session.rows(_WRITE, {"user_id": user_id, "server_id": server_id, "learnt": told, "step": STEP})
