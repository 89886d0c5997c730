"""The ASGI application.

`create_app` builds it around an open container; `create_routes` builds the routes alone, which is enough for OpenAPI.
"""

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from app import __version__
from app.api import (
    audit,
    categories,
    connections,
    conversations,
    decisions,
    discovery,
    evaluation,
    execution,
    feedback,
    health,
    inline_search,
    keys,
    projects,
    protected_resource,
    registry,
    reload,
    rules,
    runs,
    selections,
    servers,
    shared_servers,
    tools,
    users,
)
from app.api.docs import add_docs
from app.api.middleware.pipeline import DirectRoute, RequestPipeline
from app.api.openapi import DescribedApp
from app.api.problems import add_error_handlers
from app.console.router import add_console
from app.console.session_cookie import read_session_credentials
from app.container import Container
from app.mcp_server.router import mcp_router
from app.reload import Reloader
from app.settings import Role, Settings, load_settings

_DESCRIPTION = """Finds, for each chat message, the few MCP tools that matter.

Register a user's servers with `POST /servers`, or push their tools with `PUT /servers/{id}/tools`. Call
`POST /discover` for each message, and `POST /execute` for each tool call of the model."""

# matched in this order: most requests are discoveries
_ROUTE_MODULES = (
    discovery,
    health,
    inline_search,
    execution,
    feedback,
    conversations,
    evaluation,
    servers,
    registry,
    connections,
    shared_servers,
    runs,
    tools,
    categories,
    rules,
    projects,
    users,
    keys,
    audit,
    decisions,
    selections,
    reload,
    protected_resource,
)


_DIRECT_ROUTES = (DirectRoute("POST", "/discover", discovery.answer_discover),)


def create_app(container: Container, read_settings: Callable[[], Settings] = load_settings) -> FastAPI:
    """`read_settings` reads the settings again for a reload."""
    app = create_routes(container.settings.role)

    def use_container(current: Container) -> None:
        app.state.container = current

    use_container(container)
    app.state.reloader = Reloader(container, read_settings, use_container)
    add_error_handlers(app)
    app.add_middleware(
        RequestPipeline,
        get_container=lambda: app.state.container,
        read_session=read_session_credentials,
        list_paths=lambda: _list_paths(app),
        direct_routes=() if container.settings.role == "worker" else _DIRECT_ROUTES,
    )
    return app


def _list_paths(app: FastAPI) -> list[str]:
    return [context.path for context in iter_route_contexts(app.routes) if context.path is not None]


def create_routes(role: Role = "all") -> FastAPI:
    """Return an application without middleware. A worker has health and metrics endpoints only."""
    app = DescribedApp(
        title="Toolscout",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None if role == "worker" else "/openapi.json",
        # these would load their scripts from a CDN: `add_docs` serves our own copy
        docs_url=None,
        redoc_url=None,
    )
    for module in (health,) if role == "worker" else _ROUTE_MODULES:
        app.include_router(module.router)
    if role != "worker":
        app.include_router(mcp_router())
        app.include_router(connections.public_router)
        add_docs(app)
        add_console(app)
    return app
