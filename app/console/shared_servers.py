"""The administrator's pages for shared servers: add, change and delete them, and see how far their members are."""

from typing import Any

from starlette.responses import Response

from app.catalog.servers import NewServer
from app.catalog.shared_servers import Sharing
from app.console.connections import render_sign_in
from app.console.forms import Form, parse_form
from app.console.page_context import AdminPage, PageContext, page_router, redirect
from app.console.servers import (
    MAX_RUNS_SHOWN,
    find_changes,
    render_push_curl,
    to_body,
    to_form,
    try_new_server,
)
from app.db.pagination import PageRequest
from app.db.tables import SHARED_OWNER
from app.errors import ToolscoutError
from app.indexing import queue
from app.indexing.parsing import Listing
from app.management import servers as manage_servers
from app.management import shared_servers as manage_shared_servers
from app.management.runs import request_reindex
from app.management.shared_servers import SHARING_FIELDS, load_shared_server
from app.schemas.base import given_fields
from app.schemas.shared_servers import NewSharedServerBody, SharedServerChanges

router = page_router()

PAGES = "/console/shared-servers"


@router.get("/shared-servers")
async def show_shared_servers(context: AdminPage) -> Response:
    request = PageRequest(cursor=context.query.optional_text("cursor"))
    page = await manage_shared_servers.list_shared_servers(context.container.database, request)
    return context.render("shared_servers.html", page=page)


@router.get("/shared-servers/new")
async def show_new_shared_server(context: AdminPage) -> Response:
    return _render_new_server(context, Form())


@router.post("/shared-servers")
async def add_shared_server(context: AdminPage) -> Response:
    """Handle the form's two buttons: `test` lists the server's tools and stores nothing, `add` stores the server."""
    try:
        body = {**to_body(context.form), **_read_sharing(context.form)}
        given = parse_form(NewSharedServerBody, body).model_dump()
        sharing = Sharing(**{name: given.pop(name) for name in SHARING_FIELDS})
        new_server = NewServer(**given)
        if context.form.text("do") == "test":
            listing = await try_new_server(context, SHARED_OWNER, new_server)
            return _render_new_server(context, context.form, listing=listing)
        return await _register(context, new_server, sharing)
    except ToolscoutError as error:
        return _render_new_server(context, context.form, error=error)


async def _register(context: PageContext, new_server: NewServer, sharing: Sharing) -> Response:
    container = context.container
    shared, run = await manage_shared_servers.register_shared_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        new_server,
        sharing,
        actor=context.caller.actor,
    )
    return redirect(f"{PAGES}/{shared.server.id}", notice="server-added" if run else "push-server-added")


def _render_new_server(
    context: PageContext, form: Form, *, listing: Listing | None = None, error: ToolscoutError | None = None
) -> Response:
    stdio_programs = sorted(context.container.mcp_pool.stdio_servers.list_names(SHARED_OWNER))
    return context.render("shared_server_new.html", error, form=form, listing=listing, stdio_programs=stdio_programs)


@router.get("/shared-servers/{server_id}")
async def show_shared_server(context: AdminPage, server_id: str) -> Response:
    return await _render_server(context, "shared_server.html", server_id)


@router.get("/shared-servers/{server_id}/runs")
async def show_progress(context: AdminPage, server_id: str) -> Response:
    """Return the status, the members and the runs alone. The script polls this until all members are ready."""
    return await _render_server(context, "part_runs.html", server_id)


async def _render_server(context: PageContext, template: str, server_id: str) -> Response:
    shared, members = await load_shared_server(context.container.database, server_id)
    async with context.container.database.transaction(SHARED_OWNER) as session:
        runs = (await queue.list_runs(session, SHARED_OWNER, server_id, PageRequest(MAX_RUNS_SHOWN))).items
    return context.render(
        template,
        server=shared.server,
        sharing=shared.sharing,
        members=members,
        runs=runs,
        push_curl=render_push_curl(context, shared.server, None),
        pages=PAGES,
    )


@router.post("/shared-servers/{server_id}/reindex")
async def reindex(context: AdminPage, server_id: str) -> Response:
    container, actor = context.container, context.caller.actor
    await request_reindex(container.database, container.worker, SHARED_OWNER, server_id, force=False, actor=actor)
    return redirect(f"{PAGES}/{server_id}", notice="reindex-requested")


@router.get("/shared-servers/{server_id}/change")
async def show_change_form(context: AdminPage, server_id: str) -> Response:
    shared, _ = await load_shared_server(context.container.database, server_id)
    form = Form([*to_form(shared.server).items(), *_list_sharing_fields(shared.sharing)])
    return context.render("shared_server_change.html", server=shared.server, form=form)


@router.post("/shared-servers/{server_id}/change")
async def change_shared_server(context: AdminPage, server_id: str) -> Response:
    shared, _ = await load_shared_server(context.container.database, server_id)
    try:
        sharing = _read_sharing(context.form)
        former = {name: getattr(shared.sharing, name) for name in sharing}
        differing = {name: value for name, value in sharing.items() if _normalize(value) != _normalize(former[name])}
        await _change(context, server_id, find_changes(shared.server, context.form) | differing)
    except ToolscoutError as error:
        return context.render("shared_server_change.html", error, server=shared.server, form=context.form)
    return redirect(f"{PAGES}/{server_id}", notice="shared-server-changed")


@router.post("/shared-servers/{server_id}/switch")
async def enable_or_disable_shared_server(context: AdminPage, server_id: str) -> Response:
    await _change(context, server_id, {"enabled": context.form.is_checked("enabled")})
    return redirect(f"{PAGES}/{server_id}", notice="shared-server-changed")


async def _change(context: PageContext, server_id: str, changes: dict[str, Any]) -> None:
    container = context.container
    await manage_shared_servers.change_shared_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        server_id,
        given_fields(parse_form(SharedServerChanges, changes)),
        container.quotas,
        actor=context.caller.actor,
    )


@router.get("/shared-servers/{server_id}/delete")
async def confirm_deletion(context: AdminPage, server_id: str) -> Response:
    shared, members = await load_shared_server(context.container.database, server_id)
    return context.render("shared_server_delete.html", server=shared.server, members=members)


@router.post("/shared-servers/{server_id}/delete")
async def delete_shared_server(context: AdminPage, server_id: str) -> Response:
    container = context.container
    await manage_servers.delete_server(
        container.database,
        container.mcp_pool,
        SHARED_OWNER,
        server_id,
        ann_above=container.settings.search_ann_above,
        actor=context.caller.actor,
    )
    return redirect(PAGES, notice="shared-server-deleted")


@router.post("/shared-servers/{server_id}/connect")
async def connect(context: AdminPage, server_id: str) -> Response:
    shared, _ = await load_shared_server(context.container.database, server_id)
    return await render_sign_in(context, shared.server, PAGES, shared.sharing)


@router.post("/shared-servers/{server_id}/disconnect")
async def disconnect(context: AdminPage, server_id: str) -> Response:
    await context.container.connector.disconnect(SHARED_OWNER, server_id, context.caller.actor)
    return redirect(f"{PAGES}/{server_id}", notice="server-disconnected")


def _read_sharing(form: Form) -> dict[str, Any]:
    return {
        "everyone": form.is_checked("everyone"),
        "groups": form.lines("groups"),
        "user_ids": form.lines("user_ids"),
        "credentials": form.text("credentials") or "member",
    }


def _list_sharing_fields(sharing: Sharing) -> list[tuple[str, str]]:
    return [
        ("everyone", "yes" if sharing.everyone else ""),
        *(("groups", group) for group in sharing.groups),
        *(("user_ids", user_id) for user_id in sharing.user_ids),
        ("credentials", sharing.credentials),
    ]


def _normalize(value: Any) -> Any:
    return value if isinstance(value, bool | str) else sorted(value)
