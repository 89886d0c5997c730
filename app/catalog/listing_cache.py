"""Cache what MCP clients list again and again: a user's servers, their tools, and the details of a tool.

An entry is valid for the catalogue version at which it was read. Every change of what a user sees gives the catalogue a
new version, so that replicas notice it with their next look. Entries of users and projects are kept apart.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import itemgetter

from app.catalog.visibility import Scope
from app.db.engine import Session
from app.limits.byte_cache import ByteCache
from app.text.strict_json import Json, dump_json, load_json

_MAX_LIST_BYTES = 32 * 1024 * 1024
_MAX_DETAILS_BYTES = 32 * 1024 * 1024

_SELECT_VERSION = "SELECT catalog_version FROM users WHERE id = %(user_id)s"

Read = Callable[[], Awaitable[Json]]
_Key = tuple[str, str | None, str, tuple[str, ...]]


@dataclass(frozen=True)
class _Entry:
    version: int
    body: bytes
    """JSON, so that nobody changes what others get, and so that its size is known."""


class ListingCache:
    def __init__(self, list_ttl_s: float) -> None:
        """Lists are kept for `list_ttl_s` seconds at most; 0: not at all. Details are kept until they change."""
        self._lists: ByteCache[_Key, _Entry] = ByteCache(_MAX_LIST_BYTES, get_owner=itemgetter(0), ttl_s=list_ttl_s)
        self._details: ByteCache[_Key, _Entry] = ByteCache(_MAX_DETAILS_BYTES, get_owner=itemgetter(0))

    async def get_list(self, session: Session, scope: Scope, request: tuple[str, ...], read: Read) -> Json:
        """Return what `read` returned for the same request at the catalogue's present version, or call it."""
        return await _get(self._lists, session, scope, request, read)

    async def get_at_version(self, scope: Scope, version: int, request: tuple[str, ...], read: Read) -> Json:
        """As `get_list`, for a caller that knows the version; kept until it changes.

        What `read` returns may be newer than the version: the next request has the new version, and reads it again.
        """
        return await _get_at_version(self._details, scope, version, request, read)

    async def get_details(self, session: Session, scope: Scope, tool_key: str, read: Read) -> Json:
        return await _get(self._details, session, scope, (tool_key,), read)


async def _get(
    cache: ByteCache[_Key, _Entry], session: Session, scope: Scope, request: tuple[str, ...], read: Read
) -> Json:
    # The version is read first: a change that is committed between the two statements then makes the entry outdated.
    rows = await session.rows(_SELECT_VERSION, {"user_id": scope.user_id})
    if not rows:  # the user was deleted meanwhile
        return await read()
    return await _get_at_version(cache, scope, rows[0][0], request, read)


async def _get_at_version(
    cache: ByteCache[_Key, _Entry], scope: Scope, version: int, request: tuple[str, ...], read: Read
) -> Json:
    key = (scope.user_id, scope.project_id, scope.model, request)
    cached = cache.get(key)
    if cached is not None and cached.version == version:
        found: Json = load_json(cached.body)
        return found
    result = await read()
    cache[key] = _Entry(version, dump_json(result))
    return result
