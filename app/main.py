"""The ASGI application.

`create_app` builds it around an open container; `create_routes` builds the routes alone, which is enough for OpenAPI.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from app import __version__
from app.api import (
    audit,
    decisions,
    discovery,
    evaluation,
    execution,
    feedback,
    health,
    inline_search,
    keys,
    projects,
    reload,
    rules,
    runs,
    selections,
    servers,
    tools,
    users,
)
from app.api.docs import add_docs
from app.api.middleware.body_limit import BodySizeLimitMiddleware
from app.api.middleware.concurrency_limit import ConcurrencyLimitMiddleware
from app.api.middleware.drain import ConnectionDrainMiddleware
from app.api.middleware.request_log import RequestLogMiddleware
from app.api.middleware.unhandled_errors import UnhandledErrorMiddleware
from app.api.openapi import DescribedApp
from app.api.problems import add_error_handlers
from app.console.router import add_console
from app.container import Container
from app.mcp_server.router import mcp_router
from app.observability.tracing import TraceContextMiddleware
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
    evaluation,
    servers,
    runs,
    tools,
    rules,
    projects,
    users,
    keys,
    audit,
    decisions,
    selections,
    reload,
)

_CORS_OPTIONS: dict[str, Any] = {
    "allow_methods": ["*"],
    "allow_headers": ["*"],
    "expose_headers": ["Mcp-Session-Id", "X-Request-Id"],
}


def create_app(container: Container, read_settings: Callable[[], Settings] = load_settings) -> FastAPI:
    """`read_settings` reads the settings again for a reload."""
    app = create_routes(container.settings.role)

    def use_container(current: Container) -> None:
        app.state.container = current

    use_container(container)
    app.state.reloader = Reloader(container, read_settings, use_container)
    add_error_handlers(app)
    # from the innermost to the outermost
    app.add_middleware(BodySizeLimitMiddleware)
    app.add_middleware(UnhandledErrorMiddleware)
    app.add_middleware(ConnectionDrainMiddleware, draining=container.draining)
    app.add_middleware(
        ConcurrencyLimitMiddleware,
        get_max_in_flight=lambda: app.state.container.settings.max_in_flight,
        metrics=container.metrics,
    )
    if container.settings.allowed_origins:
        app.add_middleware(CORSMiddleware, allow_origins=container.settings.allowed_origins, **_CORS_OPTIONS)
    if container.tracing.enabled:
        app.add_middleware(TraceContextMiddleware)
    app.add_middleware(RequestLogMiddleware, metrics=container.metrics)
    return app


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
        add_docs(app)
        add_console(app)
    return app
