"""Writes `docs/api.md`, the reference, from what the application says of itself: `make docs`. Needs no database."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts

from app import errors
from app.auth.permissions import Permission
from app.dependencies import require
from app.main import create_routes

PAGE = Path(__file__).with_name("api.md")

Schema = Mapping[str, Any]
Shapes = Mapping[str, Schema]
Row = tuple[str, str, str]

_HEAD = """# API

Every call, from the application's own description (`make docs` writes this page; a running service shows the same at
`/docs`, and as OpenAPI at `/openapi.json`). [Backend](backend.md) and [MCP](mcp.md) tell how the calls are used.

A key goes into `Authorization: Bearer` or `X-API-Key`, one of them. A service or admin key names its user in
`X-User-Id`, on every call. Bodies are JSON, strict: no unknown fields, `"8"` is not 8; at most 1 MiB (16 MiB where
tools are sent). Below each call stand its parameters (`?`), headers and the fields of its body. Lists come in pages,
`{"items": […], "next_cursor": …}`: `limit` (50, at most 200) is how many, `cursor` the page before's `next_cursor`.
Another user's id answers exactly as a missing one.
"""

_ERRORS = """## Errors

`application/problem+json` (RFC 9457) with `type`, `title`, `status`, `detail`, `request_id` and a stable `code` to
program against; `errors` lists what is wrong with the input, and `POST /execute` adds `outcome` or `cause`. The MCP
door tells the same by JSON-RPC, and what is wrong with a call of a tool in its result.

| code | status | meaning |
|---|---|---|
"""

_OF_THE_FRAMEWORK = ("`method_not_allowed`", 405, "This path does not know that method")
_UNFORESEEN = ("`internal_error`", 500, "Something went wrong; the log has it under the `request_id`")
_CHECK = require(Permission.DISCOVER).__code__
_TREE = re.compile(r"^[│├└─ ]+(\w+) +\d{3} +\w+ *(.*)$", re.MULTILINE)
_PAGE = "Items_"
_EXPLAINED_ABOVE = frozenset({"cursor", "x-user-id", "authorization"})
_TITLES = {"mcp": "MCP"}
_TABLE = "| | | |\n|---|---|---|\n"


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    described: Schema
    permissions: Sequence[Permission]

    @property
    def room(self) -> str:
        return str(self.described["tags"][0])


@dataclass(frozen=True)
class Field:
    name: str
    shape: Schema
    required: bool

    @property
    def kind(self) -> str:
        """As it is sent: that what may be left out may be null, too, goes without saying."""
        choices = [each for each in self.shape.get("anyOf", ()) if each.get("type") != "null"]
        unsaid = bool(choices) and not self.required and "default" not in self.shape
        return kind_of({**self.shape, "anyOf": choices} if unsaid else self.shape)

    @property
    def default(self) -> str:
        """Where it tells something: that no tags are no tags does not."""
        given = self.shape.get("default")
        told = given is not None and given not in ("", [], {})
        return ", **required**" if self.required else f", default `{json.dumps(given)}`" if told else ""

    @property
    def meaning(self) -> str:
        return str(self.shape.get("description", ""))


def reference() -> str:
    """The whole page."""
    app = create_routes()
    described = app.openapi()
    shapes: Shapes = described["components"]["schemas"]
    operations = operations_of(app, described["paths"])
    parts = [_HEAD, *_rooms(operations, shapes), _shapes(_answered(operations, shapes)), _ERRORS + _rows(error_rows())]
    return "\n".join(parts)


def operations_of(app: FastAPI, paths: Mapping[str, Any]) -> list[Operation]:
    asked = _permissions_by_route(app)
    return [
        Operation(method.upper(), path, described, asked[method.upper(), path])
        for path, methods in paths.items()
        for method, described in methods.items()
    ]


def fields_of(shape: Schema) -> list[Field]:
    required = shape.get("required", ())
    return [Field(name, each, name in required) for name, each in shape.get("properties", {}).items()]


def body_of(operation: Operation, shapes: Shapes) -> list[Field]:
    for content in operation.described.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        return fields_of(shapes[_key(schema["$ref"])] if "$ref" in schema else schema)
    return []


def error_rows() -> list[tuple[str, int, str]]:
    """One for each code, in the order of the tree that `errors` draws, with what stands there beside it."""
    rows: dict[tuple[str, int], list[str]] = {}
    for name, note in _TREE.findall(errors.__doc__ or ""):
        error: type[errors.ToolscoutError] = getattr(errors, name)
        meaning = f"{error.title} ({note})" if note else error.title
        rows.setdefault((error.code, error.status), []).append(meaning)
    ours = [(f"`{code}`", status, "; ".join(meanings)) for (code, status), meanings in rows.items()]
    return [*ours, _OF_THE_FRAMEWORK, _UNFORESEEN]


def _permissions_by_route(app: FastAPI) -> dict[tuple[str, str], list[Permission]]:
    routes = [each.original_route for each in iter_route_contexts(app.routes)]
    return {
        (method, route.path): sorted(set(_permissions(route.dependant)))
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def _permissions(dependant: Dependant) -> Iterator[Permission]:
    """A check made by `require` has closed over what it asks for."""
    for dependency in dependant.dependencies:
        if isinstance(call := dependency.call, FunctionType) and call.__code__ is _CHECK:
            yield from (cell.cell_contents for cell in call.__closure__ or ())
        yield from _permissions(dependency)


def _rooms(operations: Sequence[Operation], shapes: Shapes) -> Iterator[str]:
    """Together what belongs together; what operators ask comes last."""
    rooms = dict.fromkeys(each.room for each in operations)
    for room in sorted(rooms, key=lambda name: name == "operations"):
        yield f"## {_TITLES.get(room, room.capitalize())}\n"
        yield from (_operation(each, shapes) for each in operations if each.room == room)


def _operation(operation: Operation, shapes: Shapes) -> str:
    told = " ".join(operation.described["description"].split())
    needs = " ".join(f"Needs `{each}`." for each in operation.permissions) or "Needs no key."
    answers = _answers(operation.described["responses"])
    rows = [*_parameter_rows(operation.described.get("parameters", ())), *_field_rows(operation, shapes)]
    table = f"\n{_TABLE}{_rows(rows)}" if rows else ""
    return f"### `{operation.method} {operation.path}`\n\n{told} {needs} {answers}\n{table}"


def _parameter_rows(parameters: Sequence[Schema]) -> Iterator[Row]:
    own = [each for each in parameters if each["in"] != "path" and each["name"] not in _EXPLAINED_ABOVE]
    paged = any(each["name"] == "cursor" for each in parameters)
    for each in own:
        if not (paged and each["name"] == "limit"):
            name = f"?{each['name']}" if each["in"] == "query" else each["name"].title()
            field = Field(name, each["schema"] | each, each["required"])
            yield f"`{name}`", field.kind + field.default, field.meaning
    if paged:
        yield "`?limit`, `?cursor`", "", "pages, as said above"


def _field_rows(operation: Operation, shapes: Shapes) -> Iterator[Row]:
    for each in body_of(operation, shapes):
        # what a change leaves out stays as it is; null is another thing to say
        kind = kind_of(each.shape) if operation.method == "PATCH" else each.kind + each.default
        yield f"`{each.name}`", kind, each.meaning


def _answers(responses: Mapping[str, Any]) -> str:
    good = [_answer(status, each) for status, each in sorted(responses.items()) if status.startswith("2")]
    return f"Answers {', or '.join(good)}."


def _answer(status: str, response: Schema) -> str:
    content = response.get("content", {})
    kinds = [kind_of(each["schema"]) for each in content.values() if "$ref" in each.get("schema", {})]
    events = ["server-sent events"] if "text/event-stream" in content else []
    return " with ".join(filter(None, [status, " or ".join([*kinds, *events])]))


def _answered(operations: Sequence[Operation], shapes: Shapes) -> Shapes:
    """All shapes but those that are pages of others, or stand whole beside the call that takes them."""
    taken = {_key(reference) for each in operations for reference in _references(each.described.get("requestBody", {}))}
    return {key: shape for key, shape in sorted(shapes.items()) if key not in taken and not key.startswith(_PAGE)}


def _references(body: Schema) -> Iterator[str]:
    yield from (each["schema"]["$ref"] for each in body.get("content", {}).values() if "$ref" in each["schema"])


def _shapes(shapes: Shapes) -> str:
    return "## Shapes\n\n" + "\n".join(_shape(key, shape) for key, shape in shapes.items())


def _must(field: Field, sent: bool) -> str:
    return ", **required**" if sent and field.required else ""


def _shape(key: str, shape: Schema) -> str:
    told = f"{' '.join(shape['description'].split())}\n\n" if "description" in shape else ""
    # what is sent may lack a field; what is answered has them all
    sent = not key.endswith("Out")
    rows = [(f"`{each.name}`", kind_of(each.shape) + _must(each, sent), each.meaning) for each in fields_of(shape)]
    return f"### {key}\n\n{told}{_TABLE}{_rows(rows)}"


def kind_of(shape: Schema) -> str:
    """A type in a few words, with its limits."""
    return ", ".join([_type_of(shape), *_limits(shape)])


def _type_of(shape: Schema) -> str:
    if "$ref" in shape:
        return _linked(_key(shape["$ref"]))
    if choices := shape.get("anyOf") or shape.get("oneOf"):
        return " or ".join(dict.fromkeys(kind_of(each) for each in choices))
    if values := shape.get("enum") or ([shape["const"]] if "const" in shape else []):
        # sorted: to Python two Literals of the same words are one, in the order of whichever it met first
        return " or ".join(f"`{each}`" for each in sorted(values))
    if shape.get("type") == "array":
        return f"list of {_type_of(shape['items'])}"
    return str(shape.get("format") or shape.get("type") or "anything")


def _limits(shape: Schema) -> Iterator[str]:
    if "maximum" in shape:
        yield f"{shape.get('minimum', 0):,.0f} to {shape['maximum']:,.0f}"
    elif "minimum" in shape:
        yield f"at least {shape['minimum']:,.0f}"
    if "maxLength" in shape:
        yield f"up to {shape['maxLength']:,} characters"
    for counted in ("maxItems", "maxProperties"):
        if counted in shape:
            yield f"up to {shape[counted]:,}"


def _linked(key: str) -> str:
    if key.startswith(_PAGE):
        return f"a page of {_linked(key.removeprefix(_PAGE).removesuffix('_'))}"
    return f"[{key}](#{key.lower()})"


def _key(reference: str) -> str:
    return reference.rpartition("/")[2]


def _rows(rows: Sequence[Sequence[object]]) -> str:
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(reference())
