"""An OpenAI-compatible embedding endpoint on loopback that can be made to fail.

Its vectors are bags of hashed words, so that texts with common words are near each other. A model named `NAME@N` has N
dimensions, uses one half of them for its words, and adds a constant of its own to all texts: cosines within a model
show which model it was, and cosines across two models are 0.
"""

import json
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

from tests.support.http_thread import serve_in_thread

DIMENSION = 64

Mode = Literal[
    "ok",
    "hang",
    "hang_later",
    "status",
    "wrong_dimension",
    "nan",
    "zeros",
    "short",
    "shuffled",
    "doubled_index",
    "not_json",
    "wrong_shape",
]


class FakeEmbeddingServer:
    """`mode` may be changed at any time. `requests` holds the texts of every request, `models` the requested models.

    Requests that arrive in the mode `hang` are answered on `release()`, in the mode of that moment. In the mode
    `hang_later` the first `quick` requests are answered at once.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.mode: Mode = "ok"
        self.status = 500
        self.quick = 0
        self.delay_s = 0.0
        self.requests: list[list[str]] = []
        self.models: list[str] = []
        self.gate = threading.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def release(self) -> None:
        """Answer all requests that hang. Later requests hang again."""
        self.gate, opened = threading.Event(), self.gate
        opened.set()

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Return settings for `open_service`: this server as the embedder, and a circuit breaker that retries soon.

        The query budget suffices on a slow machine; a test of the budget sets a smaller one.
        """
        return {
            "embedding_provider": "openai",
            "embedding_model": "fake-words",
            "openai_base_url": self.base_url,
            "query_embed_budget_ms": 20_000,
            "breaker_retry_s": 0.3,
            "pending_retry_s": 0.2,
            **changes,
        }


def embed(text: str, dimension: int = DIMENSION) -> list[float]:
    vector = [0.01] * dimension
    for word in _words(text):
        vector[zlib.crc32(word.encode()) % dimension] += 1.0
    return vector


def embed_by(model: str, text: str) -> list[float]:
    """Embed a text as this model does. The first letter of its name chooses the half of the dimensions."""
    name, _, dimension = model.partition("@")
    if not dimension:
        return embed(text)
    half = int(dimension) // 2
    first = half * (ord(name[0]) % 2)
    vector = [0.0] * int(dimension)
    vector[first] = ord(name[0]) % 7 / 2
    for word in _words(text):
        vector[first + 1 + zlib.crc32(f"{name} {word}".encode()) % (half - 1)] += 1.0
    return vector


def _words(text: str) -> list[str]:
    return text.lower().replace("_", " ").replace(".", " ").replace(",", " ").split()


def _answer(server: FakeEmbeddingServer, model: str, texts: list[str]) -> dict[str, Any]:
    vectors = [embed_by(model, text) for text in texts]
    if server.mode == "wrong_dimension":
        vectors = [embed(text, DIMENSION + 1) for text in texts]
    dimension = len(vectors[0])
    items = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    if server.mode == "zeros":
        items = [{**item, "embedding": [0.0] * dimension} for item in items]
    if server.mode == "nan":
        items = [{**item, "embedding": [float("nan")] * dimension} for item in items]
    if server.mode == "short":
        items = items[:-1]
    if server.mode == "shuffled":
        items = items[::-1]
    if server.mode == "doubled_index":
        items = [{**item, "index": 0} for item in items]
    if server.mode == "wrong_shape":
        return {"object": "list", "model": "fake", "data": "not a list"}
    return {"object": "list", "model": "fake", "data": items, "usage": {"prompt_tokens": 1, "total_tokens": 1}}


def _handler(server: FakeEmbeddingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.quick -= 1
            hangs = server.mode == "hang" or (server.mode == "hang_later" and server.quick < 0)
            gate = server.gate  # before a test can see the request
            server.models.append(body["model"])
            server.requests.append(body["input"])
            time.sleep(server.delay_s)
            if hangs:
                gate.wait()
            self._reply(body["model"], body["input"])

        def _reply(self, model: str, texts: list[str]) -> None:
            content = b"<html>" if server.mode == "not_json" else json.dumps(_answer(server, model, texts)).encode()
            self.send_response(server.status if server.mode == "status" else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    return Handler


@contextmanager
def running_embedding_server(port: int = 0) -> Iterator[FakeEmbeddingServer]:
    fake = FakeEmbeddingServer(port)
    with serve_in_thread(_handler(fake), port) as fake.port:
        try:
            yield fake
        finally:
            fake.release()
