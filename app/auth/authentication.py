"""Turn API keys into callers."""

import hmac
from dataclasses import replace

from cachetools import TTLCache

from app.auth.keys import get_active_key, hash_key
from app.auth.permissions import Caller
from app.auth.users import ensure_user, get_user
from app.db.engine import Database, Session
from app.errors import Forbidden

# long enough to spare the database at hundreds of requests a second, short enough that a revoked key ends within one
_CACHE_TTL_S = 0.5
_CACHE_SIZE = 10_000


class Authenticator:
    """Looks up the caller that a key stands for, and caches it for half a second."""

    def __init__(self, database: Database, bootstrap_key: str | None) -> None:
        """`bootstrap_key` is the admin key from the settings, which has no row in the database."""
        self._database = database
        self._bootstrap_hash = None if bootstrap_key is None else hash_key(bootstrap_key)
        self._cache: TTLCache[tuple[bytes, str | None], Caller] = TTLCache(_CACHE_SIZE, _CACHE_TTL_S)

    async def authenticate(self, key: str, user_id: str | None) -> Caller:
        """Return the caller, acting for `user_id` if one is named.

        Raise `Unauthenticated` for a key that is unknown, expired or revoked, and `Forbidden` for a user's key that
        names another user. A user that a service or admin key names for the first time is created.
        """
        return await self.authenticate_digest(hash_key(key), user_id)

    async def authenticate_digest(self, digest: bytes, user_id: str | None) -> Caller:
        """Like `authenticate`, with the key's hash: a console session holds no more of its key than the database."""
        caller = self._cache.get((digest, user_id))
        if caller is None:
            async with self._database.system_transaction() as session:
                caller = await self._load_caller(session, digest, user_id)
            self._cache[digest, user_id] = caller
        return caller

    def clear_cache(self) -> None:
        """After a change of keys or users, so that it takes effect in this process at once."""
        self._cache.clear()

    async def _load_caller(self, session: Session, digest: bytes, user_id: str | None) -> Caller:
        if self._bootstrap_hash is not None and hmac.compare_digest(digest, self._bootstrap_hash):
            return await _with_user(session, Caller("admin", "bootstrap", None), user_id)
        key = await get_active_key(session, digest)
        if key.user_id is None:
            return await _with_user(session, Caller(key.kind, key.id, None), user_id)
        if user_id is not None and user_id != key.user_id:
            raise Forbidden("this key belongs to one user: leave out X-User-Id, or name that user")
        return Caller(key.kind, key.id, await get_user(session, key.user_id), key.project_id)


async def _with_user(session: Session, caller: Caller, user_id: str | None) -> Caller:
    """Let the caller act for the user that it names, if any."""
    if user_id is None:
        return caller
    return replace(caller, user=await ensure_user(session, user_id, caller.actor))
