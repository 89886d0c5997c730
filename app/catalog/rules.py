"""Ordered rules over tool names: they switch tools on or off and tag them, for a user or within a project.

A rule matches when one of its positive patterns does and none of its negated ones, whatever their order. The first
matching rule that sets `enabled` decides; tags add up from all that match. Where any rule says `enabled: true`, the
list names what is allowed: whatever no rule decides is off.
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
"""Of all patterns of one list, in instructions of RE2: a thousand globs, or fifty of the worst expressions. The worst
that can be written is compiled, and judges a name, in some tens of milliseconds."""

MAX_TAGS = 200
"""Different ones, in one list of rules: a tool may get them all, and its search row must stay small."""


@dataclass(frozen=True)
class Rule:
    pattern: Sequence[str]
    server: str | None = None
    """By its name; none means any."""
    enabled: bool | None = None
    tags: Sequence[str] = ()


@dataclass(frozen=True)
class RuleMatch:
    """What a list of rules says of one tool."""

    enabled: bool | None
    """None where they have no say."""
    rule: int | None
    """The one that decided, counted from 1; None also where the tool is off because no rule allows it."""
    tags: tuple[str, ...]
    matched: tuple[int, ...]


class RuleSet:
    """A list of rules, ready to be asked about many tools. Raises `InvalidInput` for one that cannot be read."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        if sum(len(rule.pattern) for rule in rules) > MAX_PATTERNS:
            raise InvalidInput(f"a list of rules has at most {MAX_PATTERNS} patterns in all")
        if len({tag for rule in rules for tag in rule.tags}) > MAX_TAGS:
            raise InvalidInput(f"a list of rules has at most {MAX_TAGS} different tags")
        self._allows = any(rule.enabled for rule in rules)
        self._patterns = list(_read(rules))
        self._set = PatternSet([pattern.expression for _, pattern in self._patterns])

    def judge(self, server_name: str, tool_name: str) -> RuleMatch:
        matched = self._matching(server_name, tool_name) if self._rules else ()
        tags = tuple(dict.fromkeys(tag for position in matched for tag in self._rule(position).tags))
        decided = next((position for position in matched if self._rule(position).enabled is not None), None)
        if decided is None:
            return RuleMatch(False if self._allows else None, None, tags, matched)
        return RuleMatch(self._rule(decided).enabled, decided, tags, matched)

    def _matching(self, server_name: str, tool_name: str) -> tuple[int, ...]:
        found = [self._patterns[place] for place in self._set.matching(tool_name)]
        negated = {position for position, pattern in found if pattern.negated}
        positive = {position for position, pattern in found if not pattern.negated}
        return tuple(p for p in sorted(positive - negated) if self._rule(p).server in (None, server_name))

    def _rule(self, position: int) -> Rule:
        return self._rules[position - 1]


async def check_rules(rules: Sequence[Rule]) -> None:
    """Raises `InvalidInput`. Off the event loop, and before anything is locked: compiling takes a while."""
    await asyncio.to_thread(RuleSet, rules)


def _read(rules: Sequence[Rule]) -> Iterator[tuple[int, Pattern]]:
    """Each pattern with its rule's position."""
    size = 0
    for position, rule in enumerate(rules, start=1):
        negated = True
        for place, text in enumerate(rule.pattern, start=1):
            pattern = _pattern(position, place, text)
            negated &= pattern.negated
            size += pattern.size
            if size > MAX_SIZE:
                raise InvalidInput(f"rule {position}, pattern {place}: the patterns are too large, all in all")
            yield position, pattern
        if negated:
            raise InvalidInput(f"rule {position}: only negated patterns match nothing; begin with one such as `*`")


def _pattern(position: int, place: int, text: str) -> Pattern:
    try:
        return parse_pattern(text)
    except InvalidInput as error:
        raise InvalidInput(f"rule {position}, pattern {place}: {error.message}") from error


async def get_rules(session: Session, user_id: str, project_id: str = USER_RULES) -> list[Rule]:
    return (await all_rules(session, user_id)).get(project_id, [])


async def all_rules(session: Session, user_id: str) -> dict[str, list[Rule]]:
    """By project; the user's own stand under `OF_THE_USER`."""
    rules = tool_rules.c
    statement = select(rules.project_id, rules.patterns, rules.server, rules.enabled, rules.tags)
    rows = await session.execute(statement.where(rules.user_id == user_id).order_by(rules.project_id, rules.position))
    found: dict[str, list[Rule]] = {}
    for project_id, *rule in rows:
        found.setdefault(project_id, []).append(Rule(*rule))
    return found


async def store_rules(session: Session, user_id: str, project_id: str, rules: Sequence[Rule]) -> None:
    """In place of those that were there. Whoever calls has checked them, and decides again what is visible."""
    these = tool_rules.c.user_id == user_id, tool_rules.c.project_id == project_id
    await session.execute(delete(tool_rules).where(*these))
    if rules:
        key = {"user_id": user_id, "project_id": project_id}
        await session.execute(
            insert(tool_rules), [key | {"position": n} | _values(rule) for n, rule in enumerate(rules, start=1)]
        )


async def rename_server_in_rules(session: Session, user_id: str, old: str, new: str) -> None:
    """What was said of a server stays said of it under its new name."""
    theirs = tool_rules.c.user_id == user_id, tool_rules.c.server == old
    await session.execute(update(tool_rules).where(*theirs).values(server=new))


def _values(rule: Rule) -> dict[str, Any]:
    return {
        "patterns": list(rule.pattern),
        "server": rule.server,
        "enabled": rule.enabled,
        "tags": list(rule.tags),
    }
