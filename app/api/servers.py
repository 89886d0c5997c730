"""REST: a user's servers."""

from datetime import datetime

from fastapi import APIRouter, Response
from pydantic import Field

from app.api.middleware.body_limit import StrictRoute
from app.catalog import servers
from app.catalog.servers import NewServer, Status
from app.dependencies import CatalogReadCaller, CatalogWriteCaller, ContainerDep, PageParams, Session, Tenant
from app.management.servers import change_server as change_known_server
from app.management.servers import register_server, remove_server
from app.schemas.base import Items, Output, render_page, set_fields
from app.schemas.servers import NewServerBody, ServerChanges
from app.text.strict_json import Transport

router = APIRouter(tags=["servers"], route_class=StrictRoute)


class ServerOut(Output):
    id: str
    user_id: str
    name: str
    description: str
    transport: Transport
    url: str | None
    header_names: list[str]
    tags: list[str]
    tool_permissions: dict[str, bool]
    enabled: bool
    status: Status = Field(description="of the last contact")
    last_error: str | None
    last_cause: str | None = Field(description="the last error in one stable word")
    config_version: int
    tool_count: int
    pending_count: int
    created_at: datetime
    updated_at: datetime


@router.post("/servers", status_code=201)
async def create_server(
    body: NewServerBody, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ServerOut:
    """A server with an address is asked for its tools at once: see `GET /servers/{id}/runs`."""
    await container.mcp_pool.check(body.transport, body.name, body.url)
    wanted = NewServer(**body.model_dump())
    async with container.database.transaction(tenant.id) as session:
        server, _ = await register_server(session, container.sealer, tenant.id, wanted, caller.actor)
    container.worker.notify()
    return ServerOut.model_validate(server)


@router.get("/servers")
async def list_servers(session: Session, tenant: Tenant, page: PageParams, _: CatalogReadCaller) -> Items[ServerOut]:
    """By name, each with its status, its last cause and how many tools it has."""
    return render_page(await servers.list_servers(session, tenant.id, page), ServerOut.model_validate)


@router.get("/servers/{server_id}")
async def get_server(server_id: str, session: Session, tenant: Tenant, _: CatalogReadCaller) -> ServerOut:
    """What is known of it; of its headers the names alone."""
    return ServerOut.model_validate(await servers.get_server(session, tenant.id, server_id))


@router.patch("/servers/{server_id}")
async def change_server(
    server_id: str, body: ServerChanges, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ServerOut:
    """Only the fields that are given. A new address or new headers: it is asked for its tools again."""
    after = await change_known_server(
        container.database, container.mcp_pool, container.sealer, tenant.id, server_id, set_fields(body), caller.actor
    )
    container.worker.notify()
    return ServerOut.model_validate(after)


@router.delete("/servers/{server_id}", status_code=204)
async def delete_server(
    server_id: str, session: Session, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> Response:
    """With its tools and its runs."""
    await remove_server(session, tenant.id, server_id, container.settings.search_ann_above, caller.actor)
    container.mcp_pool.forget(tenant.id, server_id)
    return Response(status_code=204)
