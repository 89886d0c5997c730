"""What may be said in rules."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from app.catalog.patterns import MAX_PATTERN
from app.catalog.rules import Rule
from app.schemas.base import Identifier, Input, Name, Tags

PatternText = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]


class RuleBody(Input):
    pattern: list[PatternText] = Field(
        min_length=1,
        max_length=50,
        examples=[["github_*", "!*delete*"]],
        description="globs, `/regex/i` (RE2), `!` negates; matches where one positive pattern does and no negated one",
    )
    server: Name | None = Field(None, description="only tools of the server with this name")
    enabled: bool | None = Field(None, description="the first matching rule that sets it decides")
    tags: Tags = Field([], description="added to all that match")

    def rule(self) -> Rule:
        return Rule(**self.model_dump())


Rules = Annotated[list[RuleBody], Field(max_length=200)]


class RulesBody(Input):
    rules: Rules = Field(description="in order")


class PreviewBody(RulesBody):
    project_id: Identifier | None = Field(None, description="as this project's rules instead of the user's")


def to_rules(bodies: Sequence[RuleBody]) -> list[Rule]:
    return [body.rule() for body in bodies]
