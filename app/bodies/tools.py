"""What may be said of a tool."""

from pydantic import Field

from app.bodies.shapes import Input, Tags


class ToolChanges(Input):
    enabled: bool | None = Field(True, description="stands above the rules; null: they decide again")
    tags: Tags = []
    pinned: bool = False
