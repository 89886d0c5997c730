"""Base classes and shared field types of request and response models."""

from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.db.pagination import Page

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Tag = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
Tags = Annotated[list[Tag], Field(max_length=64)]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Input(BaseModel):
    """No unknown fields, no silent conversions: `"8"` is not 8, and `true` is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


def set_fields(body: BaseModel) -> dict[str, Any]:
    """The fields that a PATCH really named."""
    return {name: getattr(body, name) for name in body.model_fields_set}


class Output(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class Items(BaseModel, Generic[M]):
    items: list[M]
    next_cursor: str | None = None


def render_page(page: Page[T], render: Callable[[T], M]) -> Items[M]:
    return Items(items=[render(item) for item in page.items], next_cursor=page.next_cursor)
