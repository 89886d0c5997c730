"""Converts rows to dataclasses, and integrity errors to the name of the violated constraint."""

import re
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Row
from sqlalchemy.exc import IntegrityError

T = TypeVar("T")

# Citus reports an error of another node without the name as a field, and the constraint has the number of the shard.
_CONSTRAINT_OF_SHARD = re.compile(r'"(\w+)_\d+"')


def to_dataclass(kind: type[T], row: Row[Any], **computed: Any) -> T:
    """Build a dataclass from the columns that have the names of its fields; ignore all other columns.

    `computed` fields are given, and take precedence over columns.
    """
    values = {**row._mapping, **computed}
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def violated_constraint(error: IntegrityError) -> str | None:
    """Return the name of the constraint that the row would have violated."""
    diagnosis = getattr(error.orig, "diag", None)
    if diagnosis is None:
        return None
    of_shard = _CONSTRAINT_OF_SHARD.search(diagnosis.message_primary or "")
    return diagnosis.constraint_name or (of_shard and of_shard[1])
