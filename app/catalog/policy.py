"""What becomes of a tool, and why: whatever may hide it, weighed in one order. Pure.

A person's own switch stands above the rules, the rules above the default. What lies outside the tool only ever hides:
its server's switch, its server's permissions, a definition that changed and is held, a server that fails. A project
narrows what is left to its own servers, by rules of its own and, where it is read-only, to tools that only read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.catalog.projects import Project, project_number
from app.catalog.rules import RuleMatch, RuleSet

EnabledBy = Literal["default", "rule", "user"]
HiddenBy = Literal["server", "permission", "user", "rule", "changed", "status"]
OutsideBy = Literal["member", "rule", "read_only"]

ANY_TOOL = "*"
"""In a server's permissions: what is true of the tools that are not named."""


@dataclass(frozen=True)
class Policy:
    """What the operator has decided for everyone."""

    hold_changed: bool = False
    find_failing: bool = True


@dataclass(frozen=True)
class ToolFacts:
    """All that is known of a tool when it is judged."""

    tool_id: str
    name: str
    server_id: str
    server_name: str
    server_enabled: bool
    server_failing: bool
    permissions: Mapping[str, bool]
    server_tags: Sequence[str]
    own_tags: Sequence[str]
    switched: bool | None
    changed: bool
    read_only: bool

    @property
    def permitted(self) -> bool:
        return self.permissions.get(self.name, self.permissions.get(ANY_TOOL, True))


@dataclass(frozen=True)
class ProjectVisibility:
    """How a project sees a tool that its user can see."""

    outside_by: OutsideBy | None
    rule: int | None = None
    tags: tuple[str, ...] = ()
    """Beyond those that it has for the user."""


NO_PROJECT = ProjectVisibility("member")
"""In a project that has been deleted meanwhile."""


@dataclass(frozen=True)
class VisibilityDecision:
    enabled: bool
    """By the tool's own switch, a rule, or the default."""
    enabled_by: EnabledBy
    rule: int | None
    hidden_by: HiddenBy | None
    tags: tuple[str, ...]
    placements: Mapping[str, ProjectVisibility] = field(default_factory=dict)

    @property
    def visible(self) -> bool:
        return self.hidden_by is None

    def stored(self) -> dict[str, Any]:
        """As it is written: `projects` are those that see the tool, `project_tags` what tags they add."""
        inside = {
            key: place.tags for key, place in self.placements.items() if place.outside_by is None and self.visible
        }
        return {
            "enabled": self.enabled,
            "enabled_by": self.enabled_by,
            "hidden_by": self.hidden_by,
            "visible": self.visible,
            "tags": list(self.tags),
            "projects": sorted(project_number(key) for key in inside),
            "project_tags": {key: list(tags) for key, tags in inside.items() if tags},
        }


class PolicyEvaluator:
    def __init__(self, policy: Policy, rules: RuleSet, projects: Sequence[tuple[Project, RuleSet]]) -> None:
        self._policy = policy
        self._rules = rules
        self._projects = projects

    def judge(self, facts: ToolFacts) -> VisibilityDecision:
        ruling = self._rules.judge(facts.server_name, facts.name)
        enabled, enabled_by = _switch(facts, ruling)
        tags = tuple(dict.fromkeys((*facts.own_tags, *facts.server_tags, *ruling.tags)))
        return VisibilityDecision(
            enabled=enabled,
            enabled_by=enabled_by,
            rule=ruling.rule if enabled_by == "rule" else None,
            hidden_by=self._hidden_by(facts, enabled=enabled, enabled_by=enabled_by),
            tags=tags,
            placements={project.id: _placement(facts, tags, project, rules) for project, rules in self._projects},
        )

    def _hidden_by(self, facts: ToolFacts, *, enabled: bool, enabled_by: EnabledBy) -> HiddenBy | None:
        if not facts.server_enabled:
            return "server"
        if not facts.permitted:
            return "permission"
        if not enabled:
            return "rule" if enabled_by == "rule" else "user"
        if facts.changed and self._policy.hold_changed:
            return "changed"
        if facts.server_failing and not self._policy.find_failing:
            return "status"
        return None


def _switch(facts: ToolFacts, ruling: RuleMatch) -> tuple[bool, EnabledBy]:
    if facts.switched is not None:
        return facts.switched, "user"
    if ruling.enabled is not None:
        return ruling.enabled, "rule"
    return True, "default"


def _placement(facts: ToolFacts, tags: Collection[str], project: Project, rules: RuleSet) -> ProjectVisibility:
    if project.server_ids is not None and facts.server_id not in project.server_ids:
        return ProjectVisibility("member")
    if project.read_only and not facts.read_only:
        return ProjectVisibility("read_only")
    ruling = rules.judge(facts.server_name, facts.name)
    added = tuple(tag for tag in ruling.tags if tag not in tags)
    return ProjectVisibility("rule" if ruling.enabled is False else None, ruling.rule, added)
