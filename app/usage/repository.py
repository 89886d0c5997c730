"""The SQL of counting: each statement adds to what is there, and does nothing for a user who has gone meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

import orjson
from sqlalchemy import Delete, delete, exists, func

from app.db.engine import Session
from app.db.tables import discovery_stats, mcp_tools, tool_feedback, tool_usage
from app.usage.histogram import SPANS

Use = Literal["discovered", "called", "succeeded", "failed", "irrelevant"]
FeedbackOutcome = Literal["called", "succeeded", "failed", "irrelevant"]

USES: tuple[Use, ...] = get_args(Use)
FIGURES = ("discoveries", "degraded", "no_match", "cache_hits", "tokens_all", "tokens_selected")

FEEDBACK_KEPT = timedelta(days=30)
STATS_KEPT = timedelta(days=30)

# a tool that went well or badly was called, whether or not anybody said so
_TOLD: Mapping[FeedbackOutcome, Sequence[FeedbackOutcome]] = {
    "succeeded": ("called", "succeeded"),
    "failed": ("called", "failed"),
}


@dataclass(frozen=True)
class Batch:
    """What was counted of one user: `USES` by tool; `FIGURES` and latencies by minute, in seconds since 1970."""

    uses: dict[str, Sequence[int]]
    minutes: dict[int, Sequence[int]]


_ADD_USES = f"""
    ON CONFLICT (user_id, tool_id)
    DO UPDATE SET {", ".join(f"{use} = u.{use} + excluded.{use}" for use in USES)}, updated_at = now()
"""

# Users are locked, so that nobody deletes them between this look and the write. Who is locked already (its rules are
# being changed, say) is left for later: nobody is to wait here while others wait for us. Rows are written in one order,
# so that two who write the same ones do not wait for each other.
_ADD = f"""
    WITH owner AS MATERIALIZED (
        SELECT id FROM users WHERE id = ANY(%(user_ids)s) ORDER BY id FOR KEY SHARE SKIP LOCKED
    ),
    used AS (
        INSERT INTO tool_usage AS u (user_id, tool_id, {", ".join(USES)})
        SELECT owner.id, used.tool_id, {", ".join(f"used.{use}" for use in USES)}
        FROM owner JOIN jsonb_to_recordset(%(uses)s::jsonb)
             AS used (user_id text, tool_id text, {", ".join(f"{use} bigint" for use in USES)})
             ON used.user_id = owner.id
        ORDER BY owner.id, used.tool_id
        {_ADD_USES}
    ),
    figures AS (
        INSERT INTO discovery_stats AS s (user_id, at, {", ".join(FIGURES)}, latencies)
        SELECT owner.id, to_timestamp(m.minute), {", ".join(f"m.{name}" for name in FIGURES)}, m.latencies
        FROM owner JOIN jsonb_to_recordset(%(minutes)s::jsonb)
             AS m (user_id text, minute bigint, {", ".join(f"{name} bigint" for name in FIGURES)}, latencies integer[])
             ON m.user_id = owner.id
        ORDER BY owner.id, m.minute
        ON CONFLICT (user_id, at)
        DO UPDATE SET {", ".join(f"{name} = s.{name} + excluded.{name}" for name in FIGURES)},
            latencies = ARRAY[{", ".join(f"s.latencies[{n}] + excluded.latencies[{n}]" for n in range(1, SPANS + 1))}]
    )
    SELECT id FROM owner
    UNION ALL
    SELECT gone FROM unnest(%(user_ids)s) gone WHERE NOT EXISTS (SELECT FROM users WHERE id = gone)
"""

_TELL = f"""
    WITH owner AS MATERIALIZED (SELECT id FROM users WHERE id = %(user_id)s FOR KEY SHARE),
    told AS (
        INSERT INTO tool_feedback (user_id, discovery_id, tool_id, outcome)
        SELECT owner.id, %(discovery_id)s, %(tool_id)s, outcome FROM owner, unnest(%(outcomes)s::text[]) outcome
        ON CONFLICT DO NOTHING
        RETURNING user_id, tool_id, outcome
    )
    INSERT INTO tool_usage AS u (user_id, tool_id, {", ".join(USES)})
    SELECT user_id, tool_id, {", ".join(f"count(*) FILTER (WHERE outcome = '{use}')" for use in USES)}
    FROM told GROUP BY user_id, tool_id
    {_ADD_USES}
"""


async def add_counts(session: Session, batches: Mapping[str, Batch]) -> list[str]:
    """Of many users at once, which needs the system's scope. Those who are done with: written, or gone."""
    each = batches.items()
    uses = [_use(user_id, tool_id, n) for user_id, batch in each for tool_id, n in batch.uses.items()]
    minutes = [_minute(user_id, minute, n) for user_id, batch in each for minute, n in batch.minutes.items()]
    parameters = {"uses": orjson.dumps(uses).decode(), "minutes": orjson.dumps(minutes).decode()}
    return [user_id for (user_id,) in await session.rows(_ADD, {"user_ids": list(batches), **parameters})]


def _use(user_id: str, tool_id: str, counts: Sequence[int]) -> dict[str, object]:
    return {"user_id": user_id, "tool_id": tool_id, **dict(zip(USES, counts, strict=True))}


def _minute(user_id: str, minute: int, counts: Sequence[int]) -> dict[str, object]:
    figures, latencies = counts[: len(FIGURES)], counts[len(FIGURES) :]
    return {"user_id": user_id, "minute": minute, **dict(zip(FIGURES, figures, strict=True)), "latencies": latencies}


async def record_feedback(
    session: Session, user_id: str, discovery_id: str, tool_id: str, outcome: FeedbackOutcome
) -> None:
    """Each outcome counts once for a discovery and tool, however often it is told."""
    parameters = {"discovery_id": discovery_id, "tool_id": tool_id, "outcomes": list(_TOLD.get(outcome, (outcome,)))}
    await session.rows(_TELL, {"user_id": user_id, **parameters})


def expired_rows() -> list[Delete]:
    """What is to be forgotten, of all users."""
    tool = exists().where(mcp_tools.c.user_id == tool_usage.c.user_id, mcp_tools.c.id == tool_usage.c.tool_id)
    return [
        delete(tool_feedback).where(tool_feedback.c.at < func.now() - FEEDBACK_KEPT),
        delete(discovery_stats).where(discovery_stats.c.at < func.now() - STATS_KEPT),
        delete(tool_usage).where(~tool),
    ]
