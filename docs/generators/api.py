"""`docs/reference/api.md`: every REST operation, from the application's own OpenAPI document."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts

from app import errors
from app.auth.permissions import Permission
from app.dependencies import require
from app.main import create_routes
from docs.generators.json_schema import Schema, describe_type, reference_name
from docs.generators.markdown import render_table

Schemas = Mapping[str, Schema]
Row = tuple[str, str, str]

_INTRODUCTION = """# API reference

Every operation, from the application's own description (`make docs` writes this page). A running service shows the same
at `/docs`, and as OpenAPI at `/openapi.json`. The guides to the [chat backend](../guides/chat-backend.md) and to
[MCP clients](../guides/mcp-clients.md) show how the operations are used.

- **Keys** go into `Authorization: Bearer` or `X-API-Key`, not both. A service key or an admin key names its user in
  `X-User-Id`, on every request. *Needs* names the permission that the key must have.
- **Bodies** are strict JSON: unknown fields are refused, with a suggestion ("unknown field `message`; did you mean
  `query`?"), and `"8"` is not 8. They hold at most 1 MiB, or 16 MiB where tools are sent. A misspelt query
  parameter is refused in the same way.
- **Tables** list query parameters (with `?`), headers and the fields of the body.
- **Lists** come in pages, `{"items": […], "next_cursor": …}`: `limit` is the size of a page (50, at most 200), `cursor`
  the `next_cursor` of the page before.
- **Another user's id** is answered exactly as an unknown one.
"""

_OVERVIEW = (
    (
        "`/discover`, `/discover/why`, `/eval`",
        "the tools for a message; why a tool is, or is not, among them; quality on your own messages",
    ),
    ("`/execute`, `/feedback`", "run a tool; report its outcome"),
    ("`/servers`, `/reindex`, `/runs`", "a user's MCP servers, and the indexing of their tools"),
    (
        "`/catalog/search`",
        "search tools that are [sent with the request](../guides/chat-backend.md#search-tools-that-you-send-along)",
    ),
    ("`/tools`, `/tags`, `/core-tools`", "a user's tools: switch, tag, pin, approve; your native tools"),
    ("`/rules`, `/projects`", "who sees what"),
    (
        "`/users`, `/keys`, `/audit`, `/stats`, `/selections`",
        "administration; what was done; statistics; messages and selections (opt-in)",
    ),
    ("`/mcp`, `/healthz`, `/readyz`, `/metrics`", "MCP; liveness, readiness, Prometheus"),
)

_ERRORS = """## Errors

Errors are `application/problem+json` (RFC 9457) with `type`, `title`, `status`, `detail`, `request_id` and a stable
`code` to program against. `errors` lists what is wrong with the input; `POST /execute` adds `outcome` or `cause`. The
MCP endpoint reports the same as JSON-RPC errors, and failed tool calls as results with `isError`.

"""

_METHOD_NOT_ALLOWED = ("`method_not_allowed`", 405, "The path does not support this method")
_INTERNAL_ERROR = ("`internal_error`", 500, "Unexpected error; the log has it under the `request_id`")
_REQUIRE_CODE = require(Permission.DISCOVER).__code__
_TREE_LINE = re.compile(r"^[│├└─ ]+(\w+) +\d{3} +\w+ *(.*)$", re.MULTILINE)
_PAGE_PREFIX = "Items_"
_EXPLAINED_ABOVE = frozenset({"cursor", "x-user-id", "authorization"})
_TITLES = {"mcp": "MCP"}
_HEADER = ("", "", "")


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    spec: Schema
    permissions: Sequence[Permission]

    @property
    def tag(self) -> str:
        return str(self.spec["tags"][0])


@dataclass(frozen=True)
class Field:
    name: str
    schema: Schema
    required: bool

    @property
    def type(self) -> str:
        """An optional field may also be null: that is not repeated for each of them."""
        choices = [choice for choice in self.schema.get("anyOf", ()) if choice.get("type") != "null"]
        is_nullable = bool(choices) and not self.required and "default" not in self.schema
        return _describe({**self.schema, "anyOf": choices} if is_nullable else self.schema)

    @property
    def default(self) -> str:
        """Empty defaults (no text, no items) are not shown."""
        value = self.schema.get("default")
        if self.required:
            return ", **required**"
        return "" if value in (None, "", [], {}) else f", default `{json.dumps(value)}`"

    @property
    def meaning(self) -> str:
        return str(self.schema.get("description", ""))


def render_page() -> str:
    app = create_routes()
    document = app.openapi()
    schemas: Schemas = document["components"]["schemas"]
    operations = list_operations(app, document["paths"])
    shapes = _select_shapes(operations, schemas)
    return "\n".join(
        [
            _INTRODUCTION,
            render_table(("paths", "for"), _OVERVIEW),
            *_render_operations(operations, schemas),
            _render_shapes(shapes),
            _ERRORS + render_table(("code", "status", "meaning"), list_error_rows()),
        ]
    )


def list_operations(app: FastAPI, paths: Mapping[str, Any]) -> list[Operation]:
    permissions = _map_permissions(app)
    return [
        Operation(method.upper(), path, spec, permissions[method.upper(), path])
        for path, methods in paths.items()
        for method, spec in methods.items()
    ]


def list_body_fields(operation: Operation, schemas: Schemas) -> list[Field]:
    for content in operation.spec.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        return _list_fields(schemas[reference_name(schema["$ref"])] if "$ref" in schema else schema)
    return []


def list_error_rows() -> list[tuple[str, int, str]]:
    """One row for each code, in the order of the tree in the docstring of `app.errors`, with the notes there."""
    meanings: dict[tuple[str, int], list[str]] = {}
    for name, note in _TREE_LINE.findall(errors.__doc__ or ""):
        error: type[errors.ToolscoutError] = getattr(errors, name)
        meaning = f"{error.title} ({note})" if note else error.title
        meanings.setdefault((error.code, error.status), []).append(meaning)
    rows = [(f"`{code}`", status, "; ".join(texts)) for (code, status), texts in meanings.items()]
    return [*rows, _METHOD_NOT_ALLOWED, _INTERNAL_ERROR]


def _map_permissions(app: FastAPI) -> dict[tuple[str, str], list[Permission]]:
    routes = [context.original_route for context in iter_route_contexts(app.routes)]
    return {
        (method, route.path): sorted(set(_find_permissions(route.dependant)))
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def _find_permissions(dependant: Dependant) -> Iterator[Permission]:
    """The check that `require` returns holds its permission in a closure."""
    for dependency in dependant.dependencies:
        if isinstance(call := dependency.call, FunctionType) and call.__code__ is _REQUIRE_CODE:
            yield from (cell.cell_contents for cell in call.__closure__ or ())
        yield from _find_permissions(dependency)


def _render_operations(operations: Sequence[Operation], schemas: Schemas) -> Iterator[str]:
    """Grouped by tag; health and metrics come last."""
    tags = dict.fromkeys(operation.tag for operation in operations)
    for tag in sorted(tags, key=lambda tag: tag == "operations"):
        yield f"## {_TITLES.get(tag, tag.capitalize())}\n"
        yield from (_render_operation(operation, schemas) for operation in operations if operation.tag == tag)


def _render_operation(operation: Operation, schemas: Schemas) -> str:
    description = " ".join(operation.spec["description"].split())
    permissions = " ".join(f"Needs `{permission}`." for permission in operation.permissions) or "Needs no key."
    rows = [*_list_parameter_rows(operation.spec.get("parameters", ())), *_list_field_rows(operation, schemas)]
    table = f"\n{render_table(_HEADER, rows)}" if rows else ""
    responses = _describe_responses(operation.spec["responses"])
    return f"### `{operation.method} {operation.path}`\n\n{description} {permissions} {responses}\n{table}"


def _list_parameter_rows(parameters: Sequence[Schema]) -> Iterator[Row]:
    is_paged = any(parameter["name"] == "cursor" for parameter in parameters)
    for parameter in parameters:
        name = parameter["name"]
        if parameter["in"] == "path" or name in _EXPLAINED_ABOVE or (is_paged and name == "limit"):
            continue
        shown = f"?{name}" if parameter["in"] == "query" else name.title()
        field = Field(shown, parameter["schema"] | parameter, parameter["required"])
        yield f"`{shown}`", field.type + field.default, field.meaning
    if is_paged:
        yield "`?limit`, `?cursor`", "", "pages, as explained above"


def _list_field_rows(operation: Operation, schemas: Schemas) -> Iterator[Row]:
    for field in list_body_fields(operation, schemas):
        # in a PATCH an absent field keeps its value, and null is a value: so the full type is shown
        field_type = _describe(field.schema) if operation.method == "PATCH" else field.type + field.default
        yield f"`{field.name}`", field_type, field.meaning


def _describe_responses(responses: Mapping[str, Any]) -> str:
    successes = [_describe_response(status, spec) for status, spec in sorted(responses.items()) if status[0] == "2"]
    return f"Answers {', or '.join(successes)}."


def _describe_response(status: str, response: Schema) -> str:
    content = response.get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    types = [_describe(schema)] if "$ref" in schema else [schema["description"]] if "description" in schema else []
    events = ["server-sent events"] if "text/event-stream" in content else []
    return " with ".join(filter(None, [status, " or ".join([*types, *events])]))


def _select_shapes(operations: Sequence[Operation], schemas: Schemas) -> Schemas:
    """All schemas, but for pages of others and for bodies, which are shown with their operation."""
    bodies = {
        reference_name(content["schema"]["$ref"])
        for operation in operations
        for content in operation.spec.get("requestBody", {}).get("content", {}).values()
        if "$ref" in content["schema"]
    }
    return {
        name: schema
        for name, schema in sorted(schemas.items())
        if name not in bodies and not name.startswith(_PAGE_PREFIX)
    }


def _render_shapes(shapes: Schemas) -> str:
    return "## Shapes\n\n" + "\n".join(_render_shape(name, schema) for name, schema in shapes.items())


def _render_shape(name: str, schema: Schema) -> str:
    description = f"{' '.join(schema['description'].split())}\n\n" if "description" in schema else ""
    # a field of a request may be absent; a response has all of its fields
    is_request = not name.endswith("Out")
    rows = [
        (
            f"`{field.name}`",
            _describe(field.schema) + (", **required**" if is_request and field.required else ""),
            field.meaning,
        )
        for field in _list_fields(schema)
    ]
    return f"### {name}\n\n{description}{render_table(_HEADER, rows)}"


def _list_fields(schema: Schema) -> list[Field]:
    required = schema.get("required", ())
    return [Field(name, spec, name in required) for name, spec in schema.get("properties", {}).items()]


def _describe(schema: Schema) -> str:
    return describe_type(schema, _link)


def _link(name: str) -> str:
    if name.startswith(_PAGE_PREFIX):
        return f"a page of {_link(name.removeprefix(_PAGE_PREFIX).removesuffix('_'))}"
    return f"[{name}](#{name.lower()})"
