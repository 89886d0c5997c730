"""SQL for usage counts. Each statement adds to the stored counts and ignores users that were deleted meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

import orjson
from sqlalchemy import Delete, delete, exists, func

from app.db.engine import Session
from app.db.tables import discovery_stats, mcp_tools, tool_feedback, tool_usage
from app.usage.histogram import BUCKETS
from app.usage.owners import lock_owners

UsageKind = Literal["discovered", "called", "succeeded", "failed", "irrelevant"]
FeedbackOutcome = Literal["called", "succeeded", "failed", "irrelevant"]

USAGE_KINDS: tuple[UsageKind, ...] = get_args(UsageKind)
STAT_COLUMNS = ("discoveries", "degraded", "no_match", "cache_hits", "tokens_all", "tokens_selected", "not_english")

FEEDBACK_RETENTION = timedelta(days=30)
STATS_RETENTION = timedelta(days=30)

# A tool that succeeded or failed was called, whether or not the client reported the call.
_IMPLIED_OUTCOMES: Mapping[FeedbackOutcome, Sequence[FeedbackOutcome]] = {
    "succeeded": ("called", "succeeded"),
    "failed": ("called", "failed"),
}


@dataclass(frozen=True)
class UsageBatch:
    """The pending counts of one user: `USAGE_KINDS` by tool; `STAT_COLUMNS` and latencies by minute (Unix time)."""

    uses: dict[str, Sequence[int]]
    minutes: dict[int, Sequence[int]]


# Rows are written in one order, so that two writers cannot deadlock. `updated_at` is the new row's, which has it by
# default: Citus takes no `now()` here.
_ADD_USES = f"""
    INSERT INTO tool_usage AS u (user_id, tool_id, {", ".join(USAGE_KINDS)})
    SELECT user_id, tool_id, {", ".join(USAGE_KINDS)}
    FROM jsonb_to_recordset(%(uses)s::jsonb)
         AS added (user_id text, tool_id text, {", ".join(f"{kind} bigint" for kind in USAGE_KINDS)})
    ORDER BY user_id, tool_id
    ON CONFLICT (user_id, tool_id) DO UPDATE
    SET {", ".join(f"{kind} = u.{kind} + excluded.{kind}" for kind in USAGE_KINDS)}, updated_at = excluded.updated_at
"""
_ADD_STATS = f"""
    INSERT INTO discovery_stats AS s (user_id, at, {", ".join(STAT_COLUMNS)}, latencies)
    SELECT user_id, to_timestamp(minute), {", ".join(STAT_COLUMNS)}, latencies
    FROM jsonb_to_recordset(%(minutes)s::jsonb)
         AS m (user_id text, minute bigint, latencies integer[], {", ".join(f"{name} bigint" for name in STAT_COLUMNS)})
    ORDER BY user_id, minute
    ON CONFLICT (user_id, at)
    DO UPDATE SET {", ".join(f"{name} = s.{name} + excluded.{name}" for name in STAT_COLUMNS)},
        latencies = ARRAY[{", ".join(f"s.latencies[{n}] + excluded.latencies[{n}]" for n in range(1, BUCKETS + 1))}]
"""

# The lock lets the caller change the sums in the user's row next, and is taken first: two reports that take it after
# the row of a tool could deadlock. It lets index runs continue.
_LOCK_OWNER = "SELECT 1 FROM users WHERE id = %(user_id)s FOR NO KEY UPDATE"
_RECORD_FEEDBACK = """
    INSERT INTO tool_feedback (user_id, discovery_id, tool_id, outcome)
    SELECT %(user_id)s, %(discovery_id)s, %(tool_id)s, outcome FROM unnest(%(outcomes)s::text[]) outcome
    ON CONFLICT DO NOTHING RETURNING outcome
"""

_SELECT_OUTCOMES = """
    SELECT tool_id, outcome FROM tool_feedback WHERE user_id = %(user_id)s AND discovery_id = %(discovery_id)s
"""


async def add_counts(session: Session, batches: Mapping[str, UsageBatch]) -> list[str]:
    """Add the counts of many users, which needs the system scope. Return those that are written or deleted."""
    owners = await lock_owners(session, batches)
    users = [(user_id, batches[user_id]) for user_id in owners.locked]
    await _add_uses(session, [_usage_row(user, tool, n) for user, batch in users for tool, n in batch.uses.items()])
    minutes = [_stats_row(user, minute, n) for user, batch in users for minute, n in batch.minutes.items()]
    if minutes:
        await session.rows(_ADD_STATS, {"minutes": orjson.dumps(minutes).decode()})
    return owners.done


async def _add_uses(session: Session, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        await session.rows(_ADD_USES, {"uses": orjson.dumps(rows).decode()})


def _usage_row(user_id: str, tool_id: str, counts: Sequence[int]) -> dict[str, object]:
    return {"user_id": user_id, "tool_id": tool_id, **dict(zip(USAGE_KINDS, counts, strict=True))}


def _stats_row(user_id: str, minute: int, counts: Sequence[int]) -> dict[str, object]:
    stats, latencies = counts[: len(STAT_COLUMNS)], counts[len(STAT_COLUMNS) :]
    return {"user_id": user_id, "minute": minute, **dict(zip(STAT_COLUMNS, stats, strict=True)), "latencies": latencies}


async def record_feedback(
    session: Session, user_id: str, discovery_id: str, tool_id: str, outcome: FeedbackOutcome
) -> set[FeedbackOutcome]:
    """Count each outcome once per discovery and tool, however often the client reports it. Lock the user's row.

    Return the outcomes that are new.
    """
    if not await session.rows(_LOCK_OWNER, {"user_id": user_id}):
        return set()
    outcomes = list(_IMPLIED_OUTCOMES.get(outcome, (outcome,)))
    parameters = {"user_id": user_id, "discovery_id": discovery_id, "tool_id": tool_id, "outcomes": outcomes}
    recorded: set[FeedbackOutcome] = {new for (new,) in await session.rows(_RECORD_FEEDBACK, parameters)}
    if recorded:
        await _add_uses(session, [_usage_row(user_id, tool_id, [int(kind in recorded) for kind in USAGE_KINDS])])
    return recorded


async def list_outcomes(session: Session, user_id: str, discovery_id: str) -> set[tuple[str, FeedbackOutcome]]:
    """Return all outcomes of a discovery's tools, as pairs of the tool's id and the outcome."""
    rows = await session.rows(_SELECT_OUTCOMES, {"user_id": user_id, "discovery_id": discovery_id})
    return {(tool_id, outcome) for tool_id, outcome in rows}


def expired_rows() -> list[Delete]:
    """Return the statements that delete expired rows of all users."""
    tool = exists().where(mcp_tools.c.user_id == tool_usage.c.user_id, mcp_tools.c.id == tool_usage.c.tool_id)
    return [
        delete(tool_feedback).where(tool_feedback.c.at < func.now() - FEEDBACK_RETENTION),
        delete(discovery_stats).where(discovery_stats.c.at < func.now() - STATS_RETENTION),
        delete(tool_usage).where(~tool),
    ]
