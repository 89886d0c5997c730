"""People whom the identity provider vouches for."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Identity:
    issuer: str
    user_id: str
    is_admin: bool
    groups: tuple[str, ...] | None
    """Sorted. None if they are not known, as in a session of the console, which began when they were stored."""
    user_created_at: datetime | None = None
    """When the user was created whom a session of the console is for: it does not pass to a later namesake."""

    @property
    def key_id(self) -> str:
        """What stands for the id of a key in audit events."""
        return f"oidc:{self.user_id}"
