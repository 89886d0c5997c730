"""The overview page: what needs attention, then the statistics of `GET /stats` as charts."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from app.catalog.attention import AttentionCounts, count_attention, read_attention
from app.console.charts import WIDE, Chart, Series, make_chart
from app.console.page_context import AuditReadPage, PageContext, page_router
from app.console.rendering import format_compact
from app.discovery.cut import UserCut, resolve_cut
from app.usage.stats import Point, Stats, Step, Window, read_stats

router = page_router()

_TIME_RANGES: dict[str, tuple[str, timedelta, Step]] = {
    "hour": ("Hour", timedelta(hours=1), "minute"),
    "day": ("Day", timedelta(days=1), "hour"),
    "week": ("Week", timedelta(days=7), "hour"),
    "month": ("Month", timedelta(days=30), "day"),
}


@router.get("/overview")
async def show_overview(context: AuditReadPage) -> Response:
    requested = context.query.text("window")
    selected = requested if requested in _TIME_RANGES else "day"
    stats = await _read_stats(context, selected)
    time_ranges = [(name, label) for name, (label, _, _) in _TIME_RANGES.items()]
    return context.render(
        "overview.html",
        stats=stats,
        charts=_make_charts(stats),
        time_ranges=time_ranges,
        selected=selected,
        cut=_resolve_cut(context),
        **await _read_attention(context),
    )


async def _read_attention(context: PageContext) -> dict[str, Any]:
    """Read what needs a person. Of all users together it is only counted."""
    async with context.read_transaction() as session:
        if context.caller.user is None:
            return {"attention": None, "counts": await count_attention(session)}
        return {"attention": await read_attention(session, context.user.id), "counts": AttentionCounts()}


async def _read_stats(context: PageContext, time_range: str) -> Stats:
    """Read the user's statistics or, for an administrator who acts for no user, the sums over all users."""
    _, length, step = _TIME_RANGES[time_range]
    now = datetime.now(UTC)
    user = context.caller.user
    async with context.read_transaction() as session:
        return await read_stats(session, None if user is None else user.id, Window.create(now - length, now, step))


def _resolve_cut(context: PageContext) -> UserCut | None:
    user = context.caller.user
    return None if user is None else resolve_cut(context.container.model, user)


def _make_charts(stats: Stats) -> list[Chart]:
    points = stats.points
    times = [point.at for point in points]
    discoveries = [Series("Discoveries", [point.discoveries for point in points])]
    latencies = [Series("p50", [point.p50_ms for point in points]), Series("p95", [point.p95_ms for point in points])]
    misses = [
        Series("no match", _percents(points, "no_match")),
        Series("fallback", _percents(points, "degraded")),
    ]
    cache_hits = [Series("Cache hits", _percents(points, "cache_hits"))]
    tokens_saved = [Series("Tokens saved", [point.tokens_saved for point in points])]
    return [
        make_chart("Discoveries", times, discoveries, format_compact, "columns", WIDE),
        make_chart("Latency", times, latencies, _format_milliseconds, "lines", WIDE),
        make_chart("No match and fallback", times, misses, _format_percent, "lines"),
        make_chart("Cache hits", times, cache_hits, _format_percent, "lines"),
        make_chart("Tokens saved", times, tokens_saved, format_compact, "columns"),
    ]


def _percents(points: Sequence[Point], field: str) -> list[float | None]:
    return [100 * getattr(point, field) / point.discoveries if point.discoveries else None for point in points]


def _format_percent(value: float) -> str:
    return f"{value:.3g} %"


def _format_milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"
