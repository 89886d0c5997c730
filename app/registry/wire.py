"""Parse the answers of a registry: API v0.1 with entries in the form of `server.json`. Pure.

Publishers write the entries, so each is checked by itself: one that cannot be used is left out, and does not spoil the
others. Texts are shortened and lose what a person cannot see.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from app.errors import InvalidInput, RegistryFailed
from app.mcp_types import TRANSPORT_ALIASES, Transport
from app.registry.models import EntryStatus, RegistryInput, RegistryPage, RegistryServer, Remote, RemoteHeader
from app.text.invisible import remove_hidden
from app.text.strict_json import Json, parse_json

SERVER_NAME = re.compile(r"[A-Za-z0-9.-]{1,190}/[A-Za-z0-9._-]{1,190}")
VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]{0,127})\}")

_OFFICIAL = "io.modelcontextprotocol.registry/official"
_MAX_NAME = 200
_MAX_TEXT = 1_000
_MAX_SHORT_TEXT = 200
_MAX_CURSOR = 500
_MAX_URL = 2_048
_MAX_VALUE = 8_192
_MAX_REMOTES = 10
_MAX_HEADERS = 32
_MAX_VARIABLES = 32
_MAX_CHOICES = 100
_TRANSPORTS: Mapping[str, Transport] = {**TRANSPORT_ALIASES, "sse": "sse"}


def parse_page(body: bytes) -> RegistryPage:
    """Return the entries of a page, each server once. Raise `RegistryFailed` if it is not a list of servers."""
    answer = _parse(body)
    entries = answer.get("servers")
    if not isinstance(entries, list):
        raise _invalid("it has no list `servers`")
    servers: dict[str, RegistryServer] = {}
    for server in filter(None, map(_parse_entry, entries)):
        servers.setdefault(server.name, server)
    metadata = answer.get("metadata")
    cursor = metadata.get("nextCursor") if isinstance(metadata, dict) else None
    if cursor is not None and not (isinstance(cursor, str) and len(cursor) <= _MAX_CURSOR):
        raise _invalid("`metadata.nextCursor` is not a short text")
    return RegistryPage(tuple(servers.values()), cursor or None)


def parse_server(body: bytes) -> RegistryServer:
    """Return the single entry of an answer."""
    server = _parse_entry(_parse(body))
    if server is None:
        raise _invalid("the entry has no valid name")
    return server


def _parse(body: bytes) -> Json:
    try:
        answer = parse_json(body, "the answer")
    except InvalidInput as error:
        raise _invalid(error.message) from error
    if not isinstance(answer, dict):
        raise _invalid("it is not an object")
    return answer


def _parse_entry(entry: Any) -> RegistryServer | None:
    """Return None for what is no server, and for an older version than the latest."""
    server = entry.get("server") if isinstance(entry, dict) else None
    if not isinstance(server, dict):
        return None
    name = server.get("name")
    if not isinstance(name, str) or len(name) > _MAX_NAME or not SERVER_NAME.fullmatch(name):
        return None
    meta = _get_object(_get_object(entry, "_meta"), _OFFICIAL)
    if meta.get("isLatest") is False:
        return None
    return RegistryServer(
        name=name,
        title=_clean(server.get("title"), _MAX_SHORT_TEXT),
        description=_clean(server.get("description"), _MAX_TEXT),
        version=_clean(server.get("version"), _MAX_SHORT_TEXT),
        # before it was part of the metadata, the status was a field of the server
        status=_parse_status(meta.get("status", server.get("status"))),
        status_message=_clean(meta.get("statusMessage"), _MAX_TEXT),
        website_url=_parse_link(server.get("websiteUrl")),
        repository_url=_parse_link(_get_object(server, "repository").get("url")),
        remotes=_parse_remotes(server.get("remotes")),
    )


def _parse_status(status: Any) -> EntryStatus:
    return status if status in ("deprecated", "deleted") else "active"


def _parse_link(url: Any) -> str | None:
    """Return the URL of a web page, or None: a link with another scheme could run a script."""
    text = _clean(url, _MAX_URL)
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    return text if parts.scheme in ("http", "https") and parts.hostname and " " not in text else None


def _parse_remotes(remotes: Any) -> tuple[Remote, ...]:
    """Streamable HTTP comes first: SSE is the older transport."""
    found = [_parse_remote(remote) for remote in _get_items(remotes, _MAX_REMOTES)]
    return tuple(sorted(filter(None, found), key=lambda remote: remote.transport == "sse"))


def _parse_remote(remote: Any) -> Remote | None:
    if not isinstance(remote, dict):
        return None
    kind, url = remote.get("type", remote.get("transport_type")), remote.get("url")
    if not isinstance(kind, str) or kind not in _TRANSPORTS:
        return None
    if not isinstance(url, str) or not 0 < len(url) <= _MAX_URL or remove_hidden(url) != url or re.search(r"\s", url):
        return None
    declared = _parse_variables(remote.get("variables"))
    url = _insert_constants(url, declared)
    # each must have a value, or there is no URL
    inputs = [replace(_find_variable(name, declared), required=True) for name in VARIABLE.findall(url)]
    headers = []
    for declaration in _get_items(remote.get("headers"), _MAX_HEADERS):
        if (header := _parse_header(declaration)) is not None:
            headers.append(header[0])
            inputs += header[1]
    return Remote(_TRANSPORTS[kind], url, tuple(headers), tuple(_merge_inputs(inputs)))


def _parse_header(declaration: Any) -> tuple[RemoteHeader, list[RegistryInput]] | None:
    """Return a header and what the user gives for it: its value, or the variables in its value.

    Many publishers use a variable without declaring it: it is asked for like the header.
    """
    if not isinstance(declaration, dict) or not (name := _clean(declaration.get("name"), _MAX_SHORT_TEXT)):
        return None
    own = _parse_input("header", name, declaration)
    template = declaration.get("value")
    if not isinstance(template, str) or not template:
        return RemoteHeader(name, None, own.required), [own]
    declared = _parse_variables(declaration.get("variables"))
    template = _insert_constants(_clean(template, _MAX_VALUE), declared)
    inputs = []
    for variable in VARIABLE.findall(template):
        found = _find_variable(variable, declared, own)
        inputs.append(replace(found, required=found.required or own.required, secret=found.secret or own.secret))
    return RemoteHeader(name, template, own.required), inputs


def _parse_variables(variables: Any) -> dict[str, tuple[RegistryInput, str | None]]:
    """Return the declared variables by name, each with its fixed value, if it has one."""
    if not isinstance(variables, dict):
        return {}
    pairs = [(name, each) for name, each in variables.items() if isinstance(each, dict)][:_MAX_VARIABLES]
    return {
        name: (_parse_input("variable", name, each), _clean(each.get("value"), _MAX_VALUE) or None)
        for name, each in pairs
        if VARIABLE.fullmatch(f"{{{name}}}")
    }


def _insert_constants(template: str, declared: Mapping[str, tuple[RegistryInput, str | None]]) -> str:
    """Insert the variables that the publisher has fixed."""
    fixed = {name: value for name, (_, value) in declared.items() if value is not None}
    return VARIABLE.sub(lambda match: fixed.get(match[1], match[0]), template)


def _find_variable(
    name: str, declared: Mapping[str, tuple[RegistryInput, str | None]], like: RegistryInput | None = None
) -> RegistryInput:
    if name in declared:
        return declared[name][0]
    description = "" if like is None else like.description
    return RegistryInput("variable", name, description)


def _parse_input(kind: Any, name: str, declaration: Json) -> RegistryInput:
    return RegistryInput(
        kind=kind,
        name=name,
        description=_clean(declaration.get("description"), _MAX_TEXT),
        required=declaration.get("isRequired") is True,
        secret=declaration.get("isSecret") is True,
        default=_clean(declaration.get("default"), _MAX_VALUE) or None,
        placeholder=_clean(declaration.get("placeholder"), _MAX_SHORT_TEXT) or None,
        choices=tuple(
            filter(None, (_clean(each, _MAX_VALUE) for each in _get_items(declaration.get("choices"), _MAX_CHOICES)))
        ),
    )


def _merge_inputs(inputs: list[RegistryInput]) -> Iterator[RegistryInput]:
    """Yield each input once. A variable that several templates use has one value."""
    merged: dict[tuple[str, str], RegistryInput] = {}
    for each in inputs:
        key = each.kind, each.name
        first = merged.setdefault(key, each)
        merged[key] = replace(first, required=first.required or each.required, secret=first.secret or each.secret)
    yield from merged.values()


def _clean(text: Any, max_length: int) -> str:
    """Return one line without hidden characters, or an empty text."""
    return " ".join(remove_hidden(text).split())[:max_length] if isinstance(text, str) else ""


def _get_object(parent: Json, key: str) -> Json:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _get_items(value: Any, max_items: int) -> list[Any]:
    return value[:max_items] if isinstance(value, list) else []


def _invalid(message: str) -> RegistryFailed:
    return RegistryFailed("invalid_answer", f"the registry's answer is not that of API v0.1: {message}")
