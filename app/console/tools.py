"""The pages for tools: list and filter them, enable, tag and pin one, write examples, review a changed definition."""

import asyncio
from typing import Any, get_args
from urllib.parse import urlencode

from starlette.responses import Response

from app.catalog import tools
from app.catalog.categories import list_categories
from app.catalog.servers import list_copy_ids, list_server_names
from app.catalog.tools import Tool, ToolFilter
from app.catalog.visibility import Scope
from app.catalog.visibility_policy import State
from app.console.definition_diff import diff_definitions
from app.console.forms import Form, parse_form
from app.console.own_texts import ANNOTATION_HINTS
from app.console.page_context import CatalogWritePage, ToolsReadPage, page_router, redirect
from app.db.pagination import PageRequest
from app.errors import InvalidInput
from app.indexing.own_texts import find_own_instructions
from app.indexing.sanitize import Flag
from app.management import examples as manage_examples
from app.management import tools as manage_tools
from app.schemas.tools import ExamplesBody, ToolChanges
from app.usage import examples
from app.usage.examples import ToolExamples

router = page_router()

_MAX_CHANGES_SHOWN = 10
_FILTERS = ("name", "server_id", "category", "tag", "state", "visible", "flag", "texts")
_YES_OR_NO = {"yes": True, "no": False}
_SWITCH_VALUES = {"on": True, "off": False, "rules": None}


@router.get("/tools")
async def show_tools(context: ToolsReadPage) -> Response:
    query, user_id, model_id = context.query, context.user.id, context.container.model.id
    project_id = context.caller.resolve_project(None)
    tool_filter = _parse_filter(query, project_id)
    async with context.transaction() as session:
        request = PageRequest(cursor=query.optional_text("cursor"))
        page = await tools.list_tools(session, user_id, model_id, tool_filter, request)
        categories = await list_categories(session, Scope(user_id, model_id, project_id=project_id))
        servers = await list_server_names(session, user_id) if context.has_permission("catalog:read") else []
        shared_ids = await list_copy_ids(session, user_id)
    filters = {name: query.text(name) for name in _FILTERS if query.text(name)}
    cursor = {"cursor": query.text("cursor")} if query.optional_text("cursor") else {}
    return context.render(
        "tools.html",
        page=page,
        approvable=[tool for tool in page.items if tool.server_id not in shared_ids],
        servers=servers,
        categories=categories,
        form=query,
        is_filtered=bool(filters),
        first_page_url=_make_list_url(filters),
        current_url=_make_list_url(filters | cursor),
    )


def _parse_filter(query: Form, project_id: str | None) -> ToolFilter:
    state, flag, category = query.optional_text("state"), query.optional_text("flag"), query.optional_text("category")
    if state not in (None, *get_args(State)) or flag not in (None, *get_args(Flag)):
        raise InvalidInput("unknown value in the filter")
    return ToolFilter(
        server_id=query.optional_text("server_id"),
        name=query.optional_text("name"),
        tag=query.optional_text("tag"),
        visible=_YES_OR_NO.get(query.text("visible")),
        state=state,  # type: ignore[arg-type]
        flag=flag,
        own_texts={"own": True, "server": False}.get(query.text("texts")),
        original_changed={"outdated": True}.get(query.text("texts")),
        project_id=project_id,
        category_ids=None if category is None else [category],
    )


def _make_list_url(parameters: dict[str, str]) -> str:
    return f"/console/tools?{urlencode(parameters)}" if parameters else "/console/tools"


@router.get("/tools/{tool_id}")
async def show_tool(context: ToolsReadPage, tool_id: str) -> Response:
    user_id, project_id = context.user.id, context.caller.resolve_project(None)
    changes: list[tools.Change] = []
    found: ToolExamples | None = None
    model_id = context.container.model.id
    async with context.transaction() as session:
        tool = await tools.get_tool(session, user_id, tool_id, model_id, project_id)
        is_shared = tool.server_id in await list_copy_ids(session, user_id)
        if context.has_permission("catalog:read"):
            page = await tools.list_tool_changes(session, user_id, tool_id, PageRequest(_MAX_CHANGES_SHOWN))
            changes = list(page.items)
            found = await examples.read_examples(session, user_id, model_id, tool_id)
    # a diff of large definitions takes a while: off the event loop
    diffs = [(change, await asyncio.to_thread(diff_definitions, change.old, change.new)) for change in changes]
    return context.render(
        "tool.html",
        own_findings=find_own_instructions(tool.own_texts),
        annotation_hints=ANNOTATION_HINTS,
        tool=tool,
        is_shared=is_shared,
        diffs=diffs,
        parameters=_list_parameters(tool),
        examples=found,
        known_examples=context.container.indexer.known_tools.find_examples(
            tool.name, tool.server_description, tool.description
        ),
    )


def _list_parameters(tool: Tool) -> list[dict[str, Any]]:
    """Return the parameters for display. The schema comes from the server and may have any shape."""
    properties, required = tool.input_schema.get("properties"), tool.input_schema.get("required")
    if not isinstance(properties, dict):
        return []
    required_names = required if isinstance(required, list) else []
    schemas = {name: schema if isinstance(schema, dict) else {} for name, schema in properties.items()}
    return [
        {
            "name": name,
            "required": name in required_names,
            "type": schema.get("type", ""),
            "description": schema.get("description", ""),
        }
        for name, schema in schemas.items()
    ]


@router.post("/tools/approve")
async def approve_tools(context: CatalogWritePage) -> Response:
    """Approve all definitions of a page of the list. If one of them has changed since it was shown, none is."""
    pairs = (shown.partition(":") for shown in context.form.all("definition"))
    seen_hashes = {tool_id: definition_hash for tool_id, _, definition_hash in pairs}
    await manage_tools.approve_tools(
        context.container.database, context.user.id, seen_hashes, actor=context.caller.actor
    )
    return redirect("/console/tools", notice="tools-approved")


@router.post("/tools/{tool_id}")
async def change_tool(context: CatalogWritePage, tool_id: str) -> Response:
    body = parse_form(ToolChanges, _read_changes(context.form))
    container, actor = context.container, context.caller.actor
    await manage_tools.change_tool(
        container.database,
        container.worker,
        context.user.id,
        tool_id,
        body.to_changes(),
        container.quotas,
        model_id=container.model.id,
        actor=actor,
    )
    return redirect(_get_return_url(context.form, tool_id), notice="tool-changed")


def _read_changes(form: Form) -> dict[str, Any]:
    """Return only the fields that the form has: a button of the list sends one, the tool's page sends all."""
    changes: dict[str, Any] = {}
    if form.text("switch") in _SWITCH_VALUES:
        changes["enabled"] = _SWITCH_VALUES[form.text("switch")]
    if form.all("tags"):
        changes["tags"] = form.comma_list("tags")
    if form.all("pinned"):
        changes["pinned"] = "yes" in form.all("pinned")
    return changes


def _get_return_url(form: Form, tool_id: str) -> str:
    """Return the list that the form was on, at the tool's row, or else the tool's page."""
    list_url = form.text("back")
    return f"{list_url}#{tool_id}" if list_url.startswith("/console/tools") else f"/console/tools/{tool_id}"


@router.post("/tools/{tool_id}/approve")
async def approve_tool(context: CatalogWritePage, tool_id: str) -> Response:
    """Approve the definition that the person has reviewed. If another one is stored by now, this fails."""
    container = context.container
    await manage_tools.approve_tool(
        container.database,
        context.user.id,
        tool_id,
        seen_hash=context.form.text("definition_hash"),
        model_id=container.model.id,
        actor=context.caller.actor,
    )
    return redirect(f"/console/tools/{tool_id}", notice="tool-approved")


@router.post("/tools/{tool_id}/examples")
async def replace_examples(context: CatalogWritePage, tool_id: str) -> Response:
    lines = [line.strip() for line in context.form.text("messages").splitlines()]
    body = parse_form(ExamplesBody, {"messages": [line for line in lines if line]})
    container, actor = context.container, context.caller.actor
    await manage_examples.replace_examples(
        container.database, container.searcher, context.user.id, tool_id, body.messages, actor=actor
    )
    return redirect(f"/console/tools/{tool_id}", notice="examples-saved")


@router.post("/tools/{tool_id}/examples/forget")
async def forget_learned_examples(context: CatalogWritePage, tool_id: str) -> Response:
    container, actor = context.container, context.caller.actor
    await manage_examples.forget_examples(
        container.database, container.learner, context.user.id, tool_id, "use", actor=actor
    )
    return redirect(f"/console/tools/{tool_id}", notice="examples-forgotten")
