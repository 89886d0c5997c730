"""The stored state of conversations: keys, aliases, hashes and turns, never a text.

A write replaces the state that it was made from, or does nothing: of two requests that read the same state, one reads
it again.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import Delete, delete, func

from app.auth.permissions import Caller
from app.conversations.state import ConversationState, ConversationTool, Span
from app.db.engine import Reader, Session
from app.db.tables import conversations

MAX_CONVERSATIONS = 1_000
"""For each user. The ones whose last turn is longest ago are deleted."""

_ROW = "user_id = %(user_id)s AND project_id = %(project_id)s AND id = %(id)s"
_READ = f"""
    SELECT revision, turn, spans::text, calls::text, oldest_turn FROM conversations
    WHERE {_ROW} AND updated_at > now() - %(ttl)s::interval
"""
_REPLACE = f"""
    UPDATE conversations
    SET revision = %(new_revision)s, turn = %(turn)s, spans = %(spans)s::jsonb, calls = %(calls)s::jsonb,
        oldest_turn = %(oldest_turn)s, updated_at = now()
    WHERE {_ROW} AND revision = %(revision)s
    RETURNING true
"""
_INSERT = """
    INSERT INTO conversations AS c
        (user_id, project_id, id, revision, turn, spans, calls, oldest_turn, updated_at)
    VALUES (%(user_id)s, %(project_id)s, %(id)s, %(new_revision)s, %(turn)s, %(spans)s::jsonb, %(calls)s::jsonb,
            %(oldest_turn)s, now())
    ON CONFLICT (user_id, project_id, id) DO UPDATE
    SET revision = excluded.revision, turn = excluded.turn, spans = excluded.spans, calls = excluded.calls,
        oldest_turn = excluded.oldest_turn, updated_at = excluded.updated_at
    WHERE excluded.updated_at - c.updated_at >= %(ttl)s::interval
    RETURNING true
"""
# Only the writer of a new conversation deletes, so that no two transactions wait for each other.
_DELETE_OLDEST = """
    DELETE FROM conversations c USING (
        SELECT project_id, id FROM conversations WHERE user_id = %(user_id)s
        ORDER BY updated_at DESC, project_id, id OFFSET %(max)s) surplus
    WHERE c.user_id = %(user_id)s AND c.project_id = surplus.project_id AND c.id = surplus.id
"""
# Only tools that the conversation has: calls of any others would let the row grow with every tool of the user.
_RECORD_CALL = f"""
    UPDATE conversations
    SET calls = jsonb_set(calls, ARRAY[%(tool_key)s::text], turn::text::jsonb), revision = %(new_revision)s
    WHERE {_ROW} AND spans @> jsonb_build_array(jsonb_build_array(%(tool_key)s::text))
"""


@dataclass(frozen=True)
class ConversationKey:
    """A conversation of a user, or of the project to which the caller's key is bound."""

    user_id: str
    id: str
    project_id: str | None = None

    def parameters(self) -> dict[str, Any]:
        return {"user_id": self.user_id, "project_id": self.project_id or "", "id": self.id}


def make_key(caller: Caller, conversation_id: str) -> ConversationKey:
    return ConversationKey(caller.require_user().id, conversation_id, caller.project_id)


@dataclass(frozen=True)
class StoredConversation:
    state: ConversationState
    revision: str | None = None
    """Identifies the state; None: nothing is stored."""


async def read_conversation(reader: Reader, key: ConversationKey, ttl: timedelta) -> StoredConversation:
    """Return the state, or an empty one if there is none or its last turn is too long ago."""
    rows = await reader.rows(_READ, key.parameters() | {"ttl": ttl})
    if not rows:
        return StoredConversation(ConversationState())
    [(revision, turn, spans, calls, oldest_turn)] = rows
    state = ConversationState(turn, _load_spans(spans), orjson.loads(calls), oldest_turn)
    return StoredConversation(state, revision)


async def write_conversation(
    session: Session, key: ConversationKey, state: ConversationState, revision: str | None, ttl: timedelta
) -> bool:
    """Replace the state that has this revision, or store the first one. Return False if another request has replaced
    or deleted it."""
    values = {
        "revision": revision,
        "new_revision": uuid.uuid4().hex,
        "turn": state.turn,
        "spans": _dump_spans(state.spans),
        "calls": orjson.dumps(dict(state.calls)).decode(),
        "oldest_turn": state.oldest_turn,
        "ttl": ttl,
    }
    statement = _INSERT if revision is None else _REPLACE
    is_written = bool(await session.rows(statement, key.parameters() | values))
    if is_written and revision is None:
        await session.rows(_DELETE_OLDEST, {"user_id": key.user_id, "max": MAX_CONVERSATIONS})
    return is_written


async def record_call(session: Session, key: ConversationKey, tool_key: str) -> None:
    """Count the tool as called in the conversation's current turn, if there is such a conversation and has the tool."""
    await session.rows(_RECORD_CALL, key.parameters() | {"tool_key": tool_key, "new_revision": uuid.uuid4().hex})


async def delete_conversation(session: Session, key: ConversationKey) -> bool:
    """Return whether there was such a conversation."""
    return bool(await session.rows(f"DELETE FROM conversations WHERE {_ROW} RETURNING true", key.parameters()))


def expired_rows(ttl: timedelta) -> Delete:
    """Build the statement that deletes the conversations of all users whose last turn is too long ago."""
    return delete(conversations).where(conversations.c.updated_at < func.now() - ttl)


def _dump_spans(spans: Sequence[Span]) -> str:
    rows = [
        (span.tool.tool_key, span.tool.alias, span.tool.definition_hash, span.added, span.removed) for span in spans
    ]
    return orjson.dumps(rows).decode()


def _load_spans(text: str) -> list[Span]:
    return [
        Span(ConversationTool(tool_key, alias, definition_hash), added, removed)
        for tool_key, alias, definition_hash, added, removed in orjson.loads(text)
    ]
