"""Rules as rows, with what they would do before they are stored; of a user, and of a project."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from app.catalog.rules import Rule, get_rules
from app.catalog.servers import list_server_names
from app.console.forms import Form, parse_form
from app.console.page_context import CatalogReadCaller, CatalogWriteCaller, PageContext, go, page_router
from app.errors import ToolscoutError
from app.management import rules as manage_rules
from app.management.rules import Preview, PreviewedTool
from app.schemas.rules import RulesBody, to_rules

router = page_router()

_CHANGES_SHOWN = 50
_ENABLED = {"on": True, "off": False}


@dataclass(frozen=True)
class RuleRow:
    """A rule as it is typed: what is half-written is kept, too."""

    pattern: str = ""
    server: str = ""
    enabled: str = ""
    tags: str = ""

    def said(self) -> dict[str, Any]:
        patterns = [line.strip() for line in self.pattern.splitlines() if line.strip()]
        tags = [tag.strip() for tag in self.tags.split(",") if tag.strip()]
        return {
            "pattern": patterns,
            "server": self.server or None,
            "enabled": _ENABLED.get(self.enabled),
            "tags": tags,
        }


@dataclass(frozen=True)
class Previewed:
    visible: int
    hidden: int
    appearing: Sequence[PreviewedTool]
    disappearing: Sequence[PreviewedTool]
    matched: Sequence[int]
    decided: Sequence[int]
    shown: int = _CHANGES_SHOWN


@router.get("/rules")
async def show_rules(visit: CatalogReadCaller) -> Response:
    async with visit.transaction() as session:
        rules = await get_rules(session, visit.user.id)
    return await _page(visit, [row_of(rule) for rule in rules])


@router.post("/rules")
async def edit_rules(visit: CatalogWriteCaller) -> Response:
    """Every button sends all rows; only one of them stores."""
    deed = visit.form.text("do")
    rows = rearrange(rows_in(visit.form), deed)
    if deed != "store":
        return await _page(visit, rows)
    try:
        await _store(visit, rules_in(rows))
    except ToolscoutError as error:
        return await _page(visit, rows, error)
    return go("/console/rules", said="rules-stored")


@router.post("/rules/preview")
async def preview_alone(visit: CatalogReadCaller) -> Response:
    """While somebody types; with a project, of its rules."""
    preview = await preview_rows(visit, rows_in(visit.form), visit.form.given("project_id"))
    return visit.show("part_preview.html", preview=preview)


async def _store(visit: PageContext, rules: Sequence[Rule]) -> None:
    await manage_rules.replace_rules(visit.container.database, visit.user.id, rules, actor=visit.caller.actor)


async def _page(visit: PageContext, rows: Sequence[RuleRow], error: ToolscoutError | None = None) -> Response:
    preview = None
    if error is None:
        preview, error = await preview_if_requested(visit, rows, None)
    return visit.show("rules.html", error, rows=rows, preview=preview, server_names=await server_names(visit))


async def preview_if_requested(
    visit: PageContext, rows: Sequence[RuleRow], project_id: str | None
) -> tuple[Previewed | None, ToolscoutError | None]:
    """Only for whoever pressed the button: it looks at every tool, and a script asks for it by itself."""
    if visit.form.text("do") != "preview":
        return None, None
    try:
        return await preview_rows(visit, rows, project_id), None
    except ToolscoutError as error:
        return None, error


async def server_names(visit: PageContext) -> list[str]:
    async with visit.transaction() as session:
        return [server.name for server in await list_server_names(session, visit.user.id)]


async def preview_rows(visit: PageContext, rows: Sequence[RuleRow], project_id: str | None) -> Previewed:
    database = visit.container.database
    preview = await manage_rules.preview_rules(database, visit.user.id, rules_in(rows), project_id)
    return _counted(preview)


def _counted(preview: Preview) -> Previewed:
    visible = sum(outcome.visible for outcome in preview.tools)
    return Previewed(
        visible=visible,
        hidden=len(preview.tools) - visible,
        appearing=[each for each in preview.tools if each.visible and not each.was_visible],
        disappearing=[each for each in preview.tools if each.was_visible and not each.visible],
        matched=preview.matched,
        decided=preview.decided,
    )


def rows_in(form: Form) -> list[RuleRow]:
    fields = (form.all(name) for name in ("pattern", "server", "enabled", "tags"))
    return [RuleRow(*row) for row in zip(*fields, strict=False)]


def row_of(rule: Rule) -> RuleRow:
    enabled = {True: "on", False: "off", None: ""}[rule.enabled]
    return RuleRow("\n".join(rule.pattern), rule.server or "", enabled, ", ".join(rule.tags))


def rearrange(rows: list[RuleRow], deed: str) -> list[RuleRow]:
    """`add`, or `up`, `down` and `remove` with the row's number."""
    what, _, number = deed.partition("-")
    if what == "add":
        return [*rows, RuleRow()]
    place = int(number) - 1 if number.isdecimal() else -1
    if not 0 <= place < len(rows):
        return rows
    row, rest = rows[place], rows[:place] + rows[place + 1 :]
    if what == "remove":
        return rest
    moved = max(0, place + {"up": -1, "down": 1}.get(what, 0))
    return [*rest[:moved], row, *rest[moved:]]


def rules_in(rows: Sequence[RuleRow]) -> list[Rule]:
    """A row with nothing in it is none."""
    written = [row.said() for row in rows if row != RuleRow()]
    return to_rules(parse_form(RulesBody, {"rules": written}).rules)
