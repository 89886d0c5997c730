"""The URIs under which the MCP endpoint shows the resources of servers. Pure functions.

A URI must lead back to its server, and two servers may use the same URIs. Ours begins with the server's id, and the
server's own follows unchanged, so that a template stays a template. A `ui://` resource keeps its scheme, by which hosts
recognize MCP Apps.

    file:///notes/{name}     toolscout://SERVER_ID/file:///notes/{name}
    ui://clock/app.html      ui://toolscout/SERVER_ID/clock/app.html
"""

from typing import NamedTuple

from app.mcp_meta import UI_URI_KEY, is_ui_uri
from app.text.strict_json import Json

_PREFIX = "toolscout://"
_UI_SCHEME = "ui://"
_UI_PREFIX = f"{_UI_SCHEME}toolscout/"


class OwnUri(NamedTuple):
    server_id: str
    uri: str
    """The server's own."""


def make_uri(server_id: str, uri: str) -> str:
    """Return our URI, or template of URIs, for that of a server."""
    if is_ui_uri(uri):
        return f"{_UI_PREFIX}{server_id}/{uri.removeprefix(_UI_SCHEME)}"
    return f"{_PREFIX}{server_id}/{uri}"


def parse_uri(uri: str) -> OwnUri | None:
    """Return the server and its own URI for one of ours; None for any other URI."""
    prefix, scheme = (_UI_PREFIX, _UI_SCHEME) if is_ui_uri(uri) else (_PREFIX, "")
    server_id, slash, rest = uri.removeprefix(prefix).partition("/")
    if not uri.startswith(prefix) or not slash or not server_id:
        return None
    return OwnUri(server_id, f"{scheme}{rest}")


def rewrite_block(server_id: str, block: Json) -> Json:
    """Return a block of content whose resource, or link to one, has our URI."""
    if block.get("type") == "resource_link":
        return block | {"uri": make_uri(server_id, block["uri"])}
    if block.get("type") == "resource":
        resource = block["resource"]
        return block | {"resource": resource | {"uri": make_uri(server_id, resource["uri"])}}
    return block


def rewrite_ui_links(server_id: str, meta: Json) -> Json:
    """Return the `_meta` of a tool whose link to a user interface (MCP Apps) has our URI."""
    rewritten, ui = dict(meta), meta.get("ui")
    if isinstance(ui, dict) and is_ui_uri(ui.get("resourceUri")):
        rewritten["ui"] = ui | {"resourceUri": make_uri(server_id, ui["resourceUri"])}
    if is_ui_uri(meta.get(UI_URI_KEY)):
        rewritten[UI_URI_KEY] = make_uri(server_id, meta[UI_URI_KEY])
    return rewritten
