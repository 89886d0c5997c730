"""What may be said of users and keys."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field, field_validator

from app.auth.keys import KeyKind
from app.auth.users import USER_ID_PATTERN
from app.schemas.base import Identifier, Input, Name
from app.search.scoring import Strategy

UserId = Annotated[str, Field(pattern=USER_ID_PATTERN, examples=["alice"])]

_UNLESS_ASKED = "of requests that name none, where no project does"
_NAME = "for people"


class UserSettings(Input):
    strategy: Strategy | None = Field(None, description=_UNLESS_ASKED)
    similarity_threshold: float | None = Field(None, ge=0, le=1, description=_UNLESS_ASKED)
    limit: int | None = Field(None, ge=1, le=50, description=_UNLESS_ASKED)
    selection_log: bool | None = Field(None, description="keep messages and what was chosen for them, for a while")


class NewUserBody(Input):
    id: UserId = Field(description="the chat backend's own")
    name: Name | None = Field(None, description=_NAME)


class UserChanges(Input):
    name: Name | None = Field(None, description=_NAME)
    discovery_enabled: bool = Field(True, description="false: every answer offers all tools, up to the limit")
    settings: UserSettings = Field(UserSettings(), description="what discovery does where a request does not say")


class NewKeyBody(Input):
    kind: KeyKind = Field(description="`user` acts for one user, `service` and `admin` for the one in `X-User-Id`")
    name: Name | None = Field(None, description=_NAME)
    user_id: UserId | None = Field(None, description="whose, of a user key")
    project_id: Identifier | None = Field(None, description="the key sees and runs what this project shows, no more")
    expires_at: datetime | None = Field(
        None, strict=False, description="null: never", examples=["2030-01-01T00:00:00Z"]
    )

    @field_validator("expires_at")
    @classmethod
    def _in_the_future(cls, value: datetime | None) -> datetime | None:
        if value is None:
            return None
        try:
            moment = value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
        except OverflowError as error:
            raise ValueError("lies beyond what a calendar holds") from error
        if moment <= datetime.now(UTC):
            raise ValueError("must lie in the future")
        return moment
