"""Rules: tools that they hide can be neither found nor run, and tags that they add can be filtered by."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from app.container import Container
from tests.support.broken_search import broken_search, outdate_snapshots
from tests.support.calls import assert_ok
from tests.support.checks import Json, assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, tool
from tests.support.mcp_pool import within
from tests.support.mcp_server import FakeMcpServer
from tests.support.seed_vectors import add_user
from tests.support.worker_steps import has_no_runs, until

GITHUB = {"github_create_repo", "github_delete_repo", "github_list_issues"}
FILES = {"read_file", "Write_file", "delete_file"}
ALL = GITHUB | FILES
ASKED = "create and delete a repo, list issues, read, write and delete a file"


def rule(*pattern: str, **fields: Any) -> Json:
    return {"pattern": list(pattern), **fields}


async def replace_rules(user: TestUser, *rules: Json) -> None:
    answer = await user.http.put("/rules", json={"rules": rules})
    assert answer.status_code == 200, answer.text


async def preview(user: TestUser, *rules: Json, changed: bool = False, **fields: Any) -> Json:
    body = {"rules": rules, **fields}
    answer = await user.http.post("/rules/preview", json=body, params={"changed": changed})
    assert answer.status_code == 200, answer.text
    shown: Json = answer.json()
    return shown


async def change_tool(user: TestUser, name: str, **changes: Any) -> Json:
    answer = await user.http.patch(f"/tools/{(await user.tools())[name]['id']}", json=changes)
    assert answer.status_code == 200, answer.text
    shown: Json = answer.json()
    return shown


async def found(user: TestUser, **fields: Any) -> set[str]:
    answer = await user.discover(ASKED, **{"similarity_threshold": 0, "limit": 50, **fields})
    return {each["tool"]["name"] for each in answer["tools"]}


async def list_visible(user: TestUser) -> set[str]:
    """Return the tools that are shown as visible, which must be those that are found."""
    shown = {name for name, each in (await user.tools()).items() if each["visible"]}
    assert await found(user) == shown
    return shown


@pytest.fixture(scope="module")
async def stocked(container: Container) -> AsyncIterator[TestUser]:
    async with new_user(container) as made:
        await made.add_tools(*map(tool, sorted(GITHUB)), server="github", tags=["code"])
        await made.add_tools(*map(tool, sorted(FILES)), server="files")
        yield made


@pytest.fixture
async def team(container: Container, stocked: TestUser) -> TestUser:
    """Two servers with three tools each, and no rules yet."""
    await replace_rules(stocked)
    await until(lambda: has_no_runs(container))  # the tags of former rules are removed from the index
    return stocked


async def test_rules_are_returned_in_the_given_order(team: TestUser) -> None:
    assert (await team.http.get("/rules")).json() == {"rules": []}
    whole = rule("github_*", "!*delete*", server="github", enabled=True, tags=["safe", "code"])
    given = [whole, rule("/^read/i"), rule("*", enabled=False)]
    stored = await team.http.put("/rules", json={"rules": given})
    defaults: Json = {"server": None, "enabled": None, "tags": []}
    assert stored.json()["rules"] == [defaults | each for each in given]
    assert (await team.http.get("/rules")).json() == {"rules": stored.json()["rules"]}
    await replace_rules(team, given[2])
    assert (await team.http.get("/rules")).json() == {"rules": [defaults | given[2]]}


TABLE: dict[str, tuple[list[Json], set[str]]] = {
    "none": ([], ALL),
    "negated last": ([rule("github_*", "!*delete*", enabled=True)], GITHUB - {"github_delete_repo"}),
    "negated first": ([rule("!*delete*", "github_*", enabled=True)], GITHUB - {"github_delete_repo"}),
    "an expression whatever the case": ([rule("/^WRITE_/i", enabled=False)], ALL - {"Write_file"}),
    "an expression by its case": ([rule("/^write_/", enabled=False)], ALL),
    "off before on": (
        [rule("*delete*", enabled=False), rule("github_*", enabled=True)],
        GITHUB - {"github_delete_repo"},
    ),
    "on before off": ([rule("github_*", enabled=True), rule("*delete*", enabled=False)], GITHUB),
    "one that allows nothing": ([rule("no_such_tool", enabled=True)], set()),
    "one that only tags": ([rule("github_*", tags=["seen"])], ALL),
    "of one server": ([rule("*", server="files", enabled=False)], GITHUB),
    "of a server that is not there": ([rule("*", server="nowhere", enabled=False)], ALL),
    "allowed on one server": ([rule("*delete*", server="files", enabled=True)], {"delete_file"}),
}


@pytest.mark.parametrize(("rules", "expected"), TABLE.values(), ids=TABLE.keys())
async def test_a_preview_shows_the_effect_of_rules_and_stores_nothing(
    team: TestUser, rules: list[Json], expected: set[str]
) -> None:
    before = await team.tools()
    previewed = await preview(team, *rules)
    assert {each["name"] for each in previewed["items"] if each["visible"]} == expected
    assert (await team.http.get("/rules")).json() == {"rules": []}
    assert await team.tools() == before
    assert await list_visible(team) == ALL

    await replace_rules(team, *rules)
    assert await list_visible(team) == expected
    after = await team.tools()
    for each in previewed["items"]:
        shown = after[each["name"]]
        assert each["tool_key"] == shown["id"]
        for name in ("server_name", "enabled", "enabled_by", "visible", "hidden_by", "tags"):
            assert each[name] == shown[name], (name, each)
        assert each["was_visible"] is True
    again = await preview(team, *rules)
    assert again["changes"] == 0
    assert [each | {"was_visible": True} for each in again["items"]] == previewed["items"]


async def test_a_preview_names_the_rule_that_decided_and_counts(team: TestUser) -> None:
    rules = [
        rule("*repo", tags=["repos"]),
        rule("*delete*", enabled=False),
        rule("github_*", enabled=True),
        rule("*", server="files", enabled=True),
        rule("nothing", enabled=True),
    ]
    previewed = await preview(team, *rules)
    assert {each["name"]: (each["enabled"], each["rule"]) for each in previewed["items"]} == {
        "github_create_repo": (True, 3),
        "github_delete_repo": (False, 2),
        "github_list_issues": (True, 3),
        "read_file": (True, 4),
        "Write_file": (True, 4),
        "delete_file": (False, 2),
    }
    assert {each["enabled_by"] for each in previewed["items"]} == {"rule"}
    assert [(each["rule"], each["matched"], each["decided"]) for each in previewed["rules"]] == [
        (1, 2, 0),
        (2, 2, 2),
        (3, 3, 2),
        (4, 3, 2),
        (5, 0, 0),
    ]
    assert (previewed["visible"], previewed["hidden"], previewed["changes"]) == (4, 2, 2)
    order = [(each["server_name"], each["name"]) for each in previewed["items"]]
    assert order == sorted(order)
    changing = await preview(team, *rules, changed=True)
    assert {each["name"] for each in changing["items"]} == {"github_delete_repo", "delete_file"}
    assert changing | {"items": previewed["items"]} == previewed


async def test_a_tool_that_no_rule_allows_is_disabled_by_the_rules(team: TestUser) -> None:
    await replace_rules(team, rule("github_*", enabled=True))
    off = (await team.tools())["read_file"]
    assert (off["enabled"], off["enabled_by"], off["hidden_by"]) == (False, "rule", "rule")
    previewed = await preview(team, rule("github_*", enabled=True))
    [outcome] = [each for each in previewed["items"] if each["name"] == "read_file"]
    assert (outcome["enabled"], outcome["enabled_by"], outcome["rule"]) == (False, "rule", None)


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ([rule("*"), rule("/(?=create)/")], "rule 2, pattern 1: the pattern is not valid"),
        ([rule("*"), rule("a", r"/(a)\1/")], "rule 2, pattern 2: the pattern is not valid"),
        ([rule("/create/g")], "rule 1, pattern 1: unknown flag 'g'"),
        ([rule("*"), rule("*"), rule("/[a-/")], "rule 3, pattern 1: the pattern is not valid: missing ]"),
        ([rule("*"), rule("!*delete*")], "rule 2: negated patterns alone"),
        ([rule("*"), rule("!")], "rule 2, pattern 1: a pattern needs"),
        ([rule("*"), rule("x" * 257)], "body.rules.1.pattern.0"),
        ([rule("*"), rule(*["x"] * 51)], "body.rules.1.pattern"),
        ([rule("*")] * 201, "body.rules"),
        ([rule(*["x"] * 50)] * 21, "at most 1000 patterns"),
        ([rule("*", tags=[f"{n} {k}" for k in range(51)]) for n in range(4)], "at most 200 different tags"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_invalid_rule_rejects_the_whole_list_and_is_named(
    team: TestUser, rules: list[Json], complaint: str
) -> None:
    await replace_rules(team, rule("*delete*", enabled=False))
    before = (await team.http.get("/rules")).json()
    for method, path in (("PUT", "/rules"), ("POST", "/rules/preview")):
        problem = assert_problem(await team.http.request(method, path, json={"rules": rules}), 422)
        assert complaint in problem["detail"], problem
    assert (await team.http.get("/rules")).json() == before
    assert await list_visible(team) == ALL - {"github_delete_repo", "delete_file"}


async def test_the_maximum_number_of_rules_can_be_stored(team: TestUser) -> None:
    await replace_rules(team, *(rule(f"tool_{n}", "x" * 256, "!y", "/z/", "[a]?") for n in range(200)))
    assert len((await team.http.get("/rules")).json()["rules"]) == 200
    assert await list_visible(team) == ALL


KEEPS_DELETE_OFF = [rule("*delete*", enabled=False), rule("github_*", enabled=True)]


async def test_a_hidden_tool_is_neither_run_nor_returned_on_any_fallback_level(
    user: TestUser, admin: httpx.AsyncClient, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool(name, "Works on a repo.") for name in sorted(GITHUB)]
    await user.connect(mcp, "github")
    hidden = (await user.tools())["github_delete_repo"]["id"]
    keep = [hidden]
    strategies: list[Json] = [{"strategy": "hybrid"}, {"strategy": "semantic"}, {"strategy": "bm25"}]

    async def list_returned() -> list[set[str]]:
        asked = "github_delete_repo: delete the repo"
        answers: list[Json] = []
        for _ in ("in Postgres", "in memory"):
            answers += [await user.discover(asked, similarity_threshold=0, keep=keep, **each) for each in strategies]
            await container.discoverer.snapshots.wait_loaded()
        async with broken_search(container):
            await outdate_snapshots(container)
            answers.append(await user.discover(asked, keep=keep))
        assert (await admin.patch(f"/users/{user.id}", json={"discovery_enabled": False})).status_code == 200
        answers.append(await user.discover(asked, keep=keep))
        assert (await admin.patch(f"/users/{user.id}", json={"discovery_enabled": True})).status_code == 200
        assert [answer["degraded_reason"] for answer in answers] == [None] * 6 + ["search_failed", "disabled"]
        return [{each["tool"]["name"] for each in answer["tools"]} for answer in answers]

    assert all("github_delete_repo" in names for names in await list_returned())
    assert_ok(await user.execute("github_delete_repo"))
    ran = list(mcp.calls)

    await replace_rules(user, *KEEPS_DELETE_OFF)
    for names in await list_returned():
        assert names <= GITHUB - {"github_delete_repo"}
        assert names
    assert_problem(await user.execute("github_delete_repo"), 404, "TOOL_NOT_FOUND")
    assert mcp.calls == ran
    assert_ok(await user.execute("github_create_repo"))


async def test_rules_apply_to_tools_that_are_added_later(user: TestUser) -> None:
    await replace_rules(user, *KEEPS_DELETE_OFF)
    server_id = await user.add_tools(tool("github_list_issues"), server="github")
    assert await list_visible(user) == {"github_list_issues"}
    await user.push(server_id, [tool("github_list_issues", "Lists."), tool("github_delete_repo"), tool("other")])
    assert await list_visible(user) == {"github_list_issues"}
    await replace_rules(user)
    assert await list_visible(user) == {"github_list_issues", "github_delete_repo", "other"}


async def test_a_rule_follows_the_new_name_of_its_server(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read"), server="github")
    await user.add_tools(tool("write"), server="files")
    await replace_rules(user, rule("*", server="github", enabled=False))
    assert await list_visible(user) == {"write"}

    async def rename(name: str) -> None:
        answer = await user.http.patch(f"/servers/{server_id}", json={"name": name})
        assert answer.status_code == 200, answer.text

    await rename("gitlab")
    assert await list_visible(user) == {"write"}
    await user.reindex(server_id)
    assert await list_visible(user) == {"write"}
    assert [each["server"] for each in (await user.http.get("/rules")).json()["rules"]] == ["gitlab"]


async def test_tags_come_from_the_tool_its_server_and_all_matching_rules(team: TestUser) -> None:
    await change_tool(team, "github_list_issues", tags=["mine"])
    await replace_rules(
        team,
        rule("*list*", tags=["reads", "code"]),
        rule("github_*", server="github", tags=["remote"]),
        rule("*delete*", tags=["danger"], enabled=False),
        rule("read_file", tags=["reads"]),
    )
    shown = await team.tools()
    assert set(shown["github_list_issues"]["tags"]) == {"mine", "code", "reads", "remote"}
    assert shown["github_list_issues"]["own_tags"] == ["mine"]
    assert set(shown["github_delete_repo"]["tags"]) == {"code", "remote", "danger"}
    assert set(shown["read_file"]["tags"]) == {"reads"}

    answer = await team.discover(ASKED, similarity_threshold=0, tags=["reads", "remote"])
    matched = {each["tool"]["name"]: set(each["matched_tags"]) for each in answer["tools"]}
    assert matched == {
        "github_list_issues": {"reads", "remote"},
        "github_create_repo": {"remote"},
        "read_file": {"reads"},
    }
    assert answer["tools"][0]["tool"]["name"] == "github_list_issues"
    assert await found(team, tags=["danger"]) == set()

    async def counts() -> dict[str, int]:
        return {each["tag"]: each["count"] for each in (await team.http.get("/tags")).json()["items"]}

    assert await counts() == {"code": 2, "mine": 1, "reads": 2, "remote": 2}
    assert list(await counts()) == sorted(await counts())
    await replace_rules(team)
    await change_tool(team, "github_list_issues", tags=[])
    assert await counts() == {"code": 3}


async def test_a_persons_switch_overrides_rules_and_survives_a_reindex(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read"), tool("delete"), tool("plain"))
    await replace_rules(user, rule("delete", enabled=False), rule("read", enabled=True), rule("p*", enabled=True))

    async def decided() -> dict[str, tuple[bool, str]]:
        await list_visible(user)
        return {name: (each["visible"], each["enabled_by"]) for name, each in (await user.tools()).items()}

    by_rules = {"read": (True, "rule"), "delete": (False, "rule"), "plain": (True, "rule")}
    by_hand = {"read": (False, "user"), "delete": (True, "user"), "plain": (True, "rule")}
    assert await decided() == by_rules
    await change_tool(user, "read", enabled=False)
    await change_tool(user, "delete", enabled=True)
    assert await decided() == by_hand
    previewed = await preview(user, rule("*", enabled=False))
    assert {each["name"]: (each["visible"], each["enabled_by"]) for each in previewed["items"]} == {
        **by_hand,
        "plain": (False, "rule"),
    }
    await user.push(server_id, [tool("read", "Again."), tool("delete", "Again."), tool("plain")])
    await user.reindex(server_id, force=True)
    assert await decided() == by_hand
    await replace_rules(user)
    assert await decided() == {**by_hand, "plain": (True, "default")}
    await replace_rules(user, rule("delete", enabled=False), rule("read", enabled=True), rule("p*", enabled=True))
    assert await decided() == by_hand
    for name in ("read", "delete"):
        assert (await change_tool(user, name, enabled=None))["enabled_by"] == "rule"
    assert await decided() == by_rules


async def test_a_preview_for_a_project_shows_what_it_would_see(team: TestUser) -> None:
    server_id = (await team.tools())["github_list_issues"]["server_id"]
    body = {"name": "read only", "server_ids": [server_id], "rules": [rule("*list*", enabled=False)]}
    project = (await team.http.post("/projects", json=body)).json()
    await replace_rules(team, rule("*create*", enabled=False))
    rules = [rule("github_delete_repo", "*create*", enabled=True, tags=["chosen"])]
    previewed = await preview(team, *rules, project_id=project["id"])
    shown = ("enabled", "enabled_by", "rule", "visible", "hidden_by", "outside_by", "was_visible")
    outcomes = {each["name"]: tuple(each[name] for name in shown) for each in previewed["items"]}
    outside = (True, "default", None, False, None, "member", False)
    assert outcomes == {
        "github_create_repo": (False, "rule", None, False, "rule", None, False),
        "github_delete_repo": (True, "rule", 1, True, None, None, True),
        "github_list_issues": (False, "rule", None, False, None, "rule", False),
        "read_file": outside,
        "Write_file": outside,
        "delete_file": outside,
    }
    assert (previewed["visible"], previewed["hidden"], previewed["changes"]) == (1, 5, 0)
    assert previewed["rules"] == [{"rule": 1, "matched": 2, "decided": 2}]
    [chosen] = [each for each in previewed["items"] if each["name"] == "github_delete_repo"]
    assert set(chosen["tags"]) == {"code", "chosen"}

    await team.http.patch(f"/projects/{project['id']}", json={"rules": rules})
    assert await found(team, project_id=project["id"]) == {"github_delete_repo"}
    assert (await team.http.delete(f"/projects/{project['id']}")).status_code == 204


async def test_a_project_preview_attributes_a_disabled_tool_to_its_switch(team: TestUser) -> None:
    project = (await team.http.post("/projects", json={"name": "all", "server_ids": None})).json()
    await change_tool(team, "read_file", enabled=False)
    previewed = await preview(team, rule("read_file", enabled=True), project_id=project["id"])
    [outcome] = [each for each in previewed["items"] if each["name"] == "read_file"]
    decided = outcome["enabled"], outcome["enabled_by"], outcome["rule"], outcome["hidden_by"]
    assert decided == (False, "user", None, "user")
    await change_tool(team, "read_file", enabled=None)
    previewed = await preview(team, rule("read_file", enabled=True), project_id=project["id"])
    [outcome] = [each for each in previewed["items"] if each["name"] == "read_file"]
    assert (outcome["enabled"], outcome["enabled_by"], outcome["rule"]) == (True, "rule", 1)
    assert (await team.http.delete(f"/projects/{project['id']}")).status_code == 204


async def test_rules_that_do_nothing_are_stored_with_a_warning(team: TestUser) -> None:
    given = [
        rule("*"),
        rule("READ_*", enabled=False),
        rule("*", server="Files", tags=["x"]),
        rule("read_*", tags=["x"]),
    ]
    answer = (await team.http.put("/rules", json={"rules": given})).json()
    assert len(answer["rules"]) == 4
    assert [warning.split(":")[0] for warning in answer["warnings"]] == [
        "rule 1 does nothing",
        "rule 2 matches no tool so far",
        "rule 3 matches no tool so far",
    ]


async def test_new_rules_for_thousands_of_tools_are_applied_in_seconds(container: Container) -> None:
    """The planner expects one row: with nested loops it would compare twenty-five million pairs."""
    names = [f"tool_{number}" for number in range(5_000)]
    filled = await asyncio.to_thread(add_user, container, names, np.ones((len(names), 384), np.float32))
    headers = {"Authorization": f"Bearer {ADMIN_KEY}", "X-User-Id": filled.id}
    async with open_client(container, **headers) as http:
        for rules, visible in (([{"pattern": ["*7*"], "enabled": False}], 3_645), ([], 5_000)):
            with within(2):
                assert (await http.put("/rules", json={"rules": rules})).status_code == 200
            preview = (await http.post("/rules/preview", json={"rules": rules}, params={"changed": True})).json()
            assert (preview["visible"], preview["changes"]) == (visible, 0)
