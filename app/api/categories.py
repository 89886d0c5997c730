"""REST: the categories of a user's tools."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.api.strict_route import StrictRoute
from app.catalog import categories
from app.catalog.projects import get_project
from app.catalog.visibility import Scope
from app.dependencies import CatalogWriteCaller, ContainerDep, Session, Tenant, ToolsReadCaller
from app.management import categories as manage_categories
from app.schemas.base import Identifier, Items, given_fields
from app.schemas.categories import CategoryChanges, CategoryOut

router = APIRouter(tags=["categories"], route_class=StrictRoute)


async def get_scope(
    session: Session,
    tenant: Tenant,
    container: ContainerDep,
    caller: ToolsReadCaller,
    project_id: Annotated[Identifier | None, Query(description="only what this project sees")] = None,
) -> Scope:
    scope = Scope(tenant.id, container.model.id, project_id=caller.resolve_project(project_id))
    if scope.project_id is not None:
        await get_project(session, tenant.id, scope.project_id)
    return scope


ReadScope = Annotated[Scope, Depends(get_scope)]


@router.get("/categories")
async def list_categories(session: Session, scope: ReadScope) -> Items[CategoryOut]:
    """List the categories that have a visible tool, those with the most tools first.

    They are made in the background, some seconds after the tools of a server were indexed.
    """
    found = await categories.list_categories(session, scope)
    return Items(items=[CategoryOut.model_validate(category) for category in found])


@router.get("/categories/{category_id}")
async def get_category(category_id: str, session: Session, scope: ReadScope) -> CategoryOut:
    """Return a category. `GET /tools?categories=ID` lists its tools."""
    return CategoryOut.model_validate(await categories.get_category(session, scope, category_id))


@router.patch("/categories/{category_id}")
async def rename_category(
    category_id: str, body: CategoryChanges, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> CategoryOut:
    """Give a category a name of your own. It keeps it as long as it exists, whatever tools come and go."""
    scope = Scope(tenant.id, container.model.id, project_id=caller.resolve_project(None))
    if not given_fields(body):
        async with container.database.transaction(tenant.id) as session:
            return CategoryOut.model_validate(await categories.get_category(session, scope, category_id))
    renamed = await manage_categories.rename_category(
        container.database, scope, category_id, body.name, actor=caller.actor
    )
    return CategoryOut.model_validate(renamed)
