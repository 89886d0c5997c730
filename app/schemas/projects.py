"""Request and response models of projects."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field

from app.catalog.projects import Optimization, Project
from app.catalog.rules import Rule
from app.schemas.base import Changes, Identifier, Input, Name, Output, ShownText, make_synonyms
from app.schemas.rules import RuleOut, Rules, render_rules

ServerIds = Annotated[list[Identifier], Field(max_length=1_000)]
_NAME = "unique among the user's projects"
_SERVER_IDS = "the project's servers; null: all that the user has, now and later"
_OPTIMIZATION = (
    "the search strategy; `cloud`: another catalogue service searches, which `TOOLSCOUT_CLOUD_URL` names; null: "
    "discovery answers with core tools only"
)
_RULES = "can only narrow what the user's own rules leave"
_READ_ONLY = "only tools that are declared read-only (`readOnlyHint`), by their server or by you"
_DEFAULT = "used where the request does not set it"


class NewProjectBody(Input):
    synonyms = make_synonyms(
        optimization="strategy mode",
        server_ids="servers",
        similarity_threshold="threshold",
        limit="top_k max_results",
    )

    name: Name = Field(description=_NAME, examples=["support"])
    server_ids: ServerIds | None = Field(None, description=_SERVER_IDS)
    optimization: Optimization | None = Field("hybrid", description=_OPTIMIZATION)
    rules: Rules = Field([], description=_RULES)
    read_only: bool = Field(False, description=_READ_ONLY)
    limit: int | None = Field(None, ge=1, le=50, description=_DEFAULT)
    similarity_threshold: float | None = Field(None, ge=0, le=1, description=_DEFAULT)


class ProjectChanges(Changes):
    synonyms = NewProjectBody.synonyms

    name: Name = Field("", description=_NAME)
    server_ids: ServerIds | None = Field(None, description=_SERVER_IDS)
    optimization: Optimization | None = Field(None, description=_OPTIMIZATION)
    rules: Rules = Field([], description=_RULES)
    read_only: bool = Field(False, description=_READ_ONLY)
    limit: int | None = Field(None, ge=1, le=50, description=_DEFAULT)
    similarity_threshold: float | None = Field(None, ge=0, le=1, description=_DEFAULT)


class ProjectOut(Output):
    id: str
    name: ShownText
    server_ids: list[str] | None
    optimization: Optimization | None
    rules: list[RuleOut]
    read_only: bool
    limit: int | None
    similarity_threshold: float | None
    created_at: datetime
    updated_at: datetime


def render_project(project: Project, rules: Sequence[Rule]) -> ProjectOut:
    return ProjectOut(**vars(project), rules=render_rules(rules))
