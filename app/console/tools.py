"""A user's tools: which there are, who may be found, and what has changed."""

import asyncio
from typing import Any, get_args
from urllib.parse import urlencode

from starlette.responses import Response

from app.catalog import tools
from app.catalog.servers import list_server_names
from app.catalog.tools import Change, State, Tool, ToolFilter
from app.console.diff import Differences, differences
from app.console.forms import Form, parse_form
from app.console.page_context import CatalogWriteCaller, PageContext, ToolsReadCaller, go, page_router
from app.db.pagination import PageRequest
from app.errors import InvalidInput
from app.indexing.sanitize import Flag
from app.management import tools as manage_tools
from app.schemas.base import given_fields
from app.schemas.tools import ToolChanges

router = page_router()

_CHANGES_SHOWN = 10
_FILTERS = ("name", "server_id", "tag", "state", "visible", "flag")
_YES_OR_NO = {"yes": True, "no": False}


@router.get("/tools")
async def list_tools(visit: ToolsReadCaller) -> Response:
    query, user_id = visit.query, visit.user.id
    wanted = _wanted(query, visit.caller.resolve_project(None))
    async with visit.transaction() as session:
        request = PageRequest(cursor=query.given("cursor"))
        page = await tools.list_tools(session, user_id, visit.container.model.id, wanted, request)
        servers = await list_server_names(session, user_id) if _reads(visit) else []
    said = {name: query.text(name) for name in _FILTERS if query.text(name)}
    return visit.show(
        "tools.html", page=page, servers=servers, form=query, filtered=bool(said), address=_address(said, query)
    )


def _reads(visit: PageContext) -> bool:
    return visit.may("catalog:read")


def _wanted(query: Form, project_id: str | None) -> ToolFilter:
    state, flag = query.given("state"), query.given("flag")
    if state not in (None, *get_args(State)) or flag not in (None, *get_args(Flag)):
        raise InvalidInput("there is no such filter")
    return ToolFilter(
        server_id=query.given("server_id"),
        name=query.given("name"),
        tag=query.given("tag"),
        visible=_YES_OR_NO.get(query.text("visible")),
        state=state,  # type: ignore[arg-type]
        flag=flag,
        project_id=project_id,
    )


def _address(said: dict[str, str], query: Form) -> str:
    """Of this very page, to come back to."""
    cursor = {"cursor": query.text("cursor")} if query.given("cursor") else {}
    asked = urlencode(said | cursor)
    return f"/console/tools?{asked}" if asked else "/console/tools"


@router.get("/tools/{tool_id}")
async def show_tool(visit: ToolsReadCaller, tool_id: str) -> Response:
    return visit.show("tool.html", **await _known(visit, tool_id))


async def _known(visit: PageContext, tool_id: str) -> dict[str, Any]:
    user_id, project = visit.user.id, visit.caller.resolve_project(None)
    async with visit.transaction() as session:
        tool = await tools.get_tool(session, user_id, tool_id, visit.container.model.id, project)
        changes = (
            (await tools.list_tool_changes(session, user_id, tool_id, PageRequest(_CHANGES_SHOWN))).items
            if _reads(visit)
            else []
        )
    shown = [(change, await asyncio.to_thread(_compared, change)) for change in changes]
    return {"tool": tool, "changes": shown, "parameters": _parameters(tool)}


def _compared(change: Change) -> Differences:
    return differences(change.old, change.new)


def _parameters(tool: Tool) -> list[dict[str, Any]]:
    """For reading; what a server writes into a schema may be anything, so nothing is taken for granted."""
    properties, required = tool.input_schema.get("properties"), tool.input_schema.get("required")
    if not isinstance(properties, dict):
        return []
    needed = required if isinstance(required, list) else []
    return [_parameter(name, schema, needed=name in needed) for name, schema in properties.items()]


def _parameter(name: str, schema: Any, *, needed: bool) -> dict[str, Any]:
    told = schema if isinstance(schema, dict) else {}
    return {"name": name, "needed": needed, "type": told.get("type", ""), "description": told.get("description", "")}


@router.post("/tools/{tool_id}")
async def change_tool(visit: CatalogWriteCaller, tool_id: str) -> Response:
    body = parse_form(ToolChanges, _changes(visit.form))
    container, actor = visit.container, visit.caller.actor
    await manage_tools.change_tool(
        container.database, visit.user.id, tool_id, given_fields(body), model_id=container.model.id, actor=actor
    )
    return go(_back(visit.form, tool_id), said="tool-changed")


_SWITCH = {"on": True, "off": False, "rules": None}


def _changes(form: Form) -> dict[str, Any]:
    """Only what the form has fields for: a button of the list says one thing, the tool's own page all of them."""
    changes: dict[str, Any] = {}
    if form.text("switch") in _SWITCH:
        changes["enabled"] = _SWITCH[form.text("switch")]
    if form.all("tags"):
        changes["tags"] = form.words("tags")
    if form.all("pinned"):
        changes["pinned"] = "yes" in form.all("pinned")
    return changes


def _back(form: Form, tool_id: str) -> str:
    listed = form.text("back")
    return f"{listed}#{tool_id}" if listed.startswith("/console/tools") else f"/console/tools/{tool_id}"


@router.post("/tools/{tool_id}/approve")
async def approve_tool(visit: CatalogWriteCaller, tool_id: str) -> Response:
    """Of the definition that was looked at, and of no other."""
    container, seen_hash = visit.container, visit.form.text("definition_hash")
    await manage_tools.approve_tool(
        container.database,
        visit.user.id,
        tool_id,
        seen_hash=seen_hash,
        model_id=container.model.id,
        actor=visit.caller.actor,
    )
    return go(f"/console/tools/{tool_id}", said="tool-approved")
