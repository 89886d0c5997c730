"""Templates and the few files beside them. What is put into a page is escaped there: most is strangers' text."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str

    def response(self) -> Response:
        return Response(self.content, media_type=self.media_type, headers={"Cache-Control": _FOR_EVER})


class Pages:
    def __init__(self) -> None:
        self.assets = _read_assets()
        self._templates = Environment(
            loader=PackageLoader("app.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters.update(ago=ago, moment=moment, pretty=pretty, count=count, short=short, took=took)
        self._templates.globals["asset"] = self._address

    def render(self, template: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(values), status)

    def _address(self, name: str) -> str:
        """Another one with every change, so that browsers may keep what they have."""
        return f"/console/static/{hashlib.sha256(self.assets[name].content).hexdigest()[:12]}/{name}"


def _read_assets() -> dict[str, Asset]:
    found = [entry for entry in (files("app.console") / "static").iterdir() if entry.is_file()]
    return {entry.name: Asset(entry.read_bytes(), _MEDIA_TYPES[entry.name.rpartition(".")[2]]) for entry in found}


_STEPS = ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h"), (float("inf"), 86_400, "d"))


def ago(at: datetime | None) -> str:
    if at is None:
        return "never"
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    size, unit = next((size, unit) for below, size, unit in _STEPS if seconds < below)
    return "just now" if seconds < 5 else f"{int(seconds // size)} {unit} ago"


def moment(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def pretty(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def count(value: float) -> str:
    return f"{value:,.0f}"


def short(value: float) -> str:
    for size, unit in ((1e9, " bn"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def took(milliseconds: float | None) -> str:
    if milliseconds is None:
        return ""
    return f"{milliseconds:,.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.1f} s"
