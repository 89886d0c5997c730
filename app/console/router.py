"""The web console: all its pages, in front of the same deeds as the other doors."""

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from app.console import activity, overview, playground, projects, rules, servers, sign_in, tools, users
from app.console.page_context import DiscoverCaller, PageParams, go, page_router
from app.console.rendering import Pages
from app.errors import NotFound

_HOMES = (("audit:read", "/console/overview"), ("discover", "/console/try"))

_open = page_router()
_last = page_router()
_root = APIRouter(include_in_schema=False)


def add_console(app: FastAPI) -> None:
    app.state.pages = Pages()
    for page in (sign_in, overview, playground, servers, tools, rules, projects, users, activity):
        app.include_router(page.router)
    for router in (_root, _open, _last):
        app.include_router(router)


@_root.get("/")
async def root(request: Request) -> Response:
    """People come with a browser; programs know where they want to go."""
    if "text/html" not in request.headers.get("accept", ""):
        raise NotFound("there is nothing here: the API is at /docs")
    return go("/console")


@_open.get("/static/{version}/{name}")
async def static(pages: PageParams, version: str, name: str) -> Response:  # noqa: ARG001 it only makes addresses differ
    if name not in pages.assets:
        raise NotFound("there is no such file")
    return pages.assets[name].response()


@_open.get("")
async def home(visit: DiscoverCaller) -> Response:
    """The first page that the key may see."""
    return go(next(page for permission, page in _HOMES if visit.may(permission)))


@_last.get("/{anything:path}")
async def nothing_there(visit: DiscoverCaller, anything: str) -> Response:  # noqa: ARG001 there is no such page
    raise NotFound("there is no such page")
