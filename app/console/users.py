"""The administrator's pages: users and API keys."""

from typing import Any

from starlette.responses import Response

from app.auth import keys, users
from app.catalog.projects import read_project_names
from app.console.forms import Form, parse_form
from app.console.page_context import AdminPage, PageContext, page_router, redirect
from app.db.pagination import PageRequest
from app.errors import ToolscoutError
from app.management import keys as manage_keys
from app.management import users as manage_users
from app.schemas.base import given_fields
from app.schemas.keys import NewKeyBody
from app.schemas.users import NewUserBody, UserChanges

router = page_router()


@router.get("/users")
async def show_users(context: AdminPage) -> Response:
    return await _render_users(context, Form())


@router.post("/users")
async def create_user(context: AdminPage) -> Response:
    try:
        body = parse_form(NewUserBody, {"id": context.form.text("id"), "name": context.form.optional_text("name")})
        database, actor = context.container.database, context.caller.actor
        user = await manage_users.create_user(database, body.id, body.name, actor=actor)
    except ToolscoutError as error:
        return await _render_users(context, context.form, error)
    return redirect(f"/console/users#{user.id}", notice="user-created")


@router.post("/users/{user_id}")
async def change_user(context: AdminPage, user_id: str) -> Response:
    chosen = context.form.text("discovery_enabled")
    body = parse_form(UserChanges, {"discovery_enabled": None if chosen == "rollout" else bool(chosen)})
    container, actor = context.container, context.caller.actor
    await manage_users.change_user(container.database, user_id, given_fields(body), actor=actor)
    return redirect(f"/console/users#{user_id}", notice="user-changed")


async def _render_users(context: PageContext, form: Form, error: ToolscoutError | None = None) -> Response:
    async with context.container.database.system_transaction() as session:
        page = await users.list_users(session, PageRequest(cursor=context.query.optional_text("cursor")))
    rollout = context.container.discoverer.rollout
    return context.render("users.html", error, page=page, form=form, rollout=rollout)


@router.get("/keys")
async def show_keys(context: AdminPage) -> Response:
    return await _render_keys(context, Form([("kind", "user"), ("user_id", context.console_session.user_id or "")]))


@router.post("/keys")
async def create_key(context: AdminPage) -> Response:
    """Show the new key in the response itself, without a redirect: it is not stored and cannot be read again."""
    try:
        new_key = keys.NewKey(**parse_form(NewKeyBody, _to_key_body(context.form)).model_dump())
        key, secret = await manage_keys.create_key(
            context.container.database, new_key, context.container.quotas, actor=context.caller.actor
        )
    except ToolscoutError as error:
        return await _render_keys(context, context.form, error)
    return context.render("key_created.html", status=201, key=key, secret=secret)


@router.get("/keys/{key_id}/revoke")
async def confirm_revocation(context: AdminPage, key_id: str) -> Response:
    async with context.container.database.system_transaction() as session:
        key = await keys.get_key(session, key_id)
    return context.render("key_revoke.html", key=key, is_own_key=key_id == context.caller.key_id)


@router.post("/keys/{key_id}/revoke")
async def revoke_key(context: AdminPage, key_id: str) -> Response:
    container, caller = context.container, context.caller
    await manage_keys.revoke_key(container.database, key_id, caller_key_id=caller.key_id, actor=caller.actor)
    return redirect("/console/keys", notice="key-revoked")


async def _render_keys(context: PageContext, form: Form, error: ToolscoutError | None = None) -> Response:
    async with context.container.database.system_transaction() as session:
        page = await keys.list_keys(session, PageRequest(cursor=context.query.optional_text("cursor")))
        bound = [(key.user_id, key.project_id) for key in page.items if key.user_id and key.project_id]
        project_names = await read_project_names(session, bound)
    return context.render("keys.html", error, page=page, form=form, project_names=project_names)


def _to_key_body(form: Form) -> dict[str, Any]:
    kind = form.text("kind")
    return {
        "kind": kind,
        "name": form.optional_text("name"),
        "user_id": form.optional_text("user_id") if kind == "user" else None,
        "project_id": form.optional_text("project_id") if kind == "user" else None,
        "expires_at": form.optional_text("expires_at"),
    }
