"""The rules page: rules as form rows, with a preview of their effect. The project page uses the same rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from app.catalog.rules import Rule, get_rules
from app.catalog.servers import list_server_names
from app.console.forms import Form, parse_form
from app.console.page_context import CatalogReadPage, CatalogWritePage, PageContext, page_router, redirect
from app.errors import ToolscoutError
from app.management import rules as manage_rules
from app.management.rules import Preview, PreviewedTool
from app.schemas.rules import RulesBody, to_rules

router = page_router()

_MAX_CHANGES_SHOWN = 50
_ENABLED = {"on": True, "off": False}


@dataclass(frozen=True)
class RuleRow:
    """A rule as the person typed it. It need not be valid."""

    pattern: str = ""
    server: str = ""
    enabled: str = ""
    tags: str = ""

    def to_body(self) -> dict[str, Any]:
        """Return the rule as the API takes it."""
        return {
            "pattern": [line.strip() for line in self.pattern.splitlines() if line.strip()],
            "server": self.server or None,
            "enabled": _ENABLED.get(self.enabled),
            "tags": [tag.strip() for tag in self.tags.split(",") if tag.strip()],
        }


@dataclass(frozen=True)
class PreviewSummary:
    visible: int
    hidden: int
    appearing: Sequence[PreviewedTool]
    disappearing: Sequence[PreviewedTool]
    matched: Sequence[int]
    decided: Sequence[int]
    max_shown: int = _MAX_CHANGES_SHOWN


@router.get("/rules")
async def show_rules(context: CatalogReadPage) -> Response:
    async with context.transaction() as session:
        rules = await get_rules(session, context.user.id)
    return await _render_page(context, [to_row(rule) for rule in rules])


@router.post("/rules")
async def edit_rules(context: CatalogWritePage) -> Response:
    """Handle a button of the form. Every button submits all rows; only `store` saves them."""
    button = context.form.text("do")
    rows = rearrange_rows(read_rows(context.form), button)
    if button != "store":
        return await _render_page(context, rows)
    try:
        rules, actor = parse_rows(rows), context.caller.actor
        await manage_rules.replace_rules(
            context.container.database,
            context.container.worker,
            context.user.id,
            rules,
            context.container.quotas,
            actor=actor,
        )
    except ToolscoutError as error:
        return await _render_page(context, rows, error)
    return redirect("/console/rules", notice="rules-saved")


@router.post("/rules/preview")
async def show_preview(context: CatalogReadPage) -> Response:
    """Return the preview alone, while a person types. The field `project_id` selects a project's rules."""
    preview = await _preview_rows(context, read_rows(context.form), context.form.optional_text("project_id"))
    return context.render("part_preview.html", preview=preview)


async def _render_page(context: PageContext, rows: Sequence[RuleRow], error: ToolscoutError | None = None) -> Response:
    preview = None
    if error is None:
        preview, error = await preview_if_requested(context, rows, None)
    async with context.transaction() as session:
        server_names = [server.name for server in await list_server_names(session, context.user.id)]
    return context.render("rules.html", error, rows=rows, preview=preview, server_names=server_names)


async def preview_if_requested(
    context: PageContext, rows: Sequence[RuleRow], project_id: str | None
) -> tuple[PreviewSummary | None, ToolscoutError | None]:
    """Return the preview, or the error in the rows, if the person pressed "Preview".

    A preview evaluates every tool. The page does not include one by itself: the script requests it.
    """
    if context.form.text("do") != "preview":
        return None, None
    try:
        return await _preview_rows(context, rows, project_id), None
    except ToolscoutError as error:
        return None, error


async def _preview_rows(context: PageContext, rows: Sequence[RuleRow], project_id: str | None) -> PreviewSummary:
    database = context.container.database
    preview = await manage_rules.preview_rules(database, context.user.id, parse_rows(rows), project_id)
    return _summarize(preview)


def _summarize(preview: Preview) -> PreviewSummary:
    visible = sum(tool.visible for tool in preview.tools)
    return PreviewSummary(
        visible=visible,
        hidden=len(preview.tools) - visible,
        appearing=[tool for tool in preview.tools if tool.visible and not tool.was_visible],
        disappearing=[tool for tool in preview.tools if tool.was_visible and not tool.visible],
        matched=preview.matched,
        decided=preview.decided,
    )


def read_rows(form: Form) -> list[RuleRow]:
    fields = (form.all(name) for name in ("pattern", "server", "enabled", "tags"))
    return [RuleRow(*row) for row in zip(*fields, strict=False)]


def to_row(rule: Rule) -> RuleRow:
    enabled = {True: "on", False: "off", None: ""}[rule.enabled]
    return RuleRow("\n".join(rule.pattern), rule.server or "", enabled, ", ".join(rule.tags))


def to_bodies(rows: Sequence[RuleRow]) -> list[dict[str, Any]]:
    """Return the rows as the API takes rules, without the empty ones."""
    return [row.to_body() for row in rows if row != RuleRow()]


def parse_rows(rows: Sequence[RuleRow]) -> list[Rule]:
    return to_rules(parse_form(RulesBody, {"rules": to_bodies(rows)}).rules)


def rearrange_rows(rows: list[RuleRow], button: str) -> list[RuleRow]:
    """Apply the button `add`, or `up-N`, `down-N` or `remove-N` with the number of a row. Ignore any other."""
    action, _, number = button.partition("-")
    if action == "add":
        return [*rows, RuleRow()]
    index = int(number) - 1 if number.isdecimal() else -1
    if not 0 <= index < len(rows):
        return rows
    row, others = rows[index], rows[:index] + rows[index + 1 :]
    if action == "remove":
        return others
    new_index = max(0, index + {"up": -1, "down": 1}.get(action, 0))
    return [*others[:new_index], row, *others[new_index:]]
