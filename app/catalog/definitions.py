"""Tools as a model gets to see them, read with every discovery."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from cachetools import TTLCache

from app.catalog.visibility import VISIBLE, CacheKey, Scope
from app.db.engine import Session
from app.db.tables import EVERYONE

_MAX_TOOL_BYTES = 64 * 1024 * 1024
_MAX_CORE_TOOL_BYTES = 32 * 1024 * 1024
_CACHE_S = 600.0
_ENTRY_OVERHEAD = 1_000


@dataclass(frozen=True)
class ToolDefinitionView:
    """A visible tool, or a core tool, which has no server. The JSON parts stay the text that they are stored as."""

    tool_id: str
    server_id: str | None
    server_name: str | None
    name: str
    title: str | None
    description: str
    input_schema: str
    output_schema: str | None
    annotations: str | None
    tokens: int
    shares_its_name: bool
    flags: Sequence[str] = ()
    server_status: str | None = None


@dataclass(frozen=True)
class DefinitionSet:
    tools: dict[str, ToolDefinitionView]
    """By id; those that are not visible are missing."""
    core: Sequence[ToolDefinitionView]


@dataclass(frozen=True)
class AllTools:
    offers: Sequence[ToolDefinitionView]
    searched: int
    tokens: int


@dataclass(frozen=True)
class ServerSummary:
    """A server, as far as one sees its tools."""

    name: str
    description: str | None
    status: str
    tools: int


_TOOL = """
    SELECT t.id, t.server_id, v.server_name, t.name, t.title, t.description,
           t.input_schema::text, t.output_schema::text, t.annotations::text, t.tokens,
           EXISTS (SELECT FROM mcp_tools o JOIN mcp_tool_embeddings w
                   ON w.user_id = o.user_id AND w.tool_id = o.id AND w.model = v.model
                   WHERE o.user_id = t.user_id AND o.name = t.name AND o.id <> t.id
                   AND (%(project)s::bigint IS NULL OR %(project)s::bigint = ANY(w.projects)))
           OR EXISTS (SELECT FROM core_tools c WHERE c.user_id IN (t.user_id, '') AND c.name = t.name),
           ARRAY(SELECT DISTINCT finding ->> 'flag' FROM jsonb_array_elements(t.findings) finding ORDER BY 1),
           s.status
    FROM mcp_tool_embeddings v
    JOIN mcp_tools t ON t.user_id = v.user_id AND t.id = v.tool_id
    JOIN mcp_servers s ON s.user_id = v.user_id AND s.id = v.server_id
"""

_CORE = """
    SELECT c.id, NULL, NULL, c.name, c.definition ->> 'title', c.definition ->> 'description',
           (c.definition -> 'inputSchema')::text, (c.definition -> 'outputSchema')::text,
           (c.definition -> 'annotations')::text, c.tokens, false, '{}'::text[], NULL
    FROM core_tools c WHERE (c.user_id = %(user_id)s OR c.user_id = %(everyone)s)
"""

# one statement for both, since every discovery asks for both
_OFFERS = f"""
    {_TOOL} WHERE {VISIBLE} AND v.tool_id = ANY(%(tool_ids)s)
    UNION ALL ({_CORE} AND %(core)s ORDER BY c.user_id, c.position)
"""

_CALLED = f"""
    {_TOOL} WHERE {VISIBLE} AND (
        v.tool_name = %(alias)s OR starts_with(encode(sha256(convert_to(v.tool_id, 'UTF8')), 'hex'), %(digest)s))
    UNION ALL ({_CORE} AND c.name = %(alias)s)
"""

_FALLBACK = f"""
    {_TOOL} LEFT JOIN tool_usage u ON u.user_id = v.user_id AND u.tool_id = v.tool_id WHERE {VISIBLE}
    ORDER BY t.pinned DESC, coalesce(u.called, 0) DESC, v.server_name, t.name LIMIT %(limit)s
"""
_OF_SERVER = f"""
    {_TOOL} WHERE {VISIBLE} AND v.server_name = %(server)s AND t.name > %(after)s
    ORDER BY t.name LIMIT %(limit)s
"""
_SERVERS = f"""
    SELECT s.name, s.description, s.status, count(*)
    FROM mcp_tool_embeddings v JOIN mcp_servers s ON s.user_id = v.user_id AND s.id = v.server_id
    WHERE {VISIBLE} GROUP BY s.id, s.name, s.description, s.status ORDER BY s.name
"""
_TOTALS = f"SELECT count(*), coalesce(sum(v.tokens), 0) FROM mcp_tool_embeddings v WHERE {VISIBLE}"


class DefinitionCache:
    """Offers that were read before, each good for the catalogue version that it was read at."""

    def __init__(self) -> None:
        self._tools: TTLCache[tuple[CacheKey, int, str], ToolDefinitionView] = TTLCache(
            _MAX_TOOL_BYTES, _CACHE_S, getsizeof=_estimate_bytes
        )
        self._core: TTLCache[tuple[str, int], Sequence[ToolDefinitionView]] = TTLCache(
            _MAX_CORE_TOOL_BYTES, _CACHE_S, getsizeof=lambda tools: _ENTRY_OVERHEAD + sum(map(_estimate_bytes, tools))
        )

    async def take(
        self, session: Session, scope: Scope, version: int, tool_ids: Sequence[str], *, core: bool
    ) -> DefinitionSet:
        """Of the tools, those that are visible. A narrowed scope is always read anew."""
        if not scope.narrowed and (known := self._known(scope, version, tool_ids, core=core)) is not None:
            return known
        offers = await read_definitions(session, scope, tool_ids, core=core)
        for tool_id, offer in offers.tools.items():
            self._tools[scope.place, version, tool_id] = offer
        if core:
            with suppress(ValueError):  # larger than the whole cache
                self._core[scope.user_id, version] = offers.core
        return offers

    def _known(self, scope: Scope, version: int, tool_ids: Sequence[str], *, core: bool) -> DefinitionSet | None:
        tools = {tool_id: self._tools.get((scope.place, version, tool_id)) for tool_id in tool_ids}
        native = self._core.get((scope.user_id, version)) if core else ()
        if native is None or None in tools.values():
            return None
        return DefinitionSet({tool_id: offer for tool_id, offer in tools.items() if offer is not None}, native)


def _estimate_bytes(tool: ToolDefinitionView) -> int:
    """Estimate the memory that a cached definition takes: mostly its texts."""
    texts = (tool.name, tool.title, tool.description, tool.input_schema, tool.output_schema, tool.annotations)
    return _ENTRY_OVERHEAD + sum(sys.getsizeof(text) for text in texts if text is not None)


async def read_definitions(session: Session, scope: Scope, tool_ids: Sequence[str], *, core: bool) -> DefinitionSet:
    """Core tools: everyone's first, then the user's own; of two with one name the user's own wins."""
    parameters = scope.parameters() | {"tool_ids": list(tool_ids), "core": core, "everyone": EVERYONE}
    offers = [ToolDefinitionView(*row) for row in await session.rows(_OFFERS, parameters)]
    native = {offer.name: offer for offer in offers if offer.server_id is None}
    return DefinitionSet({offer.tool_id: offer for offer in offers if offer.server_id}, list(native.values()))


async def find_by_alias(session: Session, scope: Scope, alias: str, digest: str) -> Sequence[ToolDefinitionView]:
    """Those that may be meant by a name that a model used: tools of that name or, where the name was made by us, of a
    key with these digits; and the core tool of that name."""
    parameters = scope.parameters() | {"alias": alias, "digest": digest, "everyone": EVERYONE}
    return [ToolDefinitionView(*row) for row in await session.rows(_CALLED, parameters)]


async def list_server_definitions(
    session: Session, scope: Scope, server: str, after: str, limit: int
) -> Sequence[ToolDefinitionView]:
    """Of the server of this name those that are visible, by name, beyond the name `after`."""
    parameters = scope.parameters() | {"server": server, "after": after, "limit": limit}
    return [ToolDefinitionView(*row) for row in await session.rows(_OF_SERVER, parameters)]


async def list_server_summaries(session: Session, scope: Scope) -> Sequence[ServerSummary]:
    """Those with a visible tool: of all others nothing is told."""
    return [ServerSummary(*row) for row in await session.rows(_SERVERS, scope.parameters())]


async def list_visible_definitions(session: Session, scope: Scope, limit: int) -> AllTools:
    """All that is visible, up to the limit, pinned and most used tools first: what is left when search itself fails."""
    [(searched, tokens)] = await session.rows(_TOTALS, scope.parameters())
    rows = await session.rows(_FALLBACK, scope.parameters() | {"limit": limit})
    return AllTools([ToolDefinitionView(*row) for row in rows], searched, int(tokens))
