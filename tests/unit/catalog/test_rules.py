"""Matching rules with tools: a table of cases, limits, and speed with ten thousand tools."""

import itertools
import json
import re
import time
from pathlib import Path

import pytest

from app.catalog.rules import MAX_PATTERNS, MAX_TAGS, Rule, RuleSet
from app.catalog.visibility_policy import Policy, PolicyEvaluator, ToolFacts
from app.errors import InvalidInput

GUIDE = Path(__file__).parents[3] / "docs/guides/visibility.md"


def facts(name: str, server: str = "github", number: int = 0) -> ToolFacts:
    return ToolFacts(
        tool_id=f"tool-{number}",
        name=name,
        server_id=f"id-of-{server}",
        server_name=server,
        server_enabled=True,
        server_failing=False,
        permissions={},
        server_tags=(),
        own_tags=(),
        switched=None,
        state="approved",
        read_only=False,
    )


OFF_FIRST = [Rule(["*delete*"], enabled=False), Rule(["github_*"], enabled=True)]
ON_FIRST = list(reversed(OFF_FIRST))
NEGATED = [Rule(["github_*", "!*delete*"], enabled=True)]
REVERSED = [Rule(["!*delete*", "github_*"], enabled=True)]
ON_A_SERVER = [Rule(["*"], server="github", enabled=False)]
MIXED = [Rule(["/^CREATE_/i", "list_*", "!/issue$/"], enabled=False), Rule(["create_*"], tags=["new"])]


@pytest.mark.parametrize(
    ("rules", "server", "name", "enabled", "decided"),
    [
        ([], "github", "anything", None, None),
        (NEGATED, "github", "github_create", True, 1),
        (REVERSED, "github", "github_create", True, 1),
        (NEGATED, "github", "github_delete", False, None),
        (REVERSED, "github", "github_delete", False, None),
        (NEGATED, "github", "delete", False, None),
        (REVERSED, "github", "delete", False, None),
        (NEGATED, "github", "slack_post", False, None),
        (REVERSED, "github", "slack_post", False, None),
        (OFF_FIRST, "github", "github_delete_repo", False, 1),
        (OFF_FIRST, "github", "github_create_repo", True, 2),
        (OFF_FIRST, "github", "slack_post", False, None),
        (ON_FIRST, "github", "github_delete_repo", True, 1),
        (ON_FIRST, "github", "slack_delete", False, 2),
        (ON_A_SERVER, "github", "read", False, 1),
        (ON_A_SERVER, "gitlab", "read", None, None),
        (ON_A_SERVER, "GitHub", "read", None, None),
        (MIXED, "github", "Create_file", False, 1),
        (MIXED, "github", "create_issue", None, None),
        (MIXED, "github", "list_issue", None, None),
        (MIXED, "github", "list_issues", False, 1),
        ([Rule(["a"], tags=["x"])], "github", "b", None, None),
        ([Rule(["a"]), Rule(["*"], enabled=True)], "github", "a", True, 2),
        ([Rule(["a"], enabled=False)], "github", "b", None, None),
        ([Rule(["nothing-has-this-name"], enabled=True)], "github", "b", False, None),
        ([Rule(["*"], server="gitlab", enabled=True)], "github", "b", False, None),
    ],
    ids=str,
)
def test_the_first_matching_rule_that_sets_enabled_decides(
    rules: list[Rule], server: str, name: str, enabled: bool | None, decided: int | None
) -> None:
    match = RuleSet(rules).match(server, name)
    assert (match.enabled, match.rule) == (enabled, decided)


def test_the_example_of_the_guide_does_what_the_guide_says() -> None:
    for patterns in (["*file*", "!*write*"], ["!*write*", "*file*"]):
        files = RuleSet([Rule(patterns, enabled=True)])
        assert [files.match("disk", name).enabled for name in ("read_file", "write_file")] == [True, False]
    [example] = re.findall(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    rules = RuleSet([Rule(rule["pattern"], enabled=rule["enabled"]) for rule in json.loads(example)["rules"]])
    names = ["write_log_file", "read_file", "list_files", "write_file", "send_mail"]
    matches = [rules.match("disk", name) for name in names]
    assert [(match.enabled, match.rule) for match in matches] == [
        (True, 1),
        (True, 2),
        (True, 2),
        (False, None),
        (False, None),
    ]


def test_the_order_of_patterns_in_a_rule_does_not_matter() -> None:
    patterns = ["github_*", "!*delete*", "/list/i", "!/^x/"]
    names = ["github_a", "github_delete", "LIST", "x_list", "x", "delete_list", "other"]
    rulings = {
        tuple(RuleSet([Rule(order, enabled=True)]).match("s", name).enabled for name in names)
        for order in itertools.permutations(patterns)
    }
    assert rulings == {(True, False, True, False, False, False, False)}


def test_tags_of_all_matching_rules_are_combined_in_order() -> None:
    rules = [
        Rule(["create_*"], tags=["write", "daily"]),
        Rule(["*_issue"], enabled=False, tags=["issues", "write"]),
        Rule(["*"], server="gitlab", tags=["other"]),
        Rule(["*"], enabled=True, tags=["all"]),
        Rule(["*", "!create_issue"], tags=["rest"]),
    ]
    match = RuleSet(rules).match("github", "create_issue")
    assert match.tags == ("write", "daily", "issues", "all")
    assert match.matched == (1, 2, 4)
    assert (match.enabled, match.rule) == (False, 2)


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        (["!*delete*"], "negated patterns alone"),
        (["!a", "!b"], "negated patterns alone"),
        (["a", "/(?=b)/"], "pattern 2: the pattern is not valid"),
        (["/[a/"], "pattern 1: the pattern is not valid"),
        (["a", "b", "/c/x"], "pattern 3: unknown flag"),
    ],
    ids=str,
)
def test_an_invalid_rule_is_rejected_by_its_position(pattern: list[str], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=r"^rule 2\b") as refusal:
        RuleSet([Rule(["*"]), Rule(pattern), Rule(["*"])])
    assert complaint in refusal.value.message
    RuleSet([Rule(["*"]), Rule(["!a", "!b", "*"]), Rule(["*"])])


def test_the_number_of_patterns_is_limited() -> None:
    RuleSet([Rule(["*"] * (MAX_PATTERNS - 1)), Rule(["a"])])
    with pytest.raises(InvalidInput, match=f"at most {MAX_PATTERNS} patterns"):
        RuleSet([Rule(["*"] * MAX_PATTERNS), Rule(["a"])])


def test_the_number_of_different_tags_is_limited() -> None:
    tags = [f"tag-{n}" for n in range(MAX_TAGS)]
    assert set(RuleSet([Rule(["*"], tags=tags), Rule(["a"], tags=tags)]).match("s", "a").tags) == set(tags)
    with pytest.raises(InvalidInput, match=f"at most {MAX_TAGS} different tags"):
        RuleSet([Rule(["*"], tags=tags), Rule(["a"], tags=["one more"])])


VERBS = ("create", "delete", "list", "get", "update", "search", "send", "read", "write", "close")
NOUNS = ("issue", "file", "mail", "repo", "user", "pull", "team", "event", "page", "row")


def test_ten_thousand_tools_are_evaluated_quickly() -> None:
    names = [f"{verb}_{noun}_{n}" for n in range(100) for verb in VERBS for noun in NOUNS]
    tools = [facts(name, f"server-{n % 50}", n) for n, name in enumerate(names)]
    rules = [
        Rule([f"*_{NOUNS[n % 10]}_{n}*", f"/^get_.*{n}$/i", "!*delete*"], enabled=n % 2 == 0, tags=[f"tag-{n}"])
        for n in range(100)
    ]
    began = time.thread_time()
    evaluator = PolicyEvaluator(Policy(), RuleSet(rules), [])
    decisions = [evaluator.evaluate(each) for each in tools]
    took = time.thread_time() - began
    # a quarter of a second of processor time, so that a busy machine does not fail the test
    assert took < 20, took
    assert sum(verdict.visible for verdict in decisions) > 100
    assert sum(verdict.hidden_by == "rule" for verdict in decisions) > 100


def test_rules_that_are_too_large_together_are_rejected() -> None:
    costly = Rule([r"/a[a-z0-9_]{5}[^b]{0,90}x/i"], enabled=False)
    RuleSet([costly] * 20)
    with pytest.raises(InvalidInput, match="rule 53, pattern 1: all patterns together are too large"):
        RuleSet([costly] * 100)
    RuleSet([Rule([f"*tool_{number}*"]) for number in range(1_000)])
