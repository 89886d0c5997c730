"""REST: a user's MCP servers."""

from collections.abc import Mapping

from fastapi import APIRouter, Response

from app.api.strict_route import StrictRoute
from app.catalog import servers
from app.catalog.client_config.config import read_client_config
from app.catalog.servers import NewServer
from app.container import Container
from app.dependencies import CatalogReadCaller, CatalogWriteCaller, ContainerDep, PageParams, Session, Tenant
from app.management import servers as manage_servers
from app.management.server_import import import_servers as run_import
from app.schemas.base import Items, given_fields, render_page
from app.schemas.server_import import ImportBody, ImportOut, plan_import, render_import
from app.schemas.servers import CredentialsBody, NewServerBody, ServerChanges, ServerOut

router = APIRouter(tags=["servers"], route_class=StrictRoute)


@router.post("/servers", status_code=201)
async def create_server(
    body: NewServerBody, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ServerOut:
    """Register a server. Unless its tools are pushed, a run lists them at once: see `GET /servers/{id}/runs`."""
    server, _ = await manage_servers.register_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        tenant.id,
        NewServer(**body.model_dump()),
        container.quotas,
        actor=caller.actor,
    )
    return ServerOut.model_validate(server)


@router.post("/servers/import")
async def import_servers(
    body: ImportBody, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ImportOut:
    """Register the servers of an MCP client's configuration file, such as `mcp.json`.

    An entry that cannot be taken is in `skipped` with the reason and what to do; the others are registered, and a run
    lists the tools of each. A server that runs a program is taken if the operator lists a program of that name."""
    programs = container.mcp_pool.stdio_servers.list_names(tenant.id)
    entries = plan_import(read_client_config(body.config), body.values, programs)
    result = await run_import(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        tenant.id,
        entries,
        container.quotas,
        actor=caller.actor,
    )
    return render_import(result)


@router.get("/servers")
async def list_servers(session: Session, tenant: Tenant, page: PageParams, _: CatalogReadCaller) -> Items[ServerOut]:
    """List servers by name, with their status and number of tools."""
    return render_page(await servers.list_servers(session, tenant.id, page), ServerOut.model_validate)


@router.get("/servers/{server_id}")
async def get_server(server_id: str, session: Session, tenant: Tenant, _: CatalogReadCaller) -> ServerOut:
    """Return a server. Only the names of its headers are returned, never their values."""
    return ServerOut.model_validate(await servers.get_server(session, tenant.id, server_id))


@router.patch("/servers/{server_id}")
async def change_server(
    server_id: str, body: ServerChanges, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ServerOut:
    """Change the fields that are given. After a change of address or headers, a run lists its tools again."""
    server = await manage_servers.change_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        tenant.id,
        server_id,
        given_fields(body),
        container.quotas,
        actor=caller.actor,
    )
    return ServerOut.model_validate(server)


@router.put("/servers/{server_id}/credentials")
async def replace_credentials(
    server_id: str, body: CredentialsBody, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ServerOut:
    """Replace the headers that are sent to the server, and nothing else: for a backend that signs its users in itself.

    The next call uses them, and a run lists the server's tools again."""
    return await _replace_headers(container, tenant.id, server_id, body.headers, caller.actor)


@router.delete("/servers/{server_id}/credentials", status_code=204)
async def delete_credentials(
    server_id: str, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> Response:
    """Delete the stored headers. The server and its tools stay."""
    await _replace_headers(container, tenant.id, server_id, {}, caller.actor)
    return Response(status_code=204)


async def _replace_headers(
    container: Container, user_id: str, server_id: str, headers: Mapping[str, str], actor: str
) -> ServerOut:
    server = await manage_servers.replace_credentials(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        user_id,
        server_id,
        headers,
        container.quotas,
        actor=actor,
    )
    return ServerOut.model_validate(server)


@router.delete("/servers/{server_id}", status_code=204)
async def delete_server(
    server_id: str, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> Response:
    """Delete a server with its tools and runs."""
    await manage_servers.delete_server(
        container.database,
        container.mcp_pool,
        tenant.id,
        server_id,
        ann_above=container.settings.search_ann_above,
        actor=caller.actor,
    )
    return Response(status_code=204)
