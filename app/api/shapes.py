"""The bases of what comes in and what goes out."""

from collections.abc import Callable
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from app.bodies.shapes import Identifier, Input, Name, Tags, given
from app.database.paging import Page

__all__ = ["Identifier", "Input", "Items", "Name", "Output", "Tags", "given", "items"]

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Output(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class Items(BaseModel, Generic[M]):
    items: list[M]
    next_cursor: str | None = None


def items(page: Page[T], show: Callable[[T], M]) -> Items[M]:
    return Items(items=[show(item) for item in page.items], next_cursor=page.next_cursor)
