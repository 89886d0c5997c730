"""The forms of the tool page with which a person writes texts for a tool."""

from typing import Any

from starlette.responses import Response

from app.catalog import tools
from app.catalog.tools import Tool
from app.console.forms import Form, parse_form
from app.console.page_context import CatalogWritePage, PageContext, page_router, redirect
from app.management import tools as manage_tools
from app.schemas.tools import ToolChanges

router = page_router()

ANNOTATION_HINTS = {
    "readOnlyHint": "Only reads",
    "destructiveHint": "May delete or overwrite",
    "idempotentHint": "Repeating changes nothing more",
    "openWorldHint": "Deals with the outside world",
}
_YES_OR_NO = {"yes": True, "no": False}


@router.post("/tools/{tool_id}/texts")
async def write_texts(context: CatalogWritePage, tool_id: str) -> Response:
    container = context.container
    if context.form.text("do") == "reset":
        changes, notice = {"title": None, "description": None, "annotations": None}, "texts-reset"
    else:
        changes, notice = _parse_texts(context.form, await _get_tool(context, tool_id)), "texts-saved"
    await manage_tools.change_tool(
        container.database,
        container.worker,
        context.user.id,
        tool_id,
        changes,
        container.quotas,
        model_id=container.model.id,
        actor=context.caller.actor,
    )
    return redirect(f"/console/tools/{tool_id}", notice=notice)


@router.post("/tools/{tool_id}/texts/preview")
async def preview_texts(context: CatalogWritePage, tool_id: str) -> Response:
    """Return the size of the definition with these texts, and warnings, while a person types."""
    tool = await _get_tool(context, tool_id)
    changes = _parse_texts(context.form, tool)
    preview = await manage_tools.preview_texts(context.container.count_tokens, tool, changes)
    return context.render("part_texts_preview.html", preview=preview, tool_tokens=tool.tokens)


async def _get_tool(context: PageContext, tool_id: str) -> Tool:
    async with context.transaction() as session:
        return await tools.get_tool(session, context.user.id, tool_id, context.container.model.id)


def _parse_texts(form: Form, tool: Tool) -> dict[str, Any]:
    """Return the texts of the form. Its fields begin with the texts in effect: those that equal the server's are the
    server's, as empty ones are."""
    original = tool.original or tool
    hints = {name: _YES_OR_NO.get(form.text(name)) for name in ANNOTATION_HINTS}
    values = {
        "title": _get_own(form.text("title"), original.title or ""),
        "description": _get_own(form.text("description"), original.description),
        "annotations": {**hints, "title": form.optional_text("annotation_title")},
    }
    return parse_form(ToolChanges, values).to_changes()


def _get_own(text: str, original: str) -> str | None:
    return None if text in ("", original.strip()) else text
