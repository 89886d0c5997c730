"""The bytes and shapes that cross our border: strict JSON, and what an MCP tool is."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from app.errors import InvalidInput

Json = dict[str, Any]


def parse_json(body: bytes, called: str = "the body") -> Any:
    """JSON as the RFC has it: no NaN, no Infinity, no lone surrogates; and no NUL, which Postgres cannot store. What is
    wrong is told of what it is `called`."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{called} is not valid JSON: {error.msg} ({_place(body, error)})") from error
    # the escape is the only way for a NUL to get through the parser, so most bodies need no walk
    if b"\\u0000" in body and any("\0" in text for text in strings_in(value)):
        raise InvalidInput(f"{called} holds a NUL character, which cannot be stored")
    return value


def _place(body: bytes, error: orjson.JSONDecodeError) -> str:
    """Where there is one line, its number would be taken for that of a file which it comes from."""
    return f"line {error.lineno}, column {error.colno}" if b"\n" in body else f"column {error.colno}"


def strings_in(value: Any) -> Iterator[str]:
    """Every string and key, without recursion: the depth is the sender's to choose."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def canonical_json(value: Any) -> bytes:
    """The same bytes for the same meaning: key order and white space do not count."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


Transport = Literal["streamable_http", "sse", "stdio", "push"]


@dataclass(frozen=True)
class Endpoint:
    """Where an MCP server is and what it is told about us. A new `config_version` means: connect anew."""

    user_id: str
    server_id: str
    server_name: str
    config_version: int
    transport: Transport
    url: str | None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Dialogue:
    """How whoever calls a tool can be asked for more before it ends, and what they have answered so far."""

    capabilities: Json
    """That the caller declares: `elicitation` and the like."""
    responses: Json | None = field(default=None, repr=False)
    state: str | None = field(default=None, repr=False)
    """What the server wants to be told again, as it gave it."""


@dataclass(frozen=True)
class ToolDefinition:
    """An MCP tool as its server offers it."""

    name: str
    title: str | None
    description: str
    input_schema: Json
    output_schema: Json | None
    annotations: Json | None
    meta: Json | None

    def as_mcp(self) -> Json:
        shape: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": self.annotations,
            "_meta": self.meta,
        }
        return {key: value for key, value in shape.items() if value is not None}

    def fingerprint(self) -> str:
        return hashlib.sha256(canonical_json(self.as_mcp())).hexdigest()
