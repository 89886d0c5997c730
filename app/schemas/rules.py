"""Request and response models of rules."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from app.catalog.patterns import MAX_PATTERN
from app.catalog.rules import Rule
from app.catalog.visibility_policy import EnabledBy, HiddenBy, OutsideBy
from app.management.rules import Preview, PreviewedTool
from app.schemas.base import Identifier, Input, Output, Tags, Visible, make_synonyms, require_visible

PatternText = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN), AfterValidator(require_visible)]


class RuleBody(Input):
    synonyms = make_synonyms(
        pattern="patterns glob globs name tool tools match",
        enabled="allow allowed",
    )

    pattern: list[PatternText] = Field(
        min_length=1,
        max_length=50,
        examples=[["github_*", "!*delete*"]],
        description="globs, or `/regex/i` (RE2); `!` negates. Matches if one positive and no negated pattern matches",
    )
    server: Visible | None = Field(None, description="only tools of the server with this name")
    enabled: bool | None = Field(None, description="the first matching rule that sets it decides")
    tags: Tags = Field([], description="added to all tools that match")

    def rule(self) -> Rule:
        return Rule(**self.model_dump())


Rules = Annotated[list[RuleBody], Field(max_length=200)]


class RulesBody(Input):
    rules: Rules = Field(description="in order")


class PreviewBody(RulesBody):
    project_id: Identifier | None = Field(None, description="preview as this project's rules instead of the user's")


def to_rules(bodies: Sequence[RuleBody]) -> list[Rule]:
    return [body.rule() for body in bodies]


class RuleOut(Output):
    pattern: list[str]
    server: str | None
    enabled: bool | None
    tags: list[str]


class RulesOut(Output):
    rules: list[RuleOut]


class ReplacedRulesOut(RulesOut):
    warnings: list[str] = Field(description="rules that do nothing, or match no tool so far")


class OutcomeOut(Output):
    tool_key: str
    name: str
    server_name: str
    enabled: bool = Field(description="by the rules, or by a person's switch, which overrides them")
    enabled_by: EnabledBy
    rule: int | None = Field(description="which of the previewed rules decided, counted from 1")
    visible: bool = Field(description="whether it could be found")
    hidden_by: HiddenBy | None
    outside_by: OutsideBy | None = Field(description="why the project would not see it")
    tags: list[str]
    was_visible: bool = Field(description="whether it can be found now")


class PreviewedRule(Output):
    rule: int
    matched: int = Field(description="tools that it matches")
    decided: int = Field(description="tools that it is the first to decide about")


class PreviewOut(Output):
    items: list[OutcomeOut] = Field(description="all tools, by server and name")
    rules: list[PreviewedRule]
    visible: int
    hidden: int
    changes: int = Field(description="tools that would appear or disappear")


def render_rules(rules: Sequence[Rule]) -> list[RuleOut]:
    return [RuleOut.model_validate(rule) for rule in rules]


def render_preview(preview: Preview, *, changed_only: bool) -> PreviewOut:
    changed = [tool for tool in preview.tools if tool.visible != tool.was_visible]
    visible = sum(tool.visible for tool in preview.tools)
    counts = zip(preview.matched, preview.decided, strict=True)
    return PreviewOut(
        items=[_render_previewed_tool(tool) for tool in (changed if changed_only else preview.tools)],
        rules=[
            PreviewedRule(rule=position, matched=matched, decided=decided)
            for position, (matched, decided) in enumerate(counts, start=1)
        ],
        visible=visible,
        hidden=len(preview.tools) - visible,
        changes=len(changed),
    )


def _render_previewed_tool(tool: PreviewedTool) -> OutcomeOut:
    facts, decision, in_project = tool.facts, tool.after, tool.in_project_after
    enabled_by, rule = decision.enabled_by, decision.rule
    if in_project is not None:
        # a tool that is disabled for the user is disabled in every project, whatever the project's rules say
        rule = in_project.rule if decision.enabled else None
        if decision.enabled and (in_project.rule is not None or in_project.outside_by == "rule"):
            enabled_by = "rule"
    return OutcomeOut(
        tool_key=facts.tool_id,
        name=facts.name,
        server_name=facts.server_name,
        enabled=decision.enabled and (in_project is None or in_project.outside_by != "rule"),
        enabled_by=enabled_by,
        rule=rule,
        visible=tool.visible,
        hidden_by=decision.hidden_by,
        outside_by=None if in_project is None else in_project.outside_by,
        tags=[*decision.tags, *(() if in_project is None else in_project.tags)],
        was_visible=tool.was_visible,
    )
