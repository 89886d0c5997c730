"""Time series as shapes for SVG charts. Pure: the templates draw them.

A chart has a fixed size, which the page scales. A line has a gap where a value is missing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Literal

NARROW, WIDE = 320, 440
_HEIGHT = 150
LEFT, RIGHT = 46, 6
_TOP, _BOTTOM = 8, 22
_MAX_TIME_LABELS = 5
_MAX_DOTS = 40

Value = float | None
FormatValue = Callable[[float], str]
Kind = Literal["columns", "lines"]


@dataclass(frozen=True)
class Series:
    name: str
    values: Sequence[Value]


@dataclass(frozen=True)
class Column:
    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True)
class Line:
    path: str
    area: str
    dots: Sequence[tuple[float, float, str]]


@dataclass(frozen=True)
class Chart:
    title: str
    description: str
    """A summary in words, for screen readers."""
    legend: Sequence[str]
    gridlines: Sequence[tuple[float, str]]
    """The height of each horizontal line, and the value it stands for."""
    time_labels: Sequence[tuple[float, str]]
    columns: Sequence[Column]
    lines: Sequence[Line]
    width: int
    height: int = _HEIGHT
    left: int = LEFT
    right: int = RIGHT


def make_chart(
    title: str,
    times: Sequence[datetime],
    series: Sequence[Series],
    format_value: FormatValue,
    kind: Kind,
    width: int = NARROW,
) -> Chart:
    values = [value for each in series for value in each.values if value is not None]
    top = _round_up(max(values, default=0.0))
    frame = _Frame(len(times), top, width)
    labels = [_format_time(time, times) for time in times]
    label_step = max(1, math.ceil(len(times) / _MAX_TIME_LABELS))
    return Chart(
        title=title,
        description=_describe(title, series, format_value),
        legend=[each.name for each in series] if len(series) > 1 else [],
        gridlines=[(frame.y(top * share), format_value(top * share)) for share in (0, 0.5, 1)],
        time_labels=[(frame.x(n), labels[n]) for n in range(0, len(times), label_step)],
        columns=_make_columns(frame, series[0], labels, format_value) if kind == "columns" else [],
        lines=[_make_line(frame, each, labels, format_value) for each in series] if kind == "lines" else [],
        width=width,
    )


@dataclass(frozen=True)
class _Frame:
    """Maps positions and values to coordinates."""

    count: int
    top: float
    width: int

    @property
    def step(self) -> float:
        return (self.width - LEFT - RIGHT) / max(1, self.count)

    def x(self, position: int) -> float:
        return round(LEFT + self.step * (position + 0.5), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self.top, 1)

    @property
    def floor(self) -> float:
        return self.y(0)


def _make_columns(frame: _Frame, series: Series, labels: Sequence[str], format_value: FormatValue) -> list[Column]:
    column_width = round(max(1.0, frame.step * 0.72), 1)
    return [
        Column(
            x=round(frame.x(n) - column_width / 2, 1),
            y=frame.y(value),
            width=column_width,
            height=round(frame.floor - frame.y(value), 1),
            label=f"{labels[n]}: {format_value(value)}",
        )
        for n, value in enumerate(series.values)
        if value
    ]


def _make_line(frame: _Frame, series: Series, labels: Sequence[str], format_value: FormatValue) -> Line:
    known = [(n, value) for n, value in enumerate(series.values) if value is not None]
    # consecutive values have the same difference between their position in the series and among the known values
    runs = [list(run) for _, run in groupby(enumerate(known), lambda each: each[1][0] - each[0])]
    points = [[(frame.x(n), frame.y(value)) for _, (n, value) in run] for run in runs]
    dots = [(frame.x(n), frame.y(value), f"{labels[n]}: {format_value(value)}") for n, value in known]
    return Line(
        path=" ".join(_make_path(run) for run in points),
        area=" ".join(f"{_make_path(run)}V{frame.floor}H{run[0][0]}Z" for run in points),
        dots=dots if len(dots) <= _MAX_DOTS else [],
    )


def _make_path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _describe(title: str, series: Sequence[Series], format_value: FormatValue) -> str:
    parts = []
    for each in series:
        known = [value for value in each.values if value is not None]
        if known:
            low, high, last = format_value(min(known)), format_value(max(known)), format_value(known[-1])
            parts.append(f"{each.name} from {low} to {high}, last {last}")
    return f"{title}: {'; '.join(parts) or 'no data'}"


def _format_time(time: datetime, times: Sequence[datetime]) -> str:
    """The longer the time range, the less precise the label."""
    days = (times[-1] - times[0]).days if times else 0
    return time.strftime("%H:%M" if days < 2 else "%d %b" if days > 8 else "%a %H:%M")


def _round_up(value: float) -> float:
    """Return a round number at or above the value as the top of the scale. Its half is a whole number, too, also where
    thousands are written as k."""
    size = 10.0 ** math.floor(math.log10(max(1.0, value)))
    steps = (2, 4, 6, 8, 10) if size == 1 else (1, 2, 4, 6, 8, 10)
    return next(step * size for step in steps if value <= step * size * 1.000001)
