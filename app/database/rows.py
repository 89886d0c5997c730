"""From a row to the frozen dataclass that the rooms above know."""

from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Row

T = TypeVar("T")


def record(kind: type[T], row: Row[Any]) -> T:
    """A column for each field, by name; further columns of the row are left out."""
    values = row._mapping
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]
