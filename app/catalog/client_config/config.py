"""Read the configuration files of MCP clients: Claude, Cursor, VS Code, Windsurf, Cline, Gemini CLI, Zed and others.

They agree on an object of servers by name, and differ in where it stands.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.catalog.client_config.placeholders import Placeholder, parse_input
from app.errors import InvalidInput
from app.text.strict_json import Json

MAX_ENTRIES = 100
"""Each entry costs an address look-up and a transaction."""

URL_FIELDS = ("url", "serverUrl", "httpUrl")
_SECTIONS = ("mcpServers", "servers", "context_servers")
_EXAMPLE = '{"mcpServers": {"NAME": {"url": "https://…"}}}'


@dataclass(frozen=True)
class ConfigEntry:
    """A server as the configuration describes it. The fields, which may hold credentials, are of any type."""

    name: str
    fields: Any = field(repr=False)


@dataclass(frozen=True)
class ClientConfig:
    entries: Sequence[ConfigEntry]
    inputs: Mapping[str, Placeholder]
    """What VS Code's files declare for `${input:id}`."""


def read_client_config(config: Any) -> ClientConfig:
    """Find the servers in a parsed configuration file. Raise `InvalidInput` if it is no such file."""
    if not isinstance(config, dict):
        raise InvalidInput(f"a configuration is a JSON object: {_EXAMPLE}")
    roots = [root for root in (config, config.get("mcp")) if isinstance(root, dict)]
    sections = [(name, root[name]) for root in roots for name in _SECTIONS if name in root]
    items = [item for name, section in sections for item in _iter_items(name, section)]
    entries = [ConfigEntry(name, fields) for name, fields in (items if sections else _read_bare(config).items())]
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(f"the configuration has {len(entries)} servers: import at most {MAX_ENTRIES} at a time")
    declared = [item for root in roots if isinstance(root.get("inputs"), list) for item in root["inputs"]]
    inputs = [placeholder for item in declared if (placeholder := parse_input(item)) is not None]
    return ClientConfig(entries, {placeholder.name: placeholder for placeholder in inputs})


def _iter_items(section_name: str, section: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(section, dict):
        raise InvalidInput(f"`{section_name}` must be an object of servers by name: {_EXAMPLE}")
    yield from section.items()


def _read_bare(config: Json) -> Json:
    """Accept the object of servers alone, as plugins and documentation pages often have it."""
    found = {name: fields for name, fields in config.items() if _describes_server(fields)}
    if found:
        return found
    if _describes_server(config):
        raise InvalidInput(f"give the server a name: {_EXAMPLE}")
    raise InvalidInput(
        "no servers found: they must stand under `mcpServers`, `servers`, `mcp.servers` or `context_servers`"
    )


def _describes_server(fields: Any) -> bool:
    return isinstance(fields, dict) and any(isinstance(fields.get(name), str) for name in (*URL_FIELDS, "command"))
