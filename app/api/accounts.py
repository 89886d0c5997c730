"""REST: users and keys, for administrators."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field, field_validator

from app import audit
from app.accounts import keys, users
from app.accounts.keys import KeyKind
from app.accounts.users import USER_ID_PATTERN
from app.api.intake import StrictRoute
from app.api.shapes import Identifier, Input, Items, Name, Output, given, items
from app.database.engine import Session
from app.dependencies import Administering, Paged, SystemSession, Wired
from app.errors import InvalidInput
from app.search.ranking import Strategy
from app.wiring import Container

router = APIRouter(tags=["accounts"], route_class=StrictRoute)

UserId = Annotated[str, Field(pattern=USER_ID_PATTERN, examples=["alice"])]


class UserSettings(Input):
    strategy: Strategy | None = None
    similarity_threshold: float | None = Field(None, ge=0, le=1)
    limit: int | None = Field(None, ge=1, le=50)
    selection_log: bool | None = Field(None, description="keep messages and what was chosen for them, for a while")


class NewUserBody(Input):
    id: UserId
    name: Name | None = None


class UserChanges(Input):
    name: Name | None = None
    discovery_enabled: bool = True
    settings: UserSettings = UserSettings()


class UserOut(Output):
    id: str
    name: str | None
    settings: dict[str, Any]
    discovery_enabled: bool
    tool_count: int
    created_at: datetime


class NewKeyBody(Input):
    kind: KeyKind
    name: Name | None = None
    user_id: UserId | None = None
    project_id: Identifier | None = Field(None, description="the key sees and runs what this project shows, no more")
    expires_at: datetime | None = Field(None, strict=False, examples=["2030-01-01T00:00:00Z"])

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


class KeyOut(Output):
    id: str
    kind: KeyKind
    name: str | None
    prefix: str
    user_id: str | None
    project_id: str | None
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    created_at: datetime


class CreatedKeyOut(KeyOut):
    key: str = Field(description="shown this once; only its hash is stored")


@router.post("/users", status_code=201)
async def create_user(body: NewUserBody, session: SystemSession, caller: Administering) -> UserOut:
    user = await users.create_user(session, body.id, body.name)
    await audit.record(session, user.id, caller.actor, "user.create", user.id)
    return UserOut.model_validate(user)


@router.get("/users")
async def list_users(session: SystemSession, page: Paged) -> Items[UserOut]:
    return items(await users.list_users(session, page), UserOut.model_validate)


@router.get("/users/{user_id}")
async def get_user(user_id: str, session: SystemSession) -> UserOut:
    return UserOut.model_validate(await users.get_user(session, user_id))


@router.patch("/users/{user_id}")
async def change_user(user_id: str, body: UserChanges, container: Wired, caller: Administering) -> UserOut:
    changes = given(body)
    if "settings" in changes:
        changes["settings"] = body.settings.model_dump(exclude_none=True)
    async with _forgetting(container) as session:
        user = await users.update_user(session, user_id, changes)
        await audit.record(session, user_id, caller.actor, "user.change", user_id)
    return UserOut.model_validate(user)


@router.delete("/users/{user_id}", status_code=204)
async def delete_user(user_id: str, container: Wired, caller: Administering) -> Response:
    async with _forgetting(container) as session:
        await users.delete_user(session, user_id)
        await audit.record(session, user_id, caller.actor, "user.delete", user_id)
    return Response(status_code=204)


@router.post("/keys", status_code=201)
async def create_key(body: NewKeyBody, session: SystemSession, caller: Administering) -> CreatedKeyOut:
    wanted = keys.NewKey(body.kind, body.name, body.user_id, body.project_id, body.expires_at)
    key, secret = await keys.create_key(session, wanted)
    await audit.record(session, key.user_id, caller.actor, "key.create", key.id)
    return CreatedKeyOut(**KeyOut.model_validate(key).model_dump(), key=secret)


@router.get("/keys")
async def list_keys(session: SystemSession, page: Paged) -> Items[KeyOut]:
    return items(await keys.list_keys(session, page), KeyOut.model_validate)


@router.delete("/keys/{key_id}", status_code=204)
async def revoke_key(key_id: str, container: Wired, caller: Administering) -> Response:
    if key_id == caller.key_id:
        raise InvalidInput("a key cannot revoke itself: use another admin key, so that nobody locks themselves out")
    async with _forgetting(container) as session:
        key = await keys.revoke_key(session, key_id)
        await audit.record(session, key.user_id, caller.actor, "key.revoke", key_id)
    return Response(status_code=204)


@asynccontextmanager
async def _forgetting(container: Container) -> AsyncIterator[Session]:
    """What this process remembers of callers ends when the change has been committed, and not before."""
    async with container.database.system_transaction() as session:
        yield session
    container.keyring.forget()
