"""An MCP registry on loopback with the shape of the official one's API v0.1, which can be made to fail."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.http_thread import serve_in_thread

Json = dict[str, Any]
Mode = Literal["ok", "status", "redirect", "hang", "endless", "raw"]

PATH = "/v0.1/servers"
OFFICIAL = "io.modelcontextprotocol.registry/official"
SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
TIME = "2026-10-01T12:00:00Z"
MAX_LIMIT = 100


def entry(name: str, *remotes: Json, status: str = "active", message: str | None = None, **fields: Any) -> Json:
    """Return an entry as the registry sends it. Without remotes it has a package, which runs locally."""
    server: Json = {"$schema": SCHEMA, "name": name, "description": f"Tools of {name}", "version": "1.0.0"}
    if remotes:
        server["remotes"] = list(remotes)
    else:
        package = {"registryType": "npm", "identifier": "@x/y", "version": "1.0.0", "transport": {"type": "stdio"}}
        server["packages"] = [package]
    official = {"status": status, "publishedAt": TIME, "updatedAt": TIME, "statusChangedAt": TIME, "isLatest": True}
    official |= {} if message is None else {"statusMessage": message}
    return {"server": server | fields, "_meta": {OFFICIAL: official}}


def remote(url: str, kind: str = "streamable-http", **fields: Any) -> Json:
    return {"type": kind, "url": url, **fields}


class FakeRegistry:
    """`entries` and `mode` may be changed at any time. `requests` holds the path and query of every request.

    Requests in the mode `hang` are answered on `release()`, in the mode of that moment. `endless` never stops sending,
    `raw` sends `content`.
    """

    def __init__(self) -> None:
        self.port = 0
        self.mode: Mode = "ok"
        self.status = 503
        self.content = b""
        self.entries: list[Json] = []
        self.requests: list[str] = []
        self.gate = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def release(self) -> None:
        """Answer all requests that hang. Later requests hang again."""
        self.gate, opened = threading.Event(), self.gate
        opened.set()

    def reset(self, *entries: Json) -> None:
        self.mode, self.status, self.entries, self.requests = "ok", 503, list(entries), []

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Json]:
        if path == PATH:
            return 200, self._list(query)
        name = unquote(path.removeprefix(f"{PATH}/").removesuffix("/versions/latest"))
        found = [each for each in self._list_visible() if each["server"]["name"] == name]
        if path.startswith(f"{PATH}/") and path.endswith("/versions/latest") and found:
            return 200, found[0]
        return 404, {"title": "Not Found", "status": 404, "detail": "Server not found"}

    def _list(self, query: dict[str, str]) -> Json:
        """As the official one: by name, the search is a part of the name, a cursor is the last entry of a page."""
        found = [each for each in self._list_visible() if query.get("search", "").lower() in _name(each).lower()]
        after = query.get("cursor", "").partition(":")[0]
        rest = [each for each in sorted(found, key=_name) if _name(each) > after]
        page = rest[: min(int(query.get("limit", "30")), MAX_LIMIT)]
        metadata: Json = {"count": len(page)}
        if len(rest) > len(page):
            metadata["nextCursor"] = f"{_name(page[-1])}:{page[-1]['server']['version']}"
        return {"servers": page, "metadata": metadata}

    def _list_visible(self) -> list[Json]:
        return [each for each in self.entries if each["_meta"][OFFICIAL]["status"] != "deleted"]


def _name(each: Json) -> str:
    name: str = each["server"]["name"]
    return name


def _make_handler(registry: FakeRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            gate, hangs = registry.gate, registry.mode == "hang"  # before a test can see the request
            registry.requests.append(self.path)
            if hangs:
                gate.wait()
            if registry.mode == "endless":
                self._reply_endlessly()
            elif registry.mode == "redirect":
                self._reply(307, b"", Location=f"{registry.url}{PATH}")
            elif registry.mode == "status":
                self._reply(registry.status, b"{}")
            elif registry.mode == "raw":
                self._reply(200, registry.content)
            else:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                status, answer = registry.answer(parts.path, query)
                self._reply(status, json.dumps(answer).encode())

        def _reply(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def _reply_endlessly(self) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Length", str(10**9))
            self.end_headers()
            with suppress(OSError):  # the client has enough
                while registry.mode == "endless":
                    self.wfile.write(b" " * 64 * 1024)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    return Handler


@contextmanager
def running_registry() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()
    with serve_in_thread(_make_handler(registry)) as registry.port:
        try:
            yield registry
        finally:
            registry.mode = "ok"
            registry.release()
