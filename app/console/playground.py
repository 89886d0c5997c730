"""Try a message: what a chat backend would get for it, and why."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.responses import Response

from app.catalog.projects import Project, list_all_projects
from app.catalog.tool_names import make_aliases
from app.catalog.tools import list_tags
from app.catalog.visibility import Scope
from app.console.forms import Form, parse_form
from app.console.page_context import DiscoverCaller, PageContext, page_router
from app.discovery import formats
from app.discovery.discover import Discovery, discover
from app.discovery.explain import Reason, explain
from app.discovery.formats import Format
from app.discovery.request import resolved
from app.errors import ToolscoutError
from app.schemas.discovery import DiscoverBody, WhyBody

router = page_router()

_TAGS_OFFERED = 40


@dataclass(frozen=True)
class PlaygroundResult:
    discovery: Discovery
    saved_percent: float
    definitions: str
    curl: str
    wanted: str | None
    reasons: Sequence[Reason]


@router.get("/try")
async def show_empty(visit: DiscoverCaller) -> Response:
    return await _page(visit, Form(), None, None)


@router.post("/try")
async def try_message(visit: DiscoverCaller) -> Response:
    """Posted, though it changes nothing: what people ask does not belong into addresses and histories."""
    try:
        return await _page(visit, visit.form, await _answer(visit), None)
    except ToolscoutError as error:
        return await _page(visit, visit.form, None, error)


@router.post("/try/answer")
async def answer_alone(visit: DiscoverCaller) -> Response:
    """While somebody types."""
    if not visit.form.text("query"):
        return visit.show("part_answer.html", answer=None, form=visit.form)
    return visit.show("part_answer.html", answer=await _answer(visit), form=visit.form)


async def _page(
    visit: PageContext, form: Form, answer: PlaygroundResult | None, error: ToolscoutError | None
) -> Response:
    user, model = visit.user, visit.container.model
    async with visit.transaction() as session:
        tags = await list_tags(session, Scope(user.id, model.id, project_id=visit.caller.project_id))
        projects = await list_all_projects(session, user.id) if visit.caller.project_id is None else []
    offered = sorted(sorted(tags, key=lambda tag: -tag[1])[:_TAGS_OFFERED])
    return visit.show(
        "try.html",
        error,
        form=form,
        answer=answer,
        tags=offered,
        projects=sorted(projects, key=_by_name),
        threshold=model.calibration.threshold,
    )


def _by_name(project: Project) -> str:
    return project.name.lower()


async def _answer(visit: PageContext) -> PlaygroundResult:
    said = _said(visit.form)
    body = parse_form(DiscoverBody, said | {"explain": True})
    discoverer, user = visit.container.discoverer, visit.user
    ask = await resolved(discoverer, visit.caller, replace(body.wishes(), trial=True))
    discovery = await discover(discoverer, user, ask)
    wanted = visit.form.given("why")
    reasons: Sequence[Reason] = ()
    if wanted is not None:
        tool = parse_form(WhyBody, said | {"tool": wanted}).tool
        reasons = await explain(discoverer, user, ask, tool, confined=visit.caller.project_id is not None)
    return PlaygroundResult(
        discovery=discovery,
        saved_percent=_saved(discovery),
        definitions=_definitions(discovery, body.format),
        curl=_curl(visit, said),
        wanted=wanted,
        reasons=reasons,
    )


def _said(form: Form) -> dict[str, Any]:
    """As the API would be asked: what was left empty is left out."""
    chosen = {
        "query": form.text("query"),
        "strategy": form.given("strategy"),
        "similarity_threshold": form.decimal("threshold"),
        "limit": form.whole("limit"),
        "tags": form.words("tags") or None,
        "project_id": form.given("project_id"),
        "format": form.given("format"),
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _saved(discovery: Discovery) -> float:
    return max(0.0, 100 * (1 - discovery.tokens_selected / discovery.tokens_all)) if discovery.tokens_all else 0.0


def _definitions(discovery: Discovery, shape: Format) -> str:
    offers = [tool.offer for tool in discovery.tools]
    shown = formats.render_definitions(offers, make_aliases(offers), shape)
    return orjson.dumps([orjson.loads(each) for each in shown], option=orjson.OPT_INDENT_2).decode()


def _curl(visit: PageContext, said: dict[str, Any]) -> str:
    """Without the key, which is nowhere but with whoever has it."""
    address = f"{visit.request.url.scheme}://{visit.request.url.netloc}/discover"
    for_whom = f" \\\n  -H {shlex.quote(f'X-User-Id: {visit.user.id}')}" if visit.caller.kind != "user" else ""
    return (
        f'curl -s {address} -H "Authorization: Bearer $KEY"{for_whom} \\\n'
        f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(orjson.dumps(said).decode())}"
    )
