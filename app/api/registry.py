"""REST: look servers up in an MCP registry, and register them."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from app.api.strict_route import StrictRoute
from app.auth.permissions import Caller
from app.dependencies import CatalogReadCaller, CatalogWriteCaller, ContainerDep, Tenant
from app.management import servers as manage_servers
from app.registry.client import require_registry
from app.schemas.registry import (
    FromRegistryBody,
    FromRegistryOut,
    RegistryServerOut,
    RegistryServersOut,
    plan_registration,
    render_registration,
    render_search,
)

router = APIRouter(tags=["registry"], route_class=StrictRoute)

_MAX_LIMIT = 100
_NamePart = Annotated[str, Path(max_length=200)]


@router.get("/registry/servers")
async def search_registry(
    container: ContainerDep,
    caller: CatalogReadCaller,
    q: Annotated[str, Query(max_length=200, description="a part of the server's name; empty: all servers")] = "",
    limit: Annotated[int, Query(ge=1, le=_MAX_LIMIT, description="the maximum number of items")] = 20,
    cursor: Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the previous page")] = None,
) -> RegistryServersOut:
    """Search the MCP registry that the operator has configured, in the registry's order.

    A server that only runs as a local program is listed with `usable: false`. With an allow-list a page may be short,
    or empty, although there is a next one. Without a registry the answer is 404; 502 or 503 if it does not answer."""
    result = await require_registry(container.registry).search(_get_owner(caller), q.strip(), limit, cursor)
    return render_search(result)


@router.get("/registry/servers/{namespace}/{name}")
async def get_registry_server(
    namespace: _NamePart, name: _NamePart, container: ContainerDep, caller: CatalogReadCaller
) -> RegistryServerOut:
    """Return a server of the registry, with the headers and variables that it needs."""
    server = await require_registry(container.registry).get_server(_get_owner(caller), f"{namespace}/{name}")
    return RegistryServerOut.model_validate(server)


@router.post("/servers/from-registry", status_code=201)
async def create_server_from_registry(
    body: FromRegistryBody, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> FromRegistryOut:
    """Register a server of the registry, by its name there. A run lists its tools at once.

    If headers or variables are missing that it requires, the answer is 422, and `errors` names each of them."""
    entry = await require_registry(container.registry).get_server(tenant.id, body.registry_name)
    planned = plan_registration(entry, body)
    server, _ = await manage_servers.register_server(
        container.database,
        container.mcp_pool,
        container.sealer,
        container.worker,
        tenant.id,
        planned.new_server,
        container.quotas,
        actor=caller.actor,
    )
    return render_registration(planned, server)


def _get_owner(caller: Caller) -> str:
    """Return in whose name the registry is asked: the user, or the key of an administrator who names none."""
    return caller.actor if caller.user is None else caller.user.id
