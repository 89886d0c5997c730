"""The published description of the API, and that no route forgot its lock."""

from typing import Any

import httpx
import pytest
from fastapi import APIRouter

from app.auth.permissions import Permission
from app.container import Container
from app.dependencies import Tenant, ToolsReadCaller
from app.main import create_app
from tests.support.checks import MCP_PATHS, OPEN_PATHS, QUESTIONS, DoorRoute, Json, door_routes
from tests.support.clients import get_app


@pytest.fixture
async def openapi(client: httpx.AsyncClient) -> Json:
    body: Json = (await client.get("/openapi.json")).json()
    return body


def resolved(openapi: Json, schema: Json) -> Json:
    name = schema["$ref"].rsplit("/", 1)[-1]
    found: Json = openapi["components"]["schemas"][name]
    return found


def operations(openapi: Json) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, told) for path, methods in openapi["paths"].items() for method, told in methods.items()]


def undeclared(routes: list[DoorRoute]) -> list[str]:
    return [route.path for route in routes if route.path not in OPEN_PATHS and not route.permissions]


def test_every_route_but_the_open_ones_declares_the_permission_that_it_needs(container: Container) -> None:
    routes = door_routes(get_app(container))
    assert len(routes) > 40
    assert undeclared(routes) == []
    assert [route for route in routes if route.path in OPEN_PATHS and route.permissions] == []


def test_a_route_that_forgot_its_permission_would_be_noticed(container: Container) -> None:
    """A key alone is no permission: what a key may do depends on what the route asks for."""
    forgetful = APIRouter()

    @forgetful.get("/nobody-asked")
    async def nobody_asked() -> None: ...

    @forgetful.get("/any-key")
    async def any_key(_: Tenant) -> None: ...

    @forgetful.get("/declared")
    async def declared(_: ToolsReadCaller) -> None: ...

    app = create_app(container)
    app.include_router(forgetful)
    assert undeclared(door_routes(app)) == ["/any-key", "/nobody-asked"]


def test_what_changes_something_needs_more_than_the_permission_to_read(container: Container) -> None:
    writing = {Permission.WRITE_CATALOG, Permission.EXECUTE, Permission.ADMINISTER}
    for route in door_routes(get_app(container)):
        if route.path in OPEN_PATHS | QUESTIONS | MCP_PATHS:
            continue
        changes = route.method in {"POST", "PUT", "PATCH", "DELETE"}
        assert bool(route.permissions & writing) is (changes or route.path.startswith(("/users", "/keys"))), route


def test_both_ways_to_present_a_key_are_described(openapi: Json) -> None:
    schemes = openapi["components"]["securitySchemes"]
    told = {(scheme["type"], scheme.get("scheme") or scheme.get("name")) for scheme in schemes.values()}
    assert told == {("http", "bearer"), ("apiKey", "X-API-Key")}
    for _, path, operation in operations(openapi):
        named = {name for requirement in operation.get("security", []) for name in requirement}
        assert named == (set() if path in OPEN_PATHS else schemes.keys()), path


def test_every_route_of_ours_is_described_and_no_other(openapi: Json, container: Container) -> None:
    routes = {(route.method.lower(), route.path) for route in door_routes(get_app(container))}
    assert {(method, path) for method, path, _ in operations(openapi)} == routes


async def test_the_example_of_a_discovery_is_one(openapi: Json, admin: httpx.AsyncClient) -> None:
    body = openapi["paths"]["/discover"]["post"]["requestBody"]["content"]["application/json"]
    [example] = resolved(openapi, body["schema"])["properties"]["query"]["examples"]
    answer = await admin.post("/discover", json={"query": example}, headers={"X-User-Id": "a-reader-of-the-docs"})
    assert answer.status_code == 200
    shown = openapi["paths"]["/discover"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    described = resolved(openapi, shown)
    assert answer.json().keys() == described["properties"].keys()


def test_problems_are_described_as_what_they_are(openapi: Json) -> None:
    for _, path, operation in operations(openapi):
        [media_type] = operation["responses"]["4XX"]["content"]
        assert media_type == "application/problem+json", path
