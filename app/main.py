"""The ASGI application: `create_app` puts the doors in front of an open container.

`open_doors` are the doors alone, with nothing behind them: enough to tell what can be asked.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from app import __version__
from app.api import (
    accounts,
    audit,
    catalog,
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
from app.api.capacity import Capacity, Farewell
from app.api.errors import PROBLEM_RESPONSE, LastResort, add_error_handlers
from app.api.intake import BoundedBody
from app.console.door import add_console
from app.mcp_server.endpoint import mcp_router
from app.settings import Role
from app.telemetry import RequestTelemetry
from app.tracing import JoinedTraces
from app.wiring import Container

_DESCRIPTION = """Finds, for each chat message, the few MCP tools that matter.

Register a user's servers with `POST /servers`, or push their tools with `PUT /servers/{id}/tools`; call
`POST /discover` for each message, and `POST /execute` for what the model then calls."""

# looked through in this order: most requests are discoveries
_DOORS = (
    discovery,
    operations,
    catalog,
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
)

_FOR_WEB_PAGES: dict[str, Any] = {
    "allow_methods": ["*"],
    "allow_headers": ["*"],
    "expose_headers": ["Mcp-Session-Id", "X-Request-Id"],
}


def create_app(container: Container) -> FastAPI:
    app = open_doors(container.settings.role)
    app.state.container = container
    add_error_handlers(app)
    # each one stands outside of those before it
    app.add_middleware(BoundedBody)
    app.add_middleware(LastResort)
    app.add_middleware(Farewell, draining=container.draining)
    app.add_middleware(Capacity, most=container.settings.max_in_flight, metrics=container.metrics)
    if container.settings.own_origins:
        app.add_middleware(CORSMiddleware, allow_origins=container.settings.own_origins, **_FOR_WEB_PAGES)
    if container.tracing.enabled:
        app.add_middleware(JoinedTraces)
    app.add_middleware(RequestTelemetry, metrics=container.metrics)
    return app


def open_doors(role: Role = "all") -> FastAPI:
    """A worker has none but those that ask how it fares."""
    app = FastAPI(
        title="Toolscout",
        version=__version__,
        description=_DESCRIPTION,
        responses={"4XX": PROBLEM_RESPONSE, "503": PROBLEM_RESPONSE},
        openapi_url=None if role == "worker" else "/openapi.json",
    )
    for door in (operations,) if role == "worker" else _DOORS:
        app.include_router(door.router)
    if role != "worker":
        app.include_router(mcp_router())
        add_console(app)
    return app
