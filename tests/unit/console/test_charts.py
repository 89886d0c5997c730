"""The shapes of charts."""

from datetime import UTC, datetime, timedelta

import pytest

from app.console.charts import LEFT, NARROW, Chart, Kind, Series, Value, make_chart
from app.console.rendering import format_compact

START = datetime(2026, 11, 17, tzinfo=UTC)


def chart_of(*values: Value, kind: Kind = "lines", step: timedelta = timedelta(hours=1)) -> Chart:
    times = [START + n * step for n in range(len(values))]
    return make_chart("Numbers", times, [Series("numbers", values)], lambda value: f"{value:g}", kind)


def test_a_line_has_a_gap_where_a_value_is_missing() -> None:
    [line] = chart_of(1, 2, None, 3, 4).lines
    assert line.path.count("M") == 2
    assert line.area.count("Z") == 2
    assert len(line.dots) == 4


def test_columns_start_at_zero_and_are_as_high_as_their_value() -> None:
    low, high = chart_of(10, 0, 20, kind="columns").columns
    assert low.y + low.height == high.y + high.height
    assert high.height == pytest.approx(2 * low.height, abs=0.2)
    assert low.label == "00:00: 10"


@pytest.mark.parametrize(
    ("largest", "labels"),
    [
        (0, ["0", "1", "2"]),
        (0.7, ["0", "1", "2"]),
        (1, ["0", "1", "2"]),
        (3, ["0", "2", "4"]),
        (5, ["0", "3", "6"]),
        (7, ["0", "4", "8"]),
        (12.5, ["0", "10", "20"]),
        (25, ["0", "20", "40"]),
        (100, ["0", "50", "100"]),
        (220, ["0", "200", "400"]),
        (9_999, ["0", "5000", "10000"]),
    ],
)
def test_the_scale_has_whole_and_round_numbers(largest: float, labels: list[str]) -> None:
    gridlines = chart_of(0, largest).gridlines
    assert [label for _, label in gridlines] == labels
    assert gridlines[0][0] > gridlines[-1][0]


@pytest.mark.parametrize("tokens", [1, 70, 1_100, 42_900, 250_000, 1_300_000])
def test_large_numbers_on_the_scale_are_whole_in_their_unit(tokens: int) -> None:
    chart = make_chart("Tokens", [START], [Series("tokens", [tokens])], format_compact, "columns")
    assert not any("." in label for _, label in chart.gridlines)


def test_all_shapes_are_inside_the_frame() -> None:
    chart = chart_of(*range(100), kind="columns")
    assert all(column.x >= LEFT and column.x + column.width <= NARROW for column in chart.columns)
    assert len(chart.time_labels) <= 5


def test_a_chart_without_values_says_so() -> None:
    chart = chart_of(None, None)
    assert chart.description == "Numbers: no data"
    assert chart.lines[0].path == ""


def test_a_chart_has_a_description_for_screen_readers() -> None:
    assert chart_of(3, None, 8, 5).description == "Numbers: numbers from 3 to 8, last 5"


@pytest.mark.parametrize(("step", "label"), [(1, "00:00"), (36, "Tue 00:00"), (24 * 3, "17 Nov")])
def test_the_precision_of_time_labels_depends_on_the_time_range(step: int, label: str) -> None:
    assert chart_of(1, 2, 3, 4, 5, step=timedelta(hours=step)).time_labels[0][1] == label
