"""The pages for projects: subsets of a user's tools, each with its own rules and limits."""

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from app.catalog import projects
from app.catalog.projects import Project
from app.catalog.rules import get_rules, list_rules_by_project
from app.catalog.servers import list_server_names
from app.console.forms import Form, parse_form
from app.console.page_context import CatalogReadPage, CatalogWritePage, PageContext, page_router, redirect
from app.console.rules import RuleRow, preview_if_requested, read_rows, rearrange_rows, to_bodies, to_row
from app.db.pagination import PageRequest
from app.errors import ToolscoutError
from app.management import projects as manage_projects
from app.schemas.projects import NewProjectBody
from app.schemas.rules import to_rules

router = page_router()


@router.get("/projects")
async def show_projects(context: CatalogReadPage) -> Response:
    async with context.transaction() as session:
        request = PageRequest(cursor=context.query.optional_text("cursor"))
        page = await projects.list_projects(session, context.user.id, request)
        rules = await list_rules_by_project(session, context.user.id)
    return context.render("projects.html", page=page, rules=rules)


@router.get("/projects/new")
async def show_new_project(context: CatalogWritePage) -> Response:
    return await _render_page(context, None, Form([("members", "all"), ("optimization", "hybrid")]), [])


@router.get("/projects/{project_id}")
async def show_project(context: CatalogReadPage, project_id: str) -> Response:
    async with context.transaction() as session:
        project = await projects.get_project(session, context.user.id, project_id)
        rules = await get_rules(session, context.user.id, project_id)
    return await _render_page(context, project, _to_form(project), [to_row(rule) for rule in rules])


@router.post("/projects")
async def create_project(context: CatalogWritePage) -> Response:
    return await _edit_project(context, None)


@router.post("/projects/{project_id}")
async def change_project(context: CatalogWritePage, project_id: str) -> Response:
    async with context.transaction() as session:
        project = await projects.get_project(session, context.user.id, project_id)
    return await _edit_project(context, project)


async def _edit_project(context: PageContext, project: Project | None) -> Response:
    """Handle a button of the form. Every button submits the whole form; only `store` saves it."""
    button = context.form.text("do")
    rows = rearrange_rows(read_rows(context.form), button)
    if button != "store":
        return await _render_page(context, project, context.form, rows)
    try:
        saved = await _save_project(context, project, parse_form(NewProjectBody, _to_body(context.form, rows)))
    except ToolscoutError as error:
        return await _render_page(context, project, context.form, rows, error)
    notice = "project-created" if project is None else "project-changed"
    return redirect(f"/console/projects/{saved.id}", notice=notice)


async def _save_project(context: PageContext, project: Project | None, body: NewProjectBody) -> Project:
    database, user_id, actor = context.container.database, context.user.id, context.caller.actor
    values, rules = body.model_dump(exclude={"rules"}), to_rules(body.rules)
    has_cloud, quotas = context.container.cloud is not None, context.container.quotas
    if project is None:
        return await manage_projects.create_project(
            database, user_id, values, rules, quotas, actor=actor, has_cloud=has_cloud
        )
    saved, _ = await manage_projects.change_project(
        database, user_id, project.id, values, rules, quotas, actor=actor, has_cloud=has_cloud
    )
    return saved


async def _render_page(
    context: PageContext,
    project: Project | None,
    form: Form,
    rows: Sequence[RuleRow],
    error: ToolscoutError | None = None,
) -> Response:
    async with context.transaction() as session:
        servers = await list_server_names(session, context.user.id)
    preview = None
    if project is not None and error is None:
        preview, error = await preview_if_requested(context, rows, project.id)
    return context.render(
        "project.html",
        error,
        project=project,
        form=form,
        rows=rows,
        preview=preview,
        servers=servers,
        server_names=[server.name for server in servers],
        has_cloud=context.container.cloud is not None,
    )


@router.get("/projects/{project_id}/delete")
async def confirm_deletion(context: CatalogWritePage, project_id: str) -> Response:
    async with context.transaction() as session:
        project = await projects.get_project(session, context.user.id, project_id)
    return context.render("project_delete.html", project=project)


@router.post("/projects/{project_id}/delete")
async def delete_project(context: CatalogWritePage, project_id: str) -> Response:
    container, actor = context.container, context.caller.actor
    await manage_projects.delete_project(container.database, context.user.id, project_id, actor=actor)
    return redirect("/console/projects", notice="project-deleted")


def _to_body(form: Form, rows: Sequence[RuleRow]) -> dict[str, Any]:
    return {
        "name": form.text("name"),
        "server_ids": None if form.text("members") == "all" else form.all("server_ids"),
        "optimization": form.optional_text("optimization"),
        "read_only": form.is_checked("read_only"),
        "limit": form.integer("limit"),
        "similarity_threshold": form.decimal("threshold"),
        "rules": to_bodies(rows),
    }


def _to_form(project: Project) -> Form:
    fields = {
        "name": project.name,
        "members": "all" if project.server_ids is None else "some",
        "optimization": project.optimization or "",
        "read_only": "yes" if project.read_only else "",
        "limit": _format_optional(project.limit),
        "threshold": _format_optional(project.similarity_threshold),
    }
    return Form([*fields.items(), *(("server_ids", server_id) for server_id in project.server_ids or ())])


def _format_optional(number: float | None) -> str:
    return "" if number is None else f"{number:g}"
