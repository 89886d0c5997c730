"""Checks and requests that many tests of the interfaces share: problems, pages of lists, rows, routes."""

import asyncio
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import httpx
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts

from app.auth.permissions import Permission
from app.console.page_context import require as require_in_console
from app.container import Container
from app.db.tables import metadata
from app.dependencies import require
from app.indexing.categories.maker import make_categories
from tests.support.clients import TestUser

Json = dict[str, Any]

CODES = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "payload_too_large",
    421: "misdirected",
    415: "unsupported_media_type",
    422: "invalid_input",
    500: "internal_error",
    503: "unavailable",
}
OPTIONAL_FIELDS = set(
    "errors outcome cause server tool choices authorization_url expires_at confirmation_token".split()
)
FIELDS_OF_A_PROBLEM = {"type", "title", "status", "detail", "code", "request_id"}
TENANT_COLUMN = {"users": "id"} | {name: "user_id" for name, table in metadata.tables.items() if "user_id" in table.c}
JSON_TYPE = {"Content-Type": "application/json"}
HEALTH_PATHS = {"/healthz", "/readyz", "/metrics"}
OPEN_PATHS = HEALTH_PATHS | {"/.well-known/oauth-protected-resource"}
"""They need no permission."""
QUESTIONS = {
    "/catalog/search",
    "/conversations/{conversation_id}",
    "/discover",
    "/discover/why",
    "/eval",
    "/feedback",
    "/rules/preview",
}
"""Requests that change nothing in the catalogue: questions, and what a chat says of itself."""
MCP_PATHS = {"/mcp", "/mcp/full", "/projects/{project_id}/mcp", "/projects/{project_id}/mcp/full"}
"""The meta-tools check their own permissions."""
ONLY_BY_REQUEST = {
    ("GET", "/metrics"),
    ("GET", "/.well-known/oauth-protected-resource"),
    ("POST", "/reload"),
    ("GET", "/selections/export"),
    ("GET", "/runs/{}/events"),
    *((method, re.sub(r"{\w+}", "{}", path)) for path in MCP_PATHS for method in ("GET", "POST", "DELETE")),
}
"""Endpoints for people, for Prometheus and for MCP clients, without a method of their own in the clients."""

_CHECKS = {each(Permission.DISCOVER).__code__ for each in (require, require_in_console)}


def assert_problem(answer: httpx.Response, status: int, code: str | None = None) -> Json:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: Json = answer.json()
    assert body.keys() - OPTIONAL_FIELDS == FIELDS_OF_A_PROBLEM
    assert (body["status"], body["code"]) == (status, code or CODES[status])
    assert body["request_id"], "a problem must carry the id of its request"
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


def assert_refused(answer: httpx.Response, status: int) -> str:
    """Check that a request was refused, by a problem (REST) or a JSON-RPC error (MCP), and return the message."""
    if not answer.request.url.path.endswith(("/mcp", "/mcp/full")):
        return str(assert_problem(answer, status)["detail"])
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    error = answer.json()["error"]
    assert error["data"] == {"code": CODES[status], "request_id": answer.headers["x-request-id"]}
    assert error["message"]
    return str(error["message"])


def without_request_id(answer: httpx.Response) -> tuple[int, Json]:
    body = answer.json()
    body.get("error", {}).get("data", {}).pop("request_id", None)
    return answer.status_code, {key: value for key, value in body.items() if key != "request_id"}


async def pages(http: httpx.AsyncClient, path: str, limit: int, **query: Any) -> list[list[Json]]:
    """Return every page of a list, by following its cursors."""
    found: list[list[Json]] = []
    cursor: str | None = None
    while True:
        params = {"limit": limit, **query} | ({} if cursor is None else {"cursor": cursor})
        answer = await http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


async def everything(http: httpx.AsyncClient, path: str, **query: Any) -> list[Json]:
    """Return all items of a list."""
    return [item for page in await pages(http, path, limit=200, **query) for item in page]


async def finished_run(http: httpx.AsyncClient, run_id: str) -> Json:
    """Wait until the run has ended, and return it."""
    for _ in range(1_200):
        answer = await http.get(f"/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        run: Json = answer.json()
        if run["state"] in ("succeeded", "failed"):
            return run
        await asyncio.sleep(0.05)
    raise AssertionError(f"the run did not end: {run}")


async def rows_of(container: Container, user_id: str) -> dict[str, int]:
    """Count the rows of a user in each table, without the filter of row-level security."""
    async with container.database.system_transaction() as session:
        counts = {}
        for table, column in TENANT_COLUMN.items():
            if table != "audit_events":  # audit events outlive the user
                statement = f"SELECT count(*) FROM {table} WHERE {column} = %(owner)s"
                [(counts[table],)] = await session.rows(statement, {"owner": user_id})
        return counts


async def leave_a_sharing(container: Container, user_id: str) -> None:
    """Insert who may use the user's server, which only the owner of shared servers has otherwise."""
    statement = "INSERT INTO shared_servers (user_id, server_id) SELECT user_id, min(id) FROM mcp_servers"
    async with container.database.transaction(user_id) as session:
        await session.rows(f"{statement} WHERE user_id = %(owner)s GROUP BY user_id", {"owner": user_id})


async def leave_a_call(container: Container, user_id: str) -> None:
    """Insert a call with an `Idempotency-Key`, one that waits for a confirmation, and a conversation.

    And what only a distributed database has: that the user has queued a run.
    """
    statements = (
        "INSERT INTO waiting_users (user_id) VALUES (%(owner)s) ON CONFLICT DO NOTHING",
        "INSERT INTO conversations (user_id, project_id, id, revision, turn, spans, calls, oldest_turn, updated_at) "
        "VALUES (%(owner)s, '', %(key)s, '', 1, '[]', '{}', 0, now())",
        "INSERT INTO tool_calls (user_id, key, request, given_up_at) VALUES (%(owner)s, %(key)s, '', now())",
        "INSERT INTO call_confirmations (user_id, token_hash, call, expires_at) "
        "VALUES (%(owner)s, convert_to(%(key)s, 'UTF8'), '', now())",
    )
    async with container.database.transaction(user_id) as session:
        for statement in statements:
            await session.rows(statement, {"owner": user_id, "key": uuid.uuid4().hex})


async def leave_a_category(container: Container, user_id: str) -> str:
    """Make the categories of a user with tools, and return the id of the first one."""
    await make_categories(container.database, user_id, container.model.id)
    async with container.database.transaction(user_id) as session:
        [(category_id,), *_] = await session.rows("SELECT id FROM tool_categories ORDER BY created_at, id")
    return str(category_id)


async def leave_a_sign_in(container: Container, user_id: str) -> None:
    """Insert an account at a server of the user, and a sign-in that has begun."""
    account = "INSERT INTO server_connections (user_id, server_id) VALUES (%(owner)s, %(server)s)"
    begun = (
        "INSERT INTO authorization_requests (user_id, server_id, id, sealed, actor, expires_at) "
        "VALUES (%(owner)s, %(server)s, %(key)s, '', 'test', now())"
    )
    async with container.database.transaction(user_id) as session:
        [(server,), *_] = await session.rows(
            "SELECT id FROM mcp_servers WHERE user_id = %(owner)s ORDER BY id", {"owner": user_id}
        )
        values = {"owner": user_id, "server": server}
        await session.rows(account, values)
        await session.rows(begun, values | {"key": uuid.uuid4().hex})


async def want_selections(container: Container, user_id: str, *, wanted: bool = True) -> None:
    """Switch the selection log of a user on or off."""
    statement = (
        "UPDATE users SET settings = jsonb_build_object('selection_log', %(on)s::boolean) WHERE id = %(user_id)s"
    )
    async with container.database.transaction(user_id) as session:
        await session.rows(statement, {"user_id": user_id, "on": wanted})


async def write_down(container: Container) -> None:
    """Write the usage counters and the logs of searches now, and update the priors."""
    assert await container.usage_counters.flush()
    await container.usage_counters.update_priors()
    await container.selections.flush()
    await container.decisions.flush()
    await container.learner.flush()


async def find_and_praise(container: Container, user: TestUser, query: str) -> str:
    """Run a discovery, report that its first tool succeeded, write everything, and return the id of the discovery."""
    await want_selections(container, user.id)
    http = user.http
    found = (await http.post("/discover", json={"query": query, "similarity_threshold": 0})).json()
    [tool_key, *_] = [each["tool_key"] for each in found["tools"] if each["server_id"] is not None]
    body = {"discovery_id": found["discovery_id"], "tool_key": tool_key, "outcome": "succeeded"}
    assert (await http.post("/feedback", json=body)).status_code == 204
    await write_down(container)
    await want_selections(container, user.id, wanted=False)  # later questions of the test are not logged
    return str(found["discovery_id"])


@dataclass(frozen=True)
class DoorRoute:
    method: str
    path: str
    permissions: frozenset[Permission]
    takes_body: bool


def door_routes(app: FastAPI) -> list[DoorRoute]:
    """Return every route of REST and MCP, without the pages of the framework (`/docs`, `/openapi.json`)."""
    described = app.openapi()["paths"]
    return _listed(app, lambda method, path: "requestBody" in described[path][method.lower()], described=True)


def console_routes(app: FastAPI) -> list[DoorRoute]:
    return _listed(app, lambda method, _path: method == "POST", described=False)


def _listed(app: FastAPI, takes_body: Callable[[str, str], bool], *, described: bool) -> list[DoorRoute]:
    found: list[DoorRoute] = []
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, APIRoute) and route.include_in_schema is described:
            permissions = frozenset(_permissions(route.dependant))
            path = route.path
            found += [DoorRoute(method, path, permissions, takes_body(method, path)) for method in route.methods or ()]
    return sorted(found, key=lambda route: (route.path, route.method))


def _permissions(dependant: Dependant) -> Iterator[Permission]:
    """Yield the permission of every `require(…)` in the tree of dependencies: the check is a closure over it."""
    for dependency in dependant.dependencies:
        if isinstance(call := dependency.call, FunctionType) and call.__code__ in _CHECKS:
            yield from (cell.cell_contents for cell in call.__closure__ or ())
        yield from _permissions(dependency)
