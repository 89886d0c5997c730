"""Tool keys: how a caller names one tool.

A key is, in this order: the tool's id; `serverId:toolName`; `server.tool`, with the longest server name that fits,
since names may contain dots; or the name of a core tool. The plain name of another tool is no key, because a second
server could add a tool of that name at any time; if several tools have it, the error lists them.

`_list_readings` says how a key can be read, and `_pick_best` which tool is meant. They serve both the database (a few
keys among a user's tools) and `ToolKeyIndex` (many keys among tools that are in memory).
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.catalog.availability import server_status_sql
from app.catalog.definitions import ToolDefinitionView, read_definitions
from app.catalog.visibility import VISIBLE, Scope
from app.db.engine import Session
from app.db.tables import EVERYONE
from app.errors import AmbiguousTool, NotFound, ToolNotFound, ToolscoutError
from app.text.suggestions import suggest_name

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLAIN_KEY = re.compile(r"\w[\w .@/+-]{0,199}")
_MAX_SEPARATORS = 32
_MAX_MATCHES = 5_000
_MAX_NEAR_NAMES = 250
_BY_ID, _BY_SERVER_ID, _BY_SERVER_NAME, _BY_NAME = range(4)

UNKNOWN_TOOL = "this tool does not exist, or you may not use it"
CORE_TOOL = "this is a core tool: your application runs it, not Toolscout"

_MATCHES = f"""
    WITH reading AS (
        SELECT * FROM unnest(%(keys)s::text[], %(kinds)s::int[], %(servers)s::text[], %(names)s::text[])
        AS reading (key, kind, server, name))
    SELECT r.key, r.kind, t.id, s.id, s.name, t.name, t.vanished_at IS NULL, EXISTS (
               SELECT 1 FROM mcp_tool_embeddings v
               WHERE {VISIBLE} AND v.tool_id = t.id AND t.vanished_at IS NULL)
    FROM reading r
    JOIN mcp_tools t ON t.user_id = %(user_id)s AND t.name = r.name
    JOIN mcp_servers s ON s.user_id = t.user_id AND s.id = t.server_id
        AND (r.kind = {_BY_SERVER_ID} AND s.id = r.server OR r.kind = {_BY_SERVER_NAME} AND s.name = r.server
             OR r.kind = {_BY_NAME})
    UNION ALL
    SELECT r.key, r.kind, c.id, NULL, NULL, c.name, true, true
    FROM reading r JOIN core_tools c ON c.name = r.name
    WHERE r.kind = {_BY_NAME} AND (c.user_id = %(user_id)s OR c.user_id = %(everyone)s AND NOT EXISTS (
        SELECT 1 FROM core_tools own WHERE own.user_id = %(user_id)s AND own.name = c.name))
    LIMIT {_MAX_MATCHES}
"""
# Of the servers that the key names first, then of a similar length: a user may have tens of thousands of tools.
_NEAR_NAMES = f"""
    SELECT v.server_name, v.tool_name FROM mcp_tool_embeddings v WHERE {VISIBLE}
    ORDER BY v.server_name = ANY(%(servers)s::text[]) DESC, abs(length(v.tool_name) - %(length)s),
             v.server_name, v.tool_name
    LIMIT {_MAX_NEAR_NAMES}
"""
_UNLISTED_SERVERS = f"""
    SELECT s.name FROM mcp_servers s
    WHERE s.user_id = %(user_id)s AND s.name = ANY(%(servers)s::text[]) AND s.tool_count = 0
    AND {server_status_sql("s")} = 'needs_authorization' ORDER BY length(s.name) DESC
"""
_CORE_TOOL_ID = "SELECT 1 FROM core_tools WHERE user_id IN (%(user_id)s, %(everyone)s) AND id = %(id)s"


class KeyedTool(NamedTuple):
    """A tool with all that a key can name it by. A core tool has no server."""

    tool_id: str
    server_id: str | None
    server_name: str | None
    name: str

    @property
    def qualified_name(self) -> str:
        return self.name if self.server_name is None else f"{self.server_name}.{self.name}"


@dataclass(frozen=True)
class _Match:
    kind: int
    tool: KeyedTool
    is_listed: bool = True
    """False if its server has removed the tool."""
    is_visible: bool = True

    @property
    def is_key(self) -> bool:
        """False for the plain name of a tool that has a server."""
        return self.kind != _BY_NAME or self.tool.server_name is None


class ToolKeyIndex:
    """Finds tools that are in memory by their keys. Here a plain name may stand for several tools."""

    def __init__(self, tools: Iterable[KeyedTool], separators: str = ".") -> None:
        self._separators = separators
        self._by_id: dict[str, KeyedTool] = {}
        self._by_name: defaultdict[str, list[KeyedTool]] = defaultdict(list)
        for tool in tools:
            self._by_id[tool.tool_id] = tool
            self._by_name[tool.name].append(tool)

    def find(self, key: str) -> list[KeyedTool]:
        return [match.tool for match in _pick_best(self._list_matches(key))]

    def resolve_keys(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the ids of the tools that the keys name; see the function `resolve_keys`."""
        return _resolve_keys(keys, self._list_matches)

    def find_all(self, key: str) -> list[KeyedTool]:
        """Return the tools that the key could name if there were no others."""
        return list({match.tool.tool_id: match.tool for match in self._list_matches(key)}.values())

    def _list_matches(self, key: str) -> list[_Match]:
        by_id = [_Match(_BY_ID, self._by_id[key])] if key in self._by_id else []
        return by_id + [
            _Match(kind, tool)
            for kind, server, name in _list_readings(key, self._separators)
            for tool in self._by_name.get(name, ())
            if kind == _BY_NAME or server == (tool.server_id if kind == _BY_SERVER_ID else tool.server_name)
        ]


def is_tool_id(key: str) -> bool:
    """Whether the key needs no look-up: ids, also those of core tools, are UUIDs."""
    return _ID.fullmatch(key) is not None


async def resolve_keys(session: Session, scope: Scope, keys: Sequence[str]) -> dict[str, str]:
    """Return the ids of the visible tools and core tools that the keys name, by key, in one statement.

    Keys that name no tool, or several, are left out. Ids are returned as they are.
    """
    matches = await _find_matches(session, scope, [key for key in keys if not is_tool_id(key)])
    return _resolve_keys(keys, lambda key: [match for match in matches[key] if match.is_visible])


async def resolve_stored_keys(session: Session, scope: Scope, keys: Sequence[str]) -> dict[str, str]:
    """Like `resolve_keys`, but also among the user's hidden tools and those that their servers have removed."""
    matches = await _find_matches(session, scope, [key for key in keys if not is_tool_id(key)])
    return _resolve_keys(keys, lambda key: matches[key])


def _resolve_keys(keys: Iterable[str], list_matches: Callable[[str], Sequence[_Match]]) -> dict[str, str]:
    ids: dict[str, str] = {}
    for key in keys:
        if is_tool_id(key):
            ids[key] = key
        elif (best := _pick_best(list_matches(key))) and best[0].is_key:
            ids[key] = best[0].tool.tool_id
    return ids


def make_short_key(tool: ToolDefinitionView) -> str | None:
    """Return `server.tool`, or None if this could also name another tool, or would be hard to copy.

    A tool's name without a dot is enough: then no other server's name in the key is longer.
    """
    if tool.server_name is None or "." in tool.name:
        return None
    key = f"{tool.server_name}.{tool.name}"
    return key if _PLAIN_KEY.fullmatch(key) and key.count(".") <= _MAX_SEPARATORS else None


def list_possible_names(key: str) -> set[str]:
    """Return the names that the tool may have which a key names."""
    return {name for _, _, name in _list_readings(key, ".")}


async def resolve_visible_key(session: Session, scope: Scope, key: str) -> str | None:
    """Return the id of the visible tool, or core tool, that the key names. Raise `AmbiguousTool` if it names several.

    If it names none of these but exactly one hidden tool, return the hidden one's id: a call of it is audited, and
    a repeated call of a tool that was hidden in the meantime gets its stored answer.
    """
    if is_tool_id(key):
        return key
    matches = (await _find_matches(session, scope, [key]))[key]
    visible = _pick_best([match for match in matches if match.is_visible])
    if visible:
        return _take_only(key, visible)
    return next((match.tool.tool_id for match in _pick_best(matches) if match.is_key), None)


async def require_visible_key(session: Session, scope: Scope, key: str) -> str:
    """As `resolve_visible_key`, but raise `ToolNotFound` if the key names no tool."""
    tool_id = await resolve_visible_key(session, scope, key)
    if tool_id is None:
        raise await _make_not_found(session, scope, key)
    return tool_id


async def _make_not_found(session: Session, scope: Scope, key: str) -> ToolNotFound:
    """Return the error for a key that names no visible tool, with the visible tool whose name is nearest.

    No other server's tool is suggested for one of a server that lists its tools only after a sign-in.
    """
    if is_tool_id(key):
        return ToolNotFound(UNKNOWN_TOOL)
    servers = [server for kind, server, _ in _list_readings(key, ".") if kind == _BY_SERVER_NAME]
    if scope.project_id is None:
        for (server,) in await session.rows(_UNLISTED_SERVERS, {"user_id": scope.user_id, "servers": servers}):
            return ToolNotFound(f"{UNKNOWN_TOOL}: the tools of {server!r} are listed once you have signed in to it")
    suggestion = await _suggest_tool(session, scope, key, servers)
    return ToolNotFound(UNKNOWN_TOOL if suggestion is None else f"{UNKNOWN_TOOL}; did you mean {suggestion}?")


async def _suggest_tool(session: Session, scope: Scope, key: str, servers: Sequence[str]) -> str | None:
    near = {"servers": list(servers), "length": len(key.rpartition(".")[2])}
    qualified_names = {}
    for server, name in await session.rows(_NEAR_NAMES, scope.parameters() | near):
        qualified_names[f"{server}.{name}"] = f"{server}.{name}"
        qualified_names.setdefault(name, f"{server}.{name}")
    nearest = await asyncio.to_thread(suggest_name, key, qualified_names)
    return None if nearest is None else qualified_names[nearest]


async def resolve_owned_key(session: Session, scope: Scope, key: str) -> str:
    """Return the id of the tool that the key names, among all tools of the user, or those that the project shows.

    Raise `NotFound` or `AmbiguousTool`.
    """
    if is_tool_id(key):
        return key
    matches = (await _find_matches(session, scope, [key]))[key]
    owned = [match for match in matches if match.tool.server_name is not None]
    if scope.project_id is not None:
        owned = [match for match in owned if match.is_visible]
    best = _pick_best([match for match in owned if match.is_listed]) or _pick_best(owned)
    tool_id = _take_only(key, best)
    if tool_id is None:
        raise NotFound("there is no such tool")
    return tool_id


async def read_tools(
    session: Session, scope: Scope, keys: Sequence[str]
) -> dict[str, ToolDefinitionView | ToolscoutError]:
    """Return the visible tool that each key names, or why there is none: `ToolNotFound` or `AmbiguousTool`."""
    matches = await _find_matches(session, scope, [key for key in keys if not is_tool_id(key)])
    visible = {key: _pick_best([match for match in matches[key] if match.is_visible]) for key in keys}
    ids = {
        key: key if is_tool_id(key) else next((m.tool.tool_id for m in visible[key] if m.is_key), "") for key in keys
    }
    definitions = (await read_definitions(session, scope, list(ids.values()), core=False)).tools
    found: dict[str, ToolDefinitionView | ToolscoutError] = {}
    for key in keys:
        if ids[key] in definitions:
            found[key] = definitions[ids[key]]
            continue
        try:  # for its error
            found[key] = await read_tool(session, scope, key)
        except (ToolNotFound, AmbiguousTool) as error:
            found[key] = error
    return found


async def read_tool(session: Session, scope: Scope, key: str, given_key: str | None = None) -> ToolDefinitionView:
    """Return the visible tool that the key names. Raise `ToolNotFound` or `AmbiguousTool`.

    `given_key` is what the caller has sent, if the key is the id that it stands for: the error for a hidden tool
    must not differ from that for a missing one.
    """
    tool_id = await require_visible_key(session, scope, key)
    definitions = await read_definitions(session, scope, [tool_id], core=False)
    if tool_id in definitions.tools:
        return definitions.tools[tool_id]
    named = given_key or key
    parameters = {"user_id": scope.user_id, "everyone": EVERYONE, "id": tool_id}
    if not is_tool_id(named) and await session.rows(_CORE_TOOL_ID, parameters):
        raise ToolNotFound(CORE_TOOL)
    raise await _make_not_found(session, scope, named)


def _take_only(key: str, best: Sequence[_Match]) -> str | None:
    if len(best) > 1:
        raise AmbiguousTool(key, [(match.tool.tool_id, match.tool.qualified_name) for match in best])
    return next((match.tool.tool_id for match in best if match.is_key), None)


async def _find_matches(session: Session, scope: Scope, keys: Iterable[str]) -> defaultdict[str, list[_Match]]:
    matches: defaultdict[str, list[_Match]] = defaultdict(list)
    readings = [(key, *reading) for key in dict.fromkeys(keys) for reading in _list_readings(key, ".")]
    if not readings:
        return matches
    columns = zip(("keys", "kinds", "servers", "names"), map(list, zip(*readings, strict=True)), strict=True)
    parameters = scope.parameters() | {"everyone": EVERYONE} | dict(columns)
    for key, kind, *tool, is_listed, is_visible in await session.rows(_MATCHES, parameters):
        matches[key].append(_Match(kind, KeyedTool(*tool), is_listed, is_visible))
    return matches


def _list_readings(key: str, separators: str) -> Iterator[tuple[int, str, str]]:
    """Yield each way to read the key: its kind, the server, the tool's name."""
    server, colon, name = key.partition(":")
    if colon:
        yield _BY_SERVER_ID, server, name
    positions = [position for position, character in enumerate(key) if character in separators]
    for position in positions[:_MAX_SEPARATORS]:
        yield _BY_SERVER_NAME, key[:position], key[position + 1 :]
    yield _BY_NAME, "", key


def _pick_best(matches: Sequence[_Match]) -> Sequence[_Match]:
    """Return the matches that the key means: several only if they have the same plain name."""
    kind = min((match.kind for match in matches), default=_BY_NAME)
    best = [match for match in matches if match.kind == kind]
    if kind == _BY_SERVER_NAME:
        return [max(best, key=lambda match: len(match.tool.server_name or ""))]
    core = [match for match in best if match.tool.server_name is None]
    return core[:1] or sorted(best, key=lambda match: match.tool.qualified_name)
