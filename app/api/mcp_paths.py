"""The paths of the MCP endpoints, as protected resources of OAuth (RFC 9728)."""

import re

METADATA_PATH = "/.well-known/oauth-protected-resource"
_MCP_PATH = re.compile(r"(?P<basic>(?:/projects/[A-Za-z0-9-]{1,64})?/mcp)(?:/full)?")


def is_mcp_path(path: str) -> bool:
    return _MCP_PATH.fullmatch(path) is not None


def list_resource_paths(path: str) -> tuple[str, ...]:
    """Return the paths for which a token may have been made if it is presented at this path: its own, and the one
    above. A token for an MCP endpoint counts nowhere else."""
    match = _MCP_PATH.fullmatch(path)
    return () if match is None else tuple({path, match["basic"]})
