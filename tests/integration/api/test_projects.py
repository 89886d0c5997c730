"""Projects: parts of a user's tools, which can only narrow; and keys that are bound to one."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.auth.authentication import Authenticator
from app.auth.permissions import Permission
from app.container import Container
from tests.support.broken_search import broken_search
from tests.support.calls import assert_ok
from tests.support.checks import MCP_PATHS, Json, assert_problem, door_routes, everything, pages, without_request_id
from tests.support.clients import TestUser, get_app, new_user, open_client
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer

READS = {"annotations": {"readOnlyHint": True}}
DOCS = [
    tool("read_page", "Reads a page of the documents.", **READS),
    tool("write_page", "Writes a page of the documents.", annotations={"readOnlyHint": False}),
]
MAIL = [tool("read_mail", "Reads a mail.", **READS), tool("send_mail", "Sends a mail to somebody.")]
ALL = {"read_page", "write_page", "read_mail", "send_mail"}
ASKED = "read and write pages of the documents, and read and send a mail"
DEFAULTS: Json = {
    "server_ids": None,
    "optimization": "hybrid",
    "rules": [],
    "read_only": False,
    "limit": None,
    "similarity_threshold": None,
}


def rule(*pattern: str, **fields: Any) -> Json:
    return {"pattern": list(pattern), **fields}


async def create_project(user: TestUser, name: str | None = None, **fields: Any) -> str:
    """Return the id of a new project."""
    body = {"name": name or f"project {uuid.uuid4().hex[:8]}", "server_ids": None, **fields}
    answer = await user.http.post("/projects", json=body)
    assert answer.status_code == 201, answer.text
    project_id: str = answer.json()["id"]
    return project_id


async def change_project(user: TestUser, project_id: str, **changes: Any) -> Json:
    answer = await user.http.patch(f"/projects/{project_id}", json=changes)
    assert answer.status_code == 200, answer.text
    shown: Json = answer.json()
    return shown


def names(answer: Json) -> list[str]:
    return [each["tool"]["name"] for each in answer["tools"]]


async def find_visible(user: TestUser, project_id: str, **fields: Any) -> set[str]:
    """Return what a discovery in the project finds, which must be what its list of tools shows."""
    usual = {"similarity_threshold": 0, "limit": 50, "include_core_tools": False}
    answer = await user.discover(ASKED, project_id=project_id, **{**usual, **fields})
    if not fields:
        listed = await everything(user.http, "/tools", project_id=project_id)
        assert {each["name"] for each in listed} == set(names(answer))
        assert answer["total_searched"] == len(listed)
    return set(names(answer))


@pytest.fixture(scope="module")
async def team(container: Container) -> AsyncIterator[TestUser]:
    """Two servers with two tools each, one of them read-only; each test creates its own projects."""
    async with new_user(container) as made:
        await made.add_tools(*DOCS, server="docs", tags=["paper"])
        await made.add_tools(*MAIL, server="mail")
        yield made


async def get_server_id(user: TestUser, name: str) -> str:
    [found] = [each["id"] for each in await everything(user.http, "/servers") if each["name"] == name]
    server_id: str = found
    return server_id


async def test_a_new_project_is_returned_as_requested(team: TestUser) -> None:
    docs = await get_server_id(team, "docs")
    whole: Json = {
        "name": "all of it",
        "server_ids": [docs],
        "optimization": "bm25",
        "rules": [rule("read_*", server="docs", enabled=True, tags=["safe"])],
        "read_only": True,
        "limit": 3,
        "similarity_threshold": 0.0,
    }
    for body in (whole, {"name": "the least", "server_ids": None}):
        made = await team.http.post("/projects", json=body)
        assert made.status_code == 201, made.text
        created = made.json()
        stamped = {name: created[name] for name in ("id", "created_at", "updated_at")}
        assert created == {**DEFAULTS, **body, **stamped}
        assert (await team.http.get(f"/projects/{created['id']}")).json() == created
        assert created in await everything(team.http, "/projects")
        assert (await team.http.delete(f"/projects/{created['id']}")).status_code == 204
        for method in ("GET", "DELETE"):
            assert_problem(await team.http.request(method, f"/projects/{created['id']}"), 404)
        assert created not in await everything(team.http, "/projects")


async def test_projects_are_listed_in_pages_by_name(user: TestUser) -> None:
    for name in ("d", "b", "a", "c", "e"):
        await create_project(user, name, rules=[rule(name)])
    found = await pages(user.http, "/projects", limit=2)
    assert [[each["name"] for each in page] for page in found] == [["a", "b"], ["c", "d"], ["e"]]
    assert all(each["rules"][0]["pattern"] == [each["name"]] for page in found for each in page)


async def test_a_projects_name_is_unique_for_its_user(user: TestUser, other_user: TestUser) -> None:
    first, second = await create_project(user, "support"), await create_project(user, "sales")
    assert_problem(await user.http.post("/projects", json={"name": "support", "server_ids": None}), 409)
    assert_problem(await user.http.patch(f"/projects/{second}", json={"name": "support"}), 409)
    assert (await change_project(user, first, name="support"))["name"] == "support"
    assert await create_project(other_user, "support") != first
    assert [each["name"] for each in await everything(user.http, "/projects")] == ["sales", "support"]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "renamed"},
        {"server_ids": []},
        {"server_ids": None},
        {"optimization": None},
        {"optimization": "semantic"},
        {"rules": []},
        {"rules": [rule("*mail", enabled=False)]},
        {"read_only": False},
        {"limit": None},
        {"limit": 50},
        {"similarity_threshold": None},
        {"similarity_threshold": 1},
        {},
    ],
    ids=str,
)
async def test_a_patch_changes_only_the_fields_that_it_names(team: TestUser, changes: Json) -> None:
    fields: Json = {
        "server_ids": [await get_server_id(team, "docs")],
        "optimization": "bm25",
        "rules": [rule("read_*", enabled=True)],
        "read_only": True,
        "limit": 3,
        "similarity_threshold": 0.5,
    }
    project_id = await create_project(team, **fields)
    before = (await team.http.get(f"/projects/{project_id}")).json()
    after = await change_project(team, project_id, **changes)
    filled: Json = {"server": None, "enabled": None, "tags": []}
    shown = {**changes, "rules": [filled | each for each in changes["rules"]]} if "rules" in changes else changes
    assert after == {**before, **shown, "updated_at": after["updated_at"]}
    assert after["updated_at"] > before["updated_at"]
    assert (await team.http.get(f"/projects/{project_id}")).json() == after
    assert (await team.http.delete(f"/projects/{project_id}")).status_code == 204


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"name": None}, 422),
        ({"read_only": None}, 422),
        ({"rules": None}, 422),
        ({"rules": [rule("!only_negated")]}, 422),
        ({"limit": 0}, 422),
        ({"optimization": "magic"}, 422),
        ({"id": "another"}, 422),
        ({"read_only": True, "server_ids": ["no-such-server"]}, 404),
        ({"read_only": True, "rules": [rule("/(?=a)/")]}, 422),
    ],
    ids=str,
)
async def test_an_invalid_patch_changes_nothing(team: TestUser, changes: Json, status: int) -> None:
    project_id = await create_project(team)
    before = (await team.http.get(f"/projects/{project_id}")).json()
    assert_problem(await team.http.patch(f"/projects/{project_id}", json=changes), status)
    assert (await team.http.get(f"/projects/{project_id}")).json() == before
    assert await find_visible(team, project_id) == ALL
    assert (await team.http.delete(f"/projects/{project_id}")).status_code == 204


async def test_the_number_of_projects_is_limited(user: TestUser, container: Container) -> None:
    statement = (
        "INSERT INTO projects (user_id, id, name) SELECT %(owner)s, 'p' || n, 'p' || n FROM generate_series(2, {}) n"
    )
    async with container.database.transaction(user.id) as session:
        await session.rows(statement.format(container.settings.max_projects), {"owner": user.id})
    last = await create_project(user, "the last")
    refused = await user.http.post("/projects", json={"name": "too many", "server_ids": None})
    assert "at most 100 projects" in assert_problem(refused, 422)["detail"]
    assert (await user.http.delete(f"/projects/{last}")).status_code == 204
    await create_project(user, "too many no more")


async def test_a_project_sees_only_its_servers(team: TestUser) -> None:
    docs, mail = await get_server_id(team, "docs"), await get_server_id(team, "mail")
    project_id = await create_project(team, server_ids=[docs])
    assert await find_visible(team, project_id) == {"read_page", "write_page"}
    for members, expected in (([mail], {"read_mail", "send_mail"}), ([docs, mail], ALL), ([], set()), (None, ALL)):
        await change_project(team, project_id, server_ids=members)
        assert await find_visible(team, project_id) == expected


async def test_projects_follow_added_and_deleted_servers(user: TestUser) -> None:
    docs = await user.add_tools(*DOCS, server="docs")
    some = await create_project(user, server_ids=[docs], rules=[rule("*_page", enabled=True)])
    every = await create_project(user, server_ids=None)
    assert await find_visible(user, some) == await find_visible(user, every) == {"read_page", "write_page"}
    mail = await user.add_tools(*MAIL, server="mail")
    assert await find_visible(user, some) == {"read_page", "write_page"}
    assert await find_visible(user, every) == ALL
    await user.push(docs, [*DOCS, tool("print_page", "Prints a page."), tool("print_all", "Prints all pages.")])
    assert await find_visible(user, some) == {"read_page", "write_page", "print_page"}
    assert await find_visible(user, every) == ALL | {"print_page", "print_all"}
    await user.push(docs, DOCS[:1])
    assert await find_visible(user, some) == {"read_page"}

    assert (await user.http.delete(f"/servers/{docs}")).status_code == 204
    assert await find_visible(user, some) == set()
    assert await find_visible(user, every) == {"read_mail", "send_mail"}
    # an empty list of members does not mean all servers
    assert (await user.http.get(f"/projects/{some}")).json()["server_ids"] == []
    await change_project(user, some, server_ids=[mail], rules=[])
    assert await find_visible(user, some) == {"read_mail", "send_mail"}


async def test_a_projects_rules_can_only_narrow_what_the_user_sees(user: TestUser) -> None:
    await user.add_tools(*DOCS, server="docs")
    await user.add_tools(*MAIL, server="mail")
    ids = {name: each["id"] for name, each in (await user.tools()).items()}
    project_id = await create_project(user, rules=[rule("*_page", "read_mail", enabled=True, tags=["chosen"])])
    assert await find_visible(user, project_id) == {"read_page", "write_page", "read_mail"}
    assert (await user.http.put("/rules", json={"rules": [rule("*mail", enabled=False)]})).status_code == 200
    assert await find_visible(user, project_id) == {"read_page", "write_page"}
    await user.http.patch(f"/tools/{ids['write_page']}", json={"enabled": False})
    assert await find_visible(user, project_id) == {"read_page"}
    # a switch overrides a rule of the user, and no rule of the project
    for name in ("read_mail", "send_mail"):
        await user.http.patch(f"/tools/{ids[name]}", json={"enabled": True})
    assert await find_visible(user, project_id) == {"read_page", "read_mail"}
    docs = await get_server_id(user, "docs")
    await user.http.patch(f"/servers/{docs}", json={"enabled": False})
    assert await find_visible(user, project_id) == {"read_mail"}
    await change_project(user, project_id, rules=[rule("read*", enabled=False)])
    assert await find_visible(user, project_id) == {"send_mail"}


async def test_filters_of_a_request_can_only_narrow_a_project(team: TestUser) -> None:
    docs, mail = await get_server_id(team, "docs"), await get_server_id(team, "mail")
    project_id = await create_project(team, server_ids=[docs], rules=[rule("read*", tags=["chosen"])])
    outside = [each["id"] for name, each in (await team.tools()).items() if name.endswith("mail")]
    narrowed: list[tuple[Json, set[str]]] = [
        ({"server_ids": [mail]}, set()),
        ({"server_ids": [docs, mail]}, {"read_page", "write_page"}),
        ({"server_ids": []}, set()),
        ({"tags": ["chosen"]}, {"read_page"}),
        ({"tags": ["paper"]}, {"read_page", "write_page"}),
        ({"tags": ["mail"]}, set()),
        ({"keep": outside}, {"read_page", "write_page"}),
    ]
    for fields, expected in narrowed:
        assert await find_visible(team, project_id, **fields) == expected, fields
    # tags of a project's rules exist only in that project
    everywhere = await team.discover(ASKED, similarity_threshold=0, tags=["chosen"])
    assert names(everywhere) == []
    [within] = (await team.discover(ASKED, project_id=project_id, similarity_threshold=0, tags=["chosen"]))["tools"]
    assert (within["tool"]["name"], within["matched_tags"]) == ("read_page", ["chosen"])

    async def tags(**query: str) -> dict[str, int]:
        return {each["tag"]: each["count"] for each in (await team.http.get("/tags", params=query)).json()["items"]}

    assert await tags() == {"paper": 2}
    assert await tags(project_id=project_id) == {"chosen": 1, "paper": 2}
    [listed] = await everything(team.http, "/tools", project_id=project_id, tag="chosen")
    assert (listed["name"], set(listed["tags"]), listed["own_tags"]) == ("read_page", {"paper", "chosen"}, [])
    assert await everything(team.http, "/tools", tag="chosen") == []


async def test_a_tag_that_a_project_adds_again_counts_once(team: TestUser) -> None:
    project_id = await create_project(team, rules=[rule("*_page", tags=["paper", "new"])])
    tags = (await team.http.get("/tags", params={"project_id": project_id})).json()["items"]
    assert tags == [{"tag": "new", "count": 2}, {"tag": "paper", "count": 2}]
    listed = await everything(team.http, "/tools", project_id=project_id, tag="paper")
    assert [sorted(each["tags"]) for each in listed] == [["new", "paper"]] * 2
    answer = await team.discover(ASKED, project_id=project_id, similarity_threshold=0, tags=["paper"], explain=True)
    assert [each["matched_tags"] for each in answer["tools"]] == [["paper"]] * 2
    assert [each["explanation"]["tag_boost"] for each in answer["tools"]] == [0.2] * 2
    body = {"rules": [rule("*_page", tags=["paper", "new"])], "project_id": project_id}
    items = (await team.http.post("/rules/preview", json=body)).json()["items"]
    assert [sorted(each["tags"]) for each in items if each["server_name"] == "docs"] == [["new", "paper"]] * 2
    assert (await team.http.delete(f"/projects/{project_id}")).status_code == 204


async def test_a_read_only_project_sees_only_tools_that_declare_it(user: TestUser) -> None:
    hints: list[Any] = [None, 1, "true", {}]
    odd = [tool(f"odd_{n}", annotations={"readOnlyHint": hint}) for n, hint in enumerate(hints)]
    server_id = await user.add_tools(*DOCS, *MAIL, *odd)
    project_id = await create_project(user, read_only=True)
    assert await find_visible(user, project_id) == {"read_page", "read_mail"}
    await change_project(user, project_id, rules=[rule("*", enabled=True)])
    assert await find_visible(user, project_id) == {"read_page", "read_mail"}
    no_longer = {**DOCS[0], "annotations": {"readOnlyHint": False}}
    await user.push(server_id, [no_longer, *MAIL])
    assert await find_visible(user, project_id) == {"read_mail"}
    await change_project(user, project_id, read_only=False)
    assert await find_visible(user, project_id) == ALL - {"write_page"}


async def test_limit_and_threshold_of_a_project_override_the_users(user: TestUser, admin: httpx.AsyncClient) -> None:
    await user.add_tools(*DOCS, *MAIL)
    project_id = await create_project(user, limit=2, similarity_threshold=0)
    await admin.patch(f"/users/{user.id}", json={"settings": {"limit": 3, "similarity_threshold": 1}})

    async def count(**fields: Any) -> int:
        return len((await user.discover("something else altogether", strategy="semantic", **fields))["tools"])

    assert await count() == 0
    assert await count(similarity_threshold=0) == 3
    assert await count(project_id=project_id) == 2
    assert await count(project_id=project_id, limit=1) == 1
    assert await count(project_id=project_id, similarity_threshold=1) == 0
    await change_project(user, project_id, limit=None)
    assert await count(project_id=project_id) == 3
    await change_project(user, project_id, similarity_threshold=None)
    assert await count(project_id=project_id) == 0


async def test_a_project_has_its_own_strategy_or_none(user: TestUser, admin: httpx.AsyncClient) -> None:
    await user.add_tools(*DOCS, *MAIL)
    assert (await user.http.put("/core-tools", json={"tools": [tool("browse")]})).status_code == 200
    await admin.patch(f"/users/{user.id}", json={"settings": {"strategy": "semantic"}})
    project_id = await create_project(user, optimization=None)
    for fields in ({}, {"strategy": "hybrid"}, {"similarity_threshold": 0, "limit": 50}):
        answer = await user.discover(ASKED, project_id=project_id, **fields)
        assert [(each["tool"]["name"], each["source"]) for each in answer["tools"]] == [("browse", "core")]
        assert (answer["strategy"], answer["no_match"], answer["degraded"]) == (None, True, False)
    without = await user.discover(ASKED, project_id=project_id, include_core_tools=False)
    assert (without["tools"], without["no_match"]) == ([], True)
    for optimization in ("bm25", "semantic", "hybrid"):
        await change_project(user, project_id, optimization=optimization)
        answer = await user.discover(ASKED, project_id=project_id)
        assert answer["strategy"] == optimization
        assert {"browse", "send_mail"} <= set(names(answer))
        assert answer["no_match"] is False
    assert (await user.discover(ASKED, project_id=project_id, strategy="bm25"))["strategy"] == "bm25"


async def test_a_project_without_a_strategy_returns_nothing_on_any_fallback_level(
    user: TestUser, admin: httpx.AsyncClient, container: Container
) -> None:
    await user.add_tools(*DOCS, server="docs")
    await user.add_tools(*MAIL, server="mail")
    silent = await create_project(user, optimization=None)
    narrow = await create_project(user, rules=[rule("*mail", enabled=True)])

    async def list_returned() -> tuple[list[str], list[str], str | None]:
        answer = await user.discover(ASKED, project_id=narrow)
        nothing = await user.discover(ASKED, project_id=silent)
        return names(nothing), sorted(names(answer)), answer["degraded_reason"]

    async with broken_search(container):
        assert await list_returned() == ([], ["read_mail", "send_mail"], "search_failed")
    await admin.patch(f"/users/{user.id}", json={"discovery_enabled": False})
    assert await list_returned() == ([], ["read_mail", "send_mail"], "disabled")


async def test_term_frequencies_are_those_of_the_project(user: TestUser, other_user: TestUser) -> None:
    """Reports are frequent in the project and rare elsewhere; budgets are the reverse."""
    own = [tool(f"report_{n}", "Makes a report.") for n in range(7)] + [tool("plan", "Plans a budget.")]
    server_id = await user.add_tools(*own, server="office")
    await user.add_tools(*(tool(f"count_{n}", "Counts a budget.") for n in range(30)), server="bank")
    await other_user.add_tools(*own, server="office")
    project_id = await create_project(user, server_ids=[server_id])

    async def ranked(asker: TestUser, **fields: Any) -> list[tuple[str, float]]:
        answer = await asker.discover("report budget", strategy="bm25", explain=True, limit=50, **fields)
        return [(each["tool"]["name"], each["explanation"]["bm25"]) for each in answer["tools"]]

    in_the_project = await ranked(user, project_id=project_id)
    assert in_the_project[0][0] == "plan"
    assert in_the_project == await ranked(other_user)
    everywhere = await ranked(user)
    assert everywhere[0][0].startswith("report_")
    bm25 = dict(everywhere)
    assert all(bm25[name] > score for name, score in in_the_project if name != "plan")
    assert bm25["plan"] < dict(in_the_project)["plan"]


@asynccontextmanager
async def with_bound_key(
    container: Container, admin: httpx.AsyncClient, user: TestUser, project_id: str
) -> AsyncIterator[TestUser]:
    """The same user, with a key that is bound to the project."""
    made = await admin.post("/keys", json={"kind": "user", "user_id": user.id, "project_id": project_id})
    assert made.status_code == 201, made.text
    assert made.json()["project_id"] == project_id
    key = made.json()["key"]
    async with open_client(container, Authorization=f"Bearer {key}") as http:
        yield TestUser(user.id, key, http)


async def test_a_bound_key_sees_and_runs_only_tools_of_its_project(
    user: TestUser, admin: httpx.AsyncClient, container: Container, mcp: FakeMcpServer
) -> None:
    mcp.tools = [*DOCS, *MAIL]
    server_id = await user.connect(mcp, tags=["paper"])
    project_id = await create_project(user, rules=[rule("read*", enabled=True, tags=["safe"])])
    ids = {name: each["id"] for name, each in (await user.tools()).items()}
    async with with_bound_key(container, admin, user, project_id) as bound:
        assert set(await bound.tools()) == {"read_page", "read_mail"}
        assert {*names(await bound.discover(ASKED, similarity_threshold=0, keep=list(ids.values())))} == {
            "read_page",
            "read_mail",
        }
        tags = (await bound.http.get("/tags")).json()["items"]
        assert tags == [{"tag": "paper", "count": 2}, {"tag": "safe", "count": 2}]
        assert_ok(await bound.execute("read_page"))
        assert (await bound.http.get(f"/tools/{ids['read_page']}")).json()["name"] == "read_page"
        why = await bound.http.post("/discover/why", json={"query": ASKED, "tool": "read_page"})
        assert [each["tool_key"] for each in why.json()["items"]] == [ids["read_page"]]

        async def answers(tool_key: str, name: str) -> list[Any]:
            """Return the answers of all routes that are about one tool."""
            call = {"type": "tool_use", "name": name, "input": {}}
            responses = [
                await bound.http.get(f"/tools/{tool_key}"),
                await bound.http.get("/tools", params={"name": name}),
                await bound.http.post("/execute", json={"tool_key": tool_key}),
                await bound.http.post("/execute", json={"tool_call": call}),
                await bound.http.post("/discover/why", json={"query": ASKED, "tool": tool_key}),
                await bound.http.post("/discover/why", json={"query": ASKED, "tool": name}),
            ]
            assert [each.status_code for each in responses] == [404, 200, 404, 404, 200, 200]
            return [without_request_id(each) for each in responses]

        ran = list(mcp.calls)
        # a missing tool with a name as near to `read_mail`, which both get as a suggestion
        assert await answers(ids["send_mail"], "send_mail") == await answers(str(uuid.uuid4()), "lend_mail")
        assert mcp.calls == ran
        assert_ok(await user.execute("send_mail"))

        # a change of the project applies to the key at once
        await change_project(user, project_id, rules=[rule("read_mail", enabled=True)])
        assert_problem(await bound.http.post("/execute", json={"tool_key": ids["read_page"]}), 404, "TOOL_NOT_FOUND")
        assert set(await bound.tools()) == {"read_mail"}
        await user.http.patch(f"/servers/{server_id}", json={"enabled": False})
        assert await bound.tools() == {}


async def test_a_project_in_the_body_confines_a_call(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = MAIL
    await user.connect(mcp)
    project_id = await create_project(user, read_only=True)
    assert_problem(await user.execute("send_mail", project_id=project_id), 404, "TOOL_NOT_FOUND")
    assert_ok(await user.execute("read_mail", project_id=project_id))
    assert_ok(await user.execute("send_mail"))
    assert_problem(await user.execute("send_mail", project_id=str(uuid.uuid4())), 404, "TOOL_NOT_FOUND")


async def test_a_bound_key_may_only_use_its_project(
    team: TestUser, admin: httpx.AsyncClient, container: Container
) -> None:
    project_id = await create_project(team)
    within = {Permission.DISCOVER, Permission.READ_TOOLS, Permission.EXECUTE}
    routes = [route for route in door_routes(get_app(container)) if route.permissions]
    refused = {(route.method, route.path) for route in routes if not route.permissions <= within}
    assert {(route.method, route.path) for route in routes} - refused == {
        ("POST", "/discover"),
        ("POST", "/discover/why"),
        ("DELETE", "/conversations/{conversation_id}"),
        ("POST", "/catalog/search"),
        ("POST", "/feedback"),
        ("POST", "/eval"),
        ("POST", "/execute"),
        ("GET", "/tools"),
        ("GET", "/tools/{tool_id}"),
        ("GET", "/tags"),
        ("GET", "/categories"),
        ("GET", "/categories/{category_id}"),
        *(("POST", path) for path in MCP_PATHS),
    }
    before = await everything(team.http, "/projects")
    tool_id = (await team.tools())["read_page"]["id"]
    ids = {"server_id": await get_server_id(team, "docs"), "tool_id": tool_id, "project_id": project_id}
    ids |= {"run_id": "some-run", "user_id": team.id, "key_id": "some-key", "namespace": "com.acme", "name": "weather"}
    ids["category_id"] = "some-category"
    async with with_bound_key(container, admin, team, project_id) as bound:
        for method, path in sorted(refused):
            body: Json | None = None if method in ("GET", "DELETE") else {}
            assert_problem(await bound.http.request(method, path.format(**ids), json=body), 403)
        named = await bound.http.get("/tools", headers={"X-User-Id": "somebody-else"})
        assert_problem(named, 403)
    assert await everything(team.http, "/projects") == before
    assert await find_visible(team, project_id) == ALL
    assert (await team.http.delete(f"/projects/{project_id}")).status_code == 204


async def test_a_bound_key_may_name_only_its_own_project(
    team: TestUser, admin: httpx.AsyncClient, container: Container
) -> None:
    own, other = await create_project(team), await create_project(team)
    bodies: dict[str, Json | None] = {
        "/tools": None,
        "/tags": None,
        "/categories": None,
        "/discover": {"query": "x"},
        "/discover/why": {"query": "x", "tool": "read_page"},
        "/eval": {"items": [{"message": "x", "tools": ["read_page"]}], "suggest": True},
        "/execute": {"tool_key": "no-such-tool"},
    }
    async with with_bound_key(container, admin, team, own) as bound:

        async def ask(path: str, project_id: str) -> httpx.Response:
            body = bodies[path]
            if body is None:
                return await bound.http.get(path, params={"project_id": project_id})
            return await bound.http.post(path, json={**body, "project_id": project_id})

        for path in bodies:
            foreign = await ask(path, other)
            assert_problem(foreign, 404)
            assert without_request_id(foreign) == without_request_id(await ask(path, str(uuid.uuid4())))
            mine = await ask(path, own)
            assert mine.is_success or mine.json()["code"] == "TOOL_NOT_FOUND", mine.text
    for project_id in (own, other):
        assert (await team.http.delete(f"/projects/{project_id}")).status_code == 204


async def test_deleting_a_project_ends_its_keys_at_once_and_no_others(
    team: TestUser, admin: httpx.AsyncClient, container: Container
) -> None:
    project_id, other = await create_project(team), await create_project(team)
    replica = replace(container, authenticator=Authenticator(container.database, None))
    async with (
        with_bound_key(container, admin, team, project_id) as bound,
        with_bound_key(container, admin, team, other) as unharmed,
        open_client(replica, Authorization=f"Bearer {bound.key}") as there,
    ):
        for http in (bound.http, there):
            assert len(await everything(http, "/tools")) == len(ALL)
        assert (await team.http.delete(f"/projects/{project_id}")).status_code == 204
        assert {(await http.get("/tools")).status_code for http in (bound.http, there)} == {401}
        assert len(await unharmed.tools()) == len(ALL)
        assert project_id not in {each["project_id"] for each in await everything(admin, "/keys")}
    assert len(await team.tools()) == len(ALL)
    assert (await team.http.delete(f"/projects/{other}")).status_code == 204


async def test_aliases_in_a_project_reveal_nothing_of_tools_outside_of_it(user: TestUser) -> None:
    docs = await user.add_tools(tool("search", "Searches the docs."), server="docs")
    inside = await create_project(user, server_ids=[docs])
    everything = await create_project(user)
    await user.add_tools(tool("search", "Searches the mail."), server="mail")

    async def aliases(project_id: str) -> list[str]:
        answer = await user.discover("search the docs", project_id=project_id, similarity_threshold=0)
        return [each["alias"] for each in answer["tools"]]

    assert await aliases(inside) == ["search"]
    assert [alias.split("_")[0] for alias in sorted(await aliases(everything))] == ["docs", "mail"]
