"""The pages for servers: test a connection, add a server, follow its index runs, change and delete it."""

import shlex
from typing import Any

from starlette.responses import Response

from app.catalog import servers
from app.catalog.servers import NewServer, Server
from app.console.forms import Form, parse_form
from app.console.page_context import CatalogReadPage, CatalogWritePage, PageContext, page_router, redirect
from app.db.pagination import PageRequest
from app.errors import InvalidInput, ToolscoutError
from app.indexing import queue
from app.indexing.parsing import Listing
from app.management import servers as manage_servers
from app.management.runs import request_reindex, request_reindex_of_all
from app.registry.models import RegistrySearchResult
from app.schemas.base import given_fields
from app.schemas.servers import NewServerBody, ServerChanges

router = page_router()

PAGES = "/console/servers"
"""Where the pages are to which the links of shared templates lead."""
MAX_RUNS_SHOWN = 20
_MAX_QUERY = 200
_REGISTRY_PAGE = 20


@router.get("/servers")
async def show_servers(context: CatalogReadPage) -> Response:
    async with context.transaction() as session:
        request = PageRequest(cursor=context.query.optional_text("cursor"))
        page = await servers.list_servers(session, context.user.id, request)
    return context.render("servers.html", page=page)


@router.get("/servers/new")
async def show_new_server(context: CatalogWritePage) -> Response:
    """Show the form and, after a search in the registry, what was found there."""
    query, registry = context.query, context.container.registry
    if registry is None or not query.all("q"):
        return _render_new_server(context, Form())
    try:
        cursor = query.optional_text("cursor")
        found = await registry.search(context.user.id, query.text("q")[:_MAX_QUERY], _REGISTRY_PAGE, cursor)
    except ToolscoutError as error:
        return _render_new_server(context, Form(), error=error)
    return _render_new_server(context, Form(), found=found)


@router.post("/servers")
async def add_server(context: CatalogWritePage) -> Response:
    """Handle the form's two buttons: `test` lists the server's tools and stores nothing, `add` stores the server."""
    try:
        new_server = NewServer(**parse_form(NewServerBody, to_body(context.form)).model_dump())
        if context.form.text("do") == "test":
            return _render_new_server(
                context, context.form, listing=await try_new_server(context, context.user.id, new_server)
            )
        return await register_new_server(context, new_server)
    except ToolscoutError as error:
        return _render_new_server(context, context.form, error=error)


async def try_new_server(context: PageContext, user_id: str, new_server: NewServer) -> Listing:
    container = context.container
    max_tools = container.settings.max_tools_per_server
    return await manage_servers.try_server(container.mcp_pool, user_id, new_server, max_tools=max_tools)


async def register_new_server(context: PageContext, new_server: NewServer) -> Response:
    container = context.container
    server, run = await manage_servers.register_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        context.user.id,
        new_server,
        container.quotas,
        actor=context.caller.actor,
    )
    return redirect(f"/console/servers/{server.id}", notice="server-added" if run else "push-server-added")


def _render_new_server(
    context: PageContext,
    form: Form,
    *,
    listing: Listing | None = None,
    found: RegistrySearchResult | None = None,
    error: ToolscoutError | None = None,
) -> Response:
    stdio_programs = sorted(context.container.mcp_pool.stdio_servers.list_names(context.user.id))
    return context.render(
        "server_new.html", error, form=form, listing=listing, found=found, stdio_programs=stdio_programs
    )


@router.post("/servers/reindex")
async def reindex_all(context: CatalogWritePage) -> Response:
    container, actor = context.container, context.caller.actor
    await request_reindex_of_all(container.database, container.worker, context.user.id, force=False, actor=actor)
    return redirect("/console/servers", notice="reindex-all-requested")


@router.get("/servers/{server_id}")
async def show_server(context: CatalogReadPage, server_id: str) -> Response:
    return await _render_server(context, "server.html", server_id)


@router.get("/servers/{server_id}/runs")
async def show_runs(context: CatalogReadPage, server_id: str) -> Response:
    """Return the status and the runs alone. The script polls this while a run is in progress."""
    return await _render_server(context, "part_runs.html", server_id)


async def _render_server(context: PageContext, template: str, server_id: str) -> Response:
    async with context.transaction() as session:
        server = await servers.get_server(session, context.user.id, server_id)
        runs = (await queue.list_runs(session, context.user.id, server_id, PageRequest(MAX_RUNS_SHOWN))).items
    push_curl = render_push_curl(context, server, context.user.id if context.caller.kind != "user" else None)
    return context.render(template, server=server, runs=runs, push_curl=push_curl, pages=PAGES, members=None)


@router.post("/servers/{server_id}/reindex")
async def reindex(context: CatalogWritePage, server_id: str) -> Response:
    container, actor, force = context.container, context.caller.actor, context.form.is_checked("force")
    await request_reindex(container.database, container.worker, context.user.id, server_id, force=force, actor=actor)
    return redirect(f"/console/servers/{server_id}", notice="reindex-requested")


@router.get("/servers/{server_id}/change")
async def show_change_form(context: CatalogWritePage, server_id: str) -> Response:
    server = await _get_server(context, server_id)
    return context.render("server_change.html", server=server, form=to_form(server))


@router.post("/servers/{server_id}/change")
async def change_server(context: CatalogWritePage, server_id: str) -> Response:
    server = await _get_server(context, server_id)
    try:
        await _change_server(context, server_id, find_changes(server, context.form))
    except ToolscoutError as error:
        return context.render("server_change.html", error, server=server, form=context.form)
    return redirect(f"/console/servers/{server_id}", notice="server-changed")


@router.post("/servers/{server_id}/switch")
async def enable_or_disable_server(context: CatalogWritePage, server_id: str) -> Response:
    await _change_server(context, server_id, {"enabled": context.form.is_checked("enabled")})
    return redirect(f"/console/servers/{server_id}", notice="server-changed")


async def _change_server(context: PageContext, server_id: str, changes: dict[str, Any]) -> None:
    body = parse_form(ServerChanges, changes)
    container = context.container
    await manage_servers.change_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        context.user.id,
        server_id,
        given_fields(body),
        container.quotas,
        actor=context.caller.actor,
    )


@router.get("/servers/{server_id}/delete")
async def confirm_deletion(context: CatalogWritePage, server_id: str) -> Response:
    return context.render("server_delete.html", server=await _get_server(context, server_id))


@router.post("/servers/{server_id}/delete")
async def delete_server(context: CatalogWritePage, server_id: str) -> Response:
    container = context.container
    await manage_servers.delete_server(
        container.database,
        container.mcp_pool,
        context.user.id,
        server_id,
        ann_above=container.settings.search_ann_above,
        actor=context.caller.actor,
    )
    return redirect("/console/servers", notice="server-deleted")


async def _get_server(context: PageContext, server_id: str) -> Server:
    async with context.transaction() as session:
        return await servers.get_server(session, context.user.id, server_id)


def to_body(form: Form) -> dict[str, Any]:
    transport = form.text("transport")
    return {
        "name": form.text("stdio") if transport == "stdio" else form.text("name"),
        "transport": transport,
        "description": form.text("description"),
        "url": form.optional_text("url") if transport not in ("stdio", "push") else None,
        "headers": read_headers(form),
        "tags": form.comma_list("tags"),
    }


def read_headers(form: Form) -> dict[str, str]:
    pairs = zip(form.all("header_name"), form.all("header_value"), strict=False)
    headers = {name.strip(): value.strip() for name, value in pairs if name.strip() or value.strip()}
    if "" in headers:
        raise InvalidInput("a header has a value but no name")
    return headers


def to_form(server: Server) -> Form:
    texts = {"name": server.name, "url": server.url or "", "description": server.description}
    return Form([*texts.items(), ("tags", ", ".join(server.tags))])


def find_changes(server: Server, form: Form) -> dict[str, Any]:
    """Return only the fields that differ. Empty header fields keep the stored credentials."""
    values: dict[str, Any] = {
        "name": form.text("name"),
        "description": form.text("description"),
        "tags": form.comma_list("tags"),
    }
    if server.url is not None:
        values["url"] = form.text("url")
    changes = {name: value for name, value in values.items() if value != getattr(server, name)}
    headers = read_headers(form)
    return changes | ({"headers": headers} if headers else {})


def render_push_curl(context: PageContext, server: Server, acting_for: str | None) -> str:
    url = f"{context.request.url.scheme}://{context.request.url.netloc}/servers/{server.id}/tools"
    user_header = f" -H {shlex.quote(f'X-User-Id: {acting_for}')}" if acting_for is not None else ""
    return (
        f'curl -s -X PUT {url} \\\n  -H "Authorization: Bearer $KEY"{user_header} '
        "-H 'Content-Type: application/json' \\\n  -d '{\"tools\": [...]}'"
    )
