"""Tests of the arguments that the form of a tool begins with."""

import json
from typing import Any

import pytest

from app.console.execution import make_arguments


def test_the_form_begins_with_the_required_arguments() -> None:
    properties = {
        "city": {"type": "string", "examples": ["Oslo", "Wien"]},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "default": 3},
        "detailed": {"type": "boolean"},
        "tags": {"type": "array"},
        "note": {"type": ["string", "null"]},
        "optional": {"type": "string", "default": "left out"},
    }
    required = ["city", "unit", "days", "detailed", "tags", "note", "undescribed"]
    assert json.loads(make_arguments({"properties": properties, "required": required})) == {
        "city": "Oslo",
        "unit": "C",
        "days": 3,
        "detailed": False,
        "tags": [],
        "note": "",
        "undescribed": "",
    }


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"a": {}}},
        {"required": ["a"]},
        {"properties": [], "required": ["a"]},
        {"properties": {"a": {}}, "required": "a"},
        {"properties": {}, "required": [1]},
    ],
    ids=str,
)
def test_a_schema_of_any_shape_gives_an_object(schema: dict[str, Any]) -> None:
    assert make_arguments(schema) == "{}"


@pytest.mark.parametrize("parameter", [True, None, {"type": {}}, {"examples": "no list"}, {"enum": []}], ids=str)
def test_a_parameter_of_any_shape_gives_a_value(parameter: Any) -> None:
    assert json.loads(make_arguments({"properties": {"a": parameter}, "required": ["a"]})) == {"a": ""}
