"""Rules as rows, with what they would do before they are stored; of a user, and of a project."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from app import audit
from app.bodies.rules import RulesBody, as_rules
from app.catalog import governing
from app.catalog.governing import Outcome, Preview
from app.catalog.rules import Rule, rules_of
from app.catalog.servers import named_servers
from app.console.forms import Form, checked
from app.console.visits import Reading, Visit, Writing, go, page_router
from app.errors import ToolscoutError

router = page_router()

_CHANGES_SHOWN = 50
_ENABLED = {"on": True, "off": False}


@dataclass(frozen=True)
class Row:
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
    appearing: Sequence[Outcome]
    disappearing: Sequence[Outcome]
    matched: Sequence[int]
    decided: Sequence[int]
    shown: int = _CHANGES_SHOWN


@router.get("/rules")
async def show_rules(visit: Reading) -> Response:
    async with visit.transaction() as session:
        rules = await rules_of(session, visit.user.id)
    return await _page(visit, [row_of(rule) for rule in rules])


@router.post("/rules")
async def edit_rules(visit: Writing) -> Response:
    """Every button sends all rows; only one of them stores."""
    deed = visit.form.text("do")
    rows = arranged(rows_in(visit.form), deed)
    if deed != "store":
        return await _page(visit, rows)
    try:
        await _store(visit, rules_in(rows))
    except ToolscoutError as error:
        return await _page(visit, rows, error)
    return go("/console/rules", said="rules-stored")


@router.post("/rules/preview")
async def preview_alone(visit: Reading) -> Response:
    """While somebody types; with a project, of its rules."""
    preview = await previewed(visit, rows_in(visit.form), visit.form.given("project_id"))
    return visit.show("part_preview.html", preview=preview)


async def _store(visit: Visit, rules: Sequence[Rule]) -> None:
    async with visit.transaction() as session:
        await governing.replace_rules(session, visit.user.id, rules)
        await audit.record(session, visit.user.id, visit.caller.actor, "rules.replace", None)


async def _page(visit: Visit, rows: Sequence[Row], error: ToolscoutError | None = None) -> Response:
    preview = None
    if error is None:
        preview, error = await wanted_preview(visit, rows, None)
    return visit.show("rules.html", error, rows=rows, preview=preview, server_names=await server_names(visit))


async def wanted_preview(
    visit: Visit, rows: Sequence[Row], project_id: str | None
) -> tuple[Previewed | None, ToolscoutError | None]:
    """Only for whoever pressed the button: it looks at every tool, and a script asks for it by itself."""
    if visit.form.text("do") != "preview":
        return None, None
    try:
        return await previewed(visit, rows, project_id), None
    except ToolscoutError as error:
        return None, error


async def server_names(visit: Visit) -> list[str]:
    async with visit.transaction() as session:
        return [server.name for server in await named_servers(session, visit.user.id)]


async def previewed(visit: Visit, rows: Sequence[Row], project_id: str | None) -> Previewed:
    async with visit.transaction() as session:
        preview = await governing.preview_rules(session, visit.user.id, rules_in(rows), project_id)
    return _counted(preview)


def _counted(preview: Preview) -> Previewed:
    visible = sum(outcome.visible for outcome in preview.outcomes)
    return Previewed(
        visible=visible,
        hidden=len(preview.outcomes) - visible,
        appearing=[each for each in preview.outcomes if each.visible and not each.was_visible],
        disappearing=[each for each in preview.outcomes if each.was_visible and not each.visible],
        matched=preview.matched,
        decided=preview.decided,
    )


def rows_in(form: Form) -> list[Row]:
    fields = (form.all(name) for name in ("pattern", "server", "enabled", "tags"))
    return [Row(*row) for row in zip(*fields, strict=False)]


def row_of(rule: Rule) -> Row:
    enabled = {True: "on", False: "off", None: ""}[rule.enabled]
    return Row("\n".join(rule.pattern), rule.server or "", enabled, ", ".join(rule.tags))


def arranged(rows: list[Row], deed: str) -> list[Row]:
    """`add`, or `up`, `down` and `remove` with the row's number."""
    what, _, number = deed.partition("-")
    if what == "add":
        return [*rows, Row()]
    place = int(number) - 1 if number.isdecimal() else -1
    if not 0 <= place < len(rows):
        return rows
    row, rest = rows[place], rows[:place] + rows[place + 1 :]
    if what == "remove":
        return rest
    moved = max(0, place + {"up": -1, "down": 1}.get(what, 0))
    return [*rest[:moved], row, *rest[moved:]]


def rules_in(rows: Sequence[Row]) -> list[Rule]:
    """A row with nothing in it is none."""
    written = [row.said() for row in rows if row != Row()]
    return as_rules(checked(RulesBody, {"rules": written}).rules)
