"""The page "Try a message": what a chat backend would get for a message, and why."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.responses import Response

from app.auth.users import User
from app.catalog.projects import list_all_projects
from app.catalog.tool_names import make_aliases
from app.catalog.tools import list_tags
from app.catalog.visibility import Scope
from app.console.forms import Form, parse_form
from app.console.page_context import DiscoverPage, PageContext, page_router
from app.discovery.discover import discover
from app.discovery.explain import Reason, explain
from app.discovery.formats import Format, render_definitions
from app.discovery.models import Discovery
from app.errors import ToolscoutError
from app.schemas.discovery import DiscoverBody, WhyBody
from app.text.strict_json import dump_json, load_json

router = page_router()

_MAX_TAGS = 40


@dataclass(frozen=True)
class PlaygroundResult:
    discovery: Discovery
    definitions: str
    curl: str
    tool: str | None
    """The tool that the person asks about."""
    reasons: Sequence[Reason]


@router.get("/try")
async def show_empty(context: DiscoverPage) -> Response:
    return await _render_page(context, Form(), None, None)


@router.post("/try")
async def try_message(context: DiscoverPage) -> Response:
    """Show the answer to a message. It is a POST so that messages do not get into URLs and browser histories."""
    try:
        return await _render_page(context, context.form, await _discover(context), None)
    except ToolscoutError as error:
        return await _render_page(context, context.form, None, error)


@router.post("/try/answer")
async def show_answer(context: DiscoverPage) -> Response:
    """Return the answer alone, while a person types."""
    result = await _discover(context) if context.form.text("query") else None
    return context.render("part_answer.html", answer=result, form=context.form)


async def _render_page(
    context: PageContext, form: Form, result: PlaygroundResult | None, error: ToolscoutError | None
) -> Response:
    user, model = context.user, context.container.model
    async with context.transaction() as session:
        tags = await list_tags(session, Scope(user.id, model.id, project_id=context.caller.project_id))
        projects = await list_all_projects(session, user.id) if context.caller.project_id is None else []
    most_used_tags = sorted(tags, key=lambda tag: -tag[1])[:_MAX_TAGS]
    return context.render(
        "try.html",
        error,
        form=form,
        answer=result,
        tags=sorted(most_used_tags),
        projects=sorted(projects, key=lambda project: project.name.lower()),
        threshold=model.calibration.threshold,
    )


async def _discover(context: PageContext) -> PlaygroundResult:
    fields = _read_fields(context.form)
    body = parse_form(DiscoverBody, fields | {"explain": True})
    discoverer, caller = context.container.discoverer, context.caller
    request = replace(body.to_request(), dry_run=True)
    discovery = await discover(discoverer, caller, request)
    tool = context.form.optional_text("why")
    reasons: Sequence[Reason] = ()
    if tool is not None:
        reasons = await explain(discoverer, caller, request, parse_form(WhyBody, fields | {"tool": tool}).tool)
    return PlaygroundResult(
        discovery=discovery,
        definitions=_render_definitions(discovery, body.format),
        curl=_render_curl(context, context.user, fields),
        tool=tool,
        reasons=reasons,
    )


def _read_fields(form: Form) -> dict[str, Any]:
    """Return the body of the equivalent API request, without the fields that are empty in the form."""
    fields = {
        "query": form.text("query"),
        "strategy": form.optional_text("strategy"),
        "similarity_threshold": form.decimal("threshold"),
        "limit": form.integer("limit"),
        "max_tokens": form.integer("max_tokens"),
        "fill": form.is_checked("fill") or None,
        "tags": form.comma_list("tags") or None,
        "project_id": form.optional_text("project_id"),
        "format": form.optional_text("format"),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _render_definitions(discovery: Discovery, api_format: Format) -> str:
    tools = [tool.definition for tool in discovery.tools]
    definitions = render_definitions(tools, make_aliases(tools), api_format)
    return dump_json([load_json(each) for each in definitions], option=orjson.OPT_INDENT_2).decode()


def _render_curl(context: PageContext, user: User, fields: dict[str, Any]) -> str:
    """Return the same request as a curl command, without the key, which the server does not have."""
    url = f"{context.request.url.scheme}://{context.request.url.netloc}/discover"
    user_header = f" \\\n  -H {shlex.quote(f'X-User-Id: {user.id}')}" if context.caller.kind != "user" else ""
    return (
        f'curl -s {url} -H "Authorization: Bearer $KEY"{user_header} \\\n'
        f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(orjson.dumps(fields).decode())}"
    )
