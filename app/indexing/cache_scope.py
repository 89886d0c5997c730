"""Decides who shares a cached vector. The scope is part of the cache's keys.

If all users shared one cache, the duration of a push would tell whether somebody else has the same text. So a text is
private to the user who sent it. Public texts are shared: what a server lists for anybody who connects to its URL
without credentials, and the examples that ship with Toolscout. The tools of a shared server are shared by its members.
"""

import hashlib
from dataclasses import dataclass

from app.auth.users import User
from app.catalog.servers import Server
from app.db.tables import SHARED_OWNER
from app.text.strict_json import canonical_json


@dataclass(frozen=True)
class CacheScope:
    key: bytes = b""
    is_private: bool = False
    """Whether one user alone reads and fills it."""

    def hash_text(self, text: bytes) -> bytes:
        return hashlib.sha256(self.key + text).digest()


EVERYONE = CacheScope()
"""The scope of texts that ship with Toolscout, and of all texts for an inactive model, which no user can observe."""


def get_user_scope(user: User) -> CacheScope:
    """Return the scope of the user's own texts. A user who is deleted and created again gets another one."""
    return CacheScope(_hash_owner("user", user.id, user.created_at.isoformat()), is_private=True)


def get_server_scope(
    user: User, server: Server, *, pushed: bool = False, credentials_issued: bool = False
) -> CacheScope:
    """Return the scope of the server's tools: that of its URL if the server is public, otherwise that of the user.

    A shared server and its copies have one of their own. `pushed`: the tools come from the user, and may be others than
    those that the URL lists. `credentials_issued`: the operator's service may issue headers for any server.
    """
    if user.id == SHARED_OWNER or server.shared:
        return CacheScope(_hash_owner("shared", server.shared_id or server.id))
    is_remote = server.transport in ("streamable_http", "sse") and server.url is not None
    is_private = bool(server.header_names) or server.signed_in or server.status == "needs_authorization"
    if pushed or credentials_issued or not is_remote or is_private:
        return get_user_scope(user)
    return CacheScope(_hash_owner("url", server.transport, server.url))


def _hash_owner(*parts: str | None) -> bytes:
    return hashlib.sha256(canonical_json(list(parts))).digest()
