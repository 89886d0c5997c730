"""Calls of a conversation's tools, which keep them in it."""

import logging

from app.conversations.repository import ConversationKey, record_call
from app.db.engine import Database
from app.errors import DatabaseDown, QueryFailed

logger = logging.getLogger("toolscout.conversations")


async def note_call(database: Database, key: ConversationKey, tool_key: str) -> None:
    """Count the tool as called in the current turn. A failure is logged alone: the tool has been called."""
    try:
        async with database.transaction(key.user_id) as session:
            await record_call(session, key, tool_key)
    except (DatabaseDown, QueryFailed):
        logger.exception("failed to record a call in its conversation")
