"""What an operator sees: JSON logs and metrics. Neither ever holds a message, an argument or a key.

No label is made by a user: routes are templates, reasons and outcomes are our own words.
"""

import logging
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import __version__
from app.errors import EmbeddingFailed

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
request_started: ContextVar[float | None] = ContextVar("request_started", default=None)

access_log = logging.getLogger("toolscout.access")

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_LADDER = [
    *((strategy, rung) for strategy in ("hybrid", "semantic", "bm25") for rung in ("whole", "everything", "disabled")),
    ("bm25", "words"),
    ("none", "core"),
]
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class Metrics:
    """docs/operations.md says what each one means; a test keeps it true. Series whose labels are known beforehand begin
    at zero, or the first failure of all would be no change that an alert could see."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._gauge("build_info", "Always 1; the version is a label", "version").labels(__version__).set(1)
        self._model = self._gauge("model_info", "Always 1; the active embedding model", "model", "dimension")
        self._of_requests()
        self._of_discovery()
        self._of_indexing()
        self._of_the_pool()

    def _of_requests(self) -> None:
        self.requests = self._counter("requests", "HTTP requests", "method", "route", "status")
        self.request_seconds = self._histogram("request_seconds", "Time to answer", "route")
        self.requests_in_flight = self._gauge("requests_in_flight", "HTTP requests being answered")
        self.requests_waiting = self._gauge("requests_waiting", "HTTP requests behind others of the same user")
        self.refused = self._counter("requests_refused", "HTTP requests refused to spare the rest", "reason")
        _begin_at_zero(self.refused, [("rate_limited",), ("overloaded",)])
        self.mcp_calls = self._counter("mcp_calls", "Calls of the MCP door's own tools", "tool", "outcome")
        self.upstream_seconds = self._histogram("upstream_seconds", "Time that MCP servers took", "deed", "outcome")

    def _of_discovery(self) -> None:
        self.discoveries = self._counter("discoveries", "Discoveries, by how they were answered", "strategy", "rung")
        _begin_at_zero(self.discoveries, _LADDER)
        self.fallbacks = self._counter("fallbacks", "Discoveries answered by a lower rung", "reason")
        self.no_match = self._counter("no_match", "Discoveries that found no fitting tool")
        self.tokens_saved = self._counter("tokens_saved", "Tokens of definitions that were not sent")
        self.search_seconds = self._histogram("search_seconds", "Time in the search statement")
        self.query_cache = self._counter("query_cache", "Query vectors asked for", "result")
        _begin_at_zero(self.query_cache, [("hit",), ("miss",)])
        self.embedding_seconds = self._histogram("embedding_seconds", "Time to embed", "purpose", "outcome")
        self.embedding_failures = self._counter("embedding_failures", "Failures to embed", "purpose", "reason")
        _begin_at_zero(self.embedding_failures, [("query", "timeout"), ("index", "timeout")])
        self.breaker_open = self._gauge("embedder_breaker_open", "1 while the embedder's breaker is open")

    def _of_indexing(self) -> None:
        self.index_runs = self._counter("index_runs", "Index runs that ended", "state")
        _begin_at_zero(self.index_runs, [("succeeded",), ("failed",)])
        self.index_seconds = self._histogram("index_seconds", "Time that index runs took", "state", buckets=_SLOW)
        self.tools_embedded = self._counter("tools_embedded", "Tools whose vector was computed")
        self.runs_queued = self._gauge("runs_queued", "Index runs that no worker has under way, of all processes")
        self.runs_running = self._gauge("runs_running", "Index runs that a worker has under way, of all processes")
        self.oldest_queued = self._gauge("oldest_queued_run_seconds", "How long ago the oldest of them was asked for")
        self.tools_pending = self._gauge("tools_pending", "Tools without a vector yet, found by words alone")

    def _of_the_pool(self) -> None:
        self.pool_size = self._gauge("pool_size", "Connections to the database that this process may have")
        self.pool_in_use = self._gauge("pool_in_use", "Connections in use")
        self.pool_waiting = self._gauge("pool_waiting", "Who waits for a connection")
        self.pool_wait_seconds = self._histogram("pool_wait_seconds", "Time until a connection was had")
        self.pool_timeouts = self._counter("pool_timeouts", "Who waited for a connection in vain")

    def tell_model(self, model: str, dimension: int) -> None:
        self._model.clear()
        self._model.labels(model, dimension).set(1)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"toolscout_{name}", meaning, labels, registry=self._registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"toolscout_{name}", meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, *labels: str, buckets: Sequence[float] = _FAST) -> Histogram:
        return Histogram(f"toolscout_{name}", meaning, labels, buckets=buckets, registry=self._registry)


def _begin_at_zero(counter: Counter, series: Iterable[tuple[str, ...]]) -> None:
    for labels in series:
        counter.labels(*labels)


def fallback_level(degraded_reason: str | None) -> str:
    """How far down the ladder an answer came from. A user for whom discovery is off has not fallen."""
    if degraded_reason is None:
        return "whole"
    return {"disabled": "disabled", "search_failed": "everything"}.get(degraded_reason, "words")


class RequestLogMiddleware:
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


@contextmanager
def failures_counted(metrics: Metrics, purpose: str) -> Iterator[None]:
    try:
        yield
    except EmbeddingFailed as error:
        metrics.embedding_failures.labels(purpose, error.reason).inc()
        raise


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
