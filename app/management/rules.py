"""Replace a user's rules, and preview what rules would do."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.audit.record import record_event
from app.catalog.policy import NO_PROJECT, PolicyEvaluator, ProjectVisibility, ToolFacts, VisibilityDecision
from app.catalog.projects import get_project
from app.catalog.rules import Rule, RuleMatch, RuleSet, check_rules, store_rules
from app.catalog.visibility import load_evaluator, lock_user, read_facts, recompute_visibility
from app.db.engine import Database
from app.db.tables import USER_RULES


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


async def replace_rules(database: Database, user_id: str, rules: Sequence[Rule], *, actor: str) -> list[str]:
    """Replace all of the user's own rules. Return warnings about rules that have no effect so far."""
    await check_rules(rules)
    async with database.transaction(user_id) as session:
        await lock_user(session, user_id)
        await store_rules(session, user_id, USER_RULES, rules)
        await recompute_visibility(session, user_id)
        await record_event(session, user_id, actor, "rules.replace", None)
        facts = await read_facts(session, user_id)
    return await asyncio.to_thread(lambda: list(_find_ineffective(rules, _matched(rules, _rulings(rules, facts)))))


def _find_ineffective(rules: Sequence[Rule], matched: Sequence[int]) -> Iterator[str]:
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


async def preview_rules(database: Database, user_id: str, rules: Sequence[Rule], project_id: str | None) -> Preview:
    """Return what these rules would do in place of the user's own or, with `project_id`, of that project's."""
    async with database.transaction(user_id) as session:
        if project_id is not None:
            await get_project(session, user_id, project_id)
        owner = USER_RULES if project_id is None else project_id
        facts = sorted(await read_facts(session, user_id), key=lambda each: (each.server_name, each.name))
        now = await load_evaluator(session, user_id)
        then = await load_evaluator(session, user_id, {owner: rules})
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
