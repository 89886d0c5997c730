"""Request and response models of users."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from app.auth.rollout import DecidedBy, Rollout
from app.auth.users import USER_ID_PATTERN, User
from app.schemas.base import Changes, Input, Name, Output, ShownText, make_synonyms
from app.search.scoring import Strategy

UserId = Annotated[str, Field(pattern=USER_ID_PATTERN, examples=["alice"])]

_DEFAULT = "used where neither the request nor the project sets it"
_NAME = "a display name"


class UserSettings(Input):
    strategy: Strategy | None = Field(None, description=_DEFAULT)
    similarity_threshold: float | None = Field(None, ge=0, le=1, description=_DEFAULT)
    limit: int | None = Field(None, ge=1, le=50, description=_DEFAULT)
    selection_log: bool | None = Field(None, description="store messages and the tools selected for them, for a while")
    learn_from_use: bool | None = Field(
        None,
        description="false: nothing is learnt from this user's messages, and what was learnt does not count; null: as "
        "`TOOLSCOUT_LEARN_FROM_USE` says",
    )


class NewUserBody(Input):
    synonyms = make_synonyms(
        id="user_id user key",
    )

    id: UserId = Field(description="the id that the chat backend uses")
    name: Name | None = Field(None, description=_NAME)


class UserChanges(Changes):
    name: Name | None = Field(None, description=_NAME)
    discovery_enabled: bool | None = Field(
        None,
        description="false: every answer holds all tools, up to the limit; null: as `TOOLSCOUT_ROLLOUT_PERCENT` says",
    )
    settings: UserSettings = Field(UserSettings(), description="defaults of the user's discoveries")


class UserOut(Output):
    id: str
    name: ShownText | None
    settings: dict[str, Any]
    discovery_enabled: bool = Field(description="whether the user's messages are searched")
    discovery_decided_by: DecidedBy = Field(
        description="what decides it: `user`, the user's own flag; `percent`, `TOOLSCOUT_ROLLOUT_PERCENT`; `global`, "
        "`TOOLSCOUT_DISCOVERY` is off for everyone"
    )
    tool_count: int
    groups: list[ShownText] = Field(description="as the identity provider named them at the user's last sign-in")
    created_at: datetime

    @classmethod
    def of(cls, user: User, rollout: Rollout) -> "UserOut":
        return cls(
            id=user.id,
            name=user.name,
            settings=dict(user.settings),
            discovery_enabled=rollout.includes(user),
            discovery_decided_by=rollout.decided_by(user),
            tool_count=user.tool_count,
            groups=list(user.groups),
            created_at=user.created_at,
        )
