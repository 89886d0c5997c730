"""Discovery statistics over time, aggregated from minutes when they are read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from app.db.engine import Session
from app.errors import InvalidInput
from app.usage.histogram import BUCKETS, quantile_ms
from app.usage.repository import STAT_COLUMNS, STATS_RETENTION

Step = Literal["minute", "hour", "day"]

MAX_POINTS = 2_000
MAX_TOOLS = 10

_STEP_LENGTHS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_TIME = datetime(2200, 1, 1, tzinfo=UTC)
_DEFAULT_LENGTH = timedelta(hours=24)


@dataclass(frozen=True)
class Window:
    """The time from `since`, the start of a step in UTC, up to but not including `until`."""

    since: datetime
    until: datetime
    step: Step = "hour"

    @classmethod
    def create(
        cls,
        since: datetime | None = None,
        until: datetime | None = None,
        step: Step = "hour",
        now: datetime | None = None,
    ) -> "Window":
        """Fill in the defaults: the last day. Raise `InvalidInput` if the window is empty or has too many points."""
        end = until or now or datetime.now(UTC)
        begin = since or max(end, _EPOCH + _DEFAULT_LENGTH) - _DEFAULT_LENGTH
        if not _EPOCH <= begin < end <= _MAX_TIME:
            raise InvalidInput("`since` must be before `until`, both between 1970 and 2200")
        if (end - begin) / _STEP_LENGTHS[step] > MAX_POINTS:
            raise InvalidInput(f"at most {MAX_POINTS} points: choose a shorter time or a longer `step`")
        return cls(_EPOCH + (begin - _EPOCH) // _STEP_LENGTHS[step] * _STEP_LENGTHS[step], end, step)

    @property
    def length(self) -> timedelta:
        return _STEP_LENGTHS[self.step]

    def steps(self) -> Iterable[datetime]:
        start = self.since
        while start < self.until:
            yield start
            start += self.length


@dataclass(frozen=True)
class DiscoveryStats:
    """Statistics of discoveries. Durations are None if there were no discoveries."""

    discoveries: int
    degraded: int
    no_match: int
    cache_hits: int
    tokens_saved: int
    p50_ms: float | None
    p95_ms: float | None


@dataclass(frozen=True)
class Point(DiscoveryStats):
    at: datetime


@dataclass(frozen=True)
class Totals(DiscoveryStats):
    """Statistics of a whole window. Rates are shares of all discoveries."""

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
    """Statistics over time. Tools are listed for one user only, and counted since they were first indexed."""

    since: datetime
    until: datetime
    step: Step
    points: Sequence[Point]
    totals: Totals
    most_used: Sequence[UsedTool] = ()
    never_found: Sequence[NamedTool] = ()
    """The first of the visible tools that no discovery has returned yet."""
    never_found_count: int | None = None


@dataclass(frozen=True)
class _Sums:
    """Sums of the stored counts."""

    discoveries: int = 0
    degraded: int = 0
    no_match: int = 0
    cache_hits: int = 0
    tokens_all: int = 0
    tokens_selected: int = 0
    not_english: int = 0
    latencies: Sequence[int] = (0,) * BUCKETS

    def to_stats(self) -> dict[str, Any]:
        return {
            "discoveries": self.discoveries,
            "degraded": self.degraded,
            "no_match": self.no_match,
            "cache_hits": self.cache_hits,
            "tokens_saved": self.tokens_all - self.tokens_selected,
            "p50_ms": quantile_ms(self.latencies, 0.5),
            "p95_ms": quantile_ms(self.latencies, 0.95),
        }


_SELECT_SUMS = f"""
    SELECT {", ".join(f"sum(s.{name})::bigint" for name in STAT_COLUMNS)},
           ARRAY[{", ".join(f"sum(s.latencies[{n}])" for n in range(1, BUCKETS + 1))}]::bigint[],
           date_bin(%(length)s, s.at, %(since)s) AS step
    FROM discovery_stats s WHERE {{filter}} s.at >= %(since)s AND s.at < %(until)s
    GROUP BY step
"""
_SELECT_SUMS_OF_USER = _SELECT_SUMS.format(filter="s.user_id = %(user_id)s AND")
_SELECT_SUMS_OF_ALL = _SELECT_SUMS.format(filter="")

_COUNT_NOT_ENGLISH = """
    SELECT coalesce(sum(not_english), 0)::bigint, coalesce(sum(discoveries), 0)::bigint
    FROM discovery_stats WHERE at >= %(since)s
"""

_SELECT_TOOLS = """
    SELECT t.id, s.name, t.name{columns}
    FROM mcp_tools t JOIN mcp_servers s ON s.user_id = t.user_id AND s.id = t.server_id
    LEFT JOIN tool_usage u ON u.user_id = t.user_id AND u.tool_id = t.id
    WHERE t.user_id = %(user_id)s AND t.vanished_at IS NULL
"""
_SELECT_MOST_USED = f"""
    {_SELECT_TOOLS.format(columns=", u.discovered, u.called, u.succeeded")} AND u.discovered + u.called > 0
    ORDER BY u.called DESC, u.discovered DESC, s.name, t.name LIMIT {MAX_TOOLS}
"""
_NEVER_FOUND = "t.hidden_by IS NULL AND coalesce(u.discovered, 0) = 0"
# Ordered as in an index, so that Postgres finds the first few without reading the rest.
_SELECT_NEVER_FOUND = f"{_SELECT_TOOLS.format(columns='')} AND {_NEVER_FOUND} ORDER BY t.name, s.name LIMIT {MAX_TOOLS}"
_COUNT_NEVER_FOUND = f"""
    SELECT count(*) FROM mcp_tools t LEFT JOIN tool_usage u ON u.user_id = t.user_id AND u.tool_id = t.id
    WHERE t.user_id = %(user_id)s AND t.vanished_at IS NULL AND {_NEVER_FOUND}
"""


async def read_stats(session: Session, user_id: str | None, window: Window) -> Stats:
    """Return the statistics of one user; without a user, of all users together, which needs the system scope."""
    sums = await _read_sums(session, user_id, window)
    points = [Point(at=start, **sums.get(start, _Sums()).to_stats()) for start in window.steps()]
    stats = Stats(window.since, window.until, window.step, points, _compute_totals(_add_sums(sums.values())))
    return stats if user_id is None else await _add_tools(session, user_id, stats)


async def count_not_english(session: Session) -> tuple[int, int]:
    """Return how many of all users' stored discoveries were not in English, and how many there were.

    They are kept for `STATS_RETENTION`. This needs the system scope.
    """
    parameters = {"since": datetime.now(UTC) - STATS_RETENTION}
    [(not_english, total)] = await session.rows(_COUNT_NOT_ENGLISH, parameters)
    return not_english, total


async def _read_sums(session: Session, user_id: str | None, window: Window) -> dict[datetime, _Sums]:
    parameters = {"user_id": user_id, "since": window.since, "until": window.until, "length": window.length}
    rows = await session.rows(_SELECT_SUMS_OF_ALL if user_id is None else _SELECT_SUMS_OF_USER, parameters)
    return {step: _Sums(*sums) for *sums, step in rows}


def _add_sums(sums: Iterable[_Sums]) -> _Sums:
    columns = list(zip(*(vars(each).values() for each in sums), strict=True))
    if not columns:
        return _Sums()
    *stats, latencies = columns
    by_bucket = [sum(counts) for counts in zip(*latencies, strict=True)]
    return _Sums(**{name: sum(counts) for name, counts in zip(STAT_COLUMNS, stats, strict=True)}, latencies=by_bucket)


def _compute_totals(sums: _Sums) -> Totals:
    stats = sums.to_stats()
    return Totals(
        **stats,
        degraded_rate=_share(sums.degraded, sums.discoveries),
        no_match_rate=_share(sums.no_match, sums.discoveries),
        cache_hit_rate=_share(sums.cache_hits, sums.discoveries),
        tokens_saved_percent=round(100 * _share(stats["tokens_saved"], sums.tokens_all), 1),
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


async def _add_tools(session: Session, user_id: str, stats: Stats) -> Stats:
    used = await session.rows(_SELECT_MOST_USED, {"user_id": user_id})
    never_found = await session.rows(_SELECT_NEVER_FOUND, {"user_id": user_id})
    [(count,)] = await session.rows(_COUNT_NEVER_FOUND, {"user_id": user_id})
    return replace(
        stats,
        most_used=[UsedTool(*row) for row in used],
        never_found=[NamedTool(*row) for row in never_found],
        never_found_count=count,
    )
