"""The ASGI application: `create_app` puts the doors in front of an open container.

`open_doors` are the doors alone, with nothing behind them: enough to tell what can be asked.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from app import __version__
from app.api import (
    audit,
    discovery,
    evaluation,
    execution,
    feedback,
    health,
    inline_search,
    projects,
    rules,
    runs,
    selections,
    servers,
    tools,
    users,
)
from app.api.docs import add_docs
from app.api.middleware.body_limit import BodySizeLimitMiddleware
from app.api.middleware.concurrency import ConcurrencyLimitMiddleware, ConnectionDrainMiddleware
from app.api.middleware.request_log import RequestLogMiddleware
from app.api.problems import PROBLEM_RESPONSE, UnhandledErrorMiddleware, add_error_handlers
from app.console.router import add_console
from app.container import Container
from app.mcp_server.router import mcp_router
from app.observability.tracing import TraceContextMiddleware
from app.settings import Role

_DESCRIPTION = """Finds, for each chat message, the few MCP tools that matter.

Register a user's servers with `POST /servers`, or push their tools with `PUT /servers/{id}/tools`; call
`POST /discover` for each message, and `POST /execute` for what the model then calls."""

# looked through in this order: most requests are discoveries
_DOORS = (
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
    audit,
    selections,
)

_FOR_WEB_PAGES: dict[str, Any] = {
    "allow_methods": ["*"],
    "allow_headers": ["*"],
    "expose_headers": ["Mcp-Session-Id", "X-Request-Id"],
}


def create_app(container: Container) -> FastAPI:
    app = create_routes(container.settings.role)
    app.state.container = container
    add_error_handlers(app)
    # each one stands outside of those before it
    app.add_middleware(BodySizeLimitMiddleware)
    app.add_middleware(UnhandledErrorMiddleware)
    app.add_middleware(ConnectionDrainMiddleware, draining=container.draining)
    app.add_middleware(ConcurrencyLimitMiddleware, most=container.settings.max_in_flight, metrics=container.metrics)
    if container.settings.allowed_origins:
        app.add_middleware(CORSMiddleware, allow_origins=container.settings.allowed_origins, **_FOR_WEB_PAGES)
    if container.tracing.enabled:
        app.add_middleware(TraceContextMiddleware)
    app.add_middleware(RequestLogMiddleware, metrics=container.metrics)
    return app


def create_routes(role: Role = "all") -> FastAPI:
    """A worker has none but those that ask how it fares."""
    app = FastAPI(
        title="Toolscout",
        version=__version__,
        description=_DESCRIPTION,
        responses={"4XX": PROBLEM_RESPONSE, "503": PROBLEM_RESPONSE},
        openapi_url=None if role == "worker" else "/openapi.json",
        # these would load their scripts from a CDN: `add_docs` serves our own copy
        docs_url=None,
        redoc_url=None,
    )
    for door in (health,) if role == "worker" else _DOORS:
        app.include_router(door.router)
    if role != "worker":
        app.include_router(mcp_router())
        add_console(app)
        add_docs(app)
    return app
