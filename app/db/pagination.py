"""Lists in pages: a cursor says after which row the next page begins, and nothing else."""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import orjson
from sqlalchemy import DateTime, Select, literal, tuple_
from sqlalchemy.sql import ColumnElement

from app.db.engine import Session
from app.errors import InvalidInput

T = TypeVar("T")

MAX_PAGE = 200


@dataclass(frozen=True)
class Page(Generic[T]):
    items: Sequence[T]
    next_cursor: str | None


@dataclass(frozen=True)
class PageRequest:
    limit: int = 50
    cursor: str | None = None


async def fetch_page(
    session: Session,
    statement: Select[Any],
    order_by: tuple[ColumnElement[Any], ColumnElement[str]],
    request: PageRequest,
    build: Callable[[Any], T],
    *,
    descending: bool = False,
) -> Page[T]:
    """One row more than asked tells whether there is a next page. The order's columns must be unique together."""
    if request.cursor is not None:
        key = zip(_decoded(request.cursor), order_by, strict=True)
        last = tuple_(*(literal(_typed(text, column), column.type) for text, column in key))
        statement = statement.where(tuple_(*order_by) < last if descending else tuple_(*order_by) > last)
    order = [key.desc() for key in order_by] if descending else order_by
    statement = statement.order_by(*order).limit(request.limit + 1)
    rows = (
        await session.execute(statement.add_columns(*(key.label(f"key_{i}") for i, key in enumerate(order_by))))
    ).all()
    shown = rows[: request.limit]
    cursor = _encoded(shown[-1].key_0, shown[-1].key_1) if len(rows) > request.limit else None
    return Page([build(row) for row in shown], cursor)


def _encoded(*key: str | datetime) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode()


def _typed(text: str, column: ColumnElement[Any]) -> str | datetime:
    """As the column has it, so that an index on the column serves."""
    if not isinstance(column.type, DateTime):
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise _not_ours() from error


def _decoded(cursor: str) -> tuple[str, str]:
    try:
        first, second = orjson.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, binascii.Error, TypeError) as error:
        raise _not_ours() from error
    if not (isinstance(first, str) and isinstance(second, str)) or "\0" in first + second:
        raise _not_ours()
    return first, second


def _not_ours() -> InvalidInput:
    return InvalidInput("the cursor is not one of ours; start again without it")
