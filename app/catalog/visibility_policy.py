"""Decide whether a tool is visible, and why not. Pure functions of stored facts.

A person's own switch overrides the rules, and the rules override the default. Everything else can only hide a tool: its
server's switch, its server's permissions, a changed definition or a new tool that is held back, a failing server. A
project narrows what is left to its own servers, by its own rules and, if it is read-only, to tools that only read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.catalog.projects import Project, project_number
from app.catalog.rules import RuleMatch, RuleSet

EnabledBy = Literal["default", "rule", "user"]
HiddenBy = Literal["server", "permission", "user", "rule", "changed", "new", "status"]
State = Literal["approved", "changed", "new"]
"""`new`: the server has added the tool after its first listing, and nobody has approved it."""
OutsideBy = Literal["member", "rule", "read_only"]

ANY_TOOL = "*"
"""In a server's permissions: stands for all tools that are not named."""


@dataclass(frozen=True)
class Policy:
    """The operator's settings, which apply to all users."""

    hold_changed: bool = False
    find_failing: bool = True
    hold_new: bool = False

    def holds(self, state: State) -> bool:
        return (state == "changed" and self.hold_changed) or (state == "new" and self.hold_new)


@dataclass(frozen=True)
class ToolFacts:
    """Everything that a decision about a tool depends on."""

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
    state: State
    read_only: bool

    @property
    def is_permitted(self) -> bool:
        return self.permissions.get(self.name, self.permissions.get(ANY_TOOL, True))


@dataclass(frozen=True)
class ProjectVisibility:
    """Whether a project sees a tool that its user can see."""

    outside_by: OutsideBy | None
    rule: int | None = None
    tags: tuple[str, ...] = ()
    """Tags that the project's rules add to those that the tool has for the user."""


NOT_A_MEMBER = ProjectVisibility("member")
"""Also for a project that was deleted in the meantime."""


@dataclass(frozen=True)
class VisibilityDecision:
    enabled: bool
    """By the tool's own switch, a rule, or the default."""
    enabled_by: EnabledBy
    rule: int | None
    hidden_by: HiddenBy | None
    tags: tuple[str, ...]
    by_project: Mapping[str, ProjectVisibility] = field(default_factory=dict)

    @property
    def visible(self) -> bool:
        return self.hidden_by is None

    def to_row(self) -> dict[str, Any]:
        """Return the columns to store: `projects` lists those that see the tool, `project_tags` the tags they add."""
        tags_by_project = {
            project_id: in_project.tags
            for project_id, in_project in self.by_project.items()
            if in_project.outside_by is None and self.visible
        }
        return {
            "enabled": self.enabled,
            "enabled_by": self.enabled_by,
            "hidden_by": self.hidden_by,
            "visible": self.visible,
            "tags": list(self.tags),
            "projects": sorted(project_number(project_id) for project_id in tags_by_project),
            "project_tags": {project_id: list(tags) for project_id, tags in tags_by_project.items() if tags},
        }


class PolicyEvaluator:
    """Decides about any number of tools under one policy, one user's rules and that user's projects."""

    def __init__(self, policy: Policy, rules: RuleSet, projects: Sequence[tuple[Project, RuleSet]]) -> None:
        self._policy = policy
        self._rules = rules
        self._projects = projects

    def evaluate(self, facts: ToolFacts) -> VisibilityDecision:
        match = self._rules.match(facts.server_name, facts.name)
        enabled, enabled_by = _decide_enabled(facts, match)
        tags = merge_tags(facts.own_tags, facts.server_tags, match)
        return VisibilityDecision(
            enabled=enabled,
            enabled_by=enabled_by,
            rule=match.rule if enabled_by == "rule" else None,
            hidden_by=self._find_hidden_by(facts, enabled=enabled, enabled_by=enabled_by),
            tags=tags,
            by_project={
                project.id: _evaluate_in_project(facts, tags, project, rules) for project, rules in self._projects
            },
        )

    def _find_hidden_by(self, facts: ToolFacts, *, enabled: bool, enabled_by: EnabledBy) -> HiddenBy | None:
        """Return the first reason that hides the tool, in a fixed order."""
        if not facts.server_enabled:
            return "server"
        if not facts.is_permitted:
            return "permission"
        if not enabled:
            return "rule" if enabled_by == "rule" else "user"
        if facts.state != "approved" and self._policy.holds(facts.state):
            return facts.state
        if facts.server_failing and not self._policy.find_failing:
            return "status"
        return None


def merge_tags(own_tags: Sequence[str], server_tags: Sequence[str], match: RuleMatch) -> tuple[str, ...]:
    """Return the tags of a tool: its own, its server's and those of the user's rules, each once."""
    return tuple(dict.fromkeys((*own_tags, *server_tags, *match.tags)))


def _decide_enabled(facts: ToolFacts, match: RuleMatch) -> tuple[bool, EnabledBy]:
    if facts.switched is not None:
        return facts.switched, "user"
    if match.enabled is not None:
        return match.enabled, "rule"
    return True, "default"


def _evaluate_in_project(
    facts: ToolFacts, tags: Collection[str], project: Project, rules: RuleSet
) -> ProjectVisibility:
    if project.server_ids is not None and facts.server_id not in project.server_ids:
        return NOT_A_MEMBER
    if project.read_only and not facts.read_only:
        return ProjectVisibility("read_only")
    match = rules.match(facts.server_name, facts.name)
    added_tags = tuple(tag for tag in match.tags if tag not in tags)
    return ProjectVisibility("rule" if match.enabled is False else None, match.rule, added_tags)
