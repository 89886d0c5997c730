"""The OpenAPI description, and the permission that every route requires."""

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


def resolve_reference(openapi: Json, schema: Json) -> Json:
    name = schema["$ref"].rsplit("/", 1)[-1]
    found: Json = openapi["components"]["schemas"][name]
    return found


def list_operations(openapi: Json) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, spec) for path, methods in openapi["paths"].items() for method, spec in methods.items()]


def paths_without_permission(routes: list[DoorRoute]) -> list[str]:
    return [route.path for route in routes if route.path not in OPEN_PATHS and not route.permissions]


def test_every_route_but_the_public_ones_requires_a_permission(container: Container) -> None:
    routes = door_routes(get_app(container))
    assert len(routes) > 40
    assert paths_without_permission(routes) == []
    assert [route for route in routes if route.path in OPEN_PATHS and route.permissions] == []


def test_a_route_without_a_permission_is_noticed(container: Container) -> None:
    """A valid key is not enough: a route must name the permission that it requires."""
    router = APIRouter()

    @router.get("/no-key")
    async def no_key() -> None: ...

    @router.get("/any-key")
    async def any_key(_: Tenant) -> None: ...

    @router.get("/declared")
    async def declared(_: ToolsReadCaller) -> None: ...

    app = create_app(container)
    app.include_router(router)
    assert paths_without_permission(door_routes(app)) == ["/any-key", "/no-key"]


def test_a_route_that_changes_something_requires_more_than_a_read_permission(container: Container) -> None:
    writing = {Permission.WRITE_CATALOG, Permission.EXECUTE, Permission.ADMINISTER}
    for route in door_routes(get_app(container)):
        if route.path in OPEN_PATHS | QUESTIONS | MCP_PATHS:
            continue
        changes = route.method in {"POST", "PUT", "PATCH", "DELETE"}
        for_admins = route.path.startswith(("/users", "/keys", "/shared-servers"))
        assert bool(route.permissions & writing) is (changes or for_admins), route


def test_both_ways_to_send_a_key_are_described(openapi: Json) -> None:
    schemes = openapi["components"]["securitySchemes"]
    described = {(scheme["type"], scheme.get("scheme") or scheme.get("name")) for scheme in schemes.values()}
    assert described == {("http", "bearer"), ("apiKey", "X-API-Key")}
    for _, path, operation in list_operations(openapi):
        named = {name for requirement in operation.get("security", []) for name in requirement}
        assert named == (set() if path in OPEN_PATHS else schemes.keys()), path


def test_the_description_holds_exactly_our_routes(openapi: Json, container: Container) -> None:
    routes = {(route.method.lower(), route.path) for route in door_routes(get_app(container))}
    assert {(method, path) for method, path, _ in list_operations(openapi)} == routes


async def test_the_example_of_a_discovery_works(openapi: Json, admin: httpx.AsyncClient) -> None:
    body = openapi["paths"]["/discover"]["post"]["requestBody"]["content"]["application/json"]
    [example] = resolve_reference(openapi, body["schema"])["properties"]["query"]["examples"]
    answer = await admin.post("/discover", json={"query": example}, headers={"X-User-Id": "a-reader-of-the-docs"})
    assert answer.status_code == 200
    shown = openapi["paths"]["/discover"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    described = resolve_reference(openapi, shown)
    assert answer.json().keys() == described["properties"].keys()


async def test_an_error_has_the_described_shape(openapi: Json, client: httpx.AsyncClient) -> None:
    [(media_type, content)] = openapi["components"]["responses"]["Problem"]["content"].items()
    described = resolve_reference(openapi, content["schema"])
    answer = await client.get("/tools")
    assert (answer.status_code, answer.headers["content-type"]) == (401, media_type)
    assert set(described["required"]) <= answer.json().keys() <= described["properties"].keys()
