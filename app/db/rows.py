"""From a row to the frozen dataclass that the rooms above know; and from a refusal to the rule that was broken."""

from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Row
from sqlalchemy.exc import IntegrityError

T = TypeVar("T")


def record(kind: type[T], row: Row[Any]) -> T:
    """A column for each field, by name; further columns of the row are left out."""
    values = row._mapping
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def violated_constraint(error: IntegrityError) -> str | None:
    """The name of the constraint that a row would have broken."""
    diagnosis = getattr(error.orig, "diag", None)
    return None if diagnosis is None else diagnosis.constraint_name
