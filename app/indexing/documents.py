"""What is searched of a tool, and the fingerprints that tell when to make it anew. Pure."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pgvector import SparseVector

from app.mcp_types import ToolDefinition
from app.search.bm25 import Field, build_document_vector, max_document_terms
from app.search.tokenizer import split_words
from app.text.strict_json import canonical_json

# Part of every hash: raise it when the enriched text, its terms or its action change, and every tool is indexed anew.
ENRICHMENT_VERSION = 3

MAX_EMBEDDED_BYTES = 8_192
_MAX_PARAMETERS = 64
_MAX_PARAMETER_TEXT = 4_000
_MAX_VALUES = 100
_MAX_DEPTH = 5

_CAPABILITIES: Mapping[str, frozenset[str]] = {
    "search": frozenset({"search", "find", "query", "lookup", "filter"}),
    "read": frozenset({"read", "get", "fetch", "list", "show", "view", "describe"}),
    "create": frozenset({"create", "add", "new", "insert", "make", "generate"}),
    "update": frozenset({"update", "edit", "modify", "change", "set", "rename", "move"}),
    "delete": frozenset({"delete", "remove", "cancel", "drop", "clear"}),
    "send": frozenset({"send", "post", "publish", "notify", "reply", "mail", "email"}),
    "run": frozenset({"run", "execute", "start", "trigger", "deploy"}),
}


def enriched_description(tool: ToolDefinition, server_name: str) -> str:
    """Stored in full; `embedded_text` says what of it is embedded."""
    capabilities = ", ".join(_capabilities(tool))
    return _described(tool, server_name) + (f" Capabilities: {capabilities}." if capabilities else "")


def embedded_text(tool: ToolDefinition, server_name: str) -> str:
    """Without the capability hints, which add nothing for a transformer. Bounded in bytes: an embedder's limit is in
    tokens, and a character of another script may be several."""
    return _described(tool, server_name).encode()[:MAX_EMBEDDED_BYTES].decode(errors="ignore")


def _described(tool: ToolDefinition, server_name: str) -> str:
    parts = [
        f"Tool: {_spoken(tool.title or tool.name)}.",
        f"Server: {_spoken(server_name)}.",
        f"Description: {tool.description.strip().rstrip('.')}." if tool.description.strip() else "",
    ]
    parameters = ", ".join(_parameters(tool.input_schema))
    parts.append(f"Parameters: {parameters}." if parameters else "")
    return " ".join(part for part in parts if part)


def lexical_vector(tool: ToolDefinition, server_name: str, dimension: int) -> SparseVector:
    """Parameters count by half: what a message asks for often stands in their descriptions and values alone."""
    parts = list(_schema_parts(tool.input_schema))
    fields = [
        Field(tool.name, 2.0),
        Field(tool.title or "", 1.0),
        Field(server_name, 1.0),
        Field(tool.description[:MAX_EMBEDDED_BYTES], 1.0),
        Field(" ".join(name for name, _ in parts), 0.5),
        Field(" ".join(map(_description, (part for _, part in parts)))[:_MAX_PARAMETER_TEXT], 0.5),
        Field(" ".join(value for _, part in parts for value in _values(part)), 0.5),
    ]
    return build_document_vector(fields, max_document_terms(dimension))


def _schema_parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parameters and what they are made of, each with its name, those of the outer levels first."""
    level: Sequence[Mapping[str, Any]] = [schema]
    found = 0
    for _ in range(_MAX_DEPTH):
        named = [(name, part) for each in level for name, part in _properties(each).items() if isinstance(part, dict)]
        yield from named[: _MAX_PARAMETERS - found]
        found = min(found + len(named), _MAX_PARAMETERS)
        items = (part.get("items") for _, part in named)
        level = [part for _, part in named] + [item for item in items if isinstance(item, dict)]


def _description(part: Mapping[str, Any]) -> str:
    description = part.get("description")
    return description.strip() if isinstance(description, str) else ""


def _values(part: Mapping[str, Any]) -> list[str]:
    items = part.get("items")
    listed = [*_listed(part), *(_listed(items) if isinstance(items, dict) else ())]
    return [value for value in listed if isinstance(value, str)]


def _listed(part: Mapping[str, Any]) -> list[Any]:
    values = part.get("enum")
    return values[:_MAX_VALUES] if isinstance(values, list) else []


def index_hash(tool: ToolDefinition, server_name: str) -> str:
    """Changes with whatever is stored of the tool for search; a reordered key changes nothing."""
    identity = {"definition": tool.as_mcp(), "server": server_name, "enrichment": ENRICHMENT_VERSION}
    return hashlib.sha256(canonical_json(identity)).hexdigest()


def content_hash(index_hash: str, model: str) -> str:
    """What a vector was made from, and by whom."""
    return hashlib.sha256(f"{index_hash}\n{model}".encode()).hexdigest()


def text_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _spoken(name: str) -> str:
    return name.replace("_", " ").replace("-", " ").strip()


def _capabilities(tool: ToolDefinition) -> Iterator[str]:
    spelled = set(split_words(tool.name))
    return (capability for capability, verbs in _CAPABILITIES.items() if spelled & verbs)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, part in list(_properties(schema).items())[:_MAX_PARAMETERS]:
        description = _description(part) if isinstance(part, dict) else ""
        yield f"{name}: {description}" if description else name
