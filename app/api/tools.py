"""REST: a user's tools, and the native tools that every answer includes."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from app import audit
from app.accounts.callers import Caller, Permission
from app.api.intake import StrictRoute
from app.api.shapes import Input, Items, Output, Tags, given, items
from app.catalog import core_tools, tools
from app.catalog.tools import ToolFilter
from app.dependencies import Paged, Reading, Session, Tenant, Wired, Writing
from app.errors import InvalidInput
from app.indexing.listing import read_listing
from app.indexing.plan import CountTokens, definition_tokens
from app.models import EVERYONE
from app.protocol import ToolDefinition

router = APIRouter(tags=["tools"], route_class=StrictRoute)

MAX_CORE_TOOLS = 50


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
    enabled: bool
    enabled_by: str
    tags: list[str]
    pinned: bool = Field(description="comes first when search fails and all tools are offered")
    state: str
    flags: list[str] = []
    tokens: int
    embedded: bool
    updated_at: datetime


class ToolChanges(Input):
    enabled: bool = True
    tags: Tags = []
    pinned: bool = False


class CoreToolsBody(Input):
    tools: list[Any] = Field(max_length=MAX_CORE_TOOLS, description="MCP tools")


class CoreToolsOut(Output):
    tools: list[dict[str, Any]]


@router.get("/tools")
async def list_tools(
    session: Session,
    tenant: Tenant,
    container: Wired,
    page: Paged,
    _: Reading,
    server_id: Annotated[str | None, Query(max_length=128)] = None,
    name: Annotated[str | None, Query(max_length=128, description="part of the name")] = None,
    tag: Annotated[str | None, Query(max_length=64)] = None,
    enabled: Annotated[bool | None, Query()] = None,
) -> Items[ToolOut]:
    wanted = ToolFilter(server_id, name, tag, enabled)
    return items(await tools.list_tools(session, tenant.id, container.model.id, wanted, page), ToolOut.model_validate)


@router.get("/tools/{tool_id}")
async def get_tool(tool_id: str, session: Session, tenant: Tenant, container: Wired, _: Reading) -> ToolOut:
    return ToolOut.model_validate(await tools.get_tool(session, tenant.id, tool_id, container.model.id))


@router.patch("/tools/{tool_id}")
async def change_tool(
    tool_id: str, body: ToolChanges, session: Session, tenant: Tenant, container: Wired, caller: Writing
) -> ToolOut:
    await tools.update_tool(session, tenant.id, tool_id, given(body))
    await audit.record(session, tenant.id, caller.actor, "tool.change", tool_id)
    return ToolOut.model_validate(await tools.get_tool(session, tenant.id, tool_id, container.model.id))


@router.get("/core-tools")
async def get_core_tools(container: Wired, caller: Reading) -> CoreToolsOut:
    owner = _owner(caller)
    async with container.database.transaction(owner) as session:
        return CoreToolsOut(tools=await core_tools.own_core_tools(session, owner))


@router.put("/core-tools")
async def replace_core_tools(body: CoreToolsBody, container: Wired, caller: Writing) -> CoreToolsOut:
    """All at once. An admin key that names no user sets everyone's."""
    listing = read_listing(body.tools, max_tools=MAX_CORE_TOOLS)
    if listing.refused:
        first = listing.refused[0]
        raise InvalidInput(f"the tool {first.name!r} is refused: {first.reason}")
    if listing.warnings:
        raise InvalidInput("two of the tools have one name: each must have its own")
    counted = await asyncio.to_thread(_counted, listing.tools, container.count_tokens)
    owner = _owner(caller)
    database = container.database
    async with database.system_transaction() if owner == EVERYONE else database.transaction(owner) as session:
        await core_tools.replace_core_tools(session, owner, counted)
        await audit.record(session, owner, caller.actor, "core_tools.replace", None)
    return CoreToolsOut(tools=[tool.as_mcp() for tool in listing.tools])


def _counted(tools: Sequence[ToolDefinition], count_tokens: CountTokens) -> list[tuple[ToolDefinition, int]]:
    return [(tool, definition_tokens(tool, count_tokens)) for tool in tools]


def _owner(caller: Caller) -> str:
    everyone = caller.user is None and caller.may(Permission.ADMINISTER)
    return EVERYONE if everyone else caller.acting_for().id
