"""A catalogue service on loopback with the shape of `POST /catalog/search`, which can be made to fail."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

from tests.support.http_thread import serve_in_thread

Json = dict[str, Any]
Mode = Literal["ok", "status", "redirect", "hang", "drip", "endless", "raw", "cut"]


def find_by_words(body: Json) -> Json:
    """Return the tools whose description contains a word of the query, by the share of words that they contain."""
    words = set(body["query"][0].lower().split())
    shares = {
        tool["toolKey"]: len(words & set(tool["description"].lower().rstrip(".").split())) / len(words)
        for tool in body["tools"]
    }
    best = sorted((key for key, share in shares.items() if share), key=lambda key: -shares[key])
    results = [{"toolKey": key, "relevance": shares[key], "explanation": f"cloud says {key}"} for key in best]
    return {"results": results[: body["max_results"]]}


class FakeCloud:
    """`mode` may be changed at any time. `requests` holds every body with its headers (names in lower case).

    Requests in the mode `hang` are answered on `release()`, in the mode of that moment. `drip` sends a byte now and
    then, `endless` never stops sending, `cut` closes the connection within the body, `raw` sends `content`.
    """

    def __init__(self) -> None:
        self.port = 0
        self.mode: Mode = "ok"
        self.status = 503
        self.content = b""
        self.find: Callable[[Json], Json] = find_by_words
        self.requests: list[tuple[Json, dict[str, str]]] = []
        self.gate = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def searches(self) -> list[Json]:
        """The requests that hold tools: the others only check whether the service is there."""
        return [body for body, _ in self.requests if body["tools"]]

    def release(self) -> None:
        """Answer all requests that hang. Later requests hang again."""
        self.gate, opened = threading.Event(), self.gate
        opened.set()

    def settings(self, **changes: Any) -> Json:
        return {"cloud_url": self.url, "cloud_timeout_s": 20.0, "breaker_failures": 1_000, **changes}


def _make_handler(cloud: FakeCloud) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            gate, hangs = cloud.gate, cloud.mode == "hang"  # before a test can see the request
            cloud.requests.append((body, {name.lower(): value for name, value in self.headers.items()}))
            if hangs:
                gate.wait()
            if self.path != "/catalog/search":
                self._reply(404, b"{}")
            elif cloud.mode in ("drip", "endless", "cut"):
                self._reply_in_pieces()
            elif cloud.mode == "redirect":
                self._reply(307, b"", Location=f"{cloud.url}/catalog/search")
            elif cloud.mode == "status":
                self._reply(cloud.status, b"" if cloud.status == 204 else b"{}")
            else:
                self._reply(200, cloud.content if cloud.mode == "raw" else json.dumps(cloud.find(body)).encode())

        def _reply(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def _reply_in_pieces(self) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Length", str(10**9))
            self.end_headers()
            piece = b" " * (1 if cloud.mode == "drip" else 64 * 1024)
            with suppress(OSError):  # the client has enough
                while cloud.mode in ("drip", "endless"):
                    self.wfile.write(piece)
                    if cloud.mode == "drip":
                        cloud.gate.wait(0.02)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    return Handler


@contextmanager
def running_cloud() -> Iterator[FakeCloud]:
    cloud = FakeCloud()
    with serve_in_thread(_make_handler(cloud)) as cloud.port:
        try:
            yield cloud
        finally:
            cloud.mode = "ok"
            cloud.release()
