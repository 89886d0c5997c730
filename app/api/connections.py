"""REST: sign users in to their servers (OAuth). The page to which browsers come back is one of the console's."""

from fastapi import APIRouter, Response
from starlette.responses import JSONResponse

from app.api.strict_route import StrictRoute
from app.connections.config import METADATA_PATH
from app.dependencies import CatalogWriteCaller, ContainerDep, Tenant
from app.errors import NotFound
from app.schemas.connections import AuthorizationLinkOut, ConnectBody

router = APIRouter(tags=["servers"], route_class=StrictRoute)
public_router = APIRouter()


@router.post("/servers/{server_id}/connect")
async def connect_server(
    server_id: str,
    tenant: Tenant,
    container: ContainerDep,
    caller: CatalogWriteCaller,
    body: ConnectBody | None = None,
) -> AuthorizationLinkOut:
    """Begin a sign-in to a server that wants one: return the link to open in the user's browser.

    Show the link to nobody but this user, who is signed in to your application: another person who opens it connects
    an account of theirs to this user's server. Afterwards a run lists the server's tools."""
    redirect_url = None if body is None else body.redirect_url
    link = await container.connector.start(tenant.id, server_id, caller.actor, redirect_url)
    return AuthorizationLinkOut(authorization_url=link.authorization_url, expires_at=link.expires_at)


@router.delete("/servers/{server_id}/connection", status_code=204)
async def disconnect_server(
    server_id: str, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> Response:
    """Sign out of a server: its tokens are revoked, as far as its sign-in can be reached, and deleted."""
    await container.connector.disconnect(tenant.id, server_id, caller.actor)
    return Response(status_code=204)


@public_router.get(METADATA_PATH, include_in_schema=False)
async def get_client_metadata(container: ContainerDep) -> Response:
    """Our client id metadata document, which authorization servers fetch. It says the same to everybody."""
    document = container.connector.describe_client()
    if document is None:
        raise NotFound("there is no client id metadata document without a TOOLSCOUT_PUBLIC_URL with https")
    return JSONResponse(document, headers={"Cache-Control": "public, max-age=300"})
