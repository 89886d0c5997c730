"""The ASGI application: `create_app` puts the doors in front of an open container."""

from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from app import __version__
from app.api import (
    accounts,
    audit,
    discovery,
    evaluation,
    execution,
    feedback,
    operations,
    projects,
    rules,
    runs,
    selections,
    servers,
    tools,
)
from app.api.errors import PROBLEM_RESPONSE, LastResort, add_error_handlers
from app.api.intake import BoundedBody
from app.mcp_server.endpoint import mcp_router
from app.telemetry import RequestTelemetry
from app.wiring import Container

_DESCRIPTION = """Finds, for each chat message, the few MCP tools that matter.

Register a user's servers with `POST /servers`, or push their tools with `PUT /servers/{id}/tools`; call
`POST /discover` for each message, and `POST /execute` for what the model then calls."""

_DOORS = (
    discovery,
    execution,
    feedback,
    evaluation,
    servers,
    runs,
    tools,
    rules,
    projects,
    accounts,
    audit,
    selections,
    operations,
)

_FOR_WEB_PAGES: dict[str, Any] = {
    "allow_methods": ["*"],
    "allow_headers": ["*"],
    "expose_headers": ["Mcp-Session-Id", "X-Request-Id"],
}


def create_app(container: Container) -> FastAPI:
    app = FastAPI(
        title="Toolscout",
        version=__version__,
        description=_DESCRIPTION,
        responses={"4XX": PROBLEM_RESPONSE, "503": PROBLEM_RESPONSE},
    )
    app.state.container = container
    for door in _DOORS:
        app.include_router(door.router)
    app.include_router(mcp_router())
    add_error_handlers(app)
    # each one stands outside of those before it
    app.add_middleware(BoundedBody)
    app.add_middleware(LastResort)
    if container.settings.own_origins:
        app.add_middleware(CORSMiddleware, allow_origins=container.settings.own_origins, **_FOR_WEB_PAGES)
    app.add_middleware(RequestTelemetry, metrics=container.metrics)
    return app
