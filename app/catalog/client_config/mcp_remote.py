"""Read entries that start `mcp-remote`, a proxy for clients that can only start programs.

The server behind it is an HTTP server, to which Toolscout connects by itself.
"""

import re
from itertools import pairwise
from typing import Any

from app.text.strict_json import Json

_PROGRAM = re.compile(r"mcp-remote(@.*)?")
_VARIABLE = re.compile(r"\$\{([^{}:]+)\}")
_REPLACED_FIELDS = ("command", "args", "env", "type", "transport", "transportType")
_TYPES = {"sse-only": "sse", "sse-first": "sse", "http-only": "http"}
_KNOWN_OPTIONS = {"--header", "--transport", "--allow-http", "--debug"}


def unwrap_mcp_remote(fields: Json) -> tuple[Json, list[str]]:
    """Return the fields of the server behind the proxy, and a note. Other entries are returned as they are."""
    arguments = fields.get("args")
    if (
        "command" not in fields
        or not isinstance(arguments, list)
        or not all(isinstance(each, str) for each in arguments)
    ):
        return fields, []
    start = next((number for number, each in enumerate(arguments) if _PROGRAM.fullmatch(each)), len(arguments))
    own_arguments = arguments[start + 1 :]
    url = next((each for each in own_arguments if each.startswith(("https://", "http://"))), None)
    if url is None:
        return fields, []
    options = list(pairwise(own_arguments))
    server = {name: value for name, value in fields.items() if name not in _REPLACED_FIELDS} | {
        "type": next((_TYPES.get(value) for option, value in options if option == "--transport"), None),
        "url": url,
        "headers": dict(_split_header(value, fields.get("env")) for option, value in options if option == "--header"),
    }
    given_options = [each.partition("=")[0] for each in own_arguments if each.startswith("--")]
    others = [f"`{each[:60]}`" for each in given_options if each not in _KNOWN_OPTIONS]
    dropped = f"; not imported: {', '.join(others)}" if others else ""
    return server, [f"mcp-remote is not needed: Toolscout connects to the server behind it{dropped}"]


def _split_header(text: str, env: Any) -> tuple[str, str]:
    """Fill in variables that the entry itself sets: a value with a space is usually passed in this way."""
    variables = env if isinstance(env, dict) else {}

    def replace(match: re.Match[str]) -> str:
        value = variables.get(match[1])
        return value if isinstance(value, str) else match[0]

    name, _, value = text.partition(":")
    return name.strip(), _VARIABLE.sub(replace, value).strip()
