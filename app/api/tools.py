"""REST: a user's tools, and the native tools that every answer includes."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from app import audit
from app.api.middleware.body_limit import StrictRoute
from app.auth.authentication import Caller, Permission
from app.catalog import core_tools, tools
from app.catalog.policy import EnabledBy, HiddenBy
from app.catalog.projects import get_project
from app.catalog.tools import State, ToolFilter
from app.catalog.visibility import Scope
from app.db.engine import Session as DatabaseSession
from app.db.tables import EVERYONE
from app.dependencies import (
    CatalogReadCaller,
    CatalogWriteCaller,
    ContainerDep,
    PageParams,
    Session,
    Tenant,
    ToolsReadCaller,
)
from app.errors import InvalidInput
from app.indexing.parsing import parse_listing
from app.indexing.plan import CountTokens, definition_tokens
from app.indexing.sanitize import Flag
from app.mcp_types import ToolDefinition
from app.schemas.base import Identifier, Input, Items, Output, render_page, set_fields
from app.schemas.tools import ToolChanges

router = APIRouter(tags=["tools"], route_class=StrictRoute)

MAX_CORE_TOOLS = 50

ProjectId = Annotated[Identifier | None, Query(description="only what this project sees")]


class FindingOut(Output):
    flag: Flag
    where: str
    reason: str


class ToolOut(Output):
    id: str = Field(description="the `tool_key` everywhere")
    server_id: str
    server_name: str
    name: str
    title: str | None
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    annotations: dict[str, Any] | None
    enabled: bool = Field(description="by its own switch, a rule, or the default")
    enabled_by: EnabledBy
    visible: bool = Field(description="it can be found and run")
    hidden_by: HiddenBy | None = Field(description="why it cannot")
    tags: list[str] = Field(description="its own, its server's, and what rules add")
    own_tags: list[str]
    pinned: bool = Field(description="comes first when search fails and all tools are offered")
    state: State = Field(description="`changed` until somebody approves the definition as it stands")
    definition_hash: str
    flags: list[Flag]
    findings: list[FindingOut] = Field(description="what the flags are about, and where")
    tokens: int
    embedded: bool
    updated_at: datetime


class ChangeOut(Output):
    id: str
    at: datetime
    run_id: str
    fields: list[str] = Field(description="of the definition; `hidden_characters` where nothing visible changed")
    old: dict[str, Any]
    new: dict[str, Any]


class TagOut(Output):
    tag: str
    count: int = Field(description="visible tools that have it")


class CoreToolsBody(Input):
    tools: list[Any] = Field(max_length=MAX_CORE_TOOLS, description="MCP tools")


class CoreToolsOut(Output):
    tools: list[dict[str, Any]]


@router.get("/tools")
async def list_tools(
    session: Session,
    tenant: Tenant,
    container: ContainerDep,
    page: PageParams,
    caller: ToolsReadCaller,
    server_id: Annotated[str | None, Query(max_length=128)] = None,
    name: Annotated[str | None, Query(max_length=128, description="part of the name")] = None,
    tag: Annotated[str | None, Query(max_length=64)] = None,
    enabled: Annotated[bool | None, Query()] = None,
    visible: Annotated[bool | None, Query(description="whether it can be found and run")] = None,
    state: Annotated[State | None, Query()] = None,
    flag: Annotated[Flag | None, Query()] = None,
    project_id: ProjectId = None,
) -> Items[ToolOut]:
    """By name; those that cannot be found are listed too, with the reason. A project's key sees its project's alone."""
    project = await _project(session, tenant.id, caller, project_id)
    wanted = ToolFilter(server_id, name, tag, enabled, visible, state, flag, project)
    return render_page(
        await tools.list_tools(session, tenant.id, container.model.id, wanted, page), ToolOut.model_validate
    )


@router.get("/tools/{tool_id}")
async def get_tool(
    tool_id: str, session: Session, tenant: Tenant, container: ContainerDep, caller: ToolsReadCaller
) -> ToolOut:
    """Its definition, whether it can be found and run, and who decided that."""
    project = caller.within(None)
    return ToolOut.model_validate(await tools.get_tool(session, tenant.id, tool_id, container.model.id, project))


@router.patch("/tools/{tool_id}")
async def change_tool(
    tool_id: str,
    body: ToolChanges,
    session: Session,
    tenant: Tenant,
    container: ContainerDep,
    caller: CatalogWriteCaller,
) -> ToolOut:
    """Enable, tag or pin it: only the fields that are given."""
    await tools.update_tool(session, tenant.id, tool_id, set_fields(body))
    await audit.record(session, tenant.id, caller.actor, "tool.change", tool_id)
    return ToolOut.model_validate(await tools.get_tool(session, tenant.id, tool_id, container.model.id))


@router.get("/tools/{tool_id}/history")
async def tool_history(
    tool_id: str, session: Session, tenant: Tenant, page: PageParams, _: CatalogReadCaller
) -> Items[ChangeOut]:
    """How its definition has changed, the newest first."""
    return render_page(await tools.list_tool_changes(session, tenant.id, tool_id, page), ChangeOut.model_validate)


@router.post("/tools/{tool_id}/approve")
async def approve_tool(
    tool_id: str,
    session: Session,
    tenant: Tenant,
    container: ContainerDep,
    caller: CatalogWriteCaller,
    definition_hash: Annotated[
        str | None, Query(max_length=64, description="of the definition that was looked at; 409 where it is another")
    ] = None,
) -> ToolOut:
    """Accepts the definition as it stands: a tool that was held can be found and run again."""
    await tools.approve_tool(session, tenant.id, tool_id, definition_hash)
    await audit.record(session, tenant.id, caller.actor, "tool.approve", tool_id)
    return ToolOut.model_validate(await tools.get_tool(session, tenant.id, tool_id, container.model.id))


@router.get("/tags")
async def list_tags(
    session: Session, tenant: Tenant, container: ContainerDep, caller: ToolsReadCaller, project_id: ProjectId = None
) -> Items[TagOut]:
    """All of them, by name, with the number of tools that can be found by each."""
    project = await _project(session, tenant.id, caller, project_id)
    scope = Scope(tenant.id, container.model.id, project_id=project)
    return Items(items=[TagOut(tag=tag, count=count) for tag, count in await tools.list_tags(session, scope)])


async def _project(session: DatabaseSession, user_id: str, caller: Caller, named: str | None) -> str | None:
    project_id = caller.within(named)
    if project_id is not None:
        await get_project(session, user_id, project_id)
    return project_id


@router.get("/core-tools")
async def get_core_tools(container: ContainerDep, caller: CatalogReadCaller) -> CoreToolsOut:
    """The user's own; an admin key that names no user gets everyone's."""
    owner = _owner(caller)
    async with container.database.transaction(owner) as session:
        return CoreToolsOut(tools=await core_tools.own_core_tools(session, owner))


@router.put("/core-tools")
async def replace_core_tools(body: CoreToolsBody, container: ContainerDep, caller: CatalogWriteCaller) -> CoreToolsOut:
    """All at once. An admin key that names no user sets everyone's."""
    listing = parse_listing(body.tools, max_tools=MAX_CORE_TOOLS)
    if listing.refused:
        first = listing.refused[0]
        raise InvalidInput(f"the tool {first.name!r} is refused: {first.reason}")
    if listing.warnings:
        raise InvalidInput("two of the tools have one name: each must have its own")
    counted = await asyncio.to_thread(_counted, listing.definitions, container.count_tokens)
    owner = _owner(caller)
    database = container.database
    async with database.system_transaction() if owner == EVERYONE else database.transaction(owner) as session:
        await core_tools.replace_core_tools(session, owner, counted)
        await audit.record(session, owner, caller.actor, "core_tools.replace", None)
    return CoreToolsOut(tools=[tool.as_mcp() for tool in listing.definitions])


def _counted(tools: Sequence[ToolDefinition], count_tokens: CountTokens) -> list[tuple[ToolDefinition, int]]:
    return [(tool, definition_tokens(tool, count_tokens)) for tool in tools]


def _owner(caller: Caller) -> str:
    everyone = caller.user is None and caller.may(Permission.ADMINISTER)
    return EVERYONE if everyone else caller.acting_for().id
