"""REST: users and keys, for administrators."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from app import audit
from app.api.middleware.body_limit import StrictRoute
from app.auth import keys, users
from app.auth.keys import KeyKind
from app.container import Container
from app.db.engine import Session
from app.dependencies import AdminCaller, ContainerDep, PageParams, SystemSession
from app.errors import InvalidInput
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
async def create_user(body: NewUserBody, session: SystemSession, caller: AdminCaller) -> UserOut:
    """Needed only to give a user a name or a key beforehand: service and admin keys make those that they name."""
    user = await users.create_user(session, body.id, body.name)
    await audit.record(session, user.id, caller.actor, "user.create", user.id)
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
    async with _forgetting(container) as session:
        user = await users.update_user(session, user_id, changes)
        await audit.record(session, user_id, caller.actor, "user.change", user_id)
    return UserOut.model_validate(user)


@router.delete("/users/{user_id}", status_code=204)
async def delete_user(user_id: str, container: ContainerDep, caller: AdminCaller) -> Response:
    """With all that the user has. What was done stays in the audit."""
    async with _forgetting(container) as session:
        await users.delete_user(session, user_id)
        await audit.record(session, user_id, caller.actor, "user.delete", user_id)
    container.mcp_pool.forget_user(user_id)
    return Response(status_code=204)


@router.post("/keys", status_code=201)
async def create_key(body: NewKeyBody, session: SystemSession, caller: AdminCaller) -> CreatedKeyOut:
    """The key is in this answer and never again."""
    wanted = keys.NewKey(body.kind, body.name, body.user_id, body.project_id, body.expires_at)
    key, secret = await keys.create_key(session, wanted)
    await audit.record(session, key.user_id, caller.actor, "key.create", key.id)
    return CreatedKeyOut(**KeyOut.model_validate(key).model_dump(), key=secret)


@router.get("/keys")
async def list_keys(session: SystemSession, page: PageParams) -> Items[KeyOut]:
    """Without the keys themselves: their beginnings, and when they were last used."""
    return render_page(await keys.list_keys(session, page), KeyOut.model_validate)


@router.delete("/keys/{key_id}", status_code=204)
async def revoke_key(key_id: str, container: ContainerDep, caller: AdminCaller) -> Response:
    """It ends within a second, on every replica."""
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
    container.authenticator.forget()
