"""The web console: server-rendered pages that call the same use cases as the REST API."""

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from app.console import (
    activity,
    categories,
    connections,
    execution,
    oauth_callback,
    overview,
    own_texts,
    playground,
    projects,
    registry,
    rules,
    searches,
    server_import,
    servers,
    shared_servers,
    sign_in,
    single_sign_on,
    tools,
    users,
)
from app.console.page_context import DiscoverPage, TemplatesDep, page_router, redirect
from app.console.rendering import Templates
from app.errors import NotFound

_HOME_PAGES = (("audit:read", "/console/overview"), ("discover", "/console/try"))

_root = APIRouter(include_in_schema=False)
_common = page_router()
_catch_all = page_router()


def add_console(app: FastAPI) -> None:
    app.state.templates = Templates()
    for module in (
        sign_in,
        single_sign_on,
        oauth_callback,
        overview,
        playground,
        server_import,  # these two before `servers`, whose `/servers/{server_id}` would match their paths
        registry,
        servers,
        connections,
        shared_servers,
        tools,
        own_texts,
        execution,
        categories,
        rules,
        projects,
        users,
        activity,
        searches,
    ):
        app.include_router(module.router)
    for router in (_root, connections.link_router, _common, _catch_all):
        app.include_router(router)


@_root.get("/")
async def redirect_root(request: Request) -> Response:
    """Redirect browsers to the console. Other clients get a 404 that names the API's documentation."""
    if "text/html" not in request.headers.get("accept", ""):
        raise NotFound("nothing is served here: the API is documented at /docs")
    return redirect("/console")


@_common.get("/static/{version}/{name}")
async def get_asset(templates: TemplatesDep, version: str, name: str) -> Response:  # noqa: ARG001 see `_asset_url`
    if name not in templates.assets:
        raise NotFound("there is no such file")
    return templates.assets[name].to_response()


@_common.get("")
async def redirect_home(context: DiscoverPage) -> Response:
    """Redirect to the first page that the key may see."""
    return redirect(next(path for permission, path in _HOME_PAGES if context.has_permission(permission)))


@_catch_all.get("/{path:path}")
async def page_not_found(context: DiscoverPage, path: str) -> Response:  # noqa: ARG001 any path, any signed-in caller
    raise NotFound("there is no such page")
