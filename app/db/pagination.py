"""Keyset pagination: a cursor holds the sort key of the last row of a page."""

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
    """Return one page of the statement's rows. The columns of `order_by` must be unique together.

    One more row than requested is read, to know whether there is a next page.
    """
    if request.cursor is not None:
        key = zip(_decode_cursor(request.cursor), order_by, strict=True)
        last = tuple_(*(literal(_parse_key(text, column), column.type) for text, column in key))
        statement = statement.where(tuple_(*order_by) < last if descending else tuple_(*order_by) > last)
    order = [key.desc() for key in order_by] if descending else order_by
    statement = statement.order_by(*order).limit(request.limit + 1)
    rows = (
        await session.execute(statement.add_columns(*(key.label(f"key_{i}") for i, key in enumerate(order_by))))
    ).all()
    page = rows[: request.limit]
    cursor = _encode_cursor(page[-1].key_0, page[-1].key_1) if len(rows) > request.limit else None
    return Page([build(row) for row in page], cursor)


def _encode_cursor(*key: str | datetime) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode()


def _parse_key(text: str, column: ColumnElement[Any]) -> str | datetime:
    """Convert to the column's type, so that the comparison can use an index on the column."""
    if not isinstance(column.type, DateTime):
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise _invalid_cursor() from error


def _decode_cursor(cursor: str) -> tuple[str, str]:
    try:
        first, second = orjson.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, binascii.Error, TypeError) as error:
        raise _invalid_cursor() from error
    if not (isinstance(first, str) and isinstance(second, str)) or "\0" in first + second:
        raise _invalid_cursor()
    return first, second


def _invalid_cursor() -> InvalidInput:
    return InvalidInput("invalid cursor: start again without one")
