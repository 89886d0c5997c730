"""Locks users before rows of theirs are written, so that none of them is deleted between the check and the write.

Rows that others have locked, for example for a change of rules, are skipped until the next flush: waiting for them
would make others wait for this transaction. Each user is locked by a statement of its own, because users may be on
different nodes, and in one order.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from app.db.engine import Session

ANY_USER = "true"


@dataclass(frozen=True)
class Owners:
    locked: Mapping[str, datetime]
    """When each user whose row is locked now was created."""
    gone: frozenset[str]
    """Users that were deleted, or do not meet the condition."""

    @property
    def done(self) -> list[str]:
        """Users for whom nothing is left to do, once the rows of those that are locked are written."""
        return [*self.locked, *self.gone]


async def lock_owners(session: Session, user_ids: Collection[str], condition: str = ANY_USER) -> Owners:
    """Lock those of the users that nobody else has locked. Needs a system transaction."""
    lock = f"SELECT id, created_at FROM users WHERE id = %(user_id)s AND {condition} FOR KEY SHARE SKIP LOCKED"
    found = await session.pipeline([(lock, {"user_id": user_id}) for user_id in sorted(user_ids)])
    locked = {user_id: created_at for rows in found for user_id, created_at in rows}
    missing = set(user_ids) - locked.keys()
    return Owners(locked, frozenset(missing - await _find_skipped(session, missing, condition)))


async def _find_skipped(session: Session, user_ids: Collection[str], condition: str) -> set[str]:
    """Return those of the users that meet the condition, so that others have locked them."""
    if not user_ids:
        return set()
    statement = f"SELECT id FROM users WHERE id = ANY(%(user_ids)s) AND {condition}"
    return {user_id for (user_id,) in await session.rows(statement, {"user_ids": list(user_ids)})}
