"""The fake model behind a socket."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from examples.fake_model.behaviour import Json, Turn, View, decide_turn
from examples.fake_model.chat_api import ChatRequest
from examples.fake_model.errors import InvalidRequest
from examples.fake_model.messages_api import MessagesRequest
from examples.fake_model.prefix import PromptCache, Tokenize, count_words
from examples.fake_model.responses_api import ResponsesRequest


class FakeModel:
    """A model that `decide` speaks for, and the prompt cache of its provider."""

    def __init__(
        self,
        decide: Callable[[View], Turn] = decide_turn,
        count_tokens: Tokenize = count_words,
        *,
        strict_reasoning: bool = True,
    ) -> None:
        self._decide = decide
        self._cache = PromptCache(count_tokens)
        self._strict_reasoning = strict_reasoning
        self.rejections: list[str] = []
        self.dropped: list[str] = []
        """Thinking blocks and reasoning items that were left out of a prompt, once for each request."""
        self.redundant: list[str] = []
        """Changes of tools in the last request that changed nothing."""

    def answer(self, path: str, request: Json, betas: frozenset[str]) -> Json:
        """Raise `InvalidRequest` for what the real API would reject."""
        try:
            if path.endswith("/chat/completions"):
                chat = ChatRequest(request)
                return chat.make_response(self._decide(chat.view), self._cache.record(chat.parts))
            if path.endswith("/responses"):
                read: ResponsesRequest | MessagesRequest = ResponsesRequest(request, strict=self._strict_reasoning)
                is_cached = True
            else:
                read = MessagesRequest(request, betas)
                is_cached = read.asks_for_cache
        except InvalidRequest as rejection:
            self.rejections.append(str(rejection))
            raise
        self.dropped += read.dropped
        self.redundant = read.redundant
        return read.make_response(self._decide(read.view), self._cache.record(read.parts, is_cached=is_cached))


class _Handler(BaseHTTPRequestHandler):
    model: FakeModel

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        betas = frozenset(part.strip() for part in self.headers.get("anthropic-beta", "").split(",") if part.strip())
        try:
            self._answer(200, self.model.answer(self.path.partition("?")[0], request, betas))
        except InvalidRequest as rejection:
            error: Json = {"type": "invalid_request_error", "message": str(rejection), "code": rejection.code}
            if rejection.code is not None:
                error["details"] = {"error_code": rejection.code}
            self._answer(400, {"type": "error", "error": error})

    def _answer(self, status: int, body: Json) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing: the examples print what matters."""


@contextmanager
def running_fake_model(model: FakeModel | None = None) -> Iterator[str]:
    """Yield the base URL of all three APIs, up to `/v1`. Anthropic's SDK appends another `/v1`, which is fine here."""
    handler = type("Handler", (_Handler,), {"model": model or FakeModel()})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
