"""What an operator sees: JSON logs and metrics. Neither ever holds a message, an argument or a key.

No label is made by a user: routes are templates, reasons and outcomes are our own words.
"""

import logging
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
request_started: ContextVar[float | None] = ContextVar("request_started", default=None)

access_log = logging.getLogger("toolscout.access")

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class Metrics:
    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("toolscout_requests", "HTTP requests", ["method", "route", "status"], registry=registry)
        self.request_seconds = Histogram(
            "toolscout_request_seconds", "Time to answer", ["route"], buckets=_FAST, registry=registry
        )
        self.search_seconds = Histogram(
            "toolscout_search_seconds", "Time in the search statement", buckets=_FAST, registry=registry
        )
        self.embedding_seconds = Histogram(
            "toolscout_embedding_seconds", "Time to embed", ["purpose", "outcome"], buckets=_FAST, registry=registry
        )
        self.fallbacks = Counter(
            "toolscout_fallbacks", "Discoveries answered by a lower rung", ["reason"], registry=registry
        )
        self.query_cache = Counter("toolscout_query_cache", "Query vectors asked for", ["result"], registry=registry)
        self.no_match = Counter("toolscout_no_match", "Discoveries that found no fitting tool", registry=registry)
        self.tokens_saved = Counter(
            "toolscout_tokens_saved", "Tokens of definitions that were not sent", registry=registry
        )
        self.mcp_calls = Counter(
            "toolscout_mcp_calls", "Calls of the MCP door's own tools", ["tool", "outcome"], registry=registry
        )
        self.index_runs = Counter("toolscout_index_runs", "Index runs that ended", ["state"], registry=registry)
        self.upstream_seconds = Histogram(
            "toolscout_upstream_seconds",
            "Time that MCP servers took",
            ["deed", "outcome"],
            buckets=_FAST,
            registry=registry,
        )
        self.breaker_open = Gauge(
            "toolscout_embedder_breaker_open", "1 while the embedder's breaker is open", registry=registry
        )

    def render(self) -> bytes:
        return generate_latest(self._registry)


class RequestTelemetry:
    """The outermost ASGI layer: gives each request an id, counts it, times it, logs one line."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identifier = uuid.uuid4().hex
        token = request_id.set(identifier)
        started = time.perf_counter()
        request_started.set(started)
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = identifier
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._record(scope, status, time.perf_counter() - started)
            request_id.reset(token)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        if access_log.isEnabledFor(logging.INFO):
            access_log.info(
                "request",
                extra={"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 2)},
            )


@contextmanager
def timed(histogram: Histogram, deed: str) -> Iterator[None]:
    """Observes how long it took, and whether it went well."""
    started = time.perf_counter()
    outcome = "failed"
    try:
        yield
        outcome = "succeeded"
    finally:
        histogram.labels(deed, outcome).observe(time.perf_counter() - started)


def elapsed_ms() -> float:
    """Since the request came in; 0 where there is none."""
    started = request_started.get()
    return 0.0 if started is None else (time.perf_counter() - started) * 1000


class JsonFormatter(logging.Formatter):
    """One JSON object a line; control characters cannot break out of it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if identifier := request_id.get():
            line["request_id"] = identifier
        line |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD_ATTRIBUTES}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("toolscout").setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
