"""Turn the entries of a client's configuration into servers to register. Nothing is looked up here: the caller gives
the programs that the operator allows and the values of placeholders."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.catalog.client_config.config import URL_FIELDS, ClientConfig, ConfigEntry
from app.catalog.client_config.mcp_remote import unwrap_mcp_remote
from app.catalog.client_config.placeholders import Placeholder, fill_placeholders, find_placeholders
from app.catalog.visibility_policy import ANY_TOOL
from app.errors import InvalidInput
from app.mcp_types import TRANSPORT_ALIASES, guess_transport
from app.text.strict_json import Json
from app.text.suggestions import describe_unknown_name

SkipKind = Literal["program", "exists", "missing_value", "invalid", "not_allowed", "not_checked", "limit_reached"]

_TYPE_FIELDS = ("type", "transport", "transportType")
_PROGRAM_FIELDS = ("command", "args", "env", "cwd", "envFile")
_TOOL_FIELDS = ("disabledTools", "excludeTools", "includeTools")
_USED_FIELDS = {*URL_FIELDS, *_TYPE_FIELDS, *_TOOL_FIELDS, "headers", "description", "disabled", "enabled", "name"}
_SIGN_IN_FIELDS = {"auth", "oauth", "authorization", "headersHelper"}
_TYPES = {alias.lower(): transport for alias, transport in TRANSPORT_ALIASES.items()} | {
    transport: transport for transport in ("streamable_http", "sse", "stdio")
}
_MAX_NAMED = 10


@dataclass(frozen=True)
class ResolvedEntry:
    """A server to register, not validated yet."""

    name: str
    body: Json = field(repr=False)
    """As `POST /servers` takes it."""
    notes: Sequence[str] = ()
    """What of the entry is not imported."""
    used: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of its placeholders, which no message may repeat."""


@dataclass(frozen=True)
class SkippedEntry:
    """An entry that is not imported. The reason says what to do, and quotes no value of the configuration."""

    name: str
    kind: SkipKind
    reason: str


def find_open_values(config: ClientConfig) -> list[Placeholder]:
    """Return the placeholders in URLs and headers, each once."""
    texts = (text for entry in config.entries for text in _iter_open_texts(entry.fields))
    return find_placeholders(texts, config.inputs)


def check_value_names(config: ClientConfig, values: Collection[str]) -> None:
    """Raise `InvalidInput` for a value whose placeholder the configuration does not have.

    Placeholders of programs count, although their values are not used: a client may send all that it has.
    """
    open_names = [placeholder.name for placeholder in find_open_values(config)]
    texts = (json.dumps(entry.fields, ensure_ascii=False) for entry in config.entries)
    known = {*open_names, *config.inputs, *(each.name for each in find_placeholders(texts, config.inputs))}
    for name in values:
        if name not in known:
            description = describe_unknown_name("placeholder", name, open_names)
            found = f"the configuration has {_join(open_names)}" if open_names else "the configuration has none"
            raise InvalidInput(description if description.endswith("?") else f"{description}: {found}")


def resolve_entry(
    config: ClientConfig, entry: ConfigEntry, values: Mapping[str, str], programs: Collection[str]
) -> ResolvedEntry | SkippedEntry:
    """`programs` are the names of the stdio servers that the operator allows."""
    if not isinstance(entry.fields, dict):
        return SkippedEntry(entry.name, "invalid", "it is not an object: write it with `url` or `command`")
    fields, notes = unwrap_mcp_remote(entry.fields)
    transport = _read_transport(fields)
    if transport == "stdio":
        return _resolve_program(entry.name, fields, programs)
    if transport == "unknown":
        return SkippedEntry(entry.name, "invalid", "its `type` is not supported: use its `http` or `sse` endpoint")
    _, url = _find_url(fields)
    if not isinstance(url, str):
        return SkippedEntry(entry.name, "invalid", "it has no `url`: add the URL of its endpoint")
    filled_url = fill_placeholders(url, config.inputs, values)
    texts = {name: value for name, value in _read_headers(fields).items() if isinstance(value, str)}
    filled_headers = {name: fill_placeholders(text, config.inputs, values) for name, text in texts.items()}
    filled = [filled_url, *filled_headers.values()]
    if missing := dict.fromkeys(name for each in filled for name in each.missing):
        return SkippedEntry(entry.name, "missing_value", _describe_missing(missing))
    body = {
        "name": entry.name,
        "transport": transport or guess_transport(filled_url.text),
        "url": filled_url.text,
        **_read_switches(fields),
    }
    if headers := fields.get("headers"):
        # headers that are not texts stay as they are, for the validation to name them
        headers_filled = {name: each.text for name, each in filled_headers.items()}
        body["headers"] = headers | headers_filled if isinstance(headers, dict) else headers
    used = {name: value for each in filled for name, value in each.used.items()}
    notes = [*notes, *_describe_url(filled_url.used), *_describe_unused(fields)]
    return ResolvedEntry(entry.name, body, notes, used)


def _resolve_program(name: str, fields: Json, programs: Collection[str]) -> ResolvedEntry | SkippedEntry:
    if name not in programs:
        return SkippedEntry(
            name,
            "program",
            "it runs a program, which only the operator can allow: list the program under this name in the file that "
            "TOOLSCOUT_STDIO_SERVERS names, run `toolscout reload` and import again",
        )
    ignored = [each for each in fields if each in _PROGRAM_FIELDS]
    notes = [f"it runs as the operator's file says; not used: {_join(ignored)}"] if ignored else []
    unused = _describe_unused({each: fields[each] for each in fields if each not in ignored})
    return ResolvedEntry(name, {"name": name, "transport": "stdio"} | _read_switches(fields), [*notes, *unused])


def _read_transport(fields: Json) -> str | None:
    """Return the transport, "unknown" for a type that is not supported, or None if only the URL can tell."""
    given = next((fields[name] for name in _TYPE_FIELDS if name in fields), None)
    if given is not None:
        return _TYPES.get(given.lower(), "unknown") if isinstance(given, str) else "unknown"
    name, _ = _find_url(fields)
    if name is None:
        return "stdio" if "command" in fields else None
    return "streamable_http" if name == "httpUrl" else None  # Gemini CLI has `url` for SSE, and `httpUrl` for the other


def _find_url(fields: Json) -> tuple[str | None, Any]:
    """Return the URL and the field that it stands in, or None twice."""
    return next(((name, fields[name]) for name in URL_FIELDS if name in fields), (None, None))


def _read_headers(fields: Json) -> Json:
    headers = fields.get("headers")
    return headers if isinstance(headers, dict) else {}


def _read_switches(fields: Json) -> Json:
    """Return what is switched off: the server as a whole, or some of its tools."""
    is_off = fields.get("disabled") is True or fields.get("enabled") is False
    permissions = dict.fromkeys([*_read_list(fields, "disabledTools"), *_read_list(fields, "excludeTools")], False)
    if included := _read_list(fields, "includeTools"):
        permissions = {ANY_TOOL: False} | dict.fromkeys(included, True) | permissions
    description = fields.get("description")
    return {
        "description": description if isinstance(description, str) else "",
        "enabled": not is_off,
        "tool_permissions": permissions,
    }


def _read_list(fields: Json, name: str) -> list[str]:
    value = fields.get(name)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _iter_open_texts(fields: Any) -> Iterator[str]:
    """Yield the URL and the values of headers of an entry that has them."""
    if not isinstance(fields, dict):
        return
    fields, _ = unwrap_mcp_remote(fields)
    if _read_transport(fields) not in ("stdio", "unknown"):
        texts = [*(fields.get(name) for name in URL_FIELDS), *_read_headers(fields).values()]
        yield from (text for text in texts if isinstance(text, str))


def _describe_unused(fields: Json) -> list[str]:
    unused = [name for name in fields if name not in _USED_FIELDS]
    if not unused:
        return []
    hint = "; if the server needs a token, set it in `headers`" if _SIGN_IN_FIELDS & set(unused) else ""
    return [f"not imported: {_join(unused)}{hint}"]


def _describe_url(used: Collection[str]) -> list[str]:
    return [f"its URL contains {_join(used)}, and URLs are shown: prefer a header for secrets"] if used else []


def _describe_missing(names: Collection[str]) -> str:
    return (
        f"there is no value for {_join(names)}: give it in `values` (--set on the command line), or write it into the "
        "configuration"
    )


def _join(names: Collection[str]) -> str:
    listed = ", ".join(f"`{name[:60]}`" for name in list(names)[:_MAX_NAMED])
    return listed if len(names) <= _MAX_NAMED else f"{listed} and {len(names) - _MAX_NAMED} more"
