"""Counts and times the requests, and writes one access log line for each."""

import logging

from starlette.types import Scope

from app.observability.metrics import Metrics

access_log = logging.getLogger("toolscout.access")

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


def record_request(metrics: Metrics, scope: Scope, status: int, seconds: float) -> None:
    """Labels come from a fixed set: the route's template and known methods, never what the client sent."""
    route = getattr(scope.get("route"), "path", "unmatched")
    method = scope["method"] if scope["method"] in _METHODS else "other"
    metrics.record_request(method, route, status, seconds)
    if access_log.isEnabledFor(logging.INFO):
        access_log.info(
            "request",
            extra={"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 2)},
        )
