"""REST: shared servers, for administrators."""

from fastapi import APIRouter, Response

from app.api.strict_route import StrictRoute
from app.catalog.servers import NewServer
from app.catalog.shared_servers import Sharing
from app.db.tables import SHARED_OWNER
from app.dependencies import AdminCaller, ContainerDep, PageParams
from app.management import servers as manage_servers
from app.management import shared_servers as manage_shared_servers
from app.management.runs import request_reindex
from app.management.shared_servers import SHARING_FIELDS, load_shared_server
from app.schemas.base import Items, given_fields, render_page
from app.schemas.runs import RunOut, render_run
from app.schemas.shared_servers import NewSharedServerBody, SharedServerChanges, SharedServerOut

router = APIRouter(tags=["shared servers"], route_class=StrictRoute)


@router.post("/shared-servers", status_code=201)
async def create_shared_server(
    body: NewSharedServerBody, container: ContainerDep, caller: AdminCaller
) -> SharedServerOut:
    """Register a server once for everyone, for groups of users or for a list of users. Its tools are listed and
    embedded once; each member gets a copy within seconds, which `members` counts."""
    given = body.model_dump()
    sharing = Sharing(**{name: given.pop(name) for name in SHARING_FIELDS})
    shared, _ = await manage_shared_servers.register_shared_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        NewServer(**given),
        sharing,
        actor=caller.actor,
    )
    return SharedServerOut.of(*await load_shared_server(container.database, shared.server.id))


@router.get("/shared-servers")
async def list_shared_servers(container: ContainerDep, page: PageParams, _: AdminCaller) -> Items[SharedServerOut]:
    """List shared servers by name, with the number of their members."""
    found = await manage_shared_servers.list_shared_servers(container.database, page)
    return render_page(found, lambda counted: SharedServerOut.of(*counted))


@router.get("/shared-servers/{server_id}")
async def get_shared_server(server_id: str, container: ContainerDep, _: AdminCaller) -> SharedServerOut:
    """Return a shared server. Only the names of its headers are returned, never their values."""
    return SharedServerOut.of(*await load_shared_server(container.database, server_id))


@router.patch("/shared-servers/{server_id}")
async def change_shared_server(
    server_id: str, body: SharedServerChanges, container: ContainerDep, caller: AdminCaller
) -> SharedServerOut:
    """Change the fields that are given. A user who may not use the server any more cannot call its tools from now on,
    and loses its copy within seconds."""
    await manage_shared_servers.change_shared_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        server_id,
        given_fields(body),
        container.quotas,
        actor=caller.actor,
    )
    return SharedServerOut.of(*await load_shared_server(container.database, server_id))


@router.delete("/shared-servers/{server_id}", status_code=204)
async def delete_shared_server(server_id: str, container: ContainerDep, caller: AdminCaller) -> Response:
    """Delete a shared server with its tools, and the copies of all members."""
    await manage_servers.delete_server(
        container.database,
        container.mcp_pool,
        SHARED_OWNER,
        server_id,
        ann_above=container.settings.search_ann_above,
        actor=caller.actor,
    )
    return Response(status_code=204)


@router.post("/shared-servers/{server_id}/reindex", status_code=202)
async def reindex_shared_server(
    server_id: str, container: ContainerDep, caller: AdminCaller, *, force: bool = False
) -> RunOut:
    """List the server's tools again; what has changed reaches the members. See `GET /runs/{id}` for the progress."""
    run = await request_reindex(
        container.database, container.worker, SHARED_OWNER, server_id, force=force, actor=caller.actor
    )
    return render_run(run)
