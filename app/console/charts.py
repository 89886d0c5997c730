"""Figures over time as shapes: what a template needs to draw them as SVG. Pure.

A plot has a fixed size and is stretched by the page; a line ends where there is no figure and begins anew behind it.
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
_LABELS = 5
_MOST_DOTS = 40

Value = float | None
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
class Plot:
    title: str
    told: str
    """For whoever cannot see it."""
    names: Sequence[str]
    rows: Sequence[tuple[float, str]]
    """Where a line of the grid runs, and what it stands for."""
    moments: Sequence[tuple[float, str]]
    columns: Sequence[Column]
    lines: Sequence[Line]
    width: int
    height: int = _HEIGHT
    left: int = LEFT
    right: int = RIGHT


def plot(
    title: str,
    moments: Sequence[datetime],
    series: Sequence[Series],
    shown: Callable[[float], str],
    kind: Kind,
    width: int = NARROW,
) -> Plot:
    values = [value for each in series for value in each.values if value is not None]
    top = _round_up(max(values, default=0.0))
    frame = _Frame(len(moments), top, width)
    labels = [_when(moment, moments) for moment in moments]
    return Plot(
        title=title,
        told=_told(title, series, shown),
        names=[each.name for each in series] if len(series) > 1 else [],
        rows=[(frame.y(top * share), shown(top * share)) for share in (0, 0.5, 1)],
        moments=[(frame.x(n), labels[n]) for n in _spread(len(moments))],
        columns=_columns(frame, series[0], labels, shown) if kind == "columns" else [],
        lines=[_line(frame, each, labels, shown) for each in series] if kind == "lines" else [],
        width=width,
    )


@dataclass(frozen=True)
class _Frame:
    count: int
    top: float
    width: int

    @property
    def step(self) -> float:
        return (self.width - LEFT - RIGHT) / max(1, self.count)

    def x(self, place: int) -> float:
        return round(LEFT + self.step * (place + 0.5), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self.top, 1)

    @property
    def floor(self) -> float:
        return self.y(0)


def _columns(frame: _Frame, series: Series, labels: Sequence[str], shown: Callable[[float], str]) -> list[Column]:
    wide = round(max(1.0, frame.step * 0.72), 1)
    return [
        Column(
            x=round(frame.x(n) - wide / 2, 1),
            y=frame.y(value),
            width=wide,
            height=round(frame.floor - frame.y(value), 1),
            label=_point(labels[n], shown(value)),
        )
        for n, value in enumerate(series.values)
        if value
    ]


def _line(frame: _Frame, series: Series, labels: Sequence[str], shown: Callable[[float], str]) -> Line:
    known = [(n, value) for n, value in enumerate(series.values) if value is not None]
    # neighbours have one difference between their place in the whole and their place among the known
    runs = [list(run) for _, run in groupby(enumerate(known), lambda each: each[1][0] - each[0])]
    points = [[(frame.x(n), frame.y(value)) for _, (n, value) in run] for run in runs]
    alone = len(known) <= _MOST_DOTS
    return Line(
        path=" ".join(_path(run) for run in points),
        area=" ".join(f"{_path(run)}V{frame.floor}H{run[0][0]}Z" for run in points),
        dots=[(frame.x(n), frame.y(value), _point(labels[n], shown(value))) for n, value in known] if alone else [],
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _point(moment: str, value: str) -> str:
    return f"{moment}: {value}"


def _told(title: str, series: Sequence[Series], shown: Callable[[float], str]) -> str:
    parts = []
    for each in series:
        known = [value for value in each.values if value is not None]
        if known:
            parts.append(f"{each.name} from {shown(min(known))} to {shown(max(known))}, last {shown(known[-1])}")
    return f"{title}: {'; '.join(parts) or 'nothing yet'}"


def _when(moment: datetime, moments: Sequence[datetime]) -> str:
    days = (moments[-1] - moments[0]).days if moments else 0
    return moment.strftime("%H:%M" if days < 2 else "%d %b" if days > 8 else "%a %H:%M")


def _spread(count: int) -> list[int]:
    """A few places, from the first to near the last, evenly."""
    return list(range(0, count, max(1, math.ceil(count / _LABELS))))


def _round_up(value: float) -> float:
    """To a figure that reads well at the end of a scale, and at its half."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if value <= step * size * 1.000001)
