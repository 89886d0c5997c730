"""Replace a user's rules, and preview what rules would do."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.audit.record import record_event
from app.catalog.projects import get_project
from app.catalog.rules import Rule, RuleMatch, RuleSet, check_rules, get_rules, store_rules
from app.catalog.visibility import load_evaluator, lock_user, read_facts, recompute_visibility
from app.catalog.visibility_policy import (
    NOT_A_MEMBER,
    PolicyEvaluator,
    ProjectVisibility,
    ToolFacts,
    VisibilityDecision,
)
from app.db.engine import Database
from app.db.tables import USER_RULES
from app.indexing import queue
from app.indexing.worker import Worker
from app.management.quotas import Quotas, check_tags, list_tags


@dataclass(frozen=True)
class PreviewedTool:
    """A tool under the stored rules and under the previewed ones."""

    facts: ToolFacts
    before: VisibilityDecision
    after: VisibilityDecision
    in_project_before: ProjectVisibility | None
    in_project_after: ProjectVisibility | None
    """In the project that the rules are for; None for rules of the user."""

    @property
    def is_subject_to_rules(self) -> bool:
        """A project's rules do not apply to tools that are outside of the project for another reason."""
        return self.in_project_after is None or self.in_project_after.outside_by in (None, "rule")

    @property
    def was_visible(self) -> bool:
        return _is_visible(self.before, self.in_project_before)

    @property
    def visible(self) -> bool:
        return _is_visible(self.after, self.in_project_after)


def _is_visible(decision: VisibilityDecision, in_project: ProjectVisibility | None) -> bool:
    return decision.visible and (in_project is None or in_project.outside_by is None)


@dataclass(frozen=True)
class Preview:
    tools: Sequence[PreviewedTool]
    matched: Sequence[int]
    """For each rule, how many tools it matches."""
    decided: Sequence[int]
    """For each rule, how many tools it is the first to decide about."""


async def replace_rules(
    database: Database, worker: Worker, user_id: str, rules: Sequence[Rule], quotas: Quotas, *, actor: str
) -> list[str]:
    """Replace all of the user's own rules. Return warnings about rules that have no effect so far.

    Tags are part of the text that is searched: queue a run for each server with a tool whose tags have changed.
    """
    await check_rules(rules)
    async with database.exclusive_transaction(user_id) as session:
        await lock_user(session, user_id)
        await check_tags(session, quotas, user_id, list_tags(rules))
        replaced = await get_rules(session, user_id)
        await store_rules(session, user_id, USER_RULES, rules)
        facts = await read_facts(session, user_id)
        await recompute_visibility(session, user_id, facts=facts)
        await record_event(session, user_id, actor, "rules.replace", None)
        # matching ten thousand tools takes a while: off the event loop
        for server_id in await asyncio.to_thread(_find_retagged_servers, facts, replaced, rules):
            await queue.enqueue(session, user_id, server_id, fetch_from_server=False, asked_by=actor)
            session.after_commit(worker.notify)
    return await asyncio.to_thread(lambda: list(_find_ineffective_rules(rules, facts)))


def _find_retagged_servers(facts: Sequence[ToolFacts], before: Sequence[Rule], after: Sequence[Rule]) -> list[str]:
    """Return the ids of the servers with a tool that the rules tag otherwise than before, in the order of locking."""
    before, after = ([rule for rule in rules if rule.tags] for rules in (before, after))
    if before == after:
        return []
    matches = zip(facts, _match_rules(before, facts), _match_rules(after, facts), strict=True)
    return sorted({tool.server_id for tool, old, new in matches if set(old.tags) != set(new.tags)})


def _find_ineffective_rules(rules: Sequence[Rule], facts: Sequence[ToolFacts]) -> Iterator[str]:
    matched = _count_matches(rules, _match_rules(rules, facts))
    for position, (rule, count) in enumerate(zip(rules, matched, strict=True), start=1):
        if rule.enabled is None and not rule.tags:
            yield f"rule {position} does nothing: it sets neither `enabled` nor `tags`"
        elif count == 0:
            yield f"rule {position} matches no tool so far: patterns and servers are by name, and case matters"


def _match_rules(rules: Sequence[Rule], facts: Sequence[ToolFacts]) -> list[RuleMatch]:
    rule_set = RuleSet(rules)
    return [rule_set.match(tool.server_name, tool.name) for tool in facts]


def _count_matches(rules: Sequence[Rule], matches: Sequence[RuleMatch]) -> list[int]:
    counts = Counter(position for match in matches for position in match.matched)
    return [counts[position] for position in range(1, len(rules) + 1)]


async def preview_rules(database: Database, user_id: str, rules: Sequence[Rule], project_id: str | None) -> Preview:
    """Return what these rules would do in place of the user's own or, with `project_id`, of that project's."""
    async with database.transaction(user_id) as session:
        if project_id is not None:
            await get_project(session, user_id, project_id)
        replaced = USER_RULES if project_id is None else project_id
        facts = sorted(await read_facts(session, user_id), key=lambda tool: (tool.server_name, tool.name))
        before = await load_evaluator(session, user_id)
        after = await load_evaluator(session, user_id, {replaced: rules})
    # ten thousand tools and a hundred rules take a while: off the event loop
    return await asyncio.to_thread(_compare, facts, before, after, rules, project_id)


def _compare(
    facts: Sequence[ToolFacts],
    before: PolicyEvaluator,
    after: PolicyEvaluator,
    rules: Sequence[Rule],
    project_id: str | None,
) -> Preview:
    tools = [_preview_tool(tool, before.evaluate(tool), after.evaluate(tool), project_id) for tool in facts]
    matches = _match_rules(rules, [tool.facts for tool in tools if tool.is_subject_to_rules])
    decided = Counter(match.rule for match in matches)
    return Preview(tools, _count_matches(rules, matches), [decided[position] for position in range(1, len(rules) + 1)])


def _preview_tool(
    facts: ToolFacts, before: VisibilityDecision, after: VisibilityDecision, project_id: str | None
) -> PreviewedTool:
    if project_id is None:
        return PreviewedTool(facts, before, after, None, None)
    in_project = (decision.by_project.get(project_id, NOT_A_MEMBER) for decision in (before, after))
    return PreviewedTool(facts, before, after, *in_project)
