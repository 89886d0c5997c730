"""What of a server's `_meta`, and of its icons, is passed on. Pure functions.

`_meta` is for programs: hosts act on its keys, and models do not read it. A server may set any key, except for those by
which Toolscout itself speaks to the host.
"""

from typing import Any

from mcp_types import SERVER_INFO_META_KEY

from app.text.strict_json import Json

_RESERVED = ("toolscout/", SERVER_INFO_META_KEY)
MAX_ICON_BYTES = 4 * 1024
"""Of one icon. Larger ones are shown by `GET /tools/{id}` alone, since every discovery reads and caches definitions."""
UI_URI_KEY = "ui/resourceUri"
"""The key that MCP Apps used at first; hosts still read it."""


def filter_meta(meta: Any) -> Json:
    """Return the keys that a server may set."""
    if not isinstance(meta, dict):
        return {}
    return {name: value for name, value in meta.items() if not name.startswith(_RESERVED)}


def filter_tool_meta(meta: Json) -> Json:
    """Return the keys that the server of a tool may set, without links to a user interface (MCP Apps) that are no
    `ui://` resource: a host might open any other URI."""
    filtered = filter_meta(meta)
    ui = filtered.get("ui")
    if isinstance(ui, dict) and not is_ui_uri(ui.get("resourceUri", "ui://")):
        filtered["ui"] = {name: value for name, value in ui.items() if name != "resourceUri"}
    if not is_ui_uri(filtered.get(UI_URI_KEY, "ui://")):
        del filtered[UI_URI_KEY]
    return filtered


def is_ui_uri(uri: Any) -> bool:
    return isinstance(uri, str) and uri.startswith("ui://")
