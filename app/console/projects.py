"""Projects: parts of what a user has, with rules and limits of their own."""

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from app.catalog import projects
from app.catalog.projects import Project
from app.catalog.rules import Rule, get_rules, list_rules_by_project
from app.catalog.servers import list_server_names
from app.console.forms import Form, parse_form
from app.console.page_context import CatalogReadCaller, CatalogWriteCaller, PageContext, go, page_router
from app.console.rules import RuleRow, preview_if_requested, rearrange, row_of, rows_in
from app.db.pagination import PageRequest
from app.errors import ToolscoutError
from app.management import projects as manage_projects
from app.schemas.projects import NewProjectBody
from app.schemas.rules import to_rules

router = page_router()


@router.get("/projects")
async def show_projects(visit: CatalogReadCaller) -> Response:
    async with visit.transaction() as session:
        request = PageRequest(cursor=visit.query.given("cursor"))
        page = await projects.list_projects(session, visit.user.id, request)
        rules = await list_rules_by_project(session, visit.user.id)
    return visit.show("projects.html", page=page, rules=rules)


@router.get("/projects/new")
async def show_new(visit: CatalogWriteCaller) -> Response:
    return await _page(visit, None, Form([("members", "all"), ("optimization", "hybrid")]), [])


@router.get("/projects/{project_id}")
async def show_project(visit: CatalogReadCaller, project_id: str) -> Response:
    async with visit.transaction() as session:
        project = await projects.get_project(session, visit.user.id, project_id)
        rules = await get_rules(session, visit.user.id, project_id)
    return await _page(visit, project, _form_of(project), [row_of(rule) for rule in rules])


@router.post("/projects")
async def make_project(visit: CatalogWriteCaller) -> Response:
    return await _edited(visit, None)


@router.post("/projects/{project_id}")
async def change_project(visit: CatalogWriteCaller, project_id: str) -> Response:
    async with visit.transaction() as session:
        project = await projects.get_project(session, visit.user.id, project_id)
    return await _edited(visit, project)


async def _edited(visit: PageContext, project: Project | None) -> Response:
    """Every button sends the whole form; only one of them stores."""
    deed = visit.form.text("do")
    rows = rearrange(rows_in(visit.form), deed)
    if deed != "store":
        return await _page(visit, project, visit.form, rows)
    try:
        body = parse_form(NewProjectBody, _said(visit.form, rows))
        stored = await _store(visit, project, body.model_dump(exclude={"rules"}), to_rules(body.rules))
    except ToolscoutError as error:
        return await _page(visit, project, visit.form, rows, error)
    return go(f"/console/projects/{stored.id}", said="project-made" if project is None else "project-changed")


async def _store(visit: PageContext, project: Project | None, values: dict[str, Any], rules: Sequence[Rule]) -> Project:
    database, user_id, actor = visit.container.database, visit.user.id, visit.caller.actor
    if project is None:
        return await manage_projects.create_project(database, user_id, values, rules, actor=actor)
    stored, _ = await manage_projects.change_project(database, user_id, project.id, values, rules, actor=actor)
    return stored


async def _page(
    visit: PageContext,
    project: Project | None,
    form: Form,
    rows: Sequence[RuleRow],
    error: ToolscoutError | None = None,
) -> Response:
    async with visit.transaction() as session:
        servers = await list_server_names(session, visit.user.id)
    preview = None
    if project is not None and error is None:
        preview, error = await preview_if_requested(visit, rows, project.id)
    names = [server.name for server in servers]
    shown: dict[str, Any] = {"project": project, "form": form, "rows": rows, "preview": preview}
    return visit.show("project.html", error, servers=servers, server_names=names, **shown)


@router.get("/projects/{project_id}/delete")
async def confirm_delete(visit: CatalogWriteCaller, project_id: str) -> Response:
    async with visit.transaction() as session:
        project = await projects.get_project(session, visit.user.id, project_id)
    return visit.show("project_delete.html", project=project)


@router.post("/projects/{project_id}/delete")
async def delete_project(visit: CatalogWriteCaller, project_id: str) -> Response:
    container, actor = visit.container, visit.caller.actor
    await manage_projects.delete_project(
        container.database, container.authenticator, visit.user.id, project_id, actor=actor
    )
    return go("/console/projects", said="project-deleted")


def _said(form: Form, rows: Sequence[RuleRow]) -> dict[str, Any]:
    return {
        "name": form.text("name"),
        "server_ids": None if form.text("members") == "all" else form.all("server_ids"),
        "optimization": form.given("optimization"),
        "read_only": form.on("read_only"),
        "limit": form.whole("limit"),
        "similarity_threshold": form.decimal("threshold"),
        "rules": [row.said() for row in rows if row != RuleRow()],
    }


def _form_of(project: Project) -> Form:
    fields = {
        "name": project.name,
        "members": "all" if project.server_ids is None else "some",
        "optimization": project.optimization or "",
        "read_only": "yes" if project.read_only else "",
        "limit": _text(project.limit),
        "threshold": _text(project.similarity_threshold),
    }
    return Form([*fields.items(), *(("server_ids", each) for each in project.server_ids or ())])


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:g}"
