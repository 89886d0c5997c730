"""What all that comes in is made of."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Tag = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
Tags = Annotated[list[Tag], Field(max_length=64)]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Input(BaseModel):
    """No unknown fields, no silent conversions: `"8"` is not 8, and `true` is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


def given(body: BaseModel) -> dict[str, Any]:
    """The fields that a PATCH really named."""
    return {name: getattr(body, name) for name in body.model_fields_set}
