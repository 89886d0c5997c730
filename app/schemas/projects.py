"""What may be said of a project."""

from typing import Annotated

from pydantic import Field

from app.catalog.projects import Optimization
from app.schemas.base import Identifier, Input, Name
from app.schemas.rules import Rules

ServerIds = Annotated[list[Identifier], Field(max_length=1_000)]
_MEMBERS = "its servers; null: all that the user has, now and later"
_OPTIMIZATION = "how it searches; null: discovery answers with core tools alone"
_UNLESS_ASKED = "of requests that name none"
_NAME = "unique among the user's projects"
_READ_ONLY = "only tools that say of themselves that they only read (`readOnlyHint`)"


class NewProjectBody(Input):
    name: Name = Field(description=_NAME, examples=["support"])
    server_ids: ServerIds | None = Field(None, description=_MEMBERS)
    optimization: Optimization | None = Field("hybrid", description=_OPTIMIZATION)
    rules: Rules = Field([], description="they only narrow what the user's own rules leave")
    read_only: bool = Field(False, description=_READ_ONLY)
    limit: int | None = Field(None, ge=1, le=50, description=_UNLESS_ASKED)
    similarity_threshold: float | None = Field(None, ge=0, le=1, description=_UNLESS_ASKED)


class ProjectChanges(Input):
    name: Name = Field("", description=_NAME)
    server_ids: ServerIds | None = Field(None, description=_MEMBERS)
    optimization: Optimization | None = Field(None, description=_OPTIMIZATION)
    rules: Rules = Field([], description="they only narrow what the user's own rules leave")
    read_only: bool = Field(False, description=_READ_ONLY)
    limit: int | None = Field(None, ge=1, le=50, description=_UNLESS_ASKED)
    similarity_threshold: float | None = Field(None, ge=0, le=1, description=_UNLESS_ASKED)
