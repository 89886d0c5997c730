"""Turn API keys, and people whom the identity provider vouches for, into callers."""

import hmac
from dataclasses import replace

from cachetools import LRUCache

from app.auth.credentials import Credentials
from app.auth.identity import Identity
from app.auth.key_uses import KeyUses
from app.auth.keys import ApiKey, hash_key, read_active_key, select_key
from app.auth.permissions import Caller
from app.auth.users import User, change_groups, ensure_user, is_user_id, read_user, select_user
from app.db.engine import Database
from app.errors import Forbidden, Unauthenticated

_MAX_REMEMBERED_KEYS = 50_000


class Authenticator:
    """Looks up the caller that a key stands for, with every request, in one round trip.

    Nothing of the answer is cached, so that a revoked key ends, and a change of the user is seen, with the next request
    on every replica. Key and user are read by two statements, not by a join, since they may be on different shards.
    """

    def __init__(self, database: Database, bootstrap_key: str | None) -> None:
        """`bootstrap_key` is the admin key from the settings, which has no row in the database."""
        self._database = database
        self._bootstrap_hash = None if bootstrap_key is None else hash_key(bootstrap_key)
        self._user_ids: LRUCache[bytes, str] = LRUCache(_MAX_REMEMBERED_KEYS)
        """The users of valid keys, which never change. It only tells which user to read along with the key."""
        self.key_uses = KeyUses(database)

    async def authenticate_credentials(self, credentials: Credentials) -> Caller:
        subject, user_id = credentials
        if isinstance(subject, Identity):
            return await self.authenticate_identity(subject, user_id)
        return await self.authenticate_digest(subject, user_id)

    async def authenticate(self, key: str, user_id: str | None) -> Caller:
        """Return the caller, acting for `user_id` if one is named.

        Raise `Unauthenticated` for a key that is unknown, expired or revoked, and `Forbidden` for a user's key that
        names another user. A user that a service or admin key names for the first time is created.
        """
        return await self.authenticate_digest(hash_key(key), user_id)

    async def authenticate_digest(self, digest: bytes, user_id: str | None) -> Caller:
        """Like `authenticate`, with the key's hash: a console session holds no more of its key than the database."""
        if self._bootstrap_hash is not None and hmac.compare_digest(digest, self._bootstrap_hash):
            caller = Caller("admin", "bootstrap", None)
            return caller if user_id is None else await self._with_user(caller, user_id, await self._find_user(user_id))
        key, likely_user = await self._find_key(digest, self._user_ids.get(digest, user_id))
        if key.user_id is None:
            caller = Caller(key.kind, key.id, None)
            caller = caller if user_id is None else await self._with_user(caller, user_id, likely_user)
        elif user_id not in (None, key.user_id):
            raise Forbidden("this key belongs to one user: leave out X-User-Id, or name that user")
        else:
            is_found = likely_user is not None and likely_user.id == key.user_id
            user = likely_user if is_found else await self._find_user(key.user_id)
            # deleted since the key was read; or the key is of an earlier user of this id, and was on another node
            if user is None or key.created_at < user.created_at:
                raise Unauthenticated("the API key is unknown, expired or revoked")
            self._user_ids[digest] = user.id
            caller = Caller(key.kind, key.id, user, key.project_id)
        self.key_uses.record(digest, key)
        return caller

    async def authenticate_identity(self, identity: Identity, user_id: str | None) -> Caller:
        """Return the caller for a person, who is created as a user on first use.

        An administrator acts for the user that the request names. Raise `Forbidden` if somebody else names another
        user, and `Unauthenticated` if the user of a session was deleted.
        """
        is_for_other = user_id not in (None, identity.user_id)
        if is_for_other and not identity.is_admin:
            raise Forbidden("this token belongs to one user: leave out X-User-Id, or name that user")
        statements = [select_user(identity.user_id)]
        if is_for_other and user_id is not None and is_user_id(user_id):
            statements.append(select_user(user_id))
        own_rows, *other_rows = await self._database.system_fetch(statements, urgent=True)
        caller = Caller("admin" if identity.is_admin else "user", identity.key_id, None)
        own_user = await self._update_own_user(identity, read_user(own_rows), caller.actor)
        if not identity.is_admin or user_id == identity.user_id:
            return replace(caller, user=own_user)
        caller = replace(caller, own_user=own_user)
        if user_id is None:
            return caller
        return await self._with_user(caller, user_id, read_user(other_rows[0]) if other_rows else None)

    async def _update_own_user(self, identity: Identity, user: User | None, actor: str) -> User:
        """Return the person's user, with the groups of the identity; create it if there is none."""
        if identity.user_created_at is not None:
            if user is None or user.created_at != identity.user_created_at:
                raise Unauthenticated("the user of this session was deleted: sign in again")
            return user
        groups = list(identity.groups or ())
        if user is None or list(user.groups) != groups:
            async with self._database.system_transaction() as session:
                user = await ensure_user(session, identity.user_id, actor)
                if list(user.groups) != groups:
                    user = await change_groups(session, user.id, groups, actor)
        return user

    async def _find_key(self, digest: bytes, user_id: str | None) -> tuple[ApiKey, User | None]:
        """Return the key with this hash and the user with this id, if there is one.

        Raise `Unauthenticated` if the key is not valid now.
        """
        statements = [select_key(digest)]
        if user_id is not None and is_user_id(user_id):
            statements.append(select_user(user_id))
        key_rows, *user_rows = await self._database.system_fetch(statements, urgent=True)
        return read_active_key(key_rows), read_user(user_rows[0]) if user_rows else None

    async def _find_user(self, user_id: str) -> User | None:
        if not is_user_id(user_id):
            return None
        [rows] = await self._database.system_fetch([select_user(user_id)], urgent=True)
        return read_user(rows)

    async def _with_user(self, caller: Caller, user_id: str, user: User | None) -> Caller:
        """Let the caller act for the user that it names, and create the user if there is none."""
        if user is None:
            async with self._database.system_transaction() as session:
                user = await ensure_user(session, user_id, caller.actor)
        return replace(caller, user=user)
