"""The vectors of recent messages, kept until the outcomes of their answers are known. They hold no text.

Each process collects vectors in memory and flushes them about every second, so that no discovery waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
from pgvector import HalfVector
from sqlalchemy import Delete, delete, func

from app.db.engine import Database, Session
from app.db.tables import discovery_vectors
from app.usage.batch_writer import BatchWriter, LogTable

VECTOR_RETENTION = timedelta(days=7)
"""Feedback that arrives later is counted, and nothing is learnt from it."""

_TABLE = LogTable(
    "discovery_vectors", {"id": "text", "at": "timestamptz", "model": "text", "vector": "halfvec", "tools": "text[]"}
)

_CLAIM = """
    UPDATE discovery_vectors SET learned = learned || %(mark)s::text
    WHERE user_id = %(user_id)s AND id = %(discovery_id)s AND NOT %(mark)s::text = ANY(learned)
    RETURNING model, vector
"""
_FIND_NEWEST = """
    SELECT id FROM discovery_vectors
    WHERE user_id = %(user_id)s AND at <= %(until)s AND at >= %(since)s AND %(tool_id)s = ANY(tools)
    ORDER BY at DESC, id LIMIT 1
"""


@dataclass(frozen=True)
class DiscoveryVector:
    user_id: str
    id: str
    """The id of the discovery."""
    at: datetime
    model: str
    vector: npt.NDArray[np.float16]
    tools: Sequence[str]
    """The ids of the tools of the answer."""


@dataclass(frozen=True)
class MessageVector:
    model: str
    vector: HalfVector


class DiscoveryVectorLog(BatchWriter[DiscoveryVector]):
    def __init__(self, database: Database) -> None:
        super().__init__(database, "message vectors", _TABLE)


async def claim_vector(session: Session, user_id: str, discovery_id: str, mark: str) -> MessageVector | None:
    """Return the vector of the message once for each `mark`, and None if it has been claimed or is not known."""
    parameters = {"user_id": user_id, "discovery_id": discovery_id, "mark": mark}
    rows = await session.rows(_CLAIM, parameters)
    return MessageVector(*rows[0]) if rows else None


async def find_newest_discovery(
    session: Session, user_id: str, tool_id: str, since: datetime, until: datetime
) -> str | None:
    """Return the id of the newest discovery within these times whose answer has the tool."""
    parameters = {"user_id": user_id, "tool_id": tool_id, "since": since, "until": until}
    rows = await session.rows(_FIND_NEWEST, parameters)
    return rows[0][0] if rows else None


async def delete_user_vectors(session: Session, user_id: str) -> None:
    await session.execute(delete(discovery_vectors).where(discovery_vectors.c.user_id == user_id))


def expired_rows() -> list[Delete]:
    """Return the statements that delete expired rows of all users."""
    return [delete(discovery_vectors).where(discovery_vectors.c.at < func.now() - VECTOR_RETENTION)]
