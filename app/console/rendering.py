"""Render templates and serve static files. Templates escape every value: most texts come from MCP servers."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from app.catalog.availability import describe_availability
from app.text.invisible import remove_hidden
from app.text.strict_json import dump_json

_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SEPARATOR = re.compile(r"([._](?=\w))")
_CACHE_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str

    def to_response(self) -> Response:
        return Response(self.content, media_type=self.media_type, headers={"Cache-Control": _CACHE_FOREVER})


class Templates:
    def __init__(self) -> None:
        self.assets = _read_assets()
        self._environment = Environment(
            loader=PackageLoader("app.console"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_hide_nothing,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            ago=format_ago,
            availability_text=describe_availability,
            timestamp=format_timestamp,
            pretty_json=format_json,
            number=format_number,
            compact=format_compact,
            duration=format_duration,
            breakable=add_break_points,
        )
        self._environment.globals["asset_url"] = self._asset_url

    def render(self, template: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        return HTMLResponse(self._environment.get_template(template).render(values), status)

    def _asset_url(self, name: str) -> str:
        """Return a URL that changes with the content, so that browsers may cache the file forever."""
        return f"/console/static/{hashlib.sha256(self.assets[name].content).hexdigest()[:12]}/{name}"


def _hide_nothing(value: Any) -> Any:
    """Remove characters that nobody can see from every text: rows of older versions may hold some in names and tags."""
    return remove_hidden(value) if type(value) is str else value


def _read_assets() -> dict[str, Asset]:
    entries = [entry for entry in (files("app.console") / "static").iterdir() if entry.is_file()]
    return {entry.name: Asset(entry.read_bytes(), _MEDIA_TYPES[entry.name.rpartition(".")[2]]) for entry in entries}


# (below this many seconds, seconds in a unit, unit)
_AGO_UNITS = ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h"), (float("inf"), 86_400, "d"))


def format_ago(at: datetime | None) -> str:
    if at is None:
        return "never"
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    size, unit = next((size, unit) for below, size, unit in _AGO_UNITS if seconds < below)
    return "just now" if seconds < 5 else f"{int(seconds // size)} {unit} ago"


def format_timestamp(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_json(value: Any) -> str:
    return dump_json(value, option=orjson.OPT_INDENT_2).decode()


def add_break_points(text: str) -> Markup:
    """Let a long name break after its dots and underscores, rather than in the middle of a word."""
    return Markup(_SEPARATOR.sub(r"\1<wbr>", str(escape(remove_hidden(text)))))  # noqa: S704 escaped


def format_number(value: float) -> str:
    return f"{value:,.0f}"


def format_compact(value: float) -> str:
    for size, unit in ((1e9, " bn"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def format_duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return ""
    return f"{milliseconds:,.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.1f} s"
