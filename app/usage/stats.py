"""Figures over time, rolled up from minutes when they are read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from app.db.engine import Session
from app.errors import InvalidInput
from app.usage.histogram import SPANS, quantile_ms
from app.usage.repository import FIGURES

Step = Literal["minute", "hour", "day"]

MOST_POINTS = 2_000
TOOLS_SHOWN = 10

_LENGTH = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(2200, 1, 1, tzinfo=UTC)
_USUAL = timedelta(hours=24)


@dataclass(frozen=True)
class Window:
    """From `since`, the beginning of a step in UTC, until before `until`."""

    since: datetime
    until: datetime
    step: Step = "hour"

    @classmethod
    def of(
        cls,
        since: datetime | None = None,
        until: datetime | None = None,
        step: Step = "hour",
        now: datetime | None = None,
    ) -> "Window":
        """What is left open: the last day. Raises `InvalidInput` where there is nothing, or too much, to show."""
        end = until or now or datetime.now(UTC)
        begin = since or max(end, _EPOCH + _USUAL) - _USUAL
        if not _EPOCH <= begin < end <= _LAST:
            raise InvalidInput("`since` must come before `until`, both between 1970 and 2200")
        if (end - begin) / _LENGTH[step] > MOST_POINTS:
            raise InvalidInput(f"at most {MOST_POINTS} points at once: ask for a shorter time or a longer `step`")
        return cls(_EPOCH + (begin - _EPOCH) // _LENGTH[step] * _LENGTH[step], end, step)

    @property
    def length(self) -> timedelta:
        return _LENGTH[self.step]

    def moments(self) -> Iterable[datetime]:
        moment = self.since
        while moment < self.until:
            yield moment
            moment += self.length


@dataclass(frozen=True)
class DiscoveryFigures:
    """Of discoveries. Times are missing where there were none."""

    discoveries: int
    degraded: int
    no_match: int
    cache_hits: int
    tokens_saved: int
    p50_ms: float | None
    p95_ms: float | None


@dataclass(frozen=True)
class Point(DiscoveryFigures):
    at: datetime


@dataclass(frozen=True)
class Totals(DiscoveryFigures):
    """Rates are shares of all discoveries."""

    degraded_rate: float
    no_match_rate: float
    cache_hit_rate: float
    tokens_saved_percent: float


@dataclass(frozen=True)
class NamedTool:
    tool_key: str
    server_name: str
    name: str


@dataclass(frozen=True)
class UsedTool(NamedTool):
    discovered: int
    called: int
    succeeded: int


@dataclass(frozen=True)
class Stats:
    """Tools are those of one user, counted since they are known; of all users together none are told."""

    since: datetime
    until: datetime
    step: Step
    points: Sequence[Point]
    totals: Totals
    most_used: Sequence[UsedTool] = ()
    never_found: Sequence[NamedTool] = ()
    """The first of those that are visible and were in no answer yet."""
    never_found_count: int | None = None


@dataclass(frozen=True)
class _Sums:
    """What is stored of discoveries, added up."""

    discoveries: int = 0
    degraded: int = 0
    no_match: int = 0
    cache_hits: int = 0
    tokens_all: int = 0
    tokens_selected: int = 0
    latencies: Sequence[int] = (0,) * SPANS

    def figures(self) -> dict[str, Any]:
        return {
            "discoveries": self.discoveries,
            "degraded": self.degraded,
            "no_match": self.no_match,
            "cache_hits": self.cache_hits,
            "tokens_saved": self.tokens_all - self.tokens_selected,
            "p50_ms": quantile_ms(self.latencies, 0.5),
            "p95_ms": quantile_ms(self.latencies, 0.95),
        }


_SUMMED = f"""
    SELECT {", ".join(f"sum(s.{name})::bigint" for name in FIGURES)},
           ARRAY[{", ".join(f"sum(s.latencies[{n}])" for n in range(1, SPANS + 1))}]::bigint[],
           date_bin(%(length)s, s.at, %(since)s) AS step
    FROM discovery_stats s WHERE {{whose}} s.at >= %(since)s AND s.at < %(until)s
    GROUP BY step
"""
_OF_ONE = _SUMMED.format(whose="s.user_id = %(user_id)s AND")
_OF_ALL = _SUMMED.format(whose="")

_NAMED = """
    SELECT t.id, s.name, t.name{more}
    FROM mcp_tools t JOIN mcp_servers s ON s.user_id = t.user_id AND s.id = t.server_id
    LEFT JOIN tool_usage u ON u.user_id = t.user_id AND u.tool_id = t.id
    WHERE t.user_id = %(user_id)s AND t.vanished_at IS NULL
"""
_MOST_USED = f"""
    {_NAMED.format(more=", u.discovered, u.called, u.succeeded")} AND u.discovered + u.called > 0
    ORDER BY u.called DESC, u.discovered DESC, s.name, t.name LIMIT {TOOLS_SHOWN}
"""
_UNFOUND = "t.hidden_by IS NULL AND coalesce(u.discovered, 0) = 0"
# by name, as an index has them: the first few are found without a look at the others
_NEVER_FOUND = f"{_NAMED.format(more='')} AND {_UNFOUND} ORDER BY t.name, s.name LIMIT {TOOLS_SHOWN}"
_COUNT_UNFOUND = f"""
    SELECT count(*) FROM mcp_tools t LEFT JOIN tool_usage u ON u.user_id = t.user_id AND u.tool_id = t.id
    WHERE t.user_id = %(user_id)s AND t.vanished_at IS NULL AND {_UNFOUND}
"""


async def read_stats(session: Session, user_id: str | None, window: Window) -> Stats:
    """Of one user; with none, of all together, which needs the system's scope."""
    sums = await _sums(session, user_id, window)
    points = [Point(at=moment, **sums.get(moment, _Sums()).figures()) for moment in window.moments()]
    stats = Stats(window.since, window.until, window.step, points, _totals(_added(sums.values())))
    return stats if user_id is None else await _with_tools(session, user_id, stats)


async def _sums(session: Session, user_id: str | None, window: Window) -> dict[datetime, _Sums]:
    parameters = {"user_id": user_id, "since": window.since, "until": window.until, "length": window.length}
    rows = await session.rows(_OF_ALL if user_id is None else _OF_ONE, parameters)
    return {step: _Sums(*sums) for *sums, step in rows}


def _added(sums: Iterable[_Sums]) -> _Sums:
    columns = list(zip(*(vars(each).values() for each in sums), strict=True))
    if not columns:
        return _Sums()
    *figures, latencies = columns
    by_span = [sum(counts) for counts in zip(*latencies, strict=True)]
    return _Sums(**{name: sum(counts) for name, counts in zip(FIGURES, figures, strict=True)}, latencies=by_span)


def _totals(sums: _Sums) -> Totals:
    figures = sums.figures()
    return Totals(
        **figures,
        degraded_rate=_share(sums.degraded, sums.discoveries),
        no_match_rate=_share(sums.no_match, sums.discoveries),
        cache_hit_rate=_share(sums.cache_hits, sums.discoveries),
        tokens_saved_percent=round(100 * _share(figures["tokens_saved"], sums.tokens_all), 1),
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


async def _with_tools(session: Session, user_id: str, stats: Stats) -> Stats:
    used = await session.rows(_MOST_USED, {"user_id": user_id})
    unfound = await session.rows(_NEVER_FOUND, {"user_id": user_id})
    [(count,)] = await session.rows(_COUNT_UNFOUND, {"user_id": user_id})
    return replace(
        stats,
        most_used=[UsedTool(*row) for row in used],
        never_found=[NamedTool(*named) for named in unfound],
        never_found_count=count,
    )
