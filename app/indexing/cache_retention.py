"""Which cached vectors have expired: old ones, and the oldest above a number of rows.

A vector that is needed again is computed again. The stored tools have vectors of their own, and do not expire.
"""

from datetime import timedelta

from sqlalchemy import delete, func, select

from app.db.retention import Deletion
from app.db.tables import embedding_cache


def expired_rows(days: int, max_rows: int) -> list[Deletion]:
    """Return the statements that delete what has expired. 0 switches either limit off."""
    created_at = embedding_cache.c.created_at
    deletions: list[Deletion] = []
    if days:
        deletions.append(delete(embedding_cache).where(created_at < func.now() - timedelta(days=days)))
    if max_rows:
        newest_surplus = select(created_at).order_by(created_at.desc()).offset(max_rows).limit(1).scalar_subquery()
        deletions.append(delete(embedding_cache).where(created_at <= newest_surplus))
    return deletions
