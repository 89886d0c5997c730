"""Which headers may be sent to a user's MCP server, from any source."""

import re
from collections.abc import Iterable, Mapping

MAX_HEADERS = 32
MAX_HEADER_VALUE = 8_192
HEADER_VALUE = r"^[\x20-\x7e\t]*$"

# set by the protocol and by the connection themselves
_RESERVED = frozenset(
    """
    accept accept-encoding connection content-encoding content-length content-type expect host keep-alive
    last-event-id mcp-method mcp-name mcp-protocol-version mcp-session-id proxy-authorization proxy-connection te
    trailer transfer-encoding upgrade
    """.split()
)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE = re.compile(HEADER_VALUE.removeprefix("^").removesuffix("$"))


def check_header_names(names: Iterable[str]) -> None:
    """Raise `ValueError` for a name that is none, or that the connection sets itself."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is not a header name")
        if name.lower() in _RESERVED:
            raise ValueError(f"{name!r} is set by the connection itself")


def are_headers(value: object) -> bool:
    """Whether a value from outside is a set of headers that can be sent."""
    if not isinstance(value, Mapping) or len(value) > MAX_HEADERS:
        return False
    try:
        check_header_names(map(str, value))
    except ValueError:
        return False
    return all(
        isinstance(text, str) and len(text) <= MAX_HEADER_VALUE and _VALUE.fullmatch(text) for text in value.values()
    )


def merge_headers(*headers: Mapping[str, str]) -> dict[str, str]:
    """Return all headers. A later one replaces an earlier one of the same name, however that is written."""
    merged = {name.lower(): (name, value) for each in headers for name, value in each.items()}
    return dict(merged.values())
