"""Put the user's values into the URL and the headers of a remote. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.errors import InvalidInput
from app.registry.models import InputKind, RegistryInput, RegistryServer, Remote
from app.registry.wire import VARIABLE


@dataclass(frozen=True)
class FilledRemote:
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    notes: Sequence[str]
    """What the user should know about it."""


def choose_remote(server: RegistryServer, url: str | None) -> Remote:
    """Return the remote with this URL template, or the recommended one. Raise `InvalidInput` if there is none."""
    if not server.usable:
        raise InvalidInput(f"{server.name} cannot be added: {server.unusable_reason}")
    if url is None:
        return server.remotes[0]
    for remote in server.remotes:
        if remote.url == url:
            return remote
    urls = ", ".join(remote.url for remote in server.remotes)
    raise InvalidInput(f"{server.name} has no remote with that URL: choose one of {urls}")


def find_open_inputs(remote: Remote, headers: Mapping[str, str], variables: Mapping[str, str]) -> list[RegistryInput]:
    """Return the inputs that have no value yet, neither given nor by default."""
    unneeded = _list_unneeded_variables(remote, headers)
    given = {name.lower() for name in headers}
    return [
        each
        for each in remote.inputs
        if each.default is None
        and (each.name.lower() not in given if each.kind == "header" else each.name not in variables)
        and not (each.kind == "variable" and each.name in unneeded)
    ]


def fill_remote(remote: Remote, headers: Mapping[str, str], variables: Mapping[str, str]) -> FilledRemote:
    """Return URL and headers with the user's values. Raise `InvalidInput`, which names every value that is missing.

    A header that the user gives is sent as it is, also where the registry has a template for it.
    """
    errors = [*_find_missing(remote, headers, variables), *_find_unsuitable(remote, headers, variables)]
    if errors:
        raise InvalidInput("; ".join(f"{'.'.join(each['loc'])}: {each['msg']}" for each in errors[:5]), errors=errors)
    values = {**_get_defaults(remote, "variable"), **variables}
    defaults = _get_defaults(remote, "header")
    url = VARIABLE.sub(lambda match: values[match[1]], remote.url)
    given = {name.lower() for name in headers}
    filled = dict(headers)
    for header in remote.headers:
        if header.name.lower() in given:
            continue
        if header.template is None:
            if header.name in defaults:
                filled[header.name] = defaults[header.name]
        elif all(name in values for name in VARIABLE.findall(header.template)):
            filled[header.name] = VARIABLE.sub(lambda match: values[match[1]], header.template)
    return FilledRemote(url, filled, tuple(_list_notes(remote)))


def _get_defaults(remote: Remote, kind: InputKind) -> dict[str, str]:
    return {each.name: each.default for each in remote.inputs if each.kind == kind and each.default is not None}


def _list_unneeded_variables(remote: Remote, headers: Mapping[str, str]) -> set[str]:
    """Return the variables of templates that the user replaces by a whole header."""
    given = {name.lower() for name in headers}
    kept = [header.template or "" for header in remote.headers if header.name.lower() not in given]
    needed = {name for template in [remote.url, *kept] for name in VARIABLE.findall(template)}
    return {each.name for each in remote.inputs if each.kind == "variable"} - needed


def _find_missing(remote: Remote, headers: Mapping[str, str], variables: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        _make_error(each, "missing", f"required{f': {each.description}' if each.description else ''}")
        for each in find_open_inputs(remote, headers, variables)
        if each.required
    ]


def _find_unsuitable(remote: Remote, headers: Mapping[str, str], variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """Find values that are not among the choices, and variables that do not exist."""
    errors = []
    given_headers = {name.lower(): value for name, value in headers.items()}
    for each in remote.inputs:
        value = given_headers.get(each.name.lower()) if each.kind == "header" else variables.get(each.name)
        if value is not None and each.choices and value not in each.choices:
            errors.append(_make_error(each, "choice", f"must be one of {', '.join(each.choices)}"))
    known = [each.name for each in remote.inputs if each.kind == "variable"]
    for name in variables:
        if name not in known:
            message = f"there is no such variable; there {'are ' + ', '.join(known) if known else 'are none'}"
            errors.append({"loc": ["variables", name], "msg": message, "type": "unknown"})
    return errors


def _make_error(each: RegistryInput, kind: str, message: str) -> dict[str, Any]:
    return {"loc": [f"{each.kind}s", each.name], "msg": message, "type": kind}


def _list_notes(remote: Remote) -> list[str]:
    in_url = set(VARIABLE.findall(remote.url))
    secrets = [each.name for each in remote.inputs if each.kind == "variable" and each.secret and each.name in in_url]
    return [f"`{name}` is part of the URL, which is stored and shown as it is" for name in secrets]
