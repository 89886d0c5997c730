"""Which servers show their resources and prompts: those that show a tool, by the one filter for tools.

A server that has no tools at all is shown if it is switched on, works and belongs to the project, unless rules decide
what is shown: they are about tools, and so cannot show it. Push servers cannot be asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from app.catalog.visibility import FAILING, VISIBLE, Scope
from app.db.engine import Session
from app.db.tables import USER_RULES
from app.text.invisible import remove_hidden

_HAS_NO_TOOLS = f"""
    NOT EXISTS (SELECT 1 FROM mcp_tools t
                WHERE t.user_id = %(user_id)s AND t.server_id = s.id AND t.vanished_at IS NULL)
    AND s.listed_at IS NOT NULL AND NOT ({FAILING})
    AND (%(project_id)s::text IS NULL OR EXISTS (
        SELECT 1 FROM projects p WHERE p.user_id = %(user_id)s AND p.id = %(project_id)s
        AND (p.server_ids IS NULL OR s.id = ANY(p.server_ids))))
    AND NOT EXISTS (
        SELECT 1 FROM tool_rules r WHERE r.user_id = %(user_id)s AND r.enabled IS NOT NULL
        AND r.project_id IN (%(user_rules)s, coalesce(%(project_id)s::text, %(user_rules)s)))
"""
_VISIBLE_SERVERS = f"""
    SELECT s.id, s.name, s.created_at, s.config_version, coalesce(c.version, 0)
    FROM mcp_servers s
    LEFT JOIN server_connections c ON c.user_id = s.user_id AND c.server_id = s.id
    WHERE s.user_id = %(user_id)s AND s.enabled AND s.transport <> 'push' AND (
        EXISTS (SELECT 1 FROM mcp_tool_embeddings v WHERE {VISIBLE} AND v.server_id = s.id)
        OR ({_HAS_NO_TOOLS}))
"""
_SERVERS_OF_UI = f"""
    SELECT DISTINCT v.server_id FROM mcp_tool_embeddings v
    JOIN mcp_tools t ON t.user_id = v.user_id AND t.id = v.tool_id
    WHERE {VISIBLE} AND (t.meta #>> '{{ui,resourceUri}}' = %(uri)s OR t.meta ->> 'ui/resourceUri' = %(uri)s)
"""


@dataclass(frozen=True)
class VisibleServer:
    id: str
    name: str
    created_at: datetime
    config_version: int
    credential_version: int
    """Of the user's account on the server; 0 if there is none."""


async def list_visible_servers(session: Session, scope: Scope) -> Sequence[VisibleServer]:
    """Return the servers by name, in the order of code points: cursors compare names, and every database has its own
    collation."""
    rows = await session.rows(_VISIBLE_SERVERS, scope.parameters() | {"user_rules": USER_RULES})
    servers = [VisibleServer(server_id, remove_hidden(name), *others) for server_id, name, *others in rows]
    return sorted(servers, key=attrgetter("name", "id"))


async def list_servers_of_ui(session: Session, scope: Scope, uri: str) -> Sequence[str]:
    """Return the ids of the servers with a visible tool whose user interface (MCP Apps) is the resource of this URI."""
    return [server_id for (server_id,) in await session.rows(_SERVERS_OF_UI, scope.parameters() | {"uri": uri})]
