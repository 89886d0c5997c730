"""The roll-out: for which users messages are searched. All others get all their tools, up to the limit."""

import hashlib
from dataclasses import dataclass
from typing import Literal

from app.auth.users import User

_STEPS = 10_000
"""A hundredth of a percent is the smallest step."""


DecidedBy = Literal["global", "user", "percent"]


@dataclass(frozen=True)
class Rollout:
    enabled: bool = True
    """False: nobody's messages are searched, whatever is set for a user."""
    percent: float = 100.0
    """The share of the users for whom nothing is set."""

    def includes(self, user: User) -> bool:
        match self.decided_by(user):
            case "global":
                return False
            case "user":
                return user.discovery_enabled
            case "percent":
                return compute_position(user.id) < self.percent

    def decided_by(self, user: User) -> DecidedBy:
        """A choice for the user takes precedence over the percentage. Off is always somebody's choice."""
        if not self.enabled:
            return "global"
        return "user" if user.discovery_pinned or not user.discovery_enabled else "percent"


def compute_position(user_id: str) -> float:
    """Return the user's place between 0 and 100, which never changes: a higher percentage only adds users."""
    digest = hashlib.sha256(user_id.encode()).hexdigest()
    return int(digest[:8], 16) % _STEPS * 100 / _STEPS
