"""Tests of the demo's time zones and times."""

from datetime import date, time
from zoneinfo import ZoneInfo

import pytest

from app.demo.clock import convert, find_zone, make_local, parse_date, parse_time

VIENNA, NEW_YORK = ZoneInfo("Europe/Vienna"), ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("Europe/Vienna", "Europe/Vienna"),
        ("europe/vienna", "Europe/Vienna"),
        ("Tokyo", "Asia/Tokyo"),
        (" New York ", "America/New_York"),
        ("UTC", "UTC"),
        ("CET", "CET"),
        ("London", "Europe/London"),
    ],
)
def test_a_zone_is_found_by_its_name_or_city(name: str, zone: str) -> None:
    assert find_zone(name).key == zone


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Europe/Viena", "did you mean Europe/Vienna"),
        ("Tokio", "Asia/Tokyo"),
        ("../../etc/passwd", "such as"),
        ("", ""),
    ],
)
def test_an_unknown_zone_is_refused_with_similar_names(name: str, advice: str) -> None:
    with pytest.raises(ValueError, match=f"there is no time zone .*{advice}"):
        find_zone(name)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("14:30", time(14, 30)),
        ("9:05:30", time(9, 5, 30)),
        ("2:30 pm", time(14, 30)),
        ("12 am", time(0)),
        ("12PM", time(12)),
    ],
)
def test_a_time_is_read(text: str, parsed: time) -> None:
    assert parse_time(text) == parsed


@pytest.mark.parametrize("text", ["25:00", "12:60", "13 pm", "0:30 am", "noon", "", "14"])
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_time(text)


def test_a_date_is_read_and_anything_else_is_refused() -> None:
    assert parse_date("2026-11-18") == date(2026, 11, 18)
    with pytest.raises(ValueError, match="is not a date, such as 2026-11-18"):
        parse_date("18.11.2026")


def test_a_time_is_converted_to_the_other_zone_with_its_day() -> None:
    local = make_local(date(2026, 11, 18), time(20, 30), NEW_YORK)
    assert convert(local, VIENNA).isoformat() == "2026-11-19T02:30:00+01:00"


def test_a_time_that_the_clocks_skip_is_refused() -> None:
    assert make_local(date(2026, 3, 29), time(1, 30), VIENNA).hour == 1
    with pytest.raises(ValueError, match="does not exist on 2026-03-29 in Europe/Vienna"):
        make_local(date(2026, 3, 29), time(2, 30), VIENNA)


def test_a_date_at_the_end_of_the_calendar_is_refused() -> None:
    with pytest.raises(ValueError, match="too far away"):
        make_local(date(9999, 12, 31), time(23), NEW_YORK)
    with pytest.raises(ValueError, match="too far away"):
        convert(make_local(date(9999, 12, 31), time(23), ZoneInfo("UTC")), ZoneInfo("Asia/Tokyo"))
