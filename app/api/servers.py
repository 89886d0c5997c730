"""REST: a user's servers."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field, StringConstraints, field_validator, model_validator

from app import audit
from app.api.intake import StrictRoute
from app.api.shapes import Input, Items, Name, Output, Tags, given, items
from app.catalog import servers
from app.catalog.servers import NewServer, Server, Status
from app.catalog.verdicts import ANY_TOOL
from app.dependencies import Paged, Reading, Session, Tenant, Wired, Writing
from app.errors import InvalidInput
from app.indexing import jobs
from app.indexing.registering import register_server, remove_server
from app.protocol import Transport
from app.wiring import Container

router = APIRouter(tags=["servers"], route_class=StrictRoute)

# what the protocol and the connection say of themselves is not for others to say
_RESERVED_HEADERS = frozenset(
    """
    accept accept-encoding connection content-encoding content-length content-type expect host keep-alive
    last-event-id mcp-method mcp-name mcp-protocol-version mcp-session-id proxy-authorization proxy-connection te
    trailer transfer-encoding upgrade
    """.split()
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")

HeaderValue = Annotated[str, StringConstraints(max_length=8_192, pattern=r"^[\x20-\x7e\t]*$")]
ToolPermissions = Annotated[dict[Name, bool], Field(max_length=1_000)]
_PERMISSIONS = "which tools may be found and run, by name; `*` is for those that are not named; none: all"


class _ServerFields(Input):
    @field_validator("tool_permissions", check_fields=False)
    @classmethod
    def _tool_permissions(cls, value: dict[str, bool]) -> dict[str, bool]:
        if any("*" in name and name != ANY_TOOL for name in value):
            raise ValueError("names are exact; `*` alone is for the tools that are not named (rules take patterns)")
        return value

    @field_validator("headers", check_fields=False)
    @classmethod
    def _headers(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        if wrong := [name for name in value or {} if not _HEADER_NAME.fullmatch(name)]:
            raise ValueError(f"{wrong[0][:40]!r} is not a header name")
        if reserved := [name for name in value or {} if name.lower() in _RESERVED_HEADERS]:
            raise ValueError(f"{reserved[0]!r} is set by the connection itself")
        return value


class NewServerBody(_ServerFields):
    name: Name = Field(examples=["github"])
    transport: Transport = Field(examples=["push"])
    description: str = Field("", max_length=4_000)
    url: str | None = Field(None, max_length=2_048)
    headers: dict[str, HeaderValue] = Field({}, max_length=32, description="stored sealed, never shown again")
    tags: Tags = []
    enabled: bool = True
    tool_permissions: ToolPermissions = Field({}, description=_PERMISSIONS)

    @model_validator(mode="after")
    def _url_where_one_connects(self) -> "NewServerBody":
        check_transport(self.transport, self.url)
        return self


class ServerChanges(_ServerFields):
    name: Name = ""
    description: str = Field("", max_length=4_000)
    transport: Transport = "push"
    url: str | None = Field(None, max_length=2_048)
    headers: dict[str, HeaderValue] | None = Field(None, max_length=32)
    tags: Tags = []
    enabled: bool = True
    tool_permissions: ToolPermissions = Field({}, description=_PERMISSIONS)


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


def check_transport(transport: Transport, url: str | None) -> None:
    if transport in ("stdio", "push") and url is not None:
        raise ValueError(f"a {transport} server has no URL")
    if transport in ("streamable_http", "sse") and url is None:
        raise ValueError(f"a {transport} server needs a URL")


@router.post("/servers", status_code=201)
async def create_server(body: NewServerBody, tenant: Tenant, container: Wired, caller: Writing) -> ServerOut:
    """A server with an address is asked for its tools at once: see `GET /servers/{id}/runs`."""
    await container.upstream.check(body.transport, body.name, body.url)
    wanted = NewServer(**body.model_dump())
    async with container.database.transaction(tenant.id) as session:
        server, _ = await register_server(session, container.sealer, tenant.id, wanted, caller.actor)
    container.worker.wake()
    return ServerOut.model_validate(server)


@router.get("/servers")
async def list_servers(session: Session, tenant: Tenant, page: Paged, _: Reading) -> Items[ServerOut]:
    return items(await servers.list_servers(session, tenant.id, page), ServerOut.model_validate)


@router.get("/servers/{server_id}")
async def get_server(server_id: str, session: Session, tenant: Tenant, _: Reading) -> ServerOut:
    return ServerOut.model_validate(await servers.get_server(session, tenant.id, server_id))


@router.patch("/servers/{server_id}")
async def change_server(
    server_id: str, body: ServerChanges, tenant: Tenant, container: Wired, caller: Writing
) -> ServerOut:
    changes = given(body)
    async with container.database.transaction(tenant.id) as session:
        before = await servers.get_server(session, tenant.id, server_id)
    await _check_changes(container, before, changes)
    async with container.database.transaction(tenant.id) as session:
        after = await servers.update_server(session, container.sealer, tenant.id, server_id, changes)
        await audit.record(session, tenant.id, caller.actor, "server.change", server_id)
        if _is_to_be_asked(before, after):
            await jobs.enqueue(session, tenant.id, server_id, asked_by=caller.actor)
        elif after.name != before.name and after.tool_count:
            # the name is part of what is searched
            await jobs.enqueue(session, tenant.id, server_id, asks=False, asked_by=caller.actor)
    if after.config_version != before.config_version:
        container.upstream.forget(tenant.id, server_id)
    container.worker.wake()
    return ServerOut.model_validate(after)


async def _check_changes(container: Container, before: Server, changes: Mapping[str, Any]) -> None:
    transport, name = changes.get("transport", before.transport), changes.get("name", before.name)
    try:
        check_transport(transport, changes.get("url", before.url))
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    if before.transport == transport == "stdio" and name != before.name:
        raise InvalidInput("a stdio server has the name that the operator's file gives it")
    if {"transport", "name", "url"} & changes.keys():
        await container.upstream.check(transport, name, changes.get("url"))


def _is_to_be_asked(before: Server, after: Server) -> bool:
    """At another address, or after a while, there may be other tools."""
    moved = after.config_version != before.config_version or after.enabled != before.enabled
    return moved and after.enabled and after.transport != "push"


@router.delete("/servers/{server_id}", status_code=204)
async def delete_server(
    server_id: str, session: Session, tenant: Tenant, container: Wired, caller: Writing
) -> Response:
    await remove_server(session, tenant.id, server_id, container.settings.search_ann_above, caller.actor)
    container.upstream.forget(tenant.id, server_id)
    return Response(status_code=204)
