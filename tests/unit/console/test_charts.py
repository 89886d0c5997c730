"""Figures as shapes."""

from datetime import UTC, datetime, timedelta

import pytest

from app.console.charts import LEFT, NARROW, Kind, Plot, Series, Value, plot

START = datetime(2026, 11, 17, tzinfo=UTC)


def drawn(*values: Value, kind: Kind = "lines", step: timedelta = timedelta(hours=1)) -> Plot:
    moments = [START + n * step for n in range(len(values))]
    return plot("Figures", moments, [Series("figures", values)], lambda value: f"{value:g}", kind)


def test_a_line_ends_where_there_is_no_figure_and_begins_anew() -> None:
    [line] = drawn(1, 2, None, 3, 4).lines
    assert line.path.count("M") == 2
    assert line.area.count("Z") == 2
    assert len(line.dots) == 4


def test_columns_stand_on_the_floor_and_reach_as_high_as_their_figure() -> None:
    low, high = drawn(10, 0, 20, kind="columns").columns
    assert low.y + low.height == high.y + high.height
    assert high.height == pytest.approx(2 * low.height, abs=0.2)
    assert low.label == "00:00: 10"


@pytest.mark.parametrize(
    ("largest", "top"), [(0, "1"), (0.7, "0.8"), (1, "1"), (7, "8"), (220, "250"), (9_999, "10000")]
)
def test_the_scale_ends_at_a_figure_that_reads_well(largest: float, top: str) -> None:
    rows = drawn(0, largest).rows
    assert rows[-1][1] == top
    assert rows[0][0] > rows[-1][0]


def test_all_of_it_is_inside_the_frame() -> None:
    shown = drawn(*range(100), kind="columns")
    assert all(column.x >= LEFT and column.x + column.width <= NARROW for column in shown.columns)
    assert len(shown.moments) <= 5


def test_nothing_yet_is_said_so() -> None:
    shown = drawn(None, None)
    assert shown.told == "Figures: nothing yet"
    assert shown.lines[0].path == ""


def test_whoever_cannot_see_it_is_told() -> None:
    assert drawn(3, None, 8, 5).told == "Figures: figures from 3 to 8, last 5"


@pytest.mark.parametrize(("step", "label"), [(1, "00:00"), (36, "Tue 00:00"), (24 * 3, "17 Nov")])
def test_moments_are_as_exact_as_the_span_needs(step: int, label: str) -> None:
    assert drawn(1, 2, 3, 4, 5, step=timedelta(hours=step)).moments[0][1] == label
