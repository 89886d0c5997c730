"""Users and keys, for administrators. A new key is shown once."""

from typing import Any

from starlette.responses import Response

from app.auth import keys, users
from app.console.forms import Form, parse_form
from app.console.page_context import AdminCaller, PageContext, go, page_router
from app.db.pagination import PageRequest
from app.errors import ToolscoutError
from app.management import keys as manage_keys
from app.management import users as manage_users
from app.schemas.base import given_fields
from app.schemas.keys import NewKeyBody
from app.schemas.users import NewUserBody, UserChanges

router = page_router()


@router.get("/users")
async def show_users(visit: AdminCaller) -> Response:
    return await _users(visit, Form())


@router.post("/users")
async def make_user(visit: AdminCaller) -> Response:
    try:
        body = parse_form(NewUserBody, {"id": visit.form.text("id"), "name": visit.form.given("name")})
        database, actor = visit.container.database, visit.caller.actor
        user = await manage_users.create_user(database, body.id, body.name, actor=actor)
    except ToolscoutError as error:
        return await _users(visit, visit.form, error)
    return go(f"/console/users#{user.id}", said="user-made")


@router.post("/users/{user_id}")
async def change_user(visit: AdminCaller, user_id: str) -> Response:
    body = parse_form(UserChanges, {"discovery_enabled": visit.form.on("discovery_enabled")})
    container, actor = visit.container, visit.caller.actor
    await manage_users.change_user(
        container.database, container.authenticator, user_id, given_fields(body), actor=actor
    )
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
        new_key = keys.NewKey(**body.model_dump())
        key, secret = await manage_keys.create_key(visit.container.database, new_key, actor=visit.caller.actor)
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
    container, caller = visit.container, visit.caller
    await manage_keys.revoke_key(
        container.database, container.authenticator, key_id, caller_key_id=caller.key_id, actor=caller.actor
    )
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
