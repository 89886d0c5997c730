"""REST: a user's rules over tool names, and a preview of their effect."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.api.strict_route import StrictRoute
from app.catalog.rules import get_rules
from app.dependencies import CatalogReadCaller, CatalogWriteCaller, ContainerDep, Session, Tenant
from app.management import rules as manage_rules
from app.schemas.rules import (
    PreviewBody,
    PreviewOut,
    ReplacedRulesOut,
    RulesBody,
    RulesOut,
    render_preview,
    render_rules,
    to_rules,
)

router = APIRouter(tags=["rules"], route_class=StrictRoute)


@router.get("/rules")
async def list_rules(session: Session, tenant: Tenant, _: CatalogReadCaller) -> RulesOut:
    """List the rules in the order in which they apply."""
    return RulesOut(rules=render_rules(await get_rules(session, tenant.id)))


@router.put("/rules")
async def replace_rules(
    body: RulesBody, tenant: Tenant, container: ContainerDep, caller: CatalogWriteCaller
) -> ReplacedRulesOut:
    """Replace all rules by this list."""
    rules = to_rules(body.rules)
    warnings = await manage_rules.replace_rules(
        container.database, container.worker, tenant.id, rules, container.quotas, actor=caller.actor
    )
    return ReplacedRulesOut(rules=render_rules(rules), warnings=warnings)


@router.post("/rules/preview")
async def preview_rules(
    body: PreviewBody,
    tenant: Tenant,
    container: ContainerDep,
    _: CatalogReadCaller,
    changed: Annotated[bool, Query(description="only tools that would appear or disappear")] = False,
) -> PreviewOut:
    """Return what these rules would do in place of the stored ones. Nothing is stored."""
    rules = to_rules(body.rules)
    preview = await manage_rules.preview_rules(container.database, tenant.id, rules, body.project_id)
    return render_preview(preview, changed_only=changed)
