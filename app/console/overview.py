"""How discovery fares: the figures of `GET /stats`, drawn."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from app.console.charts import WIDE, Plot, Series, plot
from app.console.page_context import AuditReadCaller, PageContext, page_router
from app.console.rendering import short
from app.usage.stats import Point, Stats, Step, Window, read_stats

router = page_router()

_WINDOWS: dict[str, tuple[str, timedelta, Step]] = {
    "hour": ("Hour", timedelta(hours=1), "minute"),
    "day": ("Day", timedelta(days=1), "hour"),
    "week": ("Week", timedelta(days=7), "hour"),
    "month": ("Month", timedelta(days=30), "day"),
}


@router.get("/overview")
async def show_overview(visit: AuditReadCaller) -> Response:
    chosen = visit.query.text("window")
    chosen = chosen if chosen in _WINDOWS else "day"
    stats = await _stats(visit, chosen)
    windows = [(name, label) for name, (label, _, _) in _WINDOWS.items()]
    return visit.show("overview.html", stats=stats, plots=plots(stats), windows=windows, chosen=chosen)


async def _stats(visit: PageContext, chosen: str) -> Stats:
    """An administrator who acts for nobody sees all users together."""
    _, length, step = _WINDOWS[chosen]
    now = datetime.now(UTC)
    window = Window.create(now - length, now, step)
    user, database = visit.caller.user, visit.container.database
    async with database.system_transaction() if user is None else database.transaction(user.id) as session:
        return await read_stats(session, None if user is None else user.id, window)


def plots(stats: Stats) -> list[Plot]:
    points = stats.points
    moments = [point.at for point in points]
    discoveries = [Series("Discoveries", [point.discoveries for point in points])]
    times = [Series("p50", [point.p50_ms for point in points]), Series("p95", [point.p95_ms for point in points])]
    misses = [Series("no match", _shares(points, "no_match")), Series("fallback", _shares(points, "degraded"))]
    hits = [Series("Cache hits", _shares(points, "cache_hits"))]
    saved = [Series("Tokens saved", [point.tokens_saved for point in points])]
    return [
        plot("Discoveries", moments, discoveries, short, "columns", WIDE),
        plot("Time to answer", moments, times, _milliseconds, "lines", WIDE),
        plot("No match, and fallback", moments, misses, _percent, "lines"),
        plot("Cache hits", moments, hits, _percent, "lines"),
        plot("Tokens saved", moments, saved, short, "columns"),
    ]


def _shares(points: Sequence[Point], figure: str) -> list[float | None]:
    return [100 * getattr(point, figure) / point.discoveries if point.discoveries else None for point in points]


def _percent(value: float) -> str:
    return f"{value:.3g} %"


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"
