"""REST: the metadata with which MCP clients find the identity provider (RFC 9728)."""

from fastapi import APIRouter, Request, Response

from app.api.mcp_paths import METADATA_PATH, is_mcp_path
from app.container import Container
from app.dependencies import ContainerDep, get_base_url
from app.errors import Misdirected, NotFound
from app.schemas.protected_resource import ProtectedResource

# not a StrictRoute: clients may add parameters of their own
router = APIRouter(tags=["mcp"])

# Clients in browsers read it before they are known, from any origin; it is the same for everybody.
_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, OPTIONS",
    "Access-Control-Allow-Headers": "*",
    "Cache-Control": "max-age=300",
}


@router.get(METADATA_PATH)
async def get_protected_resource(request: Request, response: Response, container: ContainerDep) -> ProtectedResource:
    """Say where clients get an access token for this service; 404 unless an identity provider is set.

    The path of an MCP endpoint at the end, as in `/.well-known/oauth-protected-resource/mcp`, asks about that endpoint.
    """
    return _describe(request, response, container, "")


@router.get(METADATA_PATH + "/{path:path}", include_in_schema=False)
async def get_protected_endpoint(
    path: str, request: Request, response: Response, container: ContainerDep
) -> ProtectedResource:
    if not is_mcp_path(f"/{path}"):
        raise NotFound("there is no such resource")
    return _describe(request, response, container, f"/{path}")


@router.options(METADATA_PATH, include_in_schema=False)
@router.options(METADATA_PATH + "/{path:path}", include_in_schema=False)
async def allow_reading() -> Response:
    return Response(status_code=204, headers=_HEADERS)


def _describe(request: Request, response: Response, container: Container, path: str) -> ProtectedResource:
    if container.sso is None:
        raise NotFound("this service accepts API keys only: no identity provider is set (TOOLSCOUT_OIDC_ISSUER)")
    url = get_base_url(request, container.settings)
    if url is None:
        raise Misdirected("this service does not serve that host: the operator can set TOOLSCOUT_PUBLIC_URL")
    response.headers.update(_HEADERS)
    config = container.sso.config
    return ProtectedResource(
        resource=f"{url}{path}",
        authorization_servers=[config.issuer],
        scopes_supported=list(config.scopes),
        bearer_methods_supported=["header"],
        resource_name="Toolscout",
        resource_documentation=f"{url}/docs",
    )
