"""What a caller can do with a tool: whether it is found, and who runs it. All interfaces say what is decided here."""

from collections.abc import Mapping
from typing import Literal

from app.mcp_types import Transport

Status = Literal["connected", "disconnected", "error", "push"]
Availability = Literal["runnable", "backend", "failing", "hidden"]

_TEXTS: Mapping[Availability, str] = {
    "runnable": "found and run by Toolscout",
    "backend": "found by Toolscout, run by your backend",
    "failing": "found by Toolscout; running it may fail, because its server is not connected",
    "hidden": "neither found nor run",
}


def get_server_status(transport: Transport, stored: Status) -> Status:
    """Return the status that callers see: Toolscout never connects to a push server."""
    return "push" if transport == "push" else stored


def server_status_sql(servers: str) -> str:
    """Return the same as an expression on a table, or an alias, of servers."""
    return f"CASE {servers}.transport WHEN 'push' THEN 'push' ELSE {servers}.status END"


def get_availability(server_status: str | None, *, visible: bool = True) -> Availability:
    """A core tool has no server: the application has brought it, and runs it."""
    if not visible:
        return "hidden"
    if server_status in (None, "push"):
        return "backend"
    return "runnable" if server_status == "connected" else "failing"


def describe_availability(availability: Availability) -> str:
    return _TEXTS[availability]
