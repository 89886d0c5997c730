"""REST: a user's projects."""

from fastapi import APIRouter, Response

from app.api.strict_route import StrictRoute
from app.catalog import projects
from app.catalog.rules import get_rules, list_rules_by_project
from app.dependencies import CatalogReadCaller, CatalogWriteCaller, ContainerDep, PageParams, Session, Tenant
from app.management import projects as manage_projects
from app.schemas.base import Items, given_fields, render_page
from app.schemas.projects import NewProjectBody, ProjectChanges, ProjectOut, render_project
from app.schemas.rules import to_rules

router = APIRouter(tags=["projects"], route_class=StrictRoute)


@router.post("/projects", status_code=201)
async def create_project(
    body: NewProjectBody, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ProjectOut:
    """Create a project: a part of the user's tools, with rules and limits of its own. It can only narrow."""
    rules = to_rules(body.rules)
    values = body.model_dump(exclude={"rules"})
    project = await manage_projects.create_project(
        container.database,
        tenant.id,
        values,
        rules,
        container.quotas,
        actor=caller.actor,
        has_cloud=container.cloud is not None,
    )
    return render_project(project, rules)


@router.get("/projects")
async def list_projects(session: Session, tenant: Tenant, page: PageParams, _: CatalogReadCaller) -> Items[ProjectOut]:
    """List projects by name, with their rules."""
    found = await projects.list_projects(session, tenant.id, page)
    rules = await list_rules_by_project(session, tenant.id)
    return render_page(found, lambda project: render_project(project, rules.get(project.id, ())))


@router.get("/projects/{project_id}")
async def get_project(project_id: str, session: Session, tenant: Tenant, _: CatalogReadCaller) -> ProjectOut:
    """Return a project with its rules."""
    project = await projects.get_project(session, tenant.id, project_id)
    return render_project(project, await get_rules(session, tenant.id, project_id))


@router.patch("/projects/{project_id}")
async def change_project(
    project_id: str, body: ProjectChanges, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ProjectOut:
    """Change the fields that are given."""
    changes = given_fields(body)
    new_rules = to_rules(changes.pop("rules")) if "rules" in changes else None
    project, rules = await manage_projects.change_project(
        container.database,
        tenant.id,
        project_id,
        changes,
        new_rules,
        container.quotas,
        actor=caller.actor,
        has_cloud=container.cloud is not None,
    )
    return render_project(project, rules)


@router.delete("/projects/{project_id}", status_code=204)
async def delete_project(
    project_id: str, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> Response:
    """Delete a project, and revoke the keys that are bound to it."""
    await manage_projects.delete_project(container.database, tenant.id, project_id, actor=caller.actor)
    return Response(status_code=204)
