"""Changes of what decides over all of a user's servers: the rules and the projects, and what they would do."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from app import audit
from app.catalog.policy import NO_PROJECT, PolicyEvaluator, ProjectVisibility, ToolFacts, VisibilityDecision
from app.catalog.projects import (
    Project,
    change_project,
    count_projects,
    delete_project,
    get_project,
    insert_project,
)
from app.catalog.rules import Rule, RuleMatch, RuleSet, check_rules, store_rules
from app.catalog.visibility import load_evaluator, lock_user, read_facts, recompute_visibility
from app.db.engine import Session
from app.db.tables import USER_RULES, mcp_servers
from app.errors import InvalidInput, NotFound

MAX_PROJECTS = 100
"""Each tool's search row names those that see it, and must stay small."""


@dataclass(frozen=True)
class PreviewedTool:
    """Of a tool under rules that may not be stored yet."""

    facts: ToolFacts
    before: VisibilityDecision
    after: VisibilityDecision
    placed_before: ProjectVisibility | None
    placed_after: ProjectVisibility | None
    """In the project that the rules are for."""

    @property
    def is_ruled(self) -> bool:
        """Whether the rules are asked about it at all: a project's not about what lies outside of it."""
        return self.placed_after is None or self.placed_after.outside_by in (None, "rule")

    @property
    def was_visible(self) -> bool:
        return _seen(self.before, self.placed_before)

    @property
    def visible(self) -> bool:
        return _seen(self.after, self.placed_after)


def _seen(verdict: VisibilityDecision, placement: ProjectVisibility | None) -> bool:
    return verdict.visible and (placement is None or placement.outside_by is None)


@dataclass(frozen=True)
class Preview:
    outcomes: Sequence[PreviewedTool]
    matched: Sequence[int]
    """How many tools each of the rules matches."""
    decided: Sequence[int]
    """How many it is the first to decide about."""


async def replace_rules(session: Session, user_id: str, rules: Sequence[Rule]) -> list[str]:
    """With what is odd about them, though it may be meant."""
    await check_rules(rules)
    await lock_user(session, user_id)
    await store_rules(session, user_id, USER_RULES, rules)
    await recompute_visibility(session, user_id)
    facts = await read_facts(session, user_id)
    return await asyncio.to_thread(lambda: list(_oddities(rules, _matched(rules, _rulings(rules, facts)))))


def _oddities(rules: Sequence[Rule], matched: Sequence[int]) -> Iterator[str]:
    for position, (rule, count) in enumerate(zip(rules, matched, strict=True), start=1):
        if rule.enabled is None and not rule.tags:
            yield f"rule {position} does nothing: it sets neither `enabled` nor `tags`"
        elif count == 0:
            yield f"rule {position} matches no tool so far: patterns and servers are by name, and case matters"


def _rulings(rules: Sequence[Rule], facts: Sequence[ToolFacts]) -> list[RuleMatch]:
    book = RuleSet(rules)
    return [book.judge(each.server_name, each.name) for each in facts]


def _matched(rules: Sequence[Rule], rulings: Sequence[RuleMatch]) -> list[int]:
    counts = Counter(position for ruling in rulings for position in ruling.matched)
    return [counts[position] for position in range(1, len(rules) + 1)]


async def preview_rules(session: Session, user_id: str, rules: Sequence[Rule], project_id: str | None) -> Preview:
    """What they would do in place of those that are stored."""
    if project_id is not None:
        await get_project(session, user_id, project_id)
    place = USER_RULES if project_id is None else project_id
    facts = sorted(await read_facts(session, user_id), key=lambda each: (each.server_name, each.name))
    now = await load_evaluator(session, user_id)
    then = await load_evaluator(session, user_id, {place: rules})
    # ten thousand tools and a hundred rules take a while: not on the event loop
    return await asyncio.to_thread(_compared, facts, now, then, rules, project_id)


def _compared(
    facts: Sequence[ToolFacts],
    now: PolicyEvaluator,
    then: PolicyEvaluator,
    rules: Sequence[Rule],
    project_id: str | None,
) -> Preview:
    outcomes = [_outcome(each, now.judge(each), then.judge(each), project_id) for each in facts]
    rulings = _rulings(rules, [each.facts for each in outcomes if each.is_ruled])
    decided = Counter(ruling.rule for ruling in rulings)
    return Preview(outcomes, _matched(rules, rulings), [decided[position] for position in range(1, len(rules) + 1)])


def _outcome(
    facts: ToolFacts, before: VisibilityDecision, after: VisibilityDecision, project_id: str | None
) -> PreviewedTool:
    if project_id is None:
        return PreviewedTool(facts, before, after, None, None)
    placed = (verdict.placements.get(project_id, NO_PROJECT) for verdict in (before, after))
    return PreviewedTool(facts, before, after, *placed)


async def create_project(session: Session, user_id: str, values: Mapping[str, Any], rules: Sequence[Rule]) -> Project:
    await check_rules(rules)
    await lock_user(session, user_id)
    if await count_projects(session, user_id) >= MAX_PROJECTS:
        raise InvalidInput(f"a user has at most {MAX_PROJECTS} projects")
    await _check_members(session, user_id, values.get("server_ids"))
    project = await insert_project(session, user_id, values)
    await store_rules(session, user_id, project.id, rules)
    await recompute_visibility(session, user_id)
    return project


async def update_project(
    session: Session,
    user_id: str,
    project_id: str,
    values: Mapping[str, Any],
    rules: Sequence[Rule] | None,
) -> Project:
    """`rules` in place of those that were there; None leaves them."""
    await check_rules(rules or ())
    await lock_user(session, user_id)
    await _check_members(session, user_id, values.get("server_ids"))
    project = await change_project(session, user_id, project_id, values)
    if rules is not None:
        await store_rules(session, user_id, project_id, rules)
    await recompute_visibility(session, user_id)
    return project


async def remove_project(session: Session, user_id: str, project_id: str, actor: str) -> None:
    await lock_user(session, user_id)
    ended = await delete_project(session, user_id, project_id)
    await store_rules(session, user_id, project_id, ())
    await recompute_visibility(session, user_id)
    await audit.record(session, user_id, actor, "project.delete", project_id)
    for key_id in ended:
        await audit.record(session, user_id, actor, "key.revoke", key_id)


async def _check_members(session: Session, user_id: str, server_ids: Sequence[str] | None) -> None:
    if server_ids is None:
        return
    wanted = set(server_ids)
    theirs = mcp_servers.c.user_id == user_id, mcp_servers.c.id.in_(wanted)
    if await session.scalar(select(func.count()).select_from(mcp_servers).where(*theirs)) != len(wanted):
        raise NotFound("there is no such server")
