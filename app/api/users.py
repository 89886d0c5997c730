"""REST: users and keys, for administrators."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from app.api.middleware.body_limit import StrictRoute
from app.auth import keys, users
from app.auth.keys import KeyKind, NewKey
from app.dependencies import AdminCaller, ContainerDep, PageParams, SystemSession
from app.management import keys as manage_keys
from app.management import users as manage_users
from app.schemas.base import Items, Output, render_page, set_fields
from app.schemas.users import NewKeyBody, NewUserBody, UserChanges

router = APIRouter(tags=["accounts"], route_class=StrictRoute)


class UserOut(Output):
    id: str
    name: str | None
    settings: dict[str, Any]
    discovery_enabled: bool
    tool_count: int
    created_at: datetime


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
async def create_user(body: NewUserBody, container: ContainerDep, caller: AdminCaller) -> UserOut:
    """Needed only to give a user a name or a key beforehand: service and admin keys make those that they name."""
    user = await manage_users.create_user(container.database, body.id, body.name, actor=caller.actor)
    return UserOut.model_validate(user)


@router.get("/users")
async def list_users(session: SystemSession, page: PageParams) -> Items[UserOut]:
    """By id."""
    return render_page(await users.list_users(session, page), UserOut.model_validate)


@router.get("/users/{user_id}")
async def get_user(user_id: str, session: SystemSession) -> UserOut:
    """With settings and the number of tools."""
    return UserOut.model_validate(await users.get_user(session, user_id))


@router.patch("/users/{user_id}")
async def change_user(user_id: str, body: UserChanges, container: ContainerDep, caller: AdminCaller) -> UserOut:
    """Only the fields that are given; `settings` as a whole."""
    changes = set_fields(body)
    if "settings" in changes:
        changes["settings"] = body.settings.model_dump(exclude_none=True)
    user = await manage_users.change_user(
        container.database, container.authenticator, user_id, changes, actor=caller.actor
    )
    return UserOut.model_validate(user)


@router.delete("/users/{user_id}", status_code=204)
async def delete_user(user_id: str, container: ContainerDep, caller: AdminCaller) -> Response:
    """With all that the user has. What was done stays in the audit."""
    await manage_users.delete_user(
        container.database, container.authenticator, container.mcp_pool, user_id, actor=caller.actor
    )
    return Response(status_code=204)


@router.post("/keys", status_code=201)
async def create_key(body: NewKeyBody, container: ContainerDep, caller: AdminCaller) -> CreatedKeyOut:
    """The key is in this answer and never again."""
    new_key = NewKey(**body.model_dump())
    key, secret = await manage_keys.create_key(container.database, new_key, actor=caller.actor)
    return CreatedKeyOut(**KeyOut.model_validate(key).model_dump(), key=secret)


@router.get("/keys")
async def list_keys(session: SystemSession, page: PageParams) -> Items[KeyOut]:
    """Without the keys themselves: their beginnings, and when they were last used."""
    return render_page(await keys.list_keys(session, page), KeyOut.model_validate)


@router.delete("/keys/{key_id}", status_code=204)
async def revoke_key(key_id: str, container: ContainerDep, caller: AdminCaller) -> Response:
    """It ends within a second, on every replica."""
    await manage_keys.revoke_key(
        container.database, container.authenticator, key_id, caller_key_id=caller.key_id, actor=caller.actor
    )
    return Response(status_code=204)
