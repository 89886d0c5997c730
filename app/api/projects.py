"""REST: a user's projects."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response

from app.api.middleware.body_limit import StrictRoute
from app.api.rules import RuleOut
from app.catalog import projects
from app.catalog.projects import Optimization, Project
from app.catalog.rules import Rule, all_rules, get_rules
from app.dependencies import CatalogReadCaller, CatalogWriteCaller, ContainerDep, PageParams, Session, Tenant
from app.management import projects as manage_projects
from app.schemas.base import Items, Output, set_fields
from app.schemas.projects import NewProjectBody, ProjectChanges
from app.schemas.rules import to_rules

router = APIRouter(tags=["projects"], route_class=StrictRoute)


class ProjectOut(Output):
    id: str
    name: str
    server_ids: list[str] | None
    optimization: Optimization | None
    rules: list[RuleOut]
    read_only: bool
    limit: int | None
    similarity_threshold: float | None
    created_at: datetime
    updated_at: datetime


@router.post("/projects", status_code=201)
async def create_project(
    body: NewProjectBody, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ProjectOut:
    """A part of what the user has, with rules and limits of its own: it narrows and never widens."""
    rules = to_rules(body.rules)
    values = body.model_dump(exclude={"rules"})
    project = await manage_projects.create_project(container.database, tenant.id, values, rules, actor=caller.actor)
    return _shown(project, rules)


@router.get("/projects")
async def list_projects(session: Session, tenant: Tenant, page: PageParams, _: CatalogReadCaller) -> Items[ProjectOut]:
    """By name, each with its rules."""
    found = await projects.list_projects(session, tenant.id, page)
    rules = await all_rules(session, tenant.id)
    shown = [_shown(project, rules.get(project.id, ())) for project in found.items]
    return Items(items=shown, next_cursor=found.next_cursor)


@router.get("/projects/{project_id}")
async def get_project(project_id: str, session: Session, tenant: Tenant, _: CatalogReadCaller) -> ProjectOut:
    """With its rules."""
    project = await projects.get_project(session, tenant.id, project_id)
    return _shown(project, await get_rules(session, tenant.id, project_id))


@router.patch("/projects/{project_id}")
async def change_project(
    project_id: str, body: ProjectChanges, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ProjectOut:
    """Only the fields that are given."""
    changes = set_fields(body)
    rules = to_rules(changes.pop("rules")) if "rules" in changes else None
    project, stored_rules = await manage_projects.change_project(
        container.database, tenant.id, project_id, changes, rules, actor=caller.actor
    )
    return _shown(project, stored_rules)


@router.delete("/projects/{project_id}", status_code=204)
async def delete_project(
    project_id: str, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> Response:
    """Its keys go with it."""
    await manage_projects.delete_project(
        container.database, container.authenticator, tenant.id, project_id, actor=caller.actor
    )
    return Response(status_code=204)


def _shown(project: Project, rules: Sequence[Rule]) -> ProjectOut:
    shown: Mapping[str, Any] = vars(project)
    return ProjectOut(**shown, rules=[RuleOut.model_validate(rule) for rule in rules])
