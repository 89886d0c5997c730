"""What may be said of a tool."""

from pydantic import Field

from app.schemas.base import Input, Tags


class ToolChanges(Input):
    enabled: bool | None = Field(True, description="stands above the rules; null: they decide again")
    tags: Tags = Field([], description="its own, beside those of its server and of rules")
    pinned: bool = Field(False, description="comes first when search fails and all tools are offered")
