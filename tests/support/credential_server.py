"""An operator's credential service on loopback (TOOLSCOUT_CREDENTIAL_URL), which can be made to fail."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.http_thread import serve_in_thread

Json = dict[str, Any]
CREDENTIAL_KEY = "a-key-for-the-credential-service"


class FakeCredentialServer:
    """Answers by the URL of the server: `headers[url]`, or 404. `status`, `content` and `gate` make it misbehave.

    `requests` holds every body with its headers (names in lower case).
    """

    def __init__(self) -> None:
        self.port = 0
        self.headers: dict[str, dict[str, str]] = {}
        self.expires_in: float | None = 3600
        self.status: int | None = None
        self.content: bytes | None = None
        self.gate = threading.Event()
        """While it is not set, requests hang."""
        self.gate.set()
        self.requests: list[tuple[Json, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/credentials"

    def settings(self, **changes: Any) -> Json:
        return {"credential_url": self.url, "credential_key": CREDENTIAL_KEY, **changes}

    def answer(self, body: Json) -> tuple[int, bytes]:
        if self.status is not None or self.content is not None:
            return self.status or 200, self.content or b"{}"
        headers = self.headers.get(body["server"]["url"])
        if headers is None:
            return 404, b"{}"
        expiry = {} if self.expires_in is None else {"expires_in": self.expires_in}
        return 200, json.dumps({"headers": headers, **expiry}).encode()


def _make_handler(server: FakeCredentialServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append((body, {name.lower(): value for name, value in self.headers.items()}))
            server.gate.wait()
            status, content = server.answer(body)
            with suppress(OSError):  # the client has not waited
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                if 300 <= status < 400:
                    self.send_header("Location", server.url)
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    return Handler


@contextmanager
def running_credential_server() -> Iterator[FakeCredentialServer]:
    server = FakeCredentialServer()
    with serve_in_thread(_make_handler(server)) as server.port:
        try:
            yield server
        finally:
            server.gate.set()
