"""`docs/reference/metrics.md`: every metric with its type and labels, from the registry, and its meaning, from here."""

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from app.observability.metrics import Metrics
from docs.generators.markdown import render_table

_INTRODUCTION = """# Metrics reference

`GET /metrics` answers in Prometheus's text format (`make docs` writes this page). If `TOOLSCOUT_METRICS_KEY` is set,
the scraper sends it as a bearer token. The alerts that use these metrics are explained in the
[operations guide](../guides/operations.md#alerts).

- A scrape reads memory alone. Values that need the database are refreshed every five seconds in the background, and are
  `NaN` while the database is unreachable.
- No label holds a value that a user can choose: routes are templates, reasons and outcomes are fixed words.
- In queries, counters end in `_total`, histograms in `_bucket`, `_sum` and `_count`.
- Gauges *of all processes* are the same on every process: aggregate them with `max`, not with `sum`.
"""

_PROCESS = """## The process itself

On Linux, `process_virtual_memory_bytes`, `process_resident_memory_bytes`, `process_start_time_seconds`,
`process_cpu_seconds`, `process_open_fds` and `process_max_fds` describe the process, as with every Prometheus client.
"""

_SECTIONS = {
    "Service": {
        "build_info": "always 1; the version is a label",
        "model_info": "always 1; the active embedding model",
        "requests": "HTTP requests answered; `status` 499: the client disconnected before",
        "request_seconds": "time to answer; for streams, until their end",
        "requests_in_flight": "HTTP requests in progress, without health and metrics",
        "requests_waiting": "requests that wait for other requests of the same user",
        "requests_refused": "requests refused: `rate_limited` (429: a user over its rate, or over its share "
        "of a process) or `overloaded` (503: more than `TOOLSCOUT_MAX_IN_FLIGHT`, or many without a valid key)",
        "mcp_calls": "calls of the MCP endpoint's own tools",
        "upstream_seconds": "time that users' MCP servers took; `deed` is the operation, `list` or `call`",
    },
    "Discovery": {
        "discoveries": "discoveries by fallback level (`rung`): `whole` as requested; `words` without the embedder or "
        "the cloud; `everything` where search failed; `disabled` for users with discovery off; `core` for projects "
        "that do not search",
        "fallbacks": "discoveries that were degraded, by their `degraded_reason`; statuses of the cloud by their "
        "class, such as `cloud_status_5xx`",
        "discovery_confidence": "discoveries by the `confidence` of their answer: `high`, `low` or `none`; not for "
        "projects that do not search",
        "no_match": "discoveries that found no fitting tool, by their `no_match_reason`; not for projects that do not "
        "search",
        "tokens_saved": "tokens of definitions that were not sent",
        "search_seconds": "time in the search itself, without the embedder",
        "snapshot_hits": "discoveries that used a snapshot in memory instead of Postgres",
        "snapshot_misses": "discoveries without filters for which there was no snapshot of the current catalogue",
        "snapshot_loads": "snapshots that were read from Postgres, by `outcome`: `loaded`, `too_large` or `failed`",
        "snapshot_evictions": "snapshots that were dropped to stay within `TOOLSCOUT_SNAPSHOT_MB`; a rate near that of "
        "the loads means that the users of a day do not fit",
        "snapshot_bytes": "memory that all snapshots take",
        "query_cache": "lookups of query vectors: `hit` or `miss`",
        "embedding_seconds": "time to embed, for a `query` or an `index` run",
        "embedding_failures": "failed calls of the embedder: `timeout`, `unreachable`, `status_429`, …",
        "embedder_breaker_open": "1 from the failure that opens the circuit breaker until a query is embedded again",
        "cloud_seconds": "time that searches through the cloud took, by `outcome`: `succeeded` or `failed`",
        "cloud_breaker_open": "1 from the failure that opens the cloud's circuit breaker until the cloud answers again",
    },
    "Indexing": {
        "index_runs": "index runs that ended in this process: `succeeded`, `failed`, `retried`, `lost`",
        "listings": "lists of tools that index runs got: `server`, or `shared` if another run had fetched a public one",
        "index_seconds": "duration of index runs",
        "tools_embedded": "tools whose vector was computed in this process; cached ones do not count",
        "categorizations": "users whose tools the background task looked at, because their catalogue had changed: "
        "`changed` if categories were written, `unchanged`, or `failed`",
        "categorization_seconds": "how long that took for a user",
        "runs_queued": "index runs that wait, including those whose worker has died (its lease has expired); of all "
        "processes",
        "runs_running": "index runs that a worker is processing; of all processes",
        "oldest_queued_run_seconds": "age of the oldest run that waits; of all processes",
        "tools_pending": "tools that have no vector yet and are found by words alone; of all processes",
    },
    "Database connections": {
        "pool_size": "connections to the database that this process may open",
        "pool_in_use": "connections in use",
        "pool_waiting": "tasks that wait for a connection",
        "pool_wait_seconds": "time until a connection was available",
        "pool_timeouts": "tasks that waited five seconds in vain and were answered with 503",
        "read_replica_reads": "reads that the read replica may answer: `served` by it, or by the primary because it "
        "was `behind`, had no connection free (`busy`), `failed` to answer in time or at all, or is not in use "
        "(`unavailable`); nothing is counted without `TOOLSCOUT_READ_DATABASE_URL`",
        "read_replica_in_use": "1 while the read replica is asked; 0 also without one",
        "read_replica_lag_bytes": "bytes that the primary has written and the read replica had not replayed, as last "
        "compared",
    },
}
_PREFIX = "toolscout_"


def render_page() -> str:
    metrics = list_metrics()
    parts = [_INTRODUCTION]
    for title, meanings in _SECTIONS.items():
        rows = []
        for name, meaning in meanings.items():
            metric = metrics.pop(name)
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            rows.append((f"`{_PREFIX}{name}`", metric._type, labels, meaning))
        parts.append(f"## {title}\n\n" + render_table(("metric", "type", "labels", "meaning"), rows))
    if metrics:
        raise LookupError(f"docs/generators/metrics.py explains no {', '.join(sorted(metrics))}")
    return "\n".join([*parts, _PROCESS])


def list_metrics() -> dict[str, MetricWrapperBase]:
    """By name without the prefix. The registry offers no public way to read a metric that has no sample yet."""
    [registry] = [value for value in vars(Metrics()).values() if isinstance(value, CollectorRegistry)]
    collectors = registry._collector_to_names
    return {
        collector._name.removeprefix(_PREFIX): collector
        for collector in collectors
        if isinstance(collector, MetricWrapperBase)
    }
