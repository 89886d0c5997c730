"""Who asks, for whom, and what they may do."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from cachetools import TTLCache

from app.auth.keys import KeyKind, get_active_key, hash_key
from app.auth.users import User, ensure_user, get_user
from app.db.engine import Database, Session
from app.errors import BadRequest, Forbidden, NotFound

# Long enough to spare the database at hundreds of requests a second, short enough that a revoked key ends within one.
_REMEMBERED_S = 0.5
_REMEMBERED_CALLERS = 10_000


class Permission(StrEnum):
    DISCOVER = "discover"
    READ_TOOLS = "tools:read"
    READ_CATALOG = "catalog:read"
    WRITE_CATALOG = "catalog:write"
    EXECUTE = "execute"
    READ_AUDIT = "audit:read"
    ADMINISTER = "administer"


_USER_PERMISSIONS = frozenset(Permission) - {Permission.ADMINISTER}
_PERMISSIONS_BY_KIND: Mapping[KeyKind, frozenset[Permission]] = {
    "user": _USER_PERMISSIONS,
    "service": _USER_PERMISSIONS,
    "admin": _USER_PERMISSIONS | {Permission.ADMINISTER},
}

# a project's key uses what the project shows: whoever could change or see what lies behind it could leave it
_PROJECT_KEY_PERMISSIONS = frozenset({Permission.DISCOVER, Permission.READ_TOOLS, Permission.EXECUTE})


@dataclass(frozen=True)
class Caller:
    """`user` is missing only for a service or admin key that named nobody."""

    kind: KeyKind
    key_id: str
    user: User | None
    project_id: str | None = None
    """That the key is bound to."""

    @property
    def actor(self) -> str:
        """For the audit."""
        return f"{self.kind}:{self.key_id}"

    def may(self, permission: Permission) -> bool:
        return permission in (_PERMISSIONS_BY_KIND[self.kind] if self.project_id is None else _PROJECT_KEY_PERMISSIONS)

    def demand(self, permission: Permission) -> None:
        if not self.may(permission):
            raise Forbidden(f"this key may not do that: it needs the permission {permission.value!r}")

    def acting_for(self) -> User:
        if self.user is None:
            raise BadRequest("this key acts for many users: name one in the header X-User-Id")
        return self.user

    def within(self, project_id: str | None) -> str | None:
        """The project that a request is confined to: the one it names, unless the key is bound to another."""
        if self.project_id is None:
            return project_id
        if project_id not in (None, self.project_id):
            raise NotFound("there is no such project")
        return self.project_id


class Authenticator:
    """Turns a presented key into a `Caller`, and remembers the answer for half a second."""

    def __init__(self, database: Database, bootstrap_key: str | None) -> None:
        self._database = database
        self._bootstrap_hash = None if bootstrap_key is None else hash_key(bootstrap_key)
        self._remembered: TTLCache[tuple[bytes, str | None], Caller] = TTLCache(_REMEMBERED_CALLERS, _REMEMBERED_S)

    async def authenticate(self, key: str, named_user: str | None) -> Caller:
        return await self.authenticate_digest(hash_key(key), named_user)

    async def authenticate_digest(self, digest: bytes, named_user: str | None) -> Caller:
        """For whoever has shown the key before, and keeps no more of it than we do."""
        caller = self._remembered.get((digest, named_user))
        if caller is None:
            async with self._database.system_transaction() as session:
                caller = await self._look_up(session, digest, named_user)
            self._remembered[digest, named_user] = caller
        return caller

    def forget(self) -> None:
        """After a change of keys or users, so that this process need not wait for its memory to fade."""
        self._remembered.clear()

    async def _look_up(self, session: Session, digest: bytes, named_user: str | None) -> Caller:
        if self._bootstrap_hash is not None and hmac.compare_digest(digest, self._bootstrap_hash):
            return await _acting(session, Caller("admin", "bootstrap", None), named_user)
        key = await get_active_key(session, digest)
        if key.user_id is None:
            return await _acting(session, Caller(key.kind, key.id, None), named_user)
        if named_user is not None and named_user != key.user_id:
            raise Forbidden("this key belongs to one user: leave out X-User-Id, or name that user")
        return Caller(key.kind, key.id, await get_user(session, key.user_id), key.project_id)


async def _acting(session: Session, caller: Caller, user_id: str | None) -> Caller:
    """For the user that it names, if any."""
    if user_id is None:
        return caller
    return replace(caller, user=await ensure_user(session, user_id, caller.actor))
