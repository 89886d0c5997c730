"""Tool definitions as a model gets them, read by every discovery."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from app.catalog import own_texts
from app.catalog.availability import Availability, get_availability, server_status_sql
from app.catalog.visibility import TAGS, VISIBLE, CacheKey, Scope
from app.db.engine import Reader, Session
from app.db.tables import EVERYONE
from app.limits.byte_cache import ByteCache
from app.mcp_meta import MAX_ICON_BYTES, filter_tool_meta
from app.text.invisible import remove_hidden
from app.text.strict_json import dump_json, load_json

_MAX_TOOL_BYTES = 64 * 1024 * 1024
_MAX_CORE_TOOL_BYTES = 32 * 1024 * 1024
_ENTRY_OVERHEAD = 1_000
_CACHE_TTL_S = 600.0
MAX_META_BYTES = 16 * 1024


@dataclass(frozen=True)
class ToolDefinitionView:
    """A visible tool, or a core tool, which has no server. JSON parts are texts, as they are stored."""

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
    has_shared_name: bool
    flags: Sequence[str] = ()
    server_status: str | None = None
    icons: str | None = None
    meta: str | None = None
    """`_meta`, without the keys that a server may not set. As the icons, it is meant for hosts and not for models."""

    @property
    def availability(self) -> Availability:
        return get_availability(self.server_status)


@dataclass(frozen=True)
class DefinitionSet:
    tools: dict[str, ToolDefinitionView]
    """By id, without those that are not visible."""
    core: Sequence[ToolDefinitionView]
    version: int | None
    """Of the user's catalogue when they were read; None if the user no longer exists."""


@dataclass(frozen=True)
class AllTools:
    definitions: Sequence[ToolDefinitionView]
    searched: int
    tokens: int


@dataclass(frozen=True)
class SearchableTool:
    """What of a visible tool is searched. The schema is a text, as it is stored."""

    tool_id: str
    server_name: str
    name: str
    description: str
    input_schema: str
    tags: Sequence[str]


@dataclass(frozen=True)
class ServerSummary:
    """A server with the number of its visible tools."""

    name: str
    description: str | None
    status: str
    tools: int


def _icons_sql(icons: str) -> str:
    small = f"json_array_elements({icons}) icon WHERE octet_length(icon::text) <= {MAX_ICON_BYTES}"
    return f"CASE WHEN {icons} IS NOT NULL THEN (SELECT json_agg(icon)::text FROM {small}) END"


def _meta_sql(meta: str) -> str:
    return f"CASE WHEN octet_length(({meta})::text) <= {MAX_META_BYTES} THEN ({meta})::text END"


HAS_SHARED_NAME = """
    EXISTS (SELECT 1 FROM mcp_tools o JOIN mcp_tool_embeddings w
            ON w.user_id = %(user_id)s AND w.tool_id = o.id AND w.model = %(model)s
            WHERE o.user_id = %(user_id)s AND o.name = t.name AND o.id <> t.id
            AND (%(project)s::bigint IS NULL OR %(project)s::bigint = ANY(w.projects)))
    OR EXISTS (SELECT 1 FROM core_tools c WHERE c.user_id IN (%(user_id)s, '') AND c.name = t.name)
"""
"""Whether another tool of the scope has the name of `mcp_tools t`."""

TOOL_COLUMNS = f"""
    t.id, t.server_id, v.server_name, t.name, {own_texts.TITLE}, {own_texts.DESCRIPTION},
    t.input_schema::text, t.output_schema::text, ({own_texts.ANNOTATIONS})::text, t.tokens,
    {HAS_SHARED_NAME},
    ARRAY(SELECT DISTINCT finding ->> 'flag' FROM jsonb_array_elements(t.findings) finding ORDER BY 1),
    {server_status_sql("s")}, {_icons_sql("t.icons")}, {_meta_sql("t.meta")}
"""
"""The fields of a `ToolDefinitionView`, as columns of `TOOL_SOURCE`."""

TOOL_SOURCE = """
    mcp_tool_embeddings v
    JOIN mcp_tools t ON t.user_id = v.user_id AND t.id = v.tool_id
    JOIN mcp_servers s ON s.user_id = v.user_id AND s.id = v.server_id
"""

_TOOL = f"SELECT {TOOL_COLUMNS} FROM {TOOL_SOURCE}"

CORE_COLUMNS = f"""
    c.id, NULL, NULL, c.name, c.definition ->> 'title', c.definition ->> 'description',
    (c.definition -> 'inputSchema')::text, (c.definition -> 'outputSchema')::text,
    (c.definition -> 'annotations')::text, c.tokens, false, '{{}}'::text[], NULL,
    {_icons_sql("(c.definition -> 'icons')")}, {_meta_sql("c.definition -> '_meta'")}
"""
"""The fields of a `ToolDefinitionView`, as columns of `CORE_SOURCE`."""

CORE_SOURCE = "core_tools c WHERE (c.user_id = %(user_id)s OR c.user_id = %(everyone)s)"

_CORE = f"SELECT {CORE_COLUMNS} FROM {CORE_SOURCE}"

# one statement for all, since every discovery needs all, and so that they are of the same version
_SELECTED = f"""
    SELECT u.version, selected.*
    FROM (SELECT (SELECT catalog_version FROM users WHERE id = %(user_id)s) AS version) u LEFT JOIN (
        {_TOOL} WHERE {VISIBLE} AND v.tool_id = ANY(%(tool_ids)s)
        UNION ALL ({_CORE} AND %(core)s ORDER BY c.user_id, c.position)
    ) selected ON true
"""

_BY_ALIAS = f"""
    {_TOOL} WHERE {VISIBLE} AND (
        v.tool_name = %(alias)s OR starts_with(encode(sha256(convert_to(v.tool_id, 'UTF8')), 'hex'), %(digest)s))
    UNION ALL ({_CORE} AND c.name = %(alias)s)
"""

_FALLBACK = f"""
    {_TOOL} LEFT JOIN tool_usage u ON u.user_id = v.user_id AND u.tool_id = v.tool_id WHERE {VISIBLE}
    ORDER BY t.pinned DESC, coalesce(u.called, 0) DESC, v.server_name, t.name LIMIT %(limit)s
"""
_BY_SERVER = f"""
    {_TOOL} WHERE {VISIBLE} AND v.server_name = %(server)s AND t.name > %(after)s
    ORDER BY t.name LIMIT %(limit)s
"""
_SERVERS = f"""
    SELECT s.name, s.description, {server_status_sql("s")}, count(*)
    FROM mcp_tool_embeddings v JOIN mcp_servers s ON s.user_id = v.user_id AND s.id = v.server_id
    WHERE {VISIBLE} GROUP BY s.id, s.name, s.description, s.transport, s.status, s.last_cause ORDER BY s.name
"""
HAS_TOOLS = "SELECT EXISTS (SELECT 1 FROM mcp_tools t WHERE t.user_id = %(user_id)s AND t.vanished_at IS NULL)"
_HAS_VISIBLE_TOOLS = f"SELECT EXISTS (SELECT 1 FROM mcp_tool_embeddings v WHERE {VISIBLE})"
# The narrow rows are sorted and limited before the wide ones are read.
_SEARCHABLE = f"""
    SELECT t.id, best.server_name, t.name, {own_texts.DESCRIPTION}, t.input_schema::text, best.tags
    FROM (SELECT v.tool_id, v.server_name, v.tool_name, {TAGS} AS tags, first.position
          FROM mcp_tool_embeddings v
          LEFT JOIN unnest(%(first)s::text[]) WITH ORDINALITY AS first (tool_id, position) ON first.tool_id = v.tool_id
          WHERE {VISIBLE}
          ORDER BY first.position NULLS LAST, v.server_name, v.tool_name LIMIT %(limit)s) best
    JOIN mcp_tools t ON t.user_id = %(user_id)s AND t.id = best.tool_id
    ORDER BY best.position NULLS LAST, best.server_name, best.tool_name
"""
_TOTALS = f"SELECT count(*), coalesce(sum(v.tokens), 0) FROM mcp_tool_embeddings v WHERE {VISIBLE}"


class DefinitionCache:
    """Caches definitions. An entry is valid for the catalogue version at which it was read."""

    def __init__(self) -> None:
        self._tools: ByteCache[tuple[CacheKey, int, str], ToolDefinitionView] = ByteCache(
            _MAX_TOOL_BYTES, get_owner=lambda key: key[0][0], measure=_estimate_bytes, ttl_s=_CACHE_TTL_S
        )
        self._core: ByteCache[tuple[str, int], Sequence[ToolDefinitionView]] = ByteCache(
            _MAX_CORE_TOOL_BYTES,
            get_owner=itemgetter(0),
            measure=lambda tools: sum(map(_estimate_bytes, tools)),
            ttl_s=_CACHE_TTL_S,
        )

    async def get_many(
        self, reader: Reader, scope: Scope, version: int, tool_ids: Sequence[str], *, core: bool
    ) -> DefinitionSet:
        """Return those of the tools that are visible and, with `core`, the core tools.

        A filtered scope is always read from the database: it differs from request to request.
        """
        if not scope.is_filtered and (cached := self._get_cached(scope, version, tool_ids, core=core)) is not None:
            return cached
        definitions = await read_definitions(reader, scope, tool_ids, core=core)
        if definitions.version is not None:  # it may be newer than the one that was asked for
            self._keep(scope, definitions.version, definitions, core=core)
        return definitions

    def _keep(self, scope: Scope, version: int, definitions: DefinitionSet, *, core: bool) -> None:
        for tool_id, definition in definitions.tools.items():
            self._tools[scope.cache_key, version, tool_id] = definition
        if core:
            self._core[scope.user_id, version] = definitions.core

    def _get_cached(self, scope: Scope, version: int, tool_ids: Sequence[str], *, core: bool) -> DefinitionSet | None:
        """Return None unless all of them are cached."""
        tools = {tool_id: self._tools.get((scope.cache_key, version, tool_id)) for tool_id in tool_ids}
        core_tools = self._core.get((scope.user_id, version)) if core else ()
        if core_tools is None or None in tools.values():
            return None
        known = {tool_id: tool for tool_id, tool in tools.items() if tool is not None}
        return DefinitionSet(known, core_tools, version)


def _estimate_bytes(tool: ToolDefinitionView) -> int:
    """Estimate the memory that a cached definition takes: mostly its texts."""
    schemas = tool.input_schema, tool.output_schema, tool.annotations, tool.icons, tool.meta
    texts = tool.name, tool.title, tool.description, *schemas
    return _ENTRY_OVERHEAD + sum(sys.getsizeof(text) for text in texts if text is not None)


def to_view(row: Sequence[Any]) -> ToolDefinitionView:
    """Return the definition for a row of its columns.

    Texts of tools were cleaned when they were stored; the server's name was not, in older versions.
    """
    view = ToolDefinitionView(*row)
    if view.meta is not None:
        meta = filter_tool_meta(load_json(view.meta))
        view = replace(view, meta=dump_json(meta).decode() if meta else None)
    return view if view.server_name is None else replace(view, server_name=remove_hidden(view.server_name))


async def read_definitions(reader: Reader, scope: Scope, tool_ids: Sequence[str], *, core: bool) -> DefinitionSet:
    """Return those of the tools that are visible and, with `core`, the core tools.

    Core tools of everyone come first, then those of the user. A user's core tool replaces one of the same name.
    """
    parameters = scope.parameters() | {"tool_ids": list(tool_ids), "core": core, "everyone": EVERYONE}
    rows = await reader.rows(_SELECTED, parameters)
    definitions = [to_view(row) for _, *row in rows if row[0] is not None]
    core_tools = unique_by_name(tool for tool in definitions if tool.server_id is None)
    return DefinitionSet({tool.tool_id: tool for tool in definitions if tool.server_id}, core_tools, rows[0][0])


def unique_by_name(core_tools: Iterable[ToolDefinitionView]) -> list[ToolDefinitionView]:
    """Return the core tools of everyone, then those of the user, where each replaces one of the same name."""
    return list({tool.name: tool for tool in core_tools}.values())


async def find_by_alias(session: Session, scope: Scope, alias: str, digest: str) -> Sequence[ToolDefinitionView]:
    """Return the tools that a model may mean by an alias: those of that name, those whose id has this digest (which
    a generated alias ends with), and the core tool of that name."""
    parameters = scope.parameters() | {"alias": alias, "digest": digest, "everyone": EVERYONE}
    return [to_view(row) for row in await session.rows(_BY_ALIAS, parameters)]


async def list_server_definitions(
    session: Session, scope: Scope, server: str, after: str, limit: int
) -> Sequence[ToolDefinitionView]:
    """Return visible tools of the server with this name, by name, beginning after the name `after`."""
    parameters = scope.parameters() | {"server": server, "after": after, "limit": limit}
    return [to_view(row) for row in await session.rows(_BY_SERVER, parameters)]


async def list_server_summaries(session: Session, scope: Scope) -> Sequence[ServerSummary]:
    """Return the servers that have a visible tool. Others are not revealed."""
    rows = await session.rows(_SERVERS, scope.parameters())
    return [ServerSummary(remove_hidden(name), remove_hidden(description), *rest) for name, description, *rest in rows]


async def has_tools(reader: Reader, scope: Scope, *, confined: bool) -> bool:
    """Return whether there is any tool, apart from the filters of the request.

    A hidden tool counts. If the caller is confined to the project of the scope, only what the project shows counts:
    other tools do not exist for that caller.
    """
    statement = _HAS_VISIBLE_TOOLS if confined else HAS_TOOLS
    [(exists,)] = await reader.rows(statement, scope.without_filters().parameters())
    return bool(exists)


async def list_visible_definitions(session: Session, scope: Scope, limit: int) -> AllTools:
    """Return all visible tools up to the limit, pinned and most used ones first: the fallback if the search fails."""
    searched, tokens = await count_visible(session, scope)
    rows = await session.rows(_FALLBACK, scope.parameters() | {"limit": limit})
    return AllTools([to_view(row) for row in rows], searched, tokens)


async def count_visible(session: Session, scope: Scope) -> tuple[int, int]:
    """Return the number of visible tools, and the tokens of their definitions together."""
    [(searched, tokens)] = await session.rows(_TOTALS, scope.parameters())
    return searched, int(tokens)


async def list_searchable(
    session: Session, scope: Scope, limit: int, first: Sequence[str] = ()
) -> Sequence[SearchableTool]:
    """Return visible tools up to the limit: those with an id in `first` in that order, then the others by name."""
    rows = await session.rows(_SEARCHABLE, scope.parameters() | {"first": list(first), "limit": limit})
    return [SearchableTool(*row) for row in rows]
