"""What every HTTP door asks for: the container, the caller and its permission, and a session bound to one user.

All of them are `async`, also where nothing is awaited: FastAPI sends a plain function to a thread, for every request.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Header, Query, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from app.auth.authentication import Caller, Permission
from app.auth.users import User, get_user
from app.catalog import servers
from app.container import Container
from app.db.engine import Session as DatabaseSession
from app.db.pagination import MAX_PAGE, PageRequest
from app.errors import BadRequest, ForeignOrigin, InvalidInput, Misdirected, Unauthenticated
from app.indexing import queue
from app.text.hosts import is_own_host, is_own_origin

_bearer = HTTPBearer(auto_error=False, description="A Toolscout key: `Authorization: Bearer ts_…`")
_api_key = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same key, in a header of its own")


async def get_container(request: Request) -> Container:
    container: Container = request.app.state.container
    return container


ContainerDep = Annotated[Container, Depends(get_container)]


async def check_visit(request: Request, container: ContainerDep) -> None:
    """For doors that other programs on a user's machine knock at: a web page may make the user's browser do so, from
    its own origin, or with its own name led to our address."""
    settings, headers = container.settings, request.headers
    host, origin = headers.get("host", ""), headers.get("origin")
    if not is_own_host(host, settings.allowed_hosts):
        raise Misdirected("this name is not one of ours: the operator can add it to TOOLSCOUT_SERVED_HOSTS")
    if origin is not None and not is_own_origin(origin, host, settings.allowed_origins):
        raise ForeignOrigin("the operator can add it to TOOLSCOUT_WEB_ORIGINS")


async def get_caller(
    request: Request,
    container: ContainerDep,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    api_key: Annotated[str | None, Security(_api_key)],
    x_user_id: Annotated[str | None, Header(description="whom a service or admin key acts for")] = None,
) -> Caller:
    if "authorization" in request.headers and api_key is not None:
        raise BadRequest("give the key in Authorization or in X-API-Key, not in both")
    key = bearer.credentials if bearer is not None else api_key
    if not key:
        raise Unauthenticated("give an API key: `Authorization: Bearer …` or `X-API-Key: …`")
    caller = await container.authenticator.authenticate(key, x_user_id)
    if caller.user is not None and not caller.may(Permission.ADMINISTER):
        # in line: refusals, too, take their time from no one else
        async with container.searcher.scheduler.turn(caller.user.id):
            container.rate_limiter.acquire(caller.user.id)
    return caller


def require(permission: Permission) -> Callable[[Caller], Awaitable[Caller]]:
    """The route's declared permission; used as `Depends(require(…))` on every route but the open ones."""

    async def check(caller: Annotated[Caller, Depends(get_caller)]) -> Caller:
        caller.demand(permission)
        return caller

    return check


DiscoverCaller = Annotated[Caller, Depends(require(Permission.DISCOVER))]
ToolsReadCaller = Annotated[Caller, Depends(require(Permission.READ_TOOLS))]
CatalogReadCaller = Annotated[Caller, Depends(require(Permission.READ_CATALOG))]
CatalogWriteCaller = Annotated[Caller, Depends(require(Permission.WRITE_CATALOG))]
ExecuteCaller = Annotated[Caller, Depends(require(Permission.EXECUTE))]
AuditReadCaller = Annotated[Caller, Depends(require(Permission.READ_AUDIT))]
AdminCaller = Annotated[Caller, Depends(require(Permission.ADMINISTER))]


async def get_tenant(request: Request, caller: Annotated[Caller, Depends(get_caller)], container: ContainerDep) -> User:
    """Whose rows the request is about. To an administrator the id of a server or run alone tells the user."""
    ids = request.path_params
    if caller.user is None and caller.may(Permission.ADMINISTER) and ids.keys() & {"server_id", "run_id"}:
        async with container.database.system_transaction() as session:
            if "server_id" in ids:
                return await get_user(session, await servers.get_server_owner(session, ids["server_id"]))
            return await get_user(session, await queue.get_run_owner(session, ids["run_id"]))
    return caller.acting_for()


Tenant = Annotated[User, Depends(get_tenant)]


async def get_session(container: ContainerDep, tenant: Tenant) -> AsyncIterator[DatabaseSession]:
    async with container.database.transaction(tenant.id) as session:
        yield session


async def get_system_session(container: ContainerDep, _caller: AdminCaller) -> AsyncIterator[DatabaseSession]:
    async with container.database.system_transaction() as session:
        yield session


# scope="function": the commit must come before the answer, or a client could read its own write too early
Session = Annotated[DatabaseSession, Depends(get_session, scope="function")]
SystemSession = Annotated[DatabaseSession, Depends(get_system_session, scope="function")]


async def get_page(
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="how many at most")] = 50,
    cursor: Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the page before")] = None,
) -> PageRequest:
    if cursor is not None and "\0" in cursor:
        raise InvalidInput("the cursor is not one of ours; start again without it")
    return PageRequest(limit, cursor)


PageParams = Annotated[PageRequest, Depends(get_page)]
