"""A user's servers: try one, add it, see how it fares, ask it again."""

import shlex
from typing import Any

from starlette.responses import Response

from app.catalog import servers
from app.catalog.servers import NewServer, Server
from app.console.forms import Form, parse_form
from app.console.page_context import CatalogReadCaller, CatalogWriteCaller, PageContext, go, page_router
from app.db.pagination import PageRequest
from app.errors import InvalidInput, ToolscoutError
from app.indexing import queue
from app.indexing.parsing import Listing
from app.management.runs import request_reindex, request_reindex_of_all
from app.management.servers import change_server, delete_server, register_server, try_server
from app.schemas.base import given_fields
from app.schemas.servers import NewServerBody, ServerChanges

router = page_router()

_RUNS_SHOWN = 20


@router.get("/servers")
async def list_servers(visit: CatalogReadCaller) -> Response:
    async with visit.transaction() as session:
        page = await servers.list_servers(session, visit.user.id, PageRequest(cursor=visit.query.given("cursor")))
    return visit.show("servers.html", page=page)


@router.get("/servers/new")
async def show_new(visit: CatalogWriteCaller) -> Response:
    return _new(visit, Form())


@router.post("/servers")
async def add_server(visit: CatalogWriteCaller) -> Response:
    """One form, two buttons: to try the connection, and to store the server."""
    try:
        wanted = NewServer(**parse_form(NewServerBody, _said(visit.form)).model_dump())
        if visit.form.text("do") == "test":
            limit = visit.container.settings.max_tools_per_server
            listing = await try_server(visit.container.mcp_pool, visit.user.id, wanted, max_tools=limit)
            return _new(visit, visit.form, listing)
        return await _added(visit, wanted)
    except ToolscoutError as error:
        return visit.show("server_new.html", error, form=visit.form, listing=None, stdio=_stdio(visit))


async def _added(visit: PageContext, wanted: NewServer) -> Response:
    container = visit.container
    server, run = await register_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        visit.user.id,
        wanted,
        actor=visit.caller.actor,
    )
    return go(f"/console/servers/{server.id}", said="server-added" if run else "push-server-added")


def _new(visit: PageContext, form: Form, listing: Listing | None = None) -> Response:
    return visit.show("server_new.html", form=form, listing=listing, stdio=_stdio(visit))


def _stdio(visit: PageContext) -> list[str]:
    return sorted(visit.container.mcp_pool.stdio_servers.programs)


@router.post("/servers/reindex")
async def reindex_all(visit: CatalogWriteCaller) -> Response:
    container, actor = visit.container, visit.caller.actor
    await request_reindex_of_all(container.database, container.worker, visit.user.id, force=False, actor=actor)
    return go("/console/servers", said="reindexing-all")


@router.get("/servers/{server_id}")
async def show_server(visit: CatalogReadCaller, server_id: str) -> Response:
    return visit.show("server.html", **await _known(visit, server_id))


@router.get("/servers/{server_id}/runs")
async def show_runs(visit: CatalogReadCaller, server_id: str) -> Response:
    """Again and again, while a run is under way."""
    return visit.show("part_runs.html", **await _known(visit, server_id))


async def _known(visit: PageContext, server_id: str) -> dict[str, Any]:
    async with visit.transaction() as session:
        server = await servers.get_server(session, visit.user.id, server_id)
        runs = (await queue.list_runs(session, visit.user.id, server_id, PageRequest(_RUNS_SHOWN))).items
    return {"server": server, "runs": runs, "push_curl": _push_curl(visit, server)}


@router.post("/servers/{server_id}/reindex")
async def reindex(visit: CatalogWriteCaller, server_id: str) -> Response:
    container, actor, force = visit.container, visit.caller.actor, visit.form.on("force")
    await request_reindex(container.database, container.worker, visit.user.id, server_id, force=force, actor=actor)
    return go(f"/console/servers/{server_id}", said="reindexing")


@router.get("/servers/{server_id}/change")
async def show_change(visit: CatalogWriteCaller, server_id: str) -> Response:
    async with visit.transaction() as session:
        server = await servers.get_server(session, visit.user.id, server_id)
    return visit.show("server_change.html", server=server, form=_form_of(server))


@router.post("/servers/{server_id}/change")
async def change(visit: CatalogWriteCaller, server_id: str) -> Response:
    async with visit.transaction() as session:
        server = await servers.get_server(session, visit.user.id, server_id)
    try:
        await _change(visit, server_id, _changes(server, visit.form))
    except ToolscoutError as error:
        return visit.show("server_change.html", error, server=server, form=visit.form)
    return go(f"/console/servers/{server_id}", said="server-changed")


@router.post("/servers/{server_id}/switch")
async def switch(visit: CatalogWriteCaller, server_id: str) -> Response:
    await _change(visit, server_id, {"enabled": visit.form.on("enabled")})
    return go(f"/console/servers/{server_id}", said="server-changed")


async def _change(visit: PageContext, server_id: str, changes: dict[str, Any]) -> None:
    body = parse_form(ServerChanges, changes)
    container = visit.container
    await change_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        visit.user.id,
        server_id,
        given_fields(body),
        actor=visit.caller.actor,
    )


@router.get("/servers/{server_id}/delete")
async def confirm_delete(visit: CatalogWriteCaller, server_id: str) -> Response:
    async with visit.transaction() as session:
        server = await servers.get_server(session, visit.user.id, server_id)
    return visit.show("server_delete.html", server=server)


@router.post("/servers/{server_id}/delete")
async def delete(visit: CatalogWriteCaller, server_id: str) -> Response:
    container, ann_above = visit.container, visit.container.settings.search_ann_above
    await delete_server(
        container.database,
        container.mcp_pool,
        visit.user.id,
        server_id,
        ann_above=ann_above,
        actor=visit.caller.actor,
    )
    return go("/console/servers", said="server-deleted")


def _said(form: Form) -> dict[str, Any]:
    transport = form.text("transport")
    return {
        "name": form.text("stdio") if transport == "stdio" else form.text("name"),
        "transport": transport,
        "description": form.text("description"),
        "url": form.given("url") if transport in ("streamable_http", "sse") else None,
        "headers": _headers(form),
        "tags": form.words("tags"),
    }


def _headers(form: Form) -> dict[str, str]:
    named = zip(form.all("header_name"), form.all("header_value"), strict=False)
    headers = {name.strip(): value.strip() for name, value in named if name.strip() or value.strip()}
    if "" in headers:
        raise InvalidInput("a header has a value and no name")
    return headers


def _form_of(server: Server) -> Form:
    texts = {"name": server.name, "url": server.url or "", "description": server.description}
    return Form([*texts.items(), ("tags", ", ".join(server.tags))])


def _changes(server: Server, form: Form) -> dict[str, Any]:
    """Only what differs: a credential that is not typed again stays as it is."""
    texts = {"name": form.text("name"), "description": form.text("description"), "tags": form.words("tags")}
    if server.url is not None:
        texts["url"] = form.text("url")
    changes = {name: value for name, value in texts.items() if value != getattr(server, name)}
    headers = _headers(form)
    return changes | ({"headers": headers} if headers else {})


def _push_curl(visit: PageContext, server: Server) -> str:
    address = f"{visit.request.url.scheme}://{visit.request.url.netloc}/servers/{server.id}/tools"
    for_whom = f" -H {shlex.quote(f'X-User-Id: {visit.user.id}')}" if visit.caller.kind != "user" else ""
    return (
        f'curl -s -X PUT {address} \\\n  -H "Authorization: Bearer $KEY"{for_whom} '
        "-H 'Content-Type: application/json' \\\n  -d '{\"tools\": [...]}'"
    )
