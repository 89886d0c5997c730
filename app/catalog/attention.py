"""What of a user's catalogue needs a person: servers that fail or want a sign-in, definitions to approve, tools that
were refused."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.catalog.servers import NamedServer
from app.db.engine import Session
from app.errors import AUTHORIZATION_REQUIRED


@dataclass(frozen=True)
class FailingServer:
    id: str
    name: str
    error: str


@dataclass(frozen=True)
class ServerWithRefusals:
    id: str
    name: str
    refused: int
    """Tools of its list that the latest successful run refused."""


@dataclass(frozen=True)
class Attention:
    failing: Sequence[FailingServer]
    to_sign_in: Sequence[NamedServer]
    """Servers that want the user to sign in."""
    changed_tools: int
    new_tools: int
    """Tools that are held because they are new. Without the setting nobody needs to act on them."""
    outdated_texts: int
    """Tools whose definition has changed since the user's own texts for them were written."""
    refusing: Sequence[ServerWithRefusals]


_IS_FAILING = """
    s.enabled AND s.transport <> 'push' AND s.status <> 'connected' AND s.last_error IS NOT NULL
"""
_WANTS_SIGN_IN = f"coalesce(s.last_cause, '') = '{AUTHORIZATION_REQUIRED}'"
_FAILING = f"""
    SELECT s.id, s.name, s.last_error FROM mcp_servers s
    WHERE s.user_id = %(user_id)s AND {_IS_FAILING} AND NOT {_WANTS_SIGN_IN} ORDER BY s.name
"""
_TO_SIGN_IN = f"""
    SELECT s.id, s.name FROM mcp_servers s
    WHERE s.user_id = %(user_id)s AND {_IS_FAILING} AND {_WANTS_SIGN_IN} ORDER BY s.name
"""
_UNAPPROVED = """
    SELECT count(*) FILTER (WHERE t.state = 'changed'), count(*) FILTER (WHERE t.hidden_by = 'new') FROM mcp_tools t
    WHERE t.user_id = %(user_id)s AND t.state <> 'approved' AND t.vanished_at IS NULL
"""
_OUTDATED_TEXTS = """
    SELECT count(*) FROM mcp_tools t
    WHERE t.user_id = %(user_id)s AND t.own_texts_based_on <> t.definition_hash AND t.vanished_at IS NULL
"""
_REFUSING = """
    SELECT s.id, s.name, (r.counts ->> 'refused')::int FROM mcp_servers s
    CROSS JOIN LATERAL (
        SELECT r.counts FROM index_runs r
        WHERE r.user_id = %(user_id)s AND r.server_id = s.id AND r.state = 'succeeded'
        ORDER BY r.created_at DESC LIMIT 1) r
    WHERE s.user_id = %(user_id)s AND (r.counts ->> 'refused')::int > 0 ORDER BY s.name
"""
_COUNT_BY_USER = f"""
    SELECT count(*) FILTER (WHERE NOT {_WANTS_SIGN_IN}), count(DISTINCT s.user_id) FILTER (WHERE NOT {_WANTS_SIGN_IN}),
        count(*) FILTER (WHERE {_WANTS_SIGN_IN}), count(DISTINCT s.user_id) FILTER (WHERE {_WANTS_SIGN_IN})
    FROM mcp_servers s WHERE {_IS_FAILING}
"""


@dataclass(frozen=True)
class AttentionCounts:
    """What needs a person, of all users together."""

    failing: int = 0
    users_with_failing: int = 0
    to_sign_in: int = 0
    users_to_sign_in: int = 0


async def read_attention(session: Session, user_id: str) -> Attention:
    parameters = {"user_id": user_id}
    [(changed_tools, new_tools)] = await session.rows(_UNAPPROVED, parameters)
    [(outdated_texts,)] = await session.rows(_OUTDATED_TEXTS, parameters)
    return Attention(
        failing=[FailingServer(*row) for row in await session.rows(_FAILING, parameters)],
        to_sign_in=[NamedServer(*row) for row in await session.rows(_TO_SIGN_IN, parameters)],
        changed_tools=changed_tools,
        new_tools=new_tools,
        outdated_texts=outdated_texts,
        refusing=[ServerWithRefusals(*row) for row in await session.rows(_REFUSING, parameters)],
    )


async def count_attention(session: Session) -> AttentionCounts:
    """Count the servers of all users that fail or want a sign-in, and these users. Needs a system transaction."""
    [counts] = await session.rows(_COUNT_BY_USER)
    return AttentionCounts(*counts)
