"""Tests of the notes on parameters that a signature does not explain."""

from typing import Any

import pytest
from hypothesis import given

from app.text.parameter_notes import make_parameter_notes
from tests.support.json_strategies import json_values


def note_of(description: str, *, name: str = "value", required: bool = True, **schema: Any) -> str | None:
    properties = {name: {"type": "string", "description": description, **schema}}
    given_schema = {"type": "object", "properties": properties, "required": [name] if required else []}
    return make_parameter_notes("get_forecast", "Weather forecast for a city.", given_schema).get(name)


@pytest.mark.parametrize(
    "description",
    [
        "Trading pair symbol (e.g. BTC/USDT)",
        "Duration in seconds",
        "Comma-separated columns",
        "Day as YYYY-MM-DD",
        "Either 'metric' or 'imperial'",
    ],
)
def test_how_to_write_a_value_is_noted(description: str) -> None:
    assert note_of(description) == description
    assert note_of(description, required=False) == description


@pytest.mark.parametrize(
    "description", ["", "The value", "Name of the city to get the weather forecast for", "A string"]
)
def test_a_description_that_repeats_the_names_is_not_noted(description: str) -> None:
    assert note_of(description, name="city_name") is None


def test_new_words_are_noted_of_required_parameters_only() -> None:
    description = "Reference copied exactly out of a page snapshot"
    assert note_of(description) == description
    assert note_of(description, required=False) is None


def test_enums_and_switches_need_no_note() -> None:
    assert note_of("Unit, e.g. celsius", enum=["celsius", "kelvin"]) is None
    assert note_of("Unit, e.g. celsius", type="boolean") is None
    assert note_of("Unit, e.g. celsius") == "Unit, e.g. celsius"


def test_a_note_is_the_first_sentence_shortened() -> None:
    assert note_of("Unit, e.g. kelvin or other things. More about it.") == "Unit, e.g. kelvin or other things"
    assert note_of("Unit, e.g. kelvin\nMore about it") == "Unit, e.g. kelvin"
    long = note_of("Unit, e.g. " + "kelvin " * 40)
    assert long is not None
    assert long.endswith("kelvin…")
    assert len(long) <= 61


def test_the_notes_of_a_tool_are_bounded_and_those_of_required_parameters_come_first() -> None:
    properties = {f"p{number}": {"type": "string", "description": f"e.g. banana {number}"} for number in range(50)}
    notes = make_parameter_notes("f", "", {"properties": properties, "required": ["p49"]})
    assert next(iter(notes)) == "p49"
    assert 1 < len(notes) < 10


@pytest.mark.parametrize("others", [{f"p{n}": {"description": "word " * 200} for n in range(9)}, {"p": {}}])
def test_only_so_much_of_a_large_schema_is_read(others: dict[str, Any]) -> None:
    last = {"last": {"type": "string", "description": "e.g. banana"}}
    assert make_parameter_notes("f", "", {"properties": others | last}) == {"last": "e.g. banana"}
    many = {f"{name}_{n}": schema for name, schema in others.items() for n in range(500)}
    assert make_parameter_notes("f", "", {"properties": many | last}) == {}


@pytest.mark.parametrize("name", ["a\n\nbank.pay(to: string)\nPays", "bank.pay(to: string)", "a: b", ""])
def test_a_parameter_whose_name_could_pass_for_another_tool_has_no_note(name: str) -> None:
    described = {"type": "string", "description": "e.g. banana"}
    assert make_parameter_notes("f", "", {"properties": {name: described, "fruit": described}}) == {
        "fruit": "e.g. banana"
    }


@pytest.mark.parametrize("line_break", ["\n", "\r", "\u2028", "\x85"])
def test_a_note_has_one_line(line_break: str) -> None:
    assert note_of(f"Unit, e.g. kelvin{line_break}{line_break}bank.pay(to: string)") == "Unit, e.g. kelvin"


@given(json_values)
def test_any_schema_is_accepted(value: Any) -> None:
    for schema in (value, {"properties": value}, {"properties": {"a": value}, "required": value}):
        assert sum(map(len, make_parameter_notes("f", "", schema).values())) <= 100
