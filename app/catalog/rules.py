"""Ordered rules over tool names. They enable, disable and tag tools, for a user or within a project.

A rule matches if one of its positive patterns and none of its negated ones matches, in whatever order they stand. The
first matching rule that sets `enabled` decides; tags add up from all rules that match. If any rule sets
`enabled: true`, the list is an allow-list: a tool that no rule decides about is disabled.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select, update

from app.catalog.patterns import Pattern, PatternSet, parse_pattern
from app.db.engine import Session
from app.db.tables import USER_RULES, tool_rules
from app.errors import InvalidInput

MAX_PATTERNS = 1_000
MAX_SIZE = 50_000
"""Of all patterns in a list, in RE2 instructions: a thousand globs, or fifty of the worst expressions. The worst list
that fits is compiled, and matched with a name, in some tens of milliseconds."""

MAX_TAGS = 200
"""Different tags in a list of rules: a tool may get them all, and its search row must stay small."""


@dataclass(frozen=True)
class Rule:
    pattern: Sequence[str]
    server: str | None = None
    """A server's name; None: any server."""
    enabled: bool | None = None
    tags: Sequence[str] = ()


@dataclass(frozen=True)
class RuleMatch:
    """The result of matching a list of rules with one tool."""

    enabled: bool | None
    """None if the rules do not decide."""
    rule: int | None
    """The rule that decided, counted from 1. None also if the tool is disabled because no rule allows it."""
    tags: tuple[str, ...]
    matched: tuple[int, ...]


class RuleSet:
    """A compiled list of rules, to be matched with many tools. Raises `InvalidInput` for an invalid rule."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        if sum(len(rule.pattern) for rule in rules) > MAX_PATTERNS:
            raise InvalidInput(f"a list of rules has at most {MAX_PATTERNS} patterns in all")
        if len({tag for rule in rules for tag in rule.tags}) > MAX_TAGS:
            raise InvalidInput(f"a list of rules has at most {MAX_TAGS} different tags")
        self._is_allow_list = any(rule.enabled for rule in rules)
        self._patterns = list(_parse_patterns(rules))
        self._pattern_set = PatternSet([pattern.expression for _, pattern in self._patterns])

    def match(self, server_name: str, tool_name: str) -> RuleMatch:
        matched = self._find_matching(server_name, tool_name) if self._rules else ()
        tags = tuple(dict.fromkeys(tag for position in matched for tag in self._rule_at(position).tags))
        decisive = next((position for position in matched if self._rule_at(position).enabled is not None), None)
        if decisive is None:
            return RuleMatch(False if self._is_allow_list else None, None, tags, matched)
        return RuleMatch(self._rule_at(decisive).enabled, decisive, tags, matched)

    def _find_matching(self, server_name: str, tool_name: str) -> tuple[int, ...]:
        """Return the positions of the rules that match, counted from 1."""
        found = [self._patterns[index] for index in self._pattern_set.match(tool_name)]
        negated = {position for position, pattern in found if pattern.is_negated}
        positive = {position for position, pattern in found if not pattern.is_negated}
        return tuple(p for p in sorted(positive - negated) if self._rule_at(p).server in (None, server_name))

    def _rule_at(self, position: int) -> Rule:
        return self._rules[position - 1]


async def check_rules(rules: Sequence[Rule]) -> None:
    """Raise `InvalidInput` for invalid rules.

    Compiling takes a while: call this before anything is locked. It runs off the event loop.
    """
    await asyncio.to_thread(RuleSet, rules)


def _parse_patterns(rules: Sequence[Rule]) -> Iterator[tuple[int, Pattern]]:
    """Yield each pattern with the position of its rule."""
    size = 0
    for position, rule in enumerate(rules, start=1):
        only_negated = True
        for number, text in enumerate(rule.pattern, start=1):
            try:
                pattern = parse_pattern(text)
            except InvalidInput as error:
                raise InvalidInput(f"rule {position}, pattern {number}: {error.message}") from error
            only_negated &= pattern.is_negated
            size += pattern.size
            if size > MAX_SIZE:
                raise InvalidInput(f"rule {position}, pattern {number}: all patterns together are too large")
            yield position, pattern
        if only_negated:
            raise InvalidInput(f"rule {position}: negated patterns alone match nothing; begin with one such as `*`")


async def get_rules(session: Session, user_id: str, project_id: str = USER_RULES) -> list[Rule]:
    return (await list_rules_by_project(session, user_id)).get(project_id, [])


async def list_rules_by_project(session: Session, user_id: str) -> dict[str, list[Rule]]:
    """Return all rules of a user by project; those of the user itself have the key `USER_RULES`."""
    rules = tool_rules.c
    statement = select(rules.project_id, rules.patterns, rules.server, rules.enabled, rules.tags)
    rows = await session.execute(statement.where(rules.user_id == user_id).order_by(rules.project_id, rules.position))
    found: dict[str, list[Rule]] = {}
    for project_id, *rule in rows:
        found.setdefault(project_id, []).append(Rule(*rule))
    return found


async def store_rules(session: Session, user_id: str, project_id: str, rules: Sequence[Rule]) -> None:
    """Replace the stored rules. The caller has checked them, and recomputes visibility afterwards."""
    stored = tool_rules.c.user_id == user_id, tool_rules.c.project_id == project_id
    await session.execute(delete(tool_rules).where(*stored))
    if rules:
        rows = [_to_row(user_id, project_id, position, rule) for position, rule in enumerate(rules, start=1)]
        await session.execute(insert(tool_rules), rows)


async def rename_server_in_rules(session: Session, user_id: str, old: str, new: str) -> None:
    """Let rules that name a server follow its new name."""
    affected = tool_rules.c.user_id == user_id, tool_rules.c.server == old
    await session.execute(update(tool_rules).where(*affected).values(server=new))


def _to_row(user_id: str, project_id: str, position: int, rule: Rule) -> dict[str, Any]:
    return {
        "user_id": user_id,
        "project_id": project_id,
        "position": position,
        "patterns": list(rule.pattern),
        "server": rule.server,
        "enabled": rule.enabled,
        "tags": list(rule.tags),
    }
