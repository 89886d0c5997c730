"""REST: a user's tools, and the core tools that every answer includes."""

from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Query, Response
from starlette.routing import Match
from starlette.types import Scope as HttpScope

from app.api.strict_route import StrictRoute
from app.auth.permissions import Caller, Permission
from app.catalog import core_tools, tools
from app.catalog.categories import resolve_categories
from app.catalog.projects import get_project
from app.catalog.tools import ToolFilter
from app.catalog.visibility import Scope
from app.catalog.visibility_policy import State
from app.db.engine import Session as DatabaseSession
from app.db.tables import EVERYONE
from app.dependencies import (
    CatalogReadCaller,
    CatalogWriteCaller,
    ContainerDep,
    PageParams,
    Session,
    Tenant,
    ToolId,
    ToolsReadCaller,
)
from app.indexing.own_texts import find_own_instructions
from app.indexing.sanitize import Flag
from app.management import core_tools as manage_core_tools
from app.management import examples as manage_examples
from app.management import tools as manage_tools
from app.schemas.base import Identifier, Items, Visible, render_page
from app.schemas.tools import (
    ChangedToolOut,
    ChangeOut,
    CoreToolsBody,
    CoreToolsOut,
    ExamplesBody,
    ExamplesOut,
    FindingOut,
    TagOut,
    ToolChanges,
    ToolDetailsOut,
    ToolOut,
)
from app.usage import examples
from app.usage.examples import Source


class _ToolRoute(StrictRoute):
    """A route whose path may contain an encoded slash, since the name of a tool may: `/tools/github.repos%2Flist`."""

    def matches(self, scope: HttpScope) -> tuple[Match, HttpScope]:
        raw_path = scope.get("raw_path") or b""
        if b"%2f" not in raw_path.lower():
            return super().matches(scope)
        match, child_scope = super().matches({**scope, "path": raw_path.decode("ascii")})
        if match is not Match.NONE:
            parameters = child_scope["path_params"]
            child_scope["path_params"] = {name: unquote(value) for name, value in parameters.items()}
        return match, child_scope


router = APIRouter(tags=["tools"], route_class=_ToolRoute)

ExampleSource = Annotated[
    Source | None, Query(description="only what was learnt from `use`, or what a `person` wrote; both if left out")
]
ProjectId = Annotated[Identifier | None, Query(description="only tools that this project sees")]


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
    visible: Annotated[bool | None, Query(description="whether it can be found")] = None,
    state: Annotated[State | None, Query()] = None,
    flag: Annotated[Flag | None, Query()] = None,
    own_texts: Annotated[bool | None, Query(description="whether it has texts of your own")] = None,
    original_changed: Annotated[
        bool | None, Query(description="whether the server's definition has changed since you wrote yours")
    ] = None,
    categories: Annotated[
        list[Visible] | None, Query(max_length=100, description="only tools of these categories, by id or name")
    ] = None,
    project_id: ProjectId = None,
) -> Items[ToolOut]:
    """List tools by name, also hidden ones, with the reason. A project's key gets the tools of its project only."""
    project = await _resolve_project(session, tenant.id, caller, project_id)
    scope = Scope(tenant.id, container.model.id, project_id=project)
    category_ids = None if categories is None else await resolve_categories(session, scope, categories)
    tool_filter = ToolFilter(
        server_id, name, tag, enabled, visible, state, flag, own_texts, original_changed, project, category_ids
    )
    found = await tools.list_tools(session, tenant.id, container.model.id, tool_filter, page)
    return render_page(found, ToolOut.model_validate)


@router.get("/tools/{tool_id}")
async def get_tool(
    caller: ToolsReadCaller, tool_id: ToolId, session: Session, tenant: Tenant, container: ContainerDep
) -> ToolDetailsOut:
    """Return a tool with its definition, whether it can be found, and what decided that."""
    project = caller.resolve_project(None)
    tool = await tools.get_tool(session, tenant.id, tool_id, container.model.id, project)
    known_tools = container.indexer.known_tools
    return ToolDetailsOut(
        **ToolOut.model_validate(tool).model_dump(),
        icons=tool.icons,
        execution=tool.execution,
        own_findings=[FindingOut.model_validate(finding) for finding in find_own_instructions(tool.own_texts)],
        known_examples=list(known_tools.find_examples(tool.name, tool.server_description, tool.description)),
    )


@router.patch("/tools/{tool_id}")
async def change_tool(
    caller: CatalogWriteCaller, tool_id: ToolId, body: ToolChanges, tenant: Tenant, container: ContainerDep
) -> ChangedToolOut:
    """Enable, tag or pin a tool, or write texts of your own for it. Only the fields that are given change.

    Your texts are kept when the server is indexed again.
    """
    changed = await manage_tools.change_tool(
        container.database,
        container.worker,
        tenant.id,
        tool_id,
        body.to_changes(),
        container.quotas,
        model_id=container.model.id,
        actor=caller.actor,
    )
    tool = ToolOut.model_validate(changed.tool).model_dump()
    return ChangedToolOut(**tool, run_id=changed.run_id, warnings=list(changed.warnings))


@router.get("/tools/{tool_id}/history")
async def list_tool_changes(
    _: CatalogReadCaller, tool_id: ToolId, session: Session, tenant: Tenant, page: PageParams
) -> Items[ChangeOut]:
    """List the changes of a tool's definition, newest first."""
    return render_page(await tools.list_tool_changes(session, tenant.id, tool_id, page), ChangeOut.model_validate)


@router.post("/tools/{tool_id}/approve")
async def approve_tool(
    caller: CatalogWriteCaller,
    tool_id: ToolId,
    tenant: Tenant,
    container: ContainerDep,
    definition_hash: Annotated[
        str | None, Query(max_length=64, description="of the definition that was reviewed; 409 if it has changed since")
    ] = None,
) -> ToolOut:
    """Approve the stored definition. A tool that was held back is visible again."""
    tool = await manage_tools.approve_tool(
        container.database,
        tenant.id,
        tool_id,
        seen_hash=definition_hash,
        model_id=container.model.id,
        actor=caller.actor,
    )
    return ToolOut.model_validate(tool)


@router.get("/tools/{tool_id}/examples")
async def get_tool_examples(
    _: CatalogReadCaller, tool_id: ToolId, session: Session, tenant: Tenant, container: ContainerDep
) -> ExamplesOut:
    """Return the messages that a person wrote for the tool, and how many examples were learnt from use."""
    await tools.require_tool(session, tenant.id, tool_id)
    return ExamplesOut.model_validate(await examples.read_examples(session, tenant.id, container.model.id, tool_id))


@router.put("/tools/{tool_id}/examples")
async def replace_tool_examples(
    caller: CatalogWriteCaller, tool_id: ToolId, body: ExamplesBody, tenant: Tenant, container: ContainerDep
) -> ExamplesOut:
    """Replace the messages in words. The tool ranks higher for messages like them; what was learnt from use stays."""
    replaced = await manage_examples.replace_examples(
        container.database, container.searcher, tenant.id, tool_id, body.messages, actor=caller.actor
    )
    return ExamplesOut.model_validate(replaced)


@router.delete("/tools/{tool_id}/examples", status_code=204)
async def forget_tool_examples(
    caller: CatalogWriteCaller,
    tool_id: ToolId,
    tenant: Tenant,
    container: ContainerDep,
    source: ExampleSource = None,
) -> Response:
    """Forget the examples of the tool: those in words and what was learnt from use."""
    await manage_examples.forget_examples(
        container.database, container.learner, tenant.id, tool_id, source, actor=caller.actor
    )
    return Response(status_code=204)


@router.delete("/examples", status_code=204)
async def forget_examples(
    caller: CatalogWriteCaller, tenant: Tenant, container: ContainerDep, source: ExampleSource = None
) -> Response:
    """Forget the examples of all tools of the user, and the vectors of recent messages."""
    await manage_examples.forget_all_examples(
        container.database, container.learner, tenant.id, source, actor=caller.actor
    )
    return Response(status_code=204)


@router.get("/tags")
async def list_tags(
    session: Session, tenant: Tenant, container: ContainerDep, caller: ToolsReadCaller, project_id: ProjectId = None
) -> Items[TagOut]:
    """List all tags by name, with the number of visible tools that have each."""
    project = await _resolve_project(session, tenant.id, caller, project_id)
    scope = Scope(tenant.id, container.model.id, project_id=project)
    return Items(items=[TagOut(tag=tag, count=count) for tag, count in await tools.list_tags(session, scope)])


async def _resolve_project(session: DatabaseSession, user_id: str, caller: Caller, requested: str | None) -> str | None:
    project_id = caller.resolve_project(requested)
    if project_id is not None:
        await get_project(session, user_id, project_id)
    return project_id


@router.get("/core-tools")
async def get_core_tools(container: ContainerDep, caller: CatalogReadCaller) -> CoreToolsOut:
    """Return the user's core tools. An admin key that names no user gets those of everyone."""
    owner = _core_tools_owner(caller)
    async with container.database.transaction(owner) as session:
        return CoreToolsOut(tools=await core_tools.list_core_tools(session, owner))


@router.put("/core-tools")
async def replace_core_tools(body: CoreToolsBody, container: ContainerDep, caller: CatalogWriteCaller) -> CoreToolsOut:
    """Replace all core tools of the user. An admin key that names no user sets those of everyone."""
    definitions = await manage_core_tools.replace_core_tools(
        container.database, container.count_tokens, _core_tools_owner(caller), body.tools, actor=caller.actor
    )
    return CoreToolsOut(tools=[definition.as_mcp() for definition in definitions])


def _core_tools_owner(caller: Caller) -> str:
    if caller.user is None and caller.has_permission(Permission.ADMINISTER):
        return EVERYONE
    return caller.require_user().id
