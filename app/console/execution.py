"""The page that runs a tool: a form for its arguments, and the result."""

import uuid
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from app.catalog import tools
from app.catalog.tools import Tool
from app.catalog.visibility import Scope
from app.console.page_context import ExecutePage, PageContext, page_router
from app.console.rendering import format_json
from app.dependencies import run_while_connected
from app.errors import AuthorizationRequired, ConfirmationRequired, InvalidInput, ToolscoutError
from app.execution.execute import execute
from app.execution.models import ExecutionRequest, ExecutionResult
from app.text.strict_json import Json, parse_json

router = page_router()

_EMPTY_VALUES: Json = {"string": "", "number": 0, "integer": 0, "boolean": False, "array": [], "object": {}}


@dataclass(frozen=True)
class ToolRun:
    """The form's fields, and the result once the tool has run."""

    arguments: str
    call_id: str
    """The idempotency key of the form: reloading the page of a result does not run the tool again."""
    result: ExecutionResult | None = None

    @property
    def texts(self) -> list[str]:
        content = [] if self.result is None else self.result.result.get("content", [])
        return [block["text"] for block in content if block.get("type") == "text"]


@router.get("/tools/{tool_id}/run")
async def show_form(context: ExecutePage, tool_id: str) -> Response:
    tool = await _get_tool(context, tool_id)
    return _render(context, tool, _make_run(make_arguments(tool.input_schema)))


@router.post("/tools/{tool_id}/run")
async def run_tool(context: ExecutePage, tool_id: str) -> Response:
    tool = await _get_tool(context, tool_id)
    arguments = context.form.text("arguments") or "{}"
    try:
        call = execute(context.container.executor, _make_request(context, tool_id, arguments))
        result = await run_while_connected(context.request, call)
    except ToolscoutError as error:
        return _render(context, tool, _make_run(arguments), error)
    return _render(context, tool, _make_run(arguments, result))


async def _get_tool(context: PageContext, tool_id: str) -> Tool:
    project_id = context.caller.resolve_project(None)
    async with context.transaction() as session:
        return await tools.get_tool(session, context.user.id, tool_id, context.container.model.id, project_id)


def _make_run(arguments: str, result: ExecutionResult | None = None) -> ToolRun:
    return ToolRun(arguments, str(uuid.uuid4()), result)


def _make_request(context: PageContext, tool_id: str, arguments: str) -> ExecutionRequest:
    parsed = parse_json(arguments.encode(), "the text of the arguments")
    if not isinstance(parsed, dict):
        raise InvalidInput('the arguments must be a JSON object, such as {"name": "value"}')
    scope = Scope(context.user.id, context.container.model.id, project_id=context.caller.resolve_project(None))
    call_id = context.form.optional_text("call_id")
    return ExecutionRequest(
        scope,
        context.caller.actor,
        parsed,
        tool_key=tool_id,
        idempotency_key=call_id,
        confirmation_token=context.form.optional_text("confirmation_token"),
    )


def _render(context: PageContext, tool: Tool, run: ToolRun, error: ToolscoutError | None = None) -> Response:
    needs_sign_in = isinstance(error, AuthorizationRequired)
    token = error.token if isinstance(error, ConfirmationRequired) else None
    return context.render(
        "tool_run.html", error, tool=tool, run=run, needs_sign_in=needs_sign_in, confirmation_token=token
    )


def make_arguments(schema: Json) -> str:
    """Return a JSON object with the required arguments to begin with. The schema may have any shape."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return "{}"
    return format_json({name: _make_value(properties.get(name)) for name in required if isinstance(name, str)})


def _make_value(schema: Any) -> Any:
    """Return the parameter's default or example, or an empty value of its type."""
    if not isinstance(schema, dict):
        return ""
    if "default" in schema:
        return schema["default"]
    for choices in (schema.get("examples"), schema.get("enum")):
        if isinstance(choices, list) and choices:
            return choices[0]
    kind = schema.get("type")
    return _EMPTY_VALUES.get(kind, "") if isinstance(kind, str) else ""
