"""Prometheus metrics. No metric contains a message, an argument or a key.

Users cannot create label values: routes are templates, reasons and outcomes are words of our own.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from app import __version__
from app.errors import EmbeddingFailed

_FAST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SLOW_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_DISCOVERY_SERIES = [
    *(
        (strategy, level)
        for strategy in ("hybrid", "semantic", "bm25")
        for level in ("whole", "everything", "disabled")
    ),
    ("bm25", "words"),
    ("cloud", "whole"),
    ("none", "core"),
]


class Metrics:
    """Every metric of this process. docs/reference/metrics.md explains each one, and a test compares the two.

    Series whose labels are known in advance start at zero: an alert cannot see the first failure as an increase if the
    series only begins with it.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._gauge("build_info", "Always 1; the version is a label", "version").labels(__version__).set(1)
        self._model = self._gauge("model_info", "Always 1; the active embedding model", "model", "dimension")
        self._create_request_metrics()
        self._create_discovery_metrics()
        self._create_indexing_metrics()
        self._create_pool_metrics()

    def _create_request_metrics(self) -> None:
        self.requests = self._counter("requests", "HTTP requests", "method", "route", "status")
        self.request_seconds = self._histogram("request_seconds", "Response time", "route")
        # `labels` takes a lock and converts its arguments; the series of a process are few
        self._request_counters: dict[tuple[str, str, int], Counter] = {}
        self._request_histograms: dict[str, Histogram] = {}
        self.requests_in_flight = self._gauge("requests_in_flight", "HTTP requests in progress")
        self.requests_waiting = self._gauge("requests_waiting", "HTTP requests queued behind others of the same user")
        self.refused = self._counter("requests_refused", "HTTP requests rejected to protect the service", "reason")
        _start_at_zero(self.refused, [("rate_limited",), ("overloaded",)])
        self.mcp_calls = self._counter(
            "mcp_calls",
            "Calls of the tools of the MCP endpoint, and requests for resources and prompts, by method",
            "tool",
            "outcome",
        )
        self.upstream_seconds = self._histogram("upstream_seconds", "Response time of MCP servers", "deed", "outcome")

    def _create_discovery_metrics(self) -> None:
        self.discoveries = self._counter("discoveries", "Discoveries by fallback level", "strategy", "rung")
        _start_at_zero(self.discoveries, _DISCOVERY_SERIES)
        self.fallbacks = self._counter("fallbacks", "Discoveries answered by a fallback", "reason")
        _start_at_zero(self.fallbacks, [(f"cloud_{reason}",) for reason in ("timeout", "unreachable")])
        self.discovery_confidence = self._counter(
            "discovery_confidence", "Discoveries by the confidence of their answer", "confidence"
        )
        _start_at_zero(self.discovery_confidence, [("high",), ("low",), ("none",)])
        self.no_match = self._counter("no_match", "Discoveries that found no matching tool", "reason")
        _start_at_zero(self.no_match, [("no_match",), ("no_tools",), ("filtered_out",)])
        self.tokens_saved = self._counter("tokens_saved", "Tokens of definitions that were not sent")
        self.search_seconds = self._histogram("search_seconds", "Time in the search statement")
        self.snapshot_hits = self._counter("snapshot_hits", "Discoveries for which the user's snapshot was in memory")
        self.snapshot_misses = self._counter("snapshot_misses", "Discoveries that went to Postgres without a snapshot")
        self.snapshot_loads = self._counter("snapshot_loads", "Snapshots that were read from Postgres", "outcome")
        _start_at_zero(self.snapshot_loads, [("loaded",), ("too_large",), ("failed",)])
        self.snapshot_evictions = self._counter("snapshot_evictions", "Snapshots dropped to make room for others")
        self.snapshot_bytes = self._gauge("snapshot_bytes", "Memory that snapshots take")
        self.query_cache = self._counter("query_cache", "Lookups in the query vector cache", "result")
        _start_at_zero(self.query_cache, [("hit",), ("miss",)])
        self.embedding_seconds = self._histogram("embedding_seconds", "Time to embed", "purpose", "outcome")
        self.embedding_failures = self._counter("embedding_failures", "Failures to embed", "purpose", "reason")
        _start_at_zero(self.embedding_failures, [("query", "timeout"), ("index", "timeout")])
        self.cloud_seconds = self._histogram("cloud_seconds", "Time of searches through the cloud", "outcome")
        self.cloud_breaker_open = self._gauge("cloud_breaker_open", "1 while the cloud's circuit breaker is open")
        self.breaker_open = self._gauge("embedder_breaker_open", "1 while the embedder's circuit breaker is open")

    def _create_indexing_metrics(self) -> None:
        self.index_runs = self._counter("index_runs", "Finished index runs", "state")
        _start_at_zero(self.index_runs, [("succeeded",), ("failed",)])
        self.listings = self._counter("listings", "Lists of tools, by where they came from", "source")
        _start_at_zero(self.listings, [("server",), ("shared",)])
        self.index_seconds = self._histogram("index_seconds", "Duration of index runs", "state", buckets=_SLOW_BUCKETS)
        self.tools_embedded = self._counter("tools_embedded", "Tools whose vector was computed")
        self.runs_queued = self._gauge("runs_queued", "Queued index runs, of all processes")
        self.runs_running = self._gauge("runs_running", "Index runs that a worker is processing, of all processes")
        self.oldest_queued = self._gauge("oldest_queued_run_seconds", "Age of the oldest queued index run")
        self.categorizations = self._counter("categorizations", "Users whose tools were put into categories", "outcome")
        _start_at_zero(self.categorizations, [("changed",), ("unchanged",), ("failed",)])
        self.categorization_seconds = self._histogram(
            "categorization_seconds", "Time to put a user's tools into categories", buckets=_SLOW_BUCKETS
        )
        self.tools_pending = self._gauge("tools_pending", "Tools without a vector yet, found by words alone")

    def _create_pool_metrics(self) -> None:
        self.pool_size = self._gauge("pool_size", "Maximum number of database connections of this process")
        self.pool_in_use = self._gauge("pool_in_use", "Database connections in use")
        self.pool_waiting = self._gauge("pool_waiting", "Tasks that wait for a database connection")
        self.pool_wait_seconds = self._histogram("pool_wait_seconds", "Time to get a database connection")
        self.pool_timeouts = self._counter("pool_timeouts", "Tasks that timed out waiting for a database connection")
        self.read_replica_reads = self._counter(
            "read_replica_reads", "Reads that a read replica may answer, by who did and why", "outcome"
        )
        _start_at_zero(self.read_replica_reads, [("served",), ("behind",), ("busy",), ("failed",), ("unavailable",)])
        self.read_replica_in_use = self._gauge("read_replica_in_use", "1 while the read replica answers reads")
        self.read_replica_lag = self._gauge("read_replica_lag_bytes", "What the read replica has not replayed yet")

    def record_request(self, method: str, route: str, status: int, seconds: float) -> None:
        series = method, route, status
        if series not in self._request_counters:
            self._request_counters[series] = self.requests.labels(*series)
        if route not in self._request_histograms:
            self._request_histograms[route] = self.request_seconds.labels(route)
        self._request_counters[series].inc()
        self._request_histograms[route].observe(seconds)

    def set_model(self, model: str, dimension: int) -> None:
        self._model.clear()
        self._model.labels(model, dimension).set(1)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"toolscout_{name}", description, labels, registry=self._registry)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(f"toolscout_{name}", description, labels, registry=self._registry)

    def _histogram(
        self, name: str, description: str, *labels: str, buckets: Sequence[float] = _FAST_BUCKETS
    ) -> Histogram:
        return Histogram(f"toolscout_{name}", description, labels, buckets=buckets, registry=self._registry)


def _start_at_zero(counter: Counter, series: Iterable[tuple[str, ...]]) -> None:
    for labels in series:
        counter.labels(*labels)


def fallback_level(degraded_reason: str | None) -> str:
    """Return the label value for how a discovery was answered. `disabled` means off for this user, not a failure."""
    if degraded_reason is None:
        return "whole"
    return {"disabled": "disabled", "search_failed": "everything"}.get(degraded_reason, "words")


def fallback_reason(degraded_reason: str) -> str:
    """Return the label value for why a discovery was answered by a fallback: any status of the cloud is one of few."""
    prefix, status = degraded_reason[:-3], degraded_reason[-3:]
    return f"cloud_status_{status[0]}xx" if prefix == "cloud_status_" else degraded_reason


@contextmanager
def observe_duration(histogram: Histogram, operation: str) -> Iterator[None]:
    """Record how long the block takes, labelled with the operation and whether it succeeded."""
    started = time.perf_counter()
    outcome = "failed"
    try:
        yield
        outcome = "succeeded"
    finally:
        histogram.labels(operation, outcome).observe(time.perf_counter() - started)


@contextmanager
def count_embedding_failures(metrics: Metrics, purpose: str) -> Iterator[None]:
    try:
        yield
    except EmbeddingFailed as error:
        metrics.embedding_failures.labels(purpose, error.reason).inc()
        raise
