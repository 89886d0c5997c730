"""Compares responses with the OpenAPI document: status, media type and shape are those that it describes."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

_DOCUMENT = "urn:toolscout"
_MAX_COMPARED = 20
"""Responses of one operation and status: comparing all would take longer than the tests."""


class OpenApiContract:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        resource = Resource.from_contents(self._document, default_specification=DRAFT202012)
        self._registry: Registry[Any] = Registry().with_resource(_DOCUMENT, resource)
        # a path without parameters goes before one that has them
        paths = sorted(self._document["paths"], key=lambda path: path.count("{"))
        self._patterns = [(re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), path) for path in paths]
        self._compared: Counter[tuple[str, str, int]] = Counter()

    async def check(self, response: httpx.Response) -> None:
        """Raise `AssertionError` if the document describes the operation and the response differs from it."""
        method, path = response.request.method.lower(), response.request.url.path
        found = (each for pattern, each in self._patterns if pattern.fullmatch(path))
        described = next((each for each in found if method in self._document["paths"][each]), None)
        if described is None:
            return
        self._compared[described, method, response.status_code] += 1
        if self._compared[described, method, response.status_code] > _MAX_COMPARED:
            return
        where = f"{method.upper()} {described} answers {response.status_code}"
        place = self._find_response(described, method, response.status_code)
        assert place is not None, f"{where}, which the document does not describe"
        content = self._resolve(place).get("content", {})
        media_type = response.headers.get("content-type", "").partition(";")[0]
        if not content or (not media_type and described.endswith(("/mcp", "/mcp/full"))):
            return  # the MCP SDK refuses some requests without a body
        assert media_type in content, f"{where} as {media_type!r}, and the document describes {list(content)}"
        if media_type.endswith("json") and not media_type.endswith("ndjson"):
            await response.aread()
            self._compare(response, f"{place}/content/{media_type.replace('/', '~1')}/schema", where)

    def _find_response(self, path: str, method: str, status: int) -> str | None:
        responses = self._document["paths"][path][method]["responses"]
        key = next((key for key in (str(status), f"{status // 100}XX") if key in responses), None)
        if key is None:
            return None
        escaped = path.replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
        return str(responses[key].get("$ref") or f"#/paths/{escaped}/{method}/responses/{key}")

    def _resolve(self, place: str) -> dict[str, Any]:
        resolved: dict[str, Any] = self._registry.resolver(_DOCUMENT).lookup(place).contents
        return resolved

    def _compare(self, response: httpx.Response, place: str, where: str) -> None:
        validator = Draft202012Validator({"$ref": f"{_DOCUMENT}{place}"}, registry=self._registry)
        errors = [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(response.json())]
        assert not errors, f"{where}, and its body is not as described: {errors[:3]}"
