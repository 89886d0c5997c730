"""Builds the searchable texts and vectors of a tool, and hashes that show when they are outdated. Pure functions."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pgvector import SparseVector

from app.mcp_types import ToolDefinition
from app.search.bm25 import Field, build_document_vector, max_document_terms
from app.search.tokenizer import split_words
from app.text.strict_json import Json, canonical_json

# Part of every hash: increment it when the enriched text, its terms or its action change, to index every tool again.
ENRICHMENT_VERSION = 3

# Part of the hashes of tools with known examples: increment it when the weight of the examples changes.
EXAMPLES_VERSION = 1

MAX_EMBEDDED_BYTES = 8_192
_MAX_PARAMETERS = 64
_MAX_PARAMETER_TEXT = 4_000
_MAX_VALUES = 100
_MAX_DEPTH = 5
_MAX_TAG_TEXT = 500

_CAPABILITIES: Mapping[str, frozenset[str]] = {
    "search": frozenset({"search", "find", "query", "lookup", "filter"}),
    "read": frozenset({"read", "get", "fetch", "list", "show", "view", "describe"}),
    "create": frozenset({"create", "add", "new", "insert", "make", "generate"}),
    "update": frozenset({"update", "edit", "modify", "change", "set", "rename", "move"}),
    "delete": frozenset({"delete", "remove", "cancel", "drop", "clear"}),
    "send": frozenset({"send", "post", "publish", "notify", "reply", "mail", "email"}),
    "run": frozenset({"run", "execute", "start", "trigger", "deploy"}),
}


def enriched_description(tool: ToolDefinition, server_name: str, tags: Collection[str] = ()) -> str:
    """Return the full description that is stored; `embedded_text` returns the part of it that is embedded."""
    capabilities = ", ".join(_find_capabilities(tool))
    return _describe(tool, server_name, tags) + (f" Capabilities: {capabilities}." if capabilities else "")


def embedded_text(tool: ToolDefinition, server_name: str, tags: Collection[str] = ()) -> str:
    """Return the description without the capability hints, which add nothing for a transformer.

    It is limited in bytes, because embedders limit tokens, and one non-Latin character may be several tokens.
    """
    return _describe(tool, server_name, tags).encode()[:MAX_EMBEDDED_BYTES].decode(errors="ignore")


def _describe(tool: ToolDefinition, server_name: str, tags: Collection[str]) -> str:
    parts = [
        f"Tool: {_to_words(tool.title or tool.name)}.",
        f"Server: {_to_words(server_name)}.",
        # before the description, which may be so long that the embedder does not read to its end
        f"Tags: {', '.join(map(_to_words, sorted(tags)))[:_MAX_TAG_TEXT]}." if tags else "",
        f"Description: {tool.description.strip().rstrip('.')}." if tool.description.strip() else "",
    ]
    parameters = ", ".join(_format_parameters(tool.input_schema))
    parts.append(f"Parameters: {parameters}." if parameters else "")
    return " ".join(part for part in parts if part)


def lexical_vector(
    tool: ToolDefinition,
    server_name: str,
    dimension: int,
    tags: Collection[str] = (),
    examples: Sequence[str] = (),
) -> SparseVector:
    """Return the BM25 term weights. Parameters count half, since they often are the only match for a message.

    Known examples count half as well, because the server has not written them.
    """
    parts = list(_schema_parts(tool.input_schema))
    fields = [
        Field(tool.name, 2.0),
        Field(tool.title or "", 1.0),
        Field(server_name, 1.0),
        Field(" ".join(sorted(tags))[:_MAX_TAG_TEXT], 1.0),
        Field(tool.description[:MAX_EMBEDDED_BYTES], 1.0),
        Field(" ".join(name for name, _ in parts), 0.5),
        Field(" ".join(map(_get_description, (part for _, part in parts)))[:_MAX_PARAMETER_TEXT], 0.5),
        Field(" ".join(value for _, part in parts for value in _enum_values(part)), 0.5),
        Field(" ".join(examples), 0.5),
    ]
    return build_document_vector(fields, max_document_terms(dimension))


def _schema_parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the parameters and their nested properties with their names, outer levels first."""
    level: Sequence[Mapping[str, Any]] = [schema]
    found = 0
    for _ in range(_MAX_DEPTH):
        properties = [
            (name, part) for each in level for name, part in _get_properties(each).items() if isinstance(part, dict)
        ]
        yield from properties[: _MAX_PARAMETERS - found]
        found = min(found + len(properties), _MAX_PARAMETERS)
        items = (part.get("items") for _, part in properties)
        level = [part for _, part in properties] + [item for item in items if isinstance(item, dict)]


def _get_description(part: Mapping[str, Any]) -> str:
    description = part.get("description")
    return description.strip() if isinstance(description, str) else ""


def _enum_values(part: Mapping[str, Any]) -> list[str]:
    items = part.get("items")
    values = [*_get_enum(part), *(_get_enum(items) if isinstance(items, dict) else ())]
    return [value for value in values if isinstance(value, str)]


def _get_enum(part: Mapping[str, Any]) -> list[Any]:
    values = part.get("enum")
    return values[:_MAX_VALUES] if isinstance(values, list) else []


def index_hash(tool: ToolDefinition, server_name: str, tags: Collection[str] = (), examples: Sequence[str] = ()) -> str:
    """Hash everything that is stored of the tool for search. The order of keys and of tags does not matter.

    A tool without tags and without known examples has the hash that it had before there were any, so that it is not
    embedded again. Icons and execution are not searched: a new icon needs no new vector.
    """
    definition = tool.without_icons_and_execution().as_mcp()
    identity: Json = {"definition": definition, "server": server_name, "enrichment": ENRICHMENT_VERSION}
    if tags:
        identity["tags"] = sorted(tags)
    if examples:
        identity["examples"] = [EXAMPLES_VERSION, *examples]
    return hashlib.sha256(canonical_json(identity)).hexdigest()


def content_hash(index_hash: str, model: str) -> str:
    """Hash what a vector was computed from: the content and the model."""
    return hashlib.sha256(f"{index_hash}\n{model}".encode()).hexdigest()


def _to_words(name: str) -> str:
    return name.replace("_", " ").replace("-", " ").strip()


def _find_capabilities(tool: ToolDefinition) -> Iterator[str]:
    name_words = set(split_words(tool.name))
    return (capability for capability, verbs in _CAPABILITIES.items() if name_words & verbs)


def _get_properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _format_parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, part in list(_get_properties(schema).items())[:_MAX_PARAMETERS]:
        description = _get_description(part) if isinstance(part, dict) else ""
        yield f"{name}: {description}" if description else name
