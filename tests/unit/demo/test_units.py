"""Tests of the demo's unit conversion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.demo.units import _UNITS, QUANTITIES, convert, find_unit


@pytest.mark.parametrize(
    ("value", "source", "target", "result"),
    [
        (42.195, "km", "miles", 26.2187574565),
        (5, "feet", "inches", 60),
        (1, "nautical_miles", "m", 1852),
        (150, "lbs", "Kilograms", 68.0388555),
        (98.6, "°F", "°C", 37),
        (-40, "fahrenheit", "celsius", -40),
        (0, "C", "K", 273.15),
        (1, "gallon", "litres", 3.785411784),
        (100, "km/h", "mph", 62.1371192237),
        (1, "GiB", "MB", 1073.741824),
        (8, "Mb", "MB", 1),
        (8, "mb", "megabytes", 8),
        (2, "weeks", "hours", 336),
        (1, "kWh", "kJ", 3600),
    ],
)
def test_a_value_is_converted(value: float, source: str, target: str, result: float) -> None:
    assert convert(value, find_unit(source), find_unit(target)) == pytest.approx(result, rel=1e-9)


def test_units_of_different_quantities_are_refused_with_both() -> None:
    with pytest.raises(ValueError, match="one is a unit of length, the other of mass"):
        convert(1, find_unit("miles"), find_unit("kg"))


@pytest.mark.parametrize(
    ("name", "advice"), [("kilometrs", "did you mean kilometre"), ("qqqqqq", "there are units of length, mass")]
)
def test_an_unknown_unit_is_refused_with_advice(name: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        find_unit(name)


def test_a_temperature_below_absolute_zero_is_refused() -> None:
    assert convert(-273.15, find_unit("C"), find_unit("K")) == 0
    with pytest.raises(ValueError, match="absolute zero"):
        convert(-274, find_unit("C"), find_unit("F"))


def test_a_value_that_becomes_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        convert(1e308, find_unit("light years"), find_unit("nm"))


@given(st.floats(min_value=1, max_value=1e6), st.sampled_from(sorted(_UNITS)), st.sampled_from(sorted(_UNITS)))
def test_a_conversion_there_and_back_gives_the_same_value(value: float, source: str, target: str) -> None:
    first, second = find_unit(source), find_unit(target)
    if first.quantity == second.quantity:
        back = convert(convert(value, first, second), second, first)
        assert back == pytest.approx(value, rel=1e-6)


def test_every_quantity_has_units() -> None:
    assert {unit.quantity for unit in _UNITS.values()} == set(QUANTITIES)
