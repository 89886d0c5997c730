"""Users and keys, for administrators. A new key is shown once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import Response

from app import audit
from app.auth import keys, users
from app.console.forms import Form, parse_form
from app.console.page_context import AdminCaller, PageContext, go, page_router
from app.db.engine import Session
from app.db.pagination import PageRequest
from app.errors import InvalidInput, ToolscoutError
from app.schemas.base import set_fields
from app.schemas.users import NewKeyBody, NewUserBody, UserChanges

router = page_router()


@router.get("/users")
async def show_users(visit: AdminCaller) -> Response:
    return await _users(visit, Form())


@router.post("/users")
async def make_user(visit: AdminCaller) -> Response:
    try:
        body = parse_form(NewUserBody, {"id": visit.form.text("id"), "name": visit.form.given("name")})
        async with visit.container.database.system_transaction() as session:
            user = await users.create_user(session, body.id, body.name)
            await audit.record(session, user.id, visit.caller.actor, "user.create", user.id)
    except ToolscoutError as error:
        return await _users(visit, visit.form, error)
    return go(f"/console/users#{user.id}", said="user-made")


@router.post("/users/{user_id}")
async def change_user(visit: AdminCaller, user_id: str) -> Response:
    body = parse_form(UserChanges, {"discovery_enabled": visit.form.on("discovery_enabled")})
    async with _forgetting(visit) as session:
        await users.update_user(session, user_id, set_fields(body))
        await audit.record(session, user_id, visit.caller.actor, "user.change", user_id)
    return go(f"/console/users#{user_id}", said="user-changed")


async def _users(visit: PageContext, form: Form, error: ToolscoutError | None = None) -> Response:
    async with visit.container.database.system_transaction() as session:
        page = await users.list_users(session, PageRequest(cursor=visit.query.given("cursor")))
    return visit.show("users.html", error, page=page, form=form)


@router.get("/keys")
async def show_keys(visit: AdminCaller) -> Response:
    return await _keys(visit, Form([("kind", "user"), ("user_id", visit.signed_in.user_id or "")]))


@router.post("/keys")
async def make_key(visit: AdminCaller) -> Response:
    """Answered with a page and no redirect: the key is known now and never again."""
    try:
        body = parse_form(NewKeyBody, _said(visit.form))
        wanted = keys.NewKey(body.kind, body.name, body.user_id, body.project_id, body.expires_at)
        async with visit.container.database.system_transaction() as session:
            key, secret = await keys.create_key(session, wanted)
            await audit.record(session, key.user_id, visit.caller.actor, "key.create", key.id)
    except ToolscoutError as error:
        return await _keys(visit, visit.form, error)
    return visit.show("key_made.html", status=201, key=key, secret=secret)


@router.get("/keys/{key_id}/revoke")
async def confirm_revoke(visit: AdminCaller, key_id: str) -> Response:
    async with visit.container.database.system_transaction() as session:
        key = await keys.get_key(session, key_id)
    return visit.show("key_revoke.html", key=key, own=key_id == visit.caller.key_id)


@router.post("/keys/{key_id}/revoke")
async def revoke_key(visit: AdminCaller, key_id: str) -> Response:
    if key_id == visit.caller.key_id:
        raise InvalidInput("a key cannot revoke itself: use another admin key, so that nobody locks themselves out")
    async with _forgetting(visit) as session:
        key = await keys.revoke_key(session, key_id)
        await audit.record(session, key.user_id, visit.caller.actor, "key.revoke", key_id)
    return go("/console/keys", said="key-revoked")


async def _keys(visit: PageContext, form: Form, error: ToolscoutError | None = None) -> Response:
    async with visit.container.database.system_transaction() as session:
        page = await keys.list_keys(session, PageRequest(cursor=visit.query.given("cursor")))
    return visit.show("keys.html", error, page=page, form=form)


def _said(form: Form) -> dict[str, Any]:
    kind = form.text("kind")
    return {
        "kind": kind,
        "name": form.given("name"),
        "user_id": form.given("user_id") if kind == "user" else None,
        "project_id": form.given("project_id") if kind == "user" else None,
        "expires_at": form.given("expires_at"),
    }


@asynccontextmanager
async def _forgetting(visit: PageContext) -> AsyncIterator[Session]:
    """What this process remembers of callers ends when the change has been committed, and not before."""
    async with visit.container.database.system_transaction() as session:
        yield session
    visit.container.authenticator.forget()
