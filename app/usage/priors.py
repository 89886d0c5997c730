"""Priors: how much a user's past outcomes with a tool add to its score.

The success rate of a tool is smoothed by one imaginary success and one imaginary failure: (s + 1) / (s + f + i + 2) for
s successes, f failures and i times irrelevant, which is one half without any outcome. Only the part above one half
counts, scaled to 0..1, so that a tool that fails as often as it succeeds gains nothing. It is multiplied by the tool's
successes relative to those of the user's most successful tool, both as logarithms, so that a hundred uses weigh twice
as much as ten, not ten times. The product, times `MAX_PRIOR`, is added to the score: a prior changes the order of two
tools only if their scores differ by less than `MAX_PRIOR`. Nothing is added before all tools of the user together have
`MIN_OUTCOMES` outcomes.

A search in Postgres reads the priors from the rows of the tools, so every change is written there. A search in memory
reads them when the user's `examples_version` changes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from app.auth.users import raise_version
from app.db.engine import Session

MAX_PRIOR = 0.02
"""About the difference between neighbours in a result."""

MIN_OUTCOMES = 30

MIN_CHANGE = 0.001
"""Smaller changes are not written: they would change no order, and a row should not be rewritten for nothing."""

# Exclusive, as for a change of rules: an index run holds the user's row in shared mode and writes the same rows.
_LOCK_USER = "SELECT 1 FROM users WHERE id = %(user_id)s FOR UPDATE"

_SELECT_OUTCOMES = """
    SELECT tool_id, succeeded, failed, irrelevant FROM tool_usage
    WHERE user_id = %(user_id)s AND succeeded + failed + irrelevant > 0
"""

_UPDATE_PRIORS = """
    UPDATE mcp_tool_embeddings v SET prior = new.prior
    FROM jsonb_to_recordset(%(priors)s::jsonb) AS new (tool_id text, prior real)
    WHERE v.user_id = %(user_id)s AND v.tool_id = new.tool_id
      AND (%(server_id)s::text IS NULL OR v.server_id = %(server_id)s::text)
      AND (abs(v.prior - new.prior) >= %(min_change)s OR (new.prior = 0) <> (v.prior = 0))
    RETURNING 1
"""


@dataclass(frozen=True)
class Outcomes:
    succeeded: int = 0
    failed: int = 0
    irrelevant: int = 0

    @property
    def total(self) -> int:
        return self.succeeded + self.failed + self.irrelevant

    @property
    def merit(self) -> float:
        """The smoothed success rate above one half, scaled to 0..1."""
        return max(0.0, 2 * (self.succeeded + 1) / (self.total + 2) - 1)


def compute_priors(outcomes: Mapping[str, Outcomes]) -> dict[str, float]:
    """Return the prior of each of a user's tools, 0 to `MAX_PRIOR`."""
    max_succeeded = max((each.succeeded for each in outcomes.values()), default=0)
    if max_succeeded == 0 or sum(each.total for each in outcomes.values()) < MIN_OUTCOMES:
        return dict.fromkeys(outcomes, 0.0)
    return {
        tool_id: MAX_PRIOR * each.merit * math.log1p(each.succeeded) / math.log1p(max_succeeded)
        for tool_id, each in outcomes.items()
    }


async def update_priors(session: Session, user_id: str) -> None:
    """Recompute the priors of all of a user's tools."""
    await session.rows(_LOCK_USER, {"user_id": user_id})
    await write_priors(session, user_id)


async def write_priors(session: Session, user_id: str, server_id: str | None = None) -> None:
    """Write the priors into all rows of the user's tools. The caller holds the lock.

    With `server_id`, write only the rows of that server: new rows do not know their tool's past.
    """
    rows = await session.rows(_SELECT_OUTCOMES, {"user_id": user_id})
    computed = compute_priors({tool_id: Outcomes(*counts) for tool_id, *counts in rows})
    if computed:
        priors = orjson.dumps([{"tool_id": tool_id, "prior": prior} for tool_id, prior in computed.items()]).decode()
        parameters = {"user_id": user_id, "server_id": server_id, "priors": priors, "min_change": MIN_CHANGE}
        if await session.rows(_UPDATE_PRIORS, parameters):
            await raise_version(session, user_id, "examples_version")
