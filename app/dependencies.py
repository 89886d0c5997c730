"""FastAPI dependencies: the container, the caller and its permission, the tenant, and database sessions.

All of them are `async`, also where nothing is awaited: FastAPI would run a plain function in a thread, for every
request.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection
from starlette.types import Receive

from app.auth.permissions import Caller, Permission
from app.auth.users import User, get_user
from app.catalog import servers
from app.catalog.tool_keys import is_tool_id, resolve_owned_key
from app.catalog.tools import tool_exists
from app.catalog.visibility import Scope
from app.container import Container
from app.db.engine import Session as DatabaseSession
from app.db.pagination import MAX_PAGE, PageRequest
from app.db.tables import SHARED_OWNER
from app.errors import BadRequest, ClientDisconnected, ForeignOrigin, InvalidInput, Misdirected, ToolscoutError
from app.indexing import queue
from app.reload import Reloader
from app.settings import Settings
from app.text.hosts import is_own_host, is_own_origin

T = TypeVar("T")

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+")
_bearer = HTTPBearer(
    auto_error=False,
    description="A Toolscout key: `Authorization: Bearer ts_…`; or an access token of the identity provider, if the "
    "operator has set one",
)
_api_key = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same key in its own header")


async def get_container(request: Request) -> Container:
    container: Container = request.app.state.container
    return container


ContainerDep = Annotated[Container, Depends(get_container)]


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` and return its result.

    If the client disconnects, cancel `work`, wait until it has cleaned up, and raise `ClientDisconnected`. For routes
    that wait for others: their body must have been read.
    """
    running = asyncio.create_task(work)
    watching = asyncio.create_task(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise ClientDisconnected("the client disconnected before the response")
    finally:
        watching.cancel()
        if not running.done():
            running.cancel()
            await asyncio.wait({running})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def get_reloader(request: Request) -> Reloader:
    reloader: Reloader = request.app.state.reloader
    return reloader


ReloaderDep = Annotated[Reloader, Depends(get_reloader)]


async def check_host_and_origin(request: Request, container: ContainerDep) -> None:
    """Reject requests that a foreign web page makes the user's browser send.

    Such a page sends them from its own origin or, with DNS rebinding, to its own host name.
    """
    settings, headers = container.settings, request.headers
    host, origin = headers.get("host", ""), headers.get("origin")
    if not is_own_host(host, settings.allowed_hosts):
        raise Misdirected("this service does not serve that host: the operator can add it to TOOLSCOUT_SERVED_HOSTS")
    if origin is not None and not is_own_origin(origin, host, settings.allowed_origins):
        raise ForeignOrigin("this origin is not allowed: the operator can add it to TOOLSCOUT_WEB_ORIGINS")


def get_base_url(connection: HTTPConnection, settings: Settings) -> str | None:
    """Return the URL under which clients reach this service, without a slash at its end: the configured one, or else
    the one that the request names. None if that is not one of ours."""
    if settings.public_url is not None:
        return settings.public_url.rstrip("/")
    host = connection.headers.get("host", "")
    is_usable = _HOST.fullmatch(host) is not None and is_own_host(host, settings.allowed_hosts)
    return f"{connection.scope['scheme']}://{host}" if is_usable else None


def reject_repeated(request: Request, name: str) -> None:
    """Refuse a request with several values of one header: a proxy in front may have checked another than we use."""
    if len(request.headers.getlist(name)) > 1:
        raise BadRequest(f"the header {name} is sent more than once: send it once")


ADMISSION = "toolscout.admission"
"""The key in the ASGI scope of the caller, or of the error that says why there is none."""


def get_admitted_caller(request: HTTPConnection) -> Caller:
    """Return the caller whose key was looked up before the body was read, or raise what stopped it."""
    admission: Caller | ToolscoutError = request.scope[ADMISSION]
    if isinstance(admission, ToolscoutError):
        raise admission
    return admission


async def get_caller(
    request: Request,
    _bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    _api_key: Annotated[str | None, Security(_api_key)],
    _user_id: Annotated[
        str | None, Header(alias="x-user-id", description="the user that a service key or an administrator acts for")
    ] = None,
) -> Caller:
    """The parameters are documentation: the request pipeline has read these headers."""
    return get_admitted_caller(request)


def require(permission: Permission) -> Callable[[Caller], Awaitable[Caller]]:
    """Return a dependency that checks the permission; every route has one, except for the open ones."""

    async def check(caller: Annotated[Caller, Depends(get_caller)]) -> Caller:
        caller.require_permission(permission)
        return caller

    return check


DiscoverCaller = Annotated[Caller, Depends(require(Permission.DISCOVER))]
ToolsReadCaller = Annotated[Caller, Depends(require(Permission.READ_TOOLS))]
CatalogReadCaller = Annotated[Caller, Depends(require(Permission.READ_CATALOG))]
CatalogWriteCaller = Annotated[Caller, Depends(require(Permission.WRITE_CATALOG))]
ExecuteCaller = Annotated[Caller, Depends(require(Permission.EXECUTE))]
AuditReadCaller = Annotated[Caller, Depends(require(Permission.READ_AUDIT))]
AdminCaller = Annotated[Caller, Depends(require(Permission.ADMINISTER))]


KnownCaller = Annotated[Caller, Depends(get_caller)]
ToolPath = Annotated[str, Path(description="the tool's id; or, URL-encoded, `SERVER.TOOL` or `SERVER_ID:TOOL`")]


async def get_tenant(request: Request, caller: KnownCaller, container: ContainerDep) -> User:
    """Return the user whose rows the request is about.

    An administrator need not name the user of a server or run: its id is enough to find it. So is the id of a tool of a
    shared server, whose owner cannot be named.
    """
    ids = {**request.query_params, **request.path_params}
    is_admin = caller.has_permission(Permission.ADMINISTER)
    if caller.user is None and is_admin and ids.keys() & {"server_id", "run_id", "tool_id"}:
        async with container.database.system_transaction() as session:
            if "server_id" in ids:
                return await get_user(session, await servers.get_server_owner(session, ids["server_id"]))
            if "run_id" in ids:
                return await get_user(session, await queue.get_run_owner(session, ids["run_id"]))
            if await tool_exists(session, SHARED_OWNER, ids["tool_id"]):
                return await get_user(session, SHARED_OWNER)
    return caller.require_user()


Tenant = Annotated[User, Depends(get_tenant)]


async def get_session(container: ContainerDep, tenant: Tenant) -> AsyncIterator[DatabaseSession]:
    async with container.database.transaction(tenant.id) as session:
        yield session


async def get_system_session(container: ContainerDep, _caller: AdminCaller) -> AsyncIterator[DatabaseSession]:
    async with container.database.system_transaction() as session:
        yield session


async def get_audit_reader(
    container: ContainerDep, caller: AuditReadCaller
) -> AsyncIterator[tuple[DatabaseSession, str | None]]:
    """Yield a session and the user to read about; None, for all users, if an administrator names no user."""
    if caller.user is None and caller.has_permission(Permission.ADMINISTER):
        async with container.database.system_transaction() as session:
            yield session, None
    else:
        user_id = caller.require_user().id
        async with container.database.transaction(user_id) as session:
            yield session, user_id


async def get_tool_id(tool_id: ToolPath, caller: KnownCaller, tenant: Tenant, container: ContainerDep) -> str:
    """Return the id of the tool that the path names by any of its keys.

    A route puts it behind the check of the permission, and before a session: it holds a connection of its own.
    """
    if is_tool_id(tool_id):
        return tool_id
    scope = Scope(tenant.id, container.model.id, project_id=caller.resolve_project(None))
    async with container.database.transaction(tenant.id) as session:
        return await resolve_owned_key(session, scope, tool_id)


ToolId = Annotated[str, Depends(get_tool_id)]


# scope="function": the transaction ends before the response is sent, so that a client can read its own write
Session = Annotated[DatabaseSession, Depends(get_session, scope="function")]
SystemSession = Annotated[DatabaseSession, Depends(get_system_session, scope="function")]
AuditReader = Annotated[tuple[DatabaseSession, str | None], Depends(get_audit_reader, scope="function")]


async def get_page(
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="the maximum number of items")] = 50,
    cursor: Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the previous page")] = None,
) -> PageRequest:
    if cursor is not None and "\0" in cursor:
        raise InvalidInput("the cursor is not valid; start again without it")
    return PageRequest(limit, cursor)


PageParams = Annotated[PageRequest, Depends(get_page)]
