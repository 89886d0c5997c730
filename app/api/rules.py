"""REST: ordered rules over tool names, and what they would do."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from app.api.middleware.body_limit import StrictRoute
from app.catalog.policy import EnabledBy, HiddenBy, OutsideBy
from app.catalog.rules import Rule, get_rules
from app.dependencies import CatalogReadCaller, CatalogWriteCaller, ContainerDep, Session, Tenant
from app.management import rules as manage_rules
from app.management.rules import PreviewedTool
from app.schemas.base import Output
from app.schemas.rules import PreviewBody, RulesBody, to_rules

router = APIRouter(tags=["rules"], route_class=StrictRoute)


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
    enabled: bool = Field(description="by the rules, or by a person's own switch, which stands above them")
    enabled_by: EnabledBy
    rule: int | None = Field(description="which of the previewed rules decided, counted from 1")
    visible: bool = Field(description="it could be found and run")
    hidden_by: HiddenBy | None
    outside_by: OutsideBy | None = Field(description="why the project would not see it")
    tags: list[str]
    was_visible: bool = Field(description="it can be found and run now")


class PreviewedRule(Output):
    rule: int
    matched: int = Field(description="tools that it matches")
    decided: int = Field(description="tools that it is the first to decide about")


class PreviewOut(Output):
    items: list[OutcomeOut] = Field(description="every tool, by server and name")
    rules: list[PreviewedRule]
    visible: int
    hidden: int
    changes: int = Field(description="tools that would appear or disappear")


@router.get("/rules")
async def list_rules(session: Session, tenant: Tenant, _: CatalogReadCaller) -> RulesOut:
    """In the order in which they are asked."""
    return RulesOut(rules=_shown(await get_rules(session, tenant.id)))


@router.put("/rules")
async def replace_rules(
    body: RulesBody, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ReplacedRulesOut:
    """All of them, in order, in place of those before."""
    rules = to_rules(body.rules)
    warnings = await manage_rules.replace_rules(container.database, tenant.id, rules, actor=caller.actor)
    return ReplacedRulesOut(rules=_shown(rules), warnings=warnings)


@router.post("/rules/preview")
async def preview_rules(
    body: PreviewBody,
    tenant: Tenant,
    container: ContainerDep,
    _: CatalogReadCaller,
    changed: Annotated[bool, Query(description="only tools that would appear or disappear")] = False,
) -> PreviewOut:
    """What these rules would do in place of the stored ones; nothing is stored."""
    rules = to_rules(body.rules)
    preview = await manage_rules.preview_rules(container.database, tenant.id, rules, body.project_id)
    changing = [each for each in preview.outcomes if each.visible != each.was_visible]
    visible = sum(each.visible for each in preview.outcomes)
    counts = zip(preview.matched, preview.decided, strict=True)
    return PreviewOut(
        items=[_outcome(each) for each in (changing if changed else preview.outcomes)],
        rules=[PreviewedRule(rule=n, matched=m, decided=d) for n, (m, d) in enumerate(counts, start=1)],
        visible=visible,
        hidden=len(preview.outcomes) - visible,
        changes=len(changing),
    )


def _outcome(outcome: PreviewedTool) -> OutcomeOut:
    facts, verdict, placement = outcome.facts, outcome.after, outcome.placed_after
    # what is off for the user is off in every project, whatever its rules say
    ruled = placement if placement is not None and verdict.enabled else None
    by_project = ruled is not None and (ruled.rule is not None or ruled.outside_by == "rule")
    return OutcomeOut(
        tool_key=facts.tool_id,
        name=facts.name,
        server_name=facts.server_name,
        enabled=verdict.enabled and (placement is None or placement.outside_by != "rule"),
        enabled_by="rule" if by_project else verdict.enabled_by,
        rule=verdict.rule if placement is None else ruled.rule if ruled is not None else None,
        visible=outcome.visible,
        hidden_by=verdict.hidden_by,
        outside_by=None if placement is None else placement.outside_by,
        tags=[*verdict.tags, *(() if placement is None else placement.tags)],
        was_visible=outcome.was_visible,
    )


def _shown(rules: Sequence[Rule]) -> list[RuleOut]:
    return [RuleOut.model_validate(rule) for rule in rules]
