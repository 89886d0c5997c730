"""The OpenAPI document: tags, plain operation ids, and the models that several operations share."""

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from app.api.problems import Problem
from app.api.sse import MEDIA_TYPE
from app.schemas.runs import PushBody

_SCHEMAS = "#/components/schemas/"

TAGS = [
    {"name": "discovery", "description": "Find the tools that a message needs, explain and evaluate the answers"},
    {"name": "execution", "description": "Run a tool on its MCP server"},
    {"name": "servers", "description": "A user's MCP servers"},
    {"name": "registry", "description": "Look servers up in an MCP registry, and register them"},
    {"name": "shared servers", "description": "Servers that an administrator registers once for many users"},
    {"name": "runs", "description": "Index the tools of servers: push or list them, and watch the progress"},
    {"name": "tools", "description": "A user's tools: switch, tag, pin and approve them; core tools"},
    {"name": "categories", "description": "Groups of a user's tools by what they do: list and rename them"},
    {"name": "rules", "description": "Rules over tool names that decide which tools can be found and run"},
    {"name": "projects", "description": "Parts of a user's tools, with rules and limits of their own"},
    {"name": "usage", "description": "Feedback, statistics, and the selection log of users who turned it on"},
    {"name": "audit", "description": "Who did what, when, and with which outcome"},
    {"name": "accounts", "description": "Users and API keys, for administrators"},
    {"name": "mcp", "description": "The MCP endpoint over streamable HTTP: one JSON-RPC message a request"},
    {"name": "operations", "description": "Health, readiness and metrics, without an API key"},
]

PROBLEM_REFERENCE: dict[str, Any] = {"$ref": "#/components/responses/Problem"}
"""The response of an operation that fails. `DescribedApp` declares it for every operation."""

_PROBLEM_RESPONSE: dict[str, Any] = {
    "description": "The error, with a stable `code`",
    "content": {"application/problem+json": {"schema": {"$ref": f"{_SCHEMAS}Problem"}}},
}


class DescribedApp(FastAPI):
    """An application whose operation ids are the names of the routes, and whose errors share one response."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            openapi_tags=TAGS,
            generate_unique_id_function=_get_operation_id,
            responses={"4XX": PROBLEM_REFERENCE, "5XX": PROBLEM_REFERENCE},
            **options,
        )

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        components = document.setdefault("components", {})
        components["responses"] = {"Problem": _PROBLEM_RESPONSE}
        components["schemas"] = dict(sorted({**components.get("schemas", {}), **_describe_shared_models()}.items()))
        for operation in (operation for path in document["paths"].values() for operation in path.values()):
            for response in operation["responses"].values():
                if "$ref" in response:
                    response.pop("description", None)  # which FastAPI adds; the shared response has its own
        return document


def describe_stream(events: str) -> dict[str, Any]:
    """Return the content of a response of server-sent events."""
    return {MEDIA_TYPE: {"schema": {"type": "string", "description": f"server-sent events: {events}"}}}


def describe_text(media_type: str, description: str) -> dict[str, Any]:
    """Return the content of a response that is text of this type."""
    return {media_type: {"schema": {"type": "string", "description": description}}}


def describe_body(model: str) -> dict[str, Any]:
    """Return the request body of a route that parses it itself."""
    content = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}{model}"}}}
    return {"requestBody": {"required": True, "content": content}}


def _describe_shared_models() -> dict[str, Any]:
    """Return the schemas of models that no route declares as its parameter or its result."""
    _, schemas = models_json_schema(
        [(Problem, "serialization"), (PushBody, "validation")], ref_template=f"{_SCHEMAS}{{model}}"
    )
    definitions: dict[str, Any] = schemas["$defs"]
    return definitions


def _get_operation_id(route: APIRoute) -> str:
    return route.name
