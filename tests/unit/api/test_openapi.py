"""The OpenAPI document of all routes: ids, tags, errors, keys, and values that fit their schemas."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from app.api.openapi import PROBLEM_REFERENCE, DescribedApp
from app.main import create_routes
from tests.support.checks import HEALTH_PATHS, MCP_PATHS, OPEN_PATHS, Json

DOCUMENT: Json = create_routes().openapi()
OPERATIONS: list[tuple[str, Json]] = [
    (f"{method.upper()} {path}", operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
VALUES = {"default", "example", "examples"}
PLAIN_IDS = {
    "POST /discover": "discover",
    "POST /discover/why": "explain_discovery",
    "POST /execute": "execute",
    "POST /servers": "create_server",
    "GET /servers": "list_servers",
    "GET /servers/{server_id}": "get_server",
    "PATCH /servers/{server_id}": "change_server",
    "DELETE /servers/{server_id}": "delete_server",
    "PUT /servers/{server_id}/tools": "push_tools",
    "GET /healthz": "get_health",
    "POST /mcp": "mcp",
}


def test_operation_ids_are_plain_and_unique() -> None:
    ids = {route: operation["operationId"] for route, operation in OPERATIONS}
    assert len(ids) > 50
    assert {route: ids[route] for route in PLAIN_IDS} == PLAIN_IDS
    assert [each for each, count in Counter(ids.values()).items() if count > 1] == [], "rename one of the functions"
    assert {route: each for route, each in ids.items() if not re.fullmatch(r"[a-z]+(_[a-z]+)*", each)} == {}


def test_an_operation_id_does_not_repeat_the_method_of_its_route() -> None:
    """`post_discover` says no more than `discover`; a POST that creates something is `create_…`."""
    named = [operation["operationId"] for _, operation in OPERATIONS]
    assert [each for each in named if each.split("_")[0] in ("post", "put", "patch")] == []


def test_every_tag_that_is_used_has_a_description_and_every_described_tag_is_used() -> None:
    described = {tag["name"]: tag["description"] for tag in DOCUMENT["tags"]}
    used = {route: operation.get("tags", []) for route, operation in OPERATIONS}
    assert {route: tags for route, tags in used.items() if len(tags) != 1} == {}, "one tag for each route"
    assert {tag for tags in used.values() for tag in tags} == described.keys(), "see TAGS in app/api/openapi.py"
    assert all(described.values())


def test_all_errors_share_one_response() -> None:
    for route, operation in OPERATIONS:
        errors = {status: response for status, response in operation["responses"].items() if status[0] != "2"}
        if route.removeprefix("POST ") in MCP_PATHS:
            for response in errors.values():
                assert response["content"].keys() == {"application/json", "application/problem+json"}, route
            continue
        assert errors == {"4XX": PROBLEM_REFERENCE, "5XX": PROBLEM_REFERENCE}, route
    [media_type] = DOCUMENT["components"]["responses"]["Problem"]["content"]
    assert media_type == "application/problem+json"


@pytest.mark.parametrize(("route", "operation"), OPERATIONS, ids=[route for route, _ in OPERATIONS])
def test_a_route_takes_the_key_in_either_header_unless_it_is_open(route: str, operation: Json) -> None:
    is_open = route.split()[1] in OPEN_PATHS
    schemes = [] if is_open else ["HTTPBearer", "APIKeyHeader"]
    assert operation.get("security", []) == [{scheme: []} for scheme in schemes]
    # OpenAPI ignores parameters of these names
    names = {parameter["name"].lower() for parameter in operation.get("parameters", ())}
    assert not names & {"accept", "authorization", "content-type"}


def test_every_response_with_a_body_says_what_it_is() -> None:
    for route, operation in OPERATIONS:
        for status, response in operation["responses"].items():
            for media_type, content in response.get("content", {}).items():
                assert content.get("schema"), f"{route}: {status} as {media_type} has no schema"


def test_streams_and_texts_are_described_as_strings() -> None:
    described = {
        (operation["operationId"], media_type): content["schema"]["type"]
        for _, operation in OPERATIONS
        for response in operation["responses"].values()
        for media_type, content in response.get("content", {}).items()
        if not media_type.endswith("json") or media_type.endswith("ndjson")
    }
    assert set(described.values()) == {"string"}
    assert {
        ("execute", "text/event-stream"),
        ("watch_run", "text/event-stream"),
        ("mcp", "text/event-stream"),
        ("get_metrics", "text/plain"),
        ("export_selections", "application/x-ndjson"),
    } <= described.keys()


def schemas_within(value: Any, place: str = "#") -> Iterator[tuple[str, Json]]:
    """Yield every schema of the document that has a default or examples, with its place."""
    if isinstance(value, dict):
        if VALUES & value.keys() and "schema" not in value:
            yield place, value
        for key, item in value.items():
            # a field may have the name of a keyword
            children = item.items() if key == "properties" else [("", item)] if key not in VALUES else []
            for name, child in children:
                yield from schemas_within(child, "/".join(filter(None, [place, key, name])))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from schemas_within(item, f"{place}/{number}")


def find_contradictions(document: Json) -> list[str]:
    resource = Resource.from_contents(document, default_specification=DRAFT202012)
    registry: Registry[Any] = Registry().with_resource("urn:openapi", resource)
    found = []
    for place, schema in schemas_within(document):
        validator = Draft202012Validator({**schema, "$id": "urn:openapi"}, registry=registry)
        values = [*schema.get("examples", ()), *(schema[key] for key in ("default", "example") if key in schema)]
        found += [f"{place}: {error.message}" for value in values for error in validator.iter_errors(value)]
    return found


def test_defaults_and_examples_are_valid_for_their_schemas() -> None:
    assert len(list(schemas_within(DOCUMENT))) > 50
    assert find_contradictions(DOCUMENT) == []


def test_a_default_that_contradicts_its_schema_is_noticed() -> None:
    app = FastAPI()

    @app.get("/few")
    async def few(limit: int = 8) -> None: ...

    document = app.openapi()
    assert find_contradictions(document) == []
    document["paths"]["/few"]["get"]["parameters"][0]["schema"]["default"] = "8"
    assert find_contradictions(document) == ["#/paths//few/get/parameters/0/schema: '8' is not of type 'integer'"]


def test_the_body_of_a_patch_has_no_defaults() -> None:
    """A generated client would send them, and so reset the fields that its caller left out."""
    bodies = {
        route: operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/")[-1]
        for route, operation in OPERATIONS
        if route.startswith("PATCH")
    }
    assert len(bodies) >= 4
    for route, name in bodies.items():
        fields = DOCUMENT["components"]["schemas"][name]["properties"]
        assert [field for field, schema in fields.items() if "default" in schema] == [], f"{route}: {name}"


def test_no_two_models_share_a_name() -> None:
    """FastAPI would put their modules into the names, and generators take the two for one: rename or share one."""
    assert [name for name in DOCUMENT["components"]["schemas"] if "__" in name] == []


def test_every_reference_leads_somewhere() -> None:
    references = set(re.findall(r"'\$ref': '#/components/(\w+)/(\w+)'", str(DOCUMENT)))
    assert len(references) > 50
    assert [each for each in references if each[1] not in DOCUMENT["components"][each[0]]] == []


def test_a_worker_has_a_document_without_routes_of_the_api() -> None:
    app = create_routes("worker")
    assert isinstance(app, DescribedApp)
    assert app.openapi()["paths"].keys() == HEALTH_PATHS
