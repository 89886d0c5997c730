"""Which icons of a tool are stored and shown. Pure functions. Toolscout never fetches an icon."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from app.text.strict_json import Json

MAX_ICONS = 8
MAX_URL_CHARACTERS = 2_048
MAX_IMAGE_CHARACTERS = 32 * 1024
MAX_SIZES = 16

_URL = re.compile(r"https://[^/\s\\]\S*", re.IGNORECASE)
_IMAGE = re.compile(r"data:image/[a-z0-9.+-]+[;,]\S*", re.IGNORECASE)
_MIME_TYPE = re.compile(r"image/[a-z0-9.+-]{1,60}", re.IGNORECASE)
_SIZE = re.compile(r"any|[0-9]{1,5}x[0-9]{1,5}")
_THEMES = ("light", "dark")


def list_valid_icons(icons: Sequence[Any]) -> list[Json] | None:
    """Return the icons that a browser can show without harm, with their known fields; None if there is none.

    A source is an https URL or an image in a `data:` URL: any other scheme could run a script, or read a file, where
    the icon is shown.
    """
    valid = [dict(_list_fields(icon)) for icon in icons if isinstance(icon, dict) and _is_source(icon.get("src"))]
    return valid[:MAX_ICONS] or None


def _is_source(src: Any) -> bool:
    if not isinstance(src, str):
        return False
    is_url = len(src) <= MAX_URL_CHARACTERS and _URL.fullmatch(src) is not None
    return is_url or (len(src) <= MAX_IMAGE_CHARACTERS and _IMAGE.fullmatch(src) is not None)


def _list_fields(icon: Json) -> Iterator[tuple[str, Any]]:
    yield "src", icon["src"]
    mime_type, sizes = icon.get("mimeType"), icon.get("sizes")
    if isinstance(mime_type, str) and _MIME_TYPE.fullmatch(mime_type):
        yield "mimeType", mime_type
    if isinstance(sizes, list) and (known := [each for each in sizes if _is_size(each)][:MAX_SIZES]):
        yield "sizes", known
    if icon.get("theme") in _THEMES:
        yield "theme", icon["theme"]


def _is_size(size: Any) -> bool:
    return isinstance(size, str) and _SIZE.fullmatch(size) is not None
