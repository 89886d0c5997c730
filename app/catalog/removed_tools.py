"""Aliases of tools that a model was given and that are no longer in an answer, so that it can be told by name."""

from collections.abc import Sequence

from app.catalog.tool_keys import is_tool_id, resolve_stored_keys
from app.catalog.tool_names import make_lasting_alias
from app.catalog.visibility import Scope
from app.db.engine import Session
from app.db.tables import EVERYONE

# whether the caller may know of a tool: one that is confined to a project knows those of the project alone
_MAY_KNOW = """
    (NOT %(confined)s OR EXISTS (
        SELECT 1 FROM mcp_tool_embeddings v WHERE v.user_id = %(user_id)s AND v.tool_id = {tool}.id
        AND v.model = %(model)s AND %(project)s::bigint = ANY(v.projects)))
"""
# Tools that their servers have removed are stored for a while, without a search row.
_STORED = f"""
    SELECT t.id, s.name, t.name, EXISTS (
        SELECT 1 FROM mcp_tools o WHERE o.user_id = %(user_id)s AND o.name = t.name AND o.id <> t.id
        AND {_MAY_KNOW.format(tool="o")}
    ) OR EXISTS (SELECT 1 FROM core_tools c WHERE c.user_id IN (%(user_id)s, %(everyone)s) AND c.name = t.name)
    FROM mcp_tools t JOIN mcp_servers s ON s.user_id = t.user_id AND s.id = t.server_id
    WHERE t.user_id = %(user_id)s AND t.id = ANY(%(tool_ids)s) AND {_MAY_KNOW.format(tool="t")}
    UNION ALL
    SELECT c.id, NULL, c.name, false FROM core_tools c
    WHERE c.user_id IN (%(user_id)s, %(everyone)s) AND c.id = ANY(%(tool_ids)s)
"""


async def read_aliases(session: Session, scope: Scope, keys: Sequence[str], *, confined: bool) -> dict[str, str]:
    """Return the aliases of the tools, by key, whether they are visible or not.

    Tools that are not known are left out, and those whose alias was another one while another tool had the same name:
    an API rejects the removal of a name that the model was never given.

    A caller that is confined to the project of the scope gets only those of its tools, named by their ids: a name
    that it could guess would tell whether there is such a tool outside of the project.
    """
    ids = {key: key for key in keys if is_tool_id(key)} if confined else await resolve_stored_keys(session, scope, keys)
    parameters = scope.parameters() | {"tool_ids": list(ids.values()), "confined": confined, "everyone": EVERYONE}
    aliases = {
        tool_id: make_lasting_alias(tool_id, server, name, has_shared_name=shared)
        for tool_id, server, name, shared in await session.rows(_STORED, parameters)
    }
    return {key: alias for key, tool_id in ids.items() if (alias := aliases.get(tool_id)) is not None}
