"""Request and response models of API keys."""

from datetime import UTC, datetime

from pydantic import Field, field_validator

from app.auth.keys import KeyKind
from app.schemas.base import Identifier, Input, Name, Output, ShownText, make_synonyms
from app.schemas.users import UserId


class NewKeyBody(Input):
    synonyms = make_synonyms(
        user_id="user",
        project_id="project",
        kind="type role",
        expires_at="expires ttl",
    )

    kind: KeyKind = Field(description="`user` acts for one user, `service` and `admin` for the one in `X-User-Id`")
    name: Name | None = Field(None, description="a display name")
    user_id: UserId | None = Field(None, description="the user that a user key acts for")
    project_id: Identifier | None = Field(None, description="limits the key to the tools of this project")
    expires_at: datetime | None = Field(
        None, strict=False, description="null: never", examples=["2030-01-01T00:00:00Z"]
    )

    @field_validator("expires_at")
    @classmethod
    def _check_future(cls, value: datetime | None) -> datetime | None:
        if value is None:
            return None
        try:
            expires_at = value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
        except OverflowError as error:
            raise ValueError("must be before the year 10000") from error
        if expires_at <= datetime.now(UTC):
            raise ValueError("must be in the future")
        return expires_at


class KeyOut(Output):
    id: str
    kind: KeyKind
    name: ShownText | None
    prefix: str
    user_id: str | None
    project_id: str | None
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    created_at: datetime


class CreatedKeyOut(KeyOut):
    key: str = Field(description="shown only once: the database holds its hash alone")
