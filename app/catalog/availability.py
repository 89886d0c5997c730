"""What a caller can do with a tool: whether it is found, and who runs it. All interfaces say what is decided here."""

from collections.abc import Mapping
from typing import Literal

from app.errors import AUTHORIZATION_REQUIRED
from app.mcp_types import Transport

Status = Literal["connected", "disconnected", "error", "push", "needs_authorization"]
Availability = Literal["runnable", "backend", "failing", "needs_authorization", "hidden"]

_TEXTS: Mapping[Availability, str] = {
    "runnable": "found and run by Toolscout",
    "backend": "found by Toolscout, run by your backend",
    "failing": "found by Toolscout; running it may fail, because its server is not connected",
    "needs_authorization": "found by Toolscout; running it needs you to sign in to its server first",
    "hidden": "neither found nor run",
}


def get_server_status(transport: Transport, stored: Status, cause: str | None) -> Status:
    """Return the status that callers see: Toolscout never connects to a push server.

    A server that wants a sign-in is stored as `error` with its cause: processes of the previous version, which run on
    the same database during an upgrade, know no other word for it.
    """
    if transport == "push":
        return "push"
    return "needs_authorization" if stored == "error" and cause == AUTHORIZATION_REQUIRED else stored


def server_status_sql(servers: str) -> str:
    """Return the same as an expression on a table, or an alias, of servers."""
    return (
        f"CASE WHEN {servers}.transport = 'push' THEN 'push' "
        f"WHEN {servers}.status = 'error' AND {servers}.last_cause = '{AUTHORIZATION_REQUIRED}' "
        f"THEN 'needs_authorization' ELSE {servers}.status END"
    )


def get_availability(server_status: str | None, *, visible: bool = True) -> Availability:
    """A core tool has no server: the application has brought it, and runs it."""
    if not visible:
        return "hidden"
    if server_status in (None, "push"):
        return "backend"
    if server_status == "needs_authorization":
        return "needs_authorization"
    return "runnable" if server_status == "connected" else "failing"


def describe_availability(availability: Availability) -> str:
    return _TEXTS[availability]
