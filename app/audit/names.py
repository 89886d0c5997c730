"""Names of the things that audit events refer to by id."""

from collections.abc import Mapping, Sequence

from app.audit.events import Event
from app.db.engine import Session

# Row-level security limits it to what the transaction may see: keys of administrators only in a system transaction.
_NAMES = """
    SELECT s.id, s.name FROM mcp_servers s WHERE s.user_id = ANY(%(users)s) AND s.id = ANY(%(ids)s)
    UNION ALL
    SELECT t.id, s.name || '.' || t.name FROM mcp_tools t
    JOIN mcp_servers s ON s.user_id = t.user_id AND s.id = t.server_id
    WHERE t.user_id = ANY(%(users)s) AND t.id = ANY(%(ids)s)
    UNION ALL
    SELECT p.id, p.name FROM projects p WHERE p.user_id = ANY(%(users)s) AND p.id = ANY(%(ids)s)
    UNION ALL
    SELECT c.id, coalesce(c.own_name, c.name) FROM tool_categories c
    WHERE c.user_id = ANY(%(users)s) AND c.id = ANY(%(ids)s)
    UNION ALL
    SELECT u.id, u.name FROM users u WHERE u.id = ANY(%(users)s) AND u.name IS NOT NULL
"""
_NAMES_OF_KEYS = "SELECT k.id, coalesce(k.name, k.prefix || '…') FROM api_keys k WHERE k.id = ANY(%(ids)s)"


async def read_names(session: Session, events: Sequence[Event]) -> Mapping[str, str]:
    """Return the names, by id, of users, targets and keys of the events. What was deleted since has none."""
    users = {event.user_id for event in events}
    ids = users | {event.target for event in events if event.target} | {key_id(event) for event in events}
    parameters = {"users": list(users), "ids": list(ids)}
    named, named_keys = await session.pipeline([(_NAMES, parameters), (_NAMES_OF_KEYS, {"ids": list(ids)})])
    return dict([*named, *named_keys])


def key_id(event: Event) -> str:
    """Return the id of the key that an event's actor used; the actor `system` has none."""
    return event.actor.partition(":")[2]
