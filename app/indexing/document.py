"""What is searched of a tool, and the fingerprints that tell when to make it anew. Pure."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from pgvector import SparseVector

from app.protocol import ToolDefinition, canonical
from app.search.lexical import Field, document_vector, most_terms, terms

# Part of every hash: raise it when the enriched text or its terms change, and every tool is indexed anew.
ENRICHMENT_VERSION = 1

MAX_EMBEDDED_BYTES = 8_192
_MAX_PARAMETERS = 64

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
    parameters = " ".join(list(_properties(tool.input_schema))[:_MAX_PARAMETERS])
    fields = [
        Field(tool.name, 2.0),
        Field(tool.title or "", 1.0),
        Field(server_name, 1.0),
        Field(tool.description[:MAX_EMBEDDED_BYTES], 1.0),
        Field(parameters, 0.5),
    ]
    return document_vector(fields, most_terms(dimension))


def index_hash(tool: ToolDefinition, server_name: str) -> str:
    """Changes with whatever is stored of the tool for search; a reordered key changes nothing."""
    identity = {"definition": tool.as_mcp(), "server": server_name, "enrichment": ENRICHMENT_VERSION}
    return hashlib.sha256(canonical(identity)).hexdigest()


def content_hash(index_hash: str, model: str) -> str:
    """What a vector was made from, and by whom."""
    return hashlib.sha256(f"{index_hash}\n{model}".encode()).hexdigest()


def text_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _spoken(name: str) -> str:
    return name.replace("_", " ").replace("-", " ").strip()


def _capabilities(tool: ToolDefinition) -> Iterator[str]:
    words = set(terms(tool.name))
    return (capability for capability, verbs in _CAPABILITIES.items() if words & verbs)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, definition in list(_properties(schema).items())[:_MAX_PARAMETERS]:
        description = definition.get("description") if isinstance(definition, dict) else None
        yield f"{name}: {description.strip()}" if isinstance(description, str) and description.strip() else name
