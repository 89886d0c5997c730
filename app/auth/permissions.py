"""Who sends a request, for which user, and what they may do."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.auth.keys import KeyKind
from app.auth.users import User
from app.errors import BadRequest, Forbidden, NotFound


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

# A key that is bound to a project uses what the project shows. One that could read or change the whole catalogue could
# widen its own project.
_PROJECT_KEY_PERMISSIONS = frozenset({Permission.DISCOVER, Permission.READ_TOOLS, Permission.EXECUTE})


@dataclass(frozen=True)
class Caller:
    """`user` is None only for a service key or an administrator that names no user."""

    kind: KeyKind
    key_id: str
    user: User | None
    project_id: str | None = None
    """The project that the key is bound to."""
    own_user: User | None = None
    """The administrator's own, if it is a person whom the identity provider knows: the one to act for where a request
    names nobody and somebody is needed, since MCP clients that sign in cannot add a header."""

    @property
    def actor(self) -> str:
        """The caller's name in audit events."""
        return f"{self.kind}:{self.key_id}"

    def has_permission(self, permission: Permission) -> bool:
        return permission in (_PERMISSIONS_BY_KIND[self.kind] if self.project_id is None else _PROJECT_KEY_PERMISSIONS)

    def require_permission(self, permission: Permission) -> None:
        """Raise `Forbidden` if the caller does not have the permission."""
        if not self.has_permission(permission):
            raise Forbidden(f"this key may not do that: it needs the permission {permission.value!r}")

    @property
    def audit_since(self) -> datetime | None:
        """The time from which the caller may read audit events: all for administrators, otherwise the user's own,
        without those of a deleted user who had the same id."""
        is_admin = self.has_permission(Permission.ADMINISTER)
        return None if is_admin or self.user is None else self.user.created_at

    def require_user(self) -> User:
        """Return the user that the caller acts for, or raise `BadRequest` if the request names none."""
        user = self.user or self.own_user
        if user is None:
            raise BadRequest("this key acts for many users: name one in the header X-User-Id")
        return user

    def resolve_project(self, project_id: str | None) -> str | None:
        """Return the project that a request is confined to: the one it names, or the one its key is bound to.

        Raise `NotFound` if the key is bound to another project than the one the request names.
        """
        if self.project_id is None:
            return project_id
        if project_id not in (None, self.project_id):
            raise NotFound("there is no such project")
        return self.project_id
