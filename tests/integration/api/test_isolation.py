"""No user sees or changes anything of another user: with both barriers, and with either of them alone.

The barriers are the predicate `user_id = …` of every statement and row-level security in Postgres.
"""

import asyncio
import random
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Literal

import httpx
import pytest

from app.connections.repository import require_scope
from app.container import Container, open_container
from app.db.scope import APP_ROLE
from app.errors import QueryFailed
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.barriers import PredicateRemover, predicates_removed, row_level_security_removed
from tests.support.checks import (
    TENANT_COLUMN,
    Json,
    assert_problem,
    assert_refused,
    door_routes,
    everything,
    find_and_praise,
    leave_a_call,
    leave_a_category,
    leave_a_sharing,
    leave_a_sign_in,
    without_request_id,
    write_down,
)
from tests.support.clients import TestUser, get_app, new_user, open_client
from tests.support.factories import ADMIN_KEY, OpenService, make_database, make_settings, tool
from tests.support.large_tenants import make_large
from tests.support.partitions import StatementGuard
from tests.support.worker_steps import has_no_runs, until

pytestmark = pytest.mark.no_retry

# the barrier that is removed, to see whether the other one suffices
Removed = Literal["nothing", "predicates", "row-level security"]


@dataclass(frozen=True)
class Belongings:
    """The objects of a user. Every name and text of them contains the mark."""

    mark: str
    ids: dict[str, str]

    @property
    def traces(self) -> list[str]:
        return [self.mark, *self.ids.values()]


async def add_belongings(user: TestUser) -> Belongings:
    # letters alone: a search splits a word before digits
    mark = "mark" + "".join(secrets.choice(ascii_lowercase) for _ in range(12))
    server_id = await user.add_server(mark, description=mark, tags=[mark])
    run = await user.push(server_id, [tool(f"{mark}_read", f"Reads the file {mark}.")])
    assert run["state"] == "succeeded", run
    tool_id = (await user.tools())[f"{mark}_read"]["id"]
    rules = [{"pattern": [f"{mark}_*"], "tags": [f"{mark}-inside"]}]
    project = await user.http.post("/projects", json={"name": mark, "server_ids": [server_id], "rules": rules})
    assert project.status_code == 201, project.text
    ids = {"server_id": server_id, "tool_id": tool_id, "run_id": run["id"], "project_id": project.json()["id"]}
    ids["conversation_id"] = f"{mark}-chat"
    await user.discover(f"{mark}_read", keep={"conversation_id": ids["conversation_id"]})
    return Belongings(mark, ids)


async def add_everything(container: Container, user: TestUser) -> Belongings:
    """Give a user one object of every kind. Once for each user: core tools and rules are one list each."""
    await leave_a_call(container, user.id)
    belongings = await add_belongings(user)
    await leave_a_sign_in(container, user.id)
    await leave_a_sharing(container, user.id)
    mark = belongings.mark
    for adverb in ("quickly", "carefully"):
        await user.push(belongings.ids["server_id"], [tool(f"{mark}_read", f"Reads the file {mark} {adverb}.")])
    answer = await user.http.put("/core-tools", json={"tools": [tool(f"{mark}_core", mark)]})
    assert answer.status_code == 200
    rules = [{"pattern": [f"{mark}_*"], "server": mark, "tags": [f"{mark}-ruled"]}]
    assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200
    await until(lambda: has_no_runs(container))
    belongings.ids["category_id"] = await leave_a_category(container, user.id)
    belongings.ids["discovery_id"] = await find_and_praise(container, user, f"{mark}_read")
    return belongings


def missing_belongings() -> Belongings:
    names = "server_id", "tool_id", "run_id", "project_id", "discovery_id", "conversation_id", "category_id"
    return Belongings("nobody", {name: str(uuid.uuid4()) for name in names})


@dataclass(frozen=True)
class World:
    container: Container
    removed: Removed
    guard: StatementGuard
    me: TestUser
    other: TestUser
    mine: Belongings
    theirs: Belongings
    remover: PredicateRemover = field(default_factory=PredicateRemover)

    async def rows_of_other(self) -> Json:
        """Return all rows of the other user, as text."""
        async with self.container.database.system_transaction() as session:
            found = {}
            for table, column in TENANT_COLUMN.items():
                # the time of the last use is not a change
                changing = " - 'last_used_at'" if table == "api_keys" else ""
                statement = f"SELECT (to_jsonb(t){changing})::text FROM {table} t WHERE {column} = %(owner)s ORDER BY 1"
                found[table] = await session.rows(statement, {"owner": self.other.id})
            return found

    async def settle(self) -> None:
        """Wait for queued runs, write usage and delete what the test has added: it would change the next test."""
        await until(lambda: has_no_runs(self.container))
        await write_down(self.container)
        for user, belongings in ((self.me, self.mine), (self.other, self.theirs)):
            for kind in ("server", "project"):
                for each in await everything(user.http, f"/{kind}s"):
                    if each["id"] != belongings.ids[f"{kind}_id"]:
                        assert (await user.http.delete(f"/{kind}s/{each['id']}")).status_code == 204

    @contextmanager
    def without_predicates(self) -> Iterator[None]:
        """Remove the predicates, if they are the barrier to remove."""
        if self.removed != "predicates":
            yield
            return
        try:
            with predicates_removed(self.container, self.remover):
                yield
        finally:
            self.guard.forget(self.remover.rewritten)  # without its predicate a statement asks all nodes, as it should


@asynccontextmanager
async def open_world(container: Container, removed: Removed, guard: StatementGuard) -> AsyncIterator[World]:
    async with new_user(container) as me, new_user(container) as other:
        mine, theirs = await add_everything(container, me), await add_everything(container, other)
        world = World(container, removed, guard, me, other, mine, theirs)
        await world.settle()  # the tags of the rules are still being indexed
        yield world


@pytest.fixture(scope="module", params=["nothing", "predicates", "row-level security"])
async def opened_world(
    request: pytest.FixtureRequest,
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    statement_guard: StatementGuard,
) -> AsyncIterator[World]:
    removed: Removed = request.param
    # a search in memory runs no statement whose predicate could be removed
    changes = {"snapshot_mb": 0} if removed == "predicates" else {}
    settings = make_settings(tmp_path_factory.mktemp("data"), **changes)
    async with (
        open_container(settings, make_database(postgres)) as container,
        open_world(container, removed, statement_guard) as world,
        row_level_security_removed(container) if removed == "row-level security" else nullcontext(),
    ):
        yield world


@pytest.fixture
async def world(opened_world: World) -> AsyncIterator[World]:
    """Remove the barrier for one test. A test without any predicate would prove nothing, so it fails."""
    before = opened_world.remover.count
    with opened_world.without_predicates():
        yield opened_world
    if opened_world.removed == "predicates":
        assert opened_world.remover.count > before
    await opened_world.settle()


def find_traces(text: str, belongings: Belongings) -> list[str]:
    return [trace for trace in belongings.traces if trace in text]


async def test_the_barriers_are_really_removed(world: World) -> None:
    async with world.container.database.transaction(world.me.id) as session:
        seen = await session.rows("SELECT DISTINCT user_id FROM mcp_tools")
        statement = "SELECT DISTINCT user_id FROM mcp_tools WHERE user_id = %(user_id)s"
        with_predicate = await session.rows(statement, {"user_id": world.me.id})
        [(role,)] = await session.rows("SELECT current_user")
    both = {(world.me.id,), (world.other.id,)}
    assert set(seen) == (both if world.removed == "row-level security" else {(world.me.id,)})
    assert set(with_predicate) == {(world.me.id,)}
    assert (role == APP_ROLE) is (world.removed != "row-level security")


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ROUTES_WITH_AN_ID: list[tuple[str, str, Json | None]] = [
    ("GET", "/servers/{server_id}", None),
    ("PATCH", "/servers/{server_id}", {"description": "taken over"}),
    ("DELETE", "/servers/{server_id}", None),
    ("PUT", "/servers/{server_id}/credentials", {"headers": {"Authorization": "Bearer taken-over"}}),
    ("DELETE", "/servers/{server_id}/credentials", None),
    ("PUT", "/servers/{server_id}/tools", {"tools": [tool("taken_over")]}),
    ("POST", "/servers/{server_id}/reindex", None),
    ("GET", "/servers/{server_id}/runs", None),
    ("GET", "/runs/{run_id}", None),
    ("GET", "/runs/{run_id}/events", None),
    ("GET", "/tools/{tool_id}", None),
    ("PATCH", "/tools/{tool_id}", {"enabled": False, "tags": ["taken"]}),
    ("GET", "/tools/{tool_id}/history", None),
    ("POST", "/tools/{tool_id}/approve", None),
    ("GET", "/tools/{tool_id}/examples", None),
    ("PUT", "/tools/{tool_id}/examples", {"messages": ["taken over"]}),
    ("DELETE", "/tools/{tool_id}/examples", None),
    ("GET", "/categories/{category_id}", None),
    ("GET", "/projects/{project_id}", None),
    ("PATCH", "/projects/{project_id}", {"optimization": None, "rules": [{"pattern": ["*"], "enabled": False}]}),
    ("DELETE", "/projects/{project_id}", None),
    ("DELETE", "/conversations/{conversation_id}", None),
    ("POST", "/projects/{project_id}/mcp", PING),
    ("POST", "/projects/{project_id}/mcp/full", PING),
]
CATEGORY_ROUTES: list[tuple[str, str, Json | None]] = [("PATCH", "/categories/{category_id}", {"name": "taken over"})]
"""Routes that change what cannot be created again for each test."""
ACCOUNT_ROUTES: list[tuple[str, str, Json | None]] = [
    ("POST", "/servers/{server_id}/connect", {}),
    ("DELETE", "/servers/{server_id}/connection", None),
]
"""Routes that need a server with a sign-in, or an account there."""


def test_the_table_of_routes_with_an_id_is_complete(container: Container) -> None:
    routes = {(route.method, route.path) for route in door_routes(get_app(container)) if "{" in route.path}
    for_admins = ("/users/", "/keys/", "/shared-servers/")
    admin_routes = {(method, path) for method, path in routes if path.startswith(for_admins)}
    registry_routes = {(method, path) for method, path in routes if path.startswith("/registry/")}  # of no user
    listed = {(method, path) for method, path, _ in ROUTES_WITH_AN_ID + ACCOUNT_ROUTES + CATEGORY_ROUTES}
    assert listed == routes - admin_routes - registry_routes


@pytest.mark.parametrize(("method", "path", "body"), ROUTES_WITH_AN_ID)
async def test_an_id_of_another_user_answers_exactly_like_a_missing_id(
    world: World, method: str, path: str, body: Json | None
) -> None:
    async def request(belongings: Belongings) -> httpx.Response:
        return await world.me.http.request(method, path.format(**belongings.ids), json=body)

    before = await world.rows_of_other()
    foreign = await request(world.theirs)
    assert_refused(foreign, 404)
    assert without_request_id(foreign) == without_request_id(await request(missing_belongings()))
    assert not find_traces(foreign.text, world.theirs)
    assert (await request(world.mine if method == "GET" else await add_belongings(world.me))).is_success
    assert await world.rows_of_other() == before


@pytest.mark.parametrize(("method", "path", "body"), CATEGORY_ROUTES)
async def test_a_category_of_another_user_answers_exactly_like_a_missing_one(
    world: World, method: str, path: str, body: Json | None
) -> None:
    async def request(belongings: Belongings, content: Json | None = body) -> httpx.Response:
        return await world.me.http.request(method, path.format(**belongings.ids), json=content)

    before = await world.rows_of_other()
    foreign = await request(world.theirs)
    assert_refused(foreign, 404)
    assert without_request_id(foreign) == without_request_id(await request(missing_belongings()))
    assert (await request(world.mine)).json()["own_name"] == "taken over"
    assert (await request(world.mine, {"name": None})).is_success
    assert await world.rows_of_other() == before


@pytest.mark.parametrize(("method", "path", "body"), ACCOUNT_ROUTES)
async def test_an_account_of_another_user_answers_exactly_like_a_missing_server(
    world: World, method: str, path: str, body: Json | None
) -> None:
    async def request(belongings: Belongings) -> httpx.Response:
        return await world.me.http.request(method, path.format(**belongings.ids), json=body)

    before = await world.rows_of_other()
    foreign = await request(world.theirs)
    assert_refused(foreign, 404)
    assert without_request_id(foreign) == without_request_id(await request(missing_belongings()))
    own = await add_belongings(world.me)
    async with world.container.database.transaction(world.me.id) as session:
        await require_scope(session, world.me.id, own.ids["server_id"], None)
    assert (await request(own)).status_code == (422 if method == "POST" else 204)  # a pushed server has no sign-in
    assert await world.rows_of_other() == before


@pytest.mark.parametrize("caller", ["service", "admin"])
async def test_a_key_that_acts_for_a_user_reaches_only_that_user(opened_world: World, caller: str) -> None:
    world = opened_world
    async with open_client(world.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        key = (await admin.post("/keys", json={"kind": caller})).json()["key"]
    async with open_client(world.container, **{"X-API-Key": key, "X-User-Id": world.me.id}) as http:
        for method, path, body in ROUTES_WITH_AN_ID + ACCOUNT_ROUTES:
            with world.without_predicates():
                foreign = await http.request(method, path.format(**world.theirs.ids), json=body)
                missing = await http.request(method, path.format(**missing_belongings().ids), json=body)
            assert_refused(foreign, 404)
            assert without_request_id(foreign) == without_request_id(missing)
        assert (await http.get("/servers/{server_id}".format(**world.mine.ids))).status_code == 200


MakeRequest = Callable[[Belongings], tuple[str, str, Json]]
IDS_ELSEWHERE: dict[str, MakeRequest] = {
    "server_ids of a discovery": lambda b: (
        "POST",
        "/discover",
        {"json": {"query": "read the file", "server_ids": [b.ids["server_id"]], "similarity_threshold": 0}},
    ),
    "keep of a discovery": lambda b: (
        "POST",
        "/discover",
        {"json": {"query": "nothing that is there", "strategy": "bm25", "keep": [b.ids["tool_id"]]}},
    ),
    "keep of a discovery that names removed tools": lambda b: (
        "POST",
        "/discover",
        {"json": {"query": "nothing", "strategy": "bm25", "keep": [b.ids["tool_id"]], "format": "anthropic"}},
    ),
    "a server's name in a discovery's message": lambda b: (
        "POST",
        "/discover",
        {"json": {"query": f"{b.mark}_read", "strategy": "bm25", "include_core_tools": False}},
    ),
    "tags of a discovery": lambda b: (
        "POST",
        "/discover",
        {"json": {"query": "read the file", "tags": [b.mark], "similarity_threshold": 0}},
    ),
    "server_id of a list of tools": lambda b: ("GET", "/tools", {"params": {"server_id": b.ids["server_id"]}}),
    "name in a list of tools": lambda b: ("GET", "/tools", {"params": {"name": b.mark}}),
    "the key of a tool to explain": lambda b: (
        "POST",
        "/discover/why",
        {"json": {"query": "read the file", "tool": b.ids["tool_id"]}},
    ),
    "the name of a tool to explain": lambda b: (
        "POST",
        "/discover/why",
        {"json": {"query": "read the file", "tool": f"{b.mark}_read"}},
    ),
    "a category of a discovery": lambda b: (
        "POST",
        "/discover",
        {"json": {"query": "read the file", "similarity_threshold": 0, "categories": [b.ids["category_id"]]}},
    ),
    "a category of a list of tools": lambda b: ("GET", "/tools", {"params": {"categories": b.ids["category_id"]}}),
    "a server's name in a rule": lambda b: (
        "POST",
        "/rules/preview",
        {"json": {"rules": [{"pattern": ["*"], "server": b.mark, "enabled": False}]}},
    ),
}
VOLATILE = {"discovery_id", "search_duration_ms", "embedding_generated", "request_id"}


@pytest.mark.parametrize("make_request", IDS_ELSEWHERE.values(), ids=IDS_ELSEWHERE.keys())
async def test_an_id_of_another_user_in_a_body_or_query_finds_exactly_what_a_missing_id_finds(
    world: World, make_request: MakeRequest
) -> None:
    async def request(belongings: Belongings) -> tuple[int, Json, str]:
        method, path, content = make_request(belongings)
        answer = await world.me.http.request(method, path, **content)
        shown = {key: value for key, value in answer.json().items() if key not in VOLATILE}
        if shown.get("removed"):  # it repeats what was sent
            assert shown.pop("removed") == content["json"]["keep"]
        return answer.status_code, shown, str(shown)

    foreign_status, foreign, foreign_text = await request(world.theirs)
    missing_status, missing, _ = await request(missing_belongings())
    assert (foreign_status, foreign) == (missing_status, missing)
    assert foreign_status == 200
    assert not find_traces(foreign_text, world.theirs)
    own_status, _, own_text = await request(world.mine)
    assert own_status == 200
    assert world.mine.ids["tool_id"] in own_text


async def test_labels_of_an_evaluation_refer_only_to_tools_of_the_user(world: World) -> None:
    async def evaluate(belongings: Belongings) -> Json:
        labels = [belongings.ids["tool_id"], f"{belongings.mark}_read", f"{belongings.mark}.{belongings.mark}_read"]
        item = {"message": "read the file", "tools": labels}
        answer = await world.me.http.post("/eval", json={"items": [item], "limit": 50, "suggest": True})
        assert answer.status_code == 200, answer.text
        body: Json = answer.json()
        assert [each["label"] for each in body["unknown_labels"]] in ([], labels)
        return body

    cases = (missing_belongings(), world.theirs, world.mine)
    missing, foreign, own = [await evaluate(each) for each in cases]
    assert len(foreign["unknown_labels"]) == len(missing["unknown_labels"]) == 3
    for part in ("answers", "misses", "suggestions"):
        assert foreign[part] == missing[part]
        assert not find_traces(str(foreign[part]), world.theirs)
    assert own["unknown_labels"] == []
    assert own["measures"]["recall_at_10"] == 1


MISSING_ELSEWHERE: dict[str, MakeRequest] = {
    "project_id of an evaluation": lambda b: (
        "POST",
        "/eval",
        {"json": {"items": [{"message": "read", "tools": []}], "project_id": b.ids["project_id"]}},
    ),
    "project_id of a discovery": lambda b: (
        "POST",
        "/discover",
        {"json": {"query": "read the file", "project_id": b.ids["project_id"]}},
    ),
    "project_id of an explanation": lambda b: (
        "POST",
        "/discover/why",
        {"json": {"query": "read the file", "tool": "read", "project_id": b.ids["project_id"]}},
    ),
    "project_id of a list of tools": lambda b: ("GET", "/tools", {"params": {"project_id": b.ids["project_id"]}}),
    "project_id of a list of tags": lambda b: ("GET", "/tags", {"params": {"project_id": b.ids["project_id"]}}),
    "project_id of a list of categories": lambda b: (
        "GET",
        "/categories",
        {"params": {"project_id": b.ids["project_id"]}},
    ),
    "project_id of a preview": lambda b: (
        "POST",
        "/rules/preview",
        {"json": {"rules": [], "project_id": b.ids["project_id"]}},
    ),
    "discovery_id of a feedback": lambda b: (
        "POST",
        "/feedback",
        {"json": {"discovery_id": b.ids["discovery_id"], "tool_key": b.ids["tool_id"], "outcome": "called"}},
    ),
    "server_ids of a new project": lambda b: (
        "POST",
        "/projects",
        {"json": {"name": f"with {b.ids['server_id']}", "server_ids": [b.ids["server_id"]]}},
    ),
}


@pytest.mark.parametrize("make_request", MISSING_ELSEWHERE.values(), ids=MISSING_ELSEWHERE.keys())
async def test_a_project_or_server_of_another_user_in_a_request_answers_exactly_like_a_missing_one(
    world: World, make_request: MakeRequest
) -> None:
    async def request(belongings: Belongings) -> httpx.Response:
        method, path, content = make_request(belongings)
        return await world.me.http.request(method, path, **content)

    before = await world.rows_of_other()
    foreign = await request(world.theirs)
    assert_problem(foreign, 404)
    assert without_request_id(foreign) == without_request_id(await request(missing_belongings()))
    assert not find_traces(foreign.text, world.theirs)
    assert (await request(world.mine)).is_success
    assert await world.rows_of_other() == before


async def test_a_project_accepts_no_server_of_another_user(world: World) -> None:
    async def put(*server_ids: str) -> httpx.Response:
        return await world.me.http.patch(path, json={"server_ids": list(server_ids)})

    mine = await add_belongings(world.me)
    path = f"/projects/{mine.ids['project_id']}"
    foreign = await put(mine.ids["server_id"], world.theirs.ids["server_id"])
    missing = await put(mine.ids["server_id"], missing_belongings().ids["server_id"])
    assert_problem(foreign, 404)
    assert without_request_id(foreign) == without_request_id(missing)
    assert (await world.me.http.get(path)).json()["server_ids"] == [mine.ids["server_id"]]
    assert (await put(mine.ids["server_id"], world.mine.ids["server_id"])).status_code == 200


async def test_nothing_runs_in_a_project_of_another_user(world: World) -> None:
    async def run(project_id: str) -> httpx.Response:
        body = {"tool_key": world.mine.ids["tool_id"], "project_id": project_id}
        return await world.me.http.post("/execute", json=body)

    foreign = await run(world.theirs.ids["project_id"])
    assert_problem(foreign, 404, "TOOL_NOT_FOUND")
    missing = await run(missing_belongings().ids["project_id"])
    assert without_request_id(foreign) == without_request_id(missing)
    # found, but its tools were pushed, so there is no server to call
    assert (await run(world.mine.ids["project_id"])).json()["code"] == "SERVER_CONNECTION_ERROR"


async def test_feedback_on_a_tool_of_another_user_is_refused(world: World) -> None:
    # its own discovery: contradicting feedback removes an example that other tests need
    discovery_id = await find_and_praise(world.container, world.me, f"{world.mine.mark}_read")

    async def send_feedback(tool_key: str) -> httpx.Response:
        body = {"discovery_id": discovery_id, "tool_key": tool_key, "outcome": "irrelevant"}
        return await world.me.http.post("/feedback", json=body)

    before = await world.rows_of_other()
    foreign = await send_feedback(world.theirs.ids["tool_id"])
    assert_problem(foreign, 404)
    assert without_request_id(foreign) == without_request_id(await send_feedback(missing_belongings().ids["tool_id"]))
    assert (await send_feedback(world.mine.ids["tool_id"])).status_code == 204
    assert await world.rows_of_other() == before


async def test_deleting_selections_leaves_those_of_other_users(world: World) -> None:
    before = await world.rows_of_other()
    assert before["selections"]
    await find_and_praise(world.container, world.me, f"{world.mine.mark}_read")
    assert await everything(world.me.http, "/selections")
    assert (await world.me.http.delete("/selections")).status_code == 204
    assert await everything(world.me.http, "/selections") == []
    assert await world.rows_of_other() == before
    await find_and_praise(world.container, world.me, f"{world.mine.mark}_read")  # later tests need one


async def test_priors_of_one_user_change_nothing_of_another_user(world: World) -> None:
    before = await world.rows_of_other()
    usage_counters = world.container.usage_counters
    for _ in range(40):
        usage_counters.record_call(world.me.id, world.mine.ids["tool_id"], succeeded=True)
        usage_counters.record_call(world.me.id, world.theirs.ids["tool_id"], succeeded=True)
    assert await usage_counters.flush()
    await usage_counters.update_priors()
    assert await world.rows_of_other() == before
    found = await world.me.discover(f"{world.mine.mark}_read", explain=True, include_core_tools=False)
    assert found["tools"][0]["explanation"]["prior"] > 0


async def test_a_key_cannot_be_bound_to_a_project_of_another_user(world: World) -> None:
    async with open_client(world.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:

        async def bind(project_id: str) -> httpx.Response:
            return await admin.post("/keys", json={"kind": "user", "user_id": world.me.id, "project_id": project_id})

        foreign = await bind(world.theirs.ids["project_id"])
        assert_problem(foreign, 404)
        assert without_request_id(foreign) == without_request_id(await bind(missing_belongings().ids["project_id"]))
        made = await bind(world.mine.ids["project_id"])
    assert made.status_code == 201, made.text
    async with open_client(world.container, **{"X-API-Key": made.json()["key"]}) as http:
        assert [each["id"] for each in await everything(http, "/tools")] == [world.mine.ids["tool_id"]]


LISTS: list[tuple[str, str, Json | None]] = [
    ("GET", "/servers", None),
    ("GET", "/tools", None),
    ("GET", "/core-tools", None),
    ("GET", "/tools/{tool_id}/history", None),
    ("GET", "/tags", None),
    ("GET", "/categories", None),
    ("GET", "/rules", None),
    ("POST", "/rules/preview", {"rules": []}),
    ("GET", "/projects", None),
    ("GET", "/servers/{server_id}/runs", None),
    ("POST", "/discover", {"query": "read the file", "similarity_threshold": 0, "limit": 50}),
    ("GET", "/audit", None),
    ("GET", "/stats", None),
    ("GET", "/selections", None),
    ("GET", "/selections/export", None),
    ("POST", "/reindex", None),
]


@pytest.mark.parametrize(("method", "path", "body"), LISTS)
async def test_no_list_contains_anything_of_another_user(
    world: World, method: str, path: str, body: Json | None
) -> None:
    path = path.format(**world.mine.ids)
    answer = await world.me.http.request(method, path, json=body)
    assert answer.is_success
    further = await everything(world.me.http, path) if '"next_cursor":"' in answer.text else []
    text = f"{answer.text} {further}"
    assert find_traces(text, world.mine)
    assert not find_traces(text, world.theirs)
    assert world.other.id not in text


@pytest.mark.parametrize(
    "path",
    [
        "/servers",
        "/tools",
        "/servers/{server_id}/runs",
        "/audit",
        "/projects",
        "/tools/{tool_id}/history",
        "/selections",
    ],
)
async def test_a_cursor_of_another_user_shows_no_rows_of_that_user(world: World, path: str) -> None:
    await add_belongings(world.other)
    await find_and_praise(world.container, world.other, f"{world.theirs.mark}_read")
    await world.other.http.post("/servers/{server_id}/reindex".format(**world.theirs.ids), params={"wait": True})
    theirs = await world.other.http.get(path.format(**world.theirs.ids), params={"limit": 1})
    assert theirs.json()["next_cursor"] is not None
    mine = path.format(**world.mine.ids)
    answer = await world.me.http.get(mine, params={"cursor": theirs.json()["next_cursor"]})
    assert answer.status_code == 200
    own_items = await everything(world.me.http, mine)
    assert own_items
    assert all(item in own_items for item in answer.json()["items"])
    assert not find_traces(answer.text, world.theirs)


async def test_changes_of_one_user_change_no_row_of_another_user(world: World) -> None:
    before = await world.rows_of_other()
    mine = await add_belongings(world.me)
    await world.me.push(mine.ids["server_id"], [tool("another"), tool("zebra")])
    await world.me.push(mine.ids["server_id"], [], force=True)
    core = (await world.me.http.get("/core-tools")).json()
    assert (await world.me.http.put("/core-tools", json=core)).status_code == 200
    rules = (await world.me.http.get("/rules")).json()
    for stored in ({"rules": [{"pattern": ["*"], "enabled": False}]}, rules):
        assert (await world.me.http.put("/rules", json=stored)).status_code == 200
    config = {"mcpServers": {world.theirs.mark: {"url": "https://mcp.example.com", "disabled": True}}}
    imported = await world.me.http.post("/servers/import", json={"config": config})
    assert len(imported.json()["imported"]) == 1  # a name of another user is free
    for server_id in (mine.ids["server_id"], imported.json()["imported"][0]["id"]):
        assert (await world.me.http.delete(f"/servers/{server_id}")).status_code == 204
    assert await world.rows_of_other() == before


async def test_with_both_barriers_removed_rows_of_the_other_user_appear(
    open_service: OpenService, statement_guard: StatementGuard
) -> None:
    """Prove that the tests above would notice a leak."""
    async with open_service() as container, open_world(container, "predicates", statement_guard) as world:
        path = "/servers/{server_id}".format(**world.theirs.ids)
        assert_problem(await world.me.http.get(path), 404)
        async with row_level_security_removed(container):
            with world.without_predicates():
                assert (await world.me.http.get(path)).status_code == 200
                found = await world.me.discover("read the file", similarity_threshold=0)
                assert {hit["server_id"] for hit in found["tools"]} >= {
                    world.mine.ids["server_id"],
                    world.theirs.ids["server_id"],
                }
    assert world.remover.from_sqlalchemy > 0
    assert world.remover.from_driver > 0


async def test_interleaved_and_cancelled_requests_on_one_connection_never_see_rows_of_another_user(
    open_service: OpenService, statement_guard: StatementGuard
) -> None:
    chance = random.Random(20_261_116)
    async with (
        open_service(database_pool_size=1) as container,
        open_world(container, "nothing", statement_guard) as world,
    ):
        sides = [(world.me, world.mine, world.theirs), (world.other, world.theirs, world.mine)]

        async def list_something(user: TestUser, own: Belongings, foreign: Belongings) -> None:
            method, path, body = chance.choice(LISTS[:-1])
            answer = await user.http.request(method, path.format(**own.ids), json=body)
            assert answer.status_code == 200, answer.text
            assert find_traces(answer.text, own)
            assert not find_traces(answer.text, foreign)

        answered = cancelled = 0
        for _ in range(30):
            tasks = [asyncio.create_task(list_something(*side)) for side in sides * 4]
            await asyncio.sleep(chance.random() * 0.02)
            for task in chance.sample(tasks, 4):
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            cancelled += sum(isinstance(outcome, asyncio.CancelledError) for outcome in ended)
            answered += sum(outcome is None for outcome in ended)
            assert not [outcome for outcome in ended if isinstance(outcome, Exception)]
        assert min(answered, cancelled) > 30
        for side in sides:
            await list_something(*side)


async def test_the_app_works_as_a_role_that_row_level_security_binds(container: Container) -> None:
    async with container.database.system_transaction() as session:
        [(role, *powers)] = await session.rows(
            "SELECT rolname, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, rolcanlogin"
            " FROM pg_roles WHERE rolname = current_user"
        )
        owned = await session.rows("SELECT relname FROM pg_class WHERE pg_has_role(current_user, relowner, 'USAGE')")
    assert role == APP_ROLE
    assert not any(powers)
    assert owned == []


async def test_every_table_of_a_tenant_has_row_level_security(container: Container) -> None:
    async with container.database.system_transaction() as session:
        secured = await session.rows(
            "SELECT c.relname FROM pg_class c WHERE c.relrowsecurity"
            " AND EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid)"
        )
    # public listings belong to no user: no user's transaction sees them
    assert {name for (name,) in secured} == TENANT_COLUMN.keys() | {"public_listings"}


async def test_a_connection_without_a_user_sees_nothing(container: Container, user: TestUser) -> None:
    await add_everything(container, user)
    await until(lambda: has_no_runs(container))
    await make_large(container, user.id)
    counts = [f"SELECT count(*) FROM {table}" for table in TENANT_COLUMN]
    async with container.database.engine.connect() as connection:
        assert [(await connection.exec_driver_sql(count)).scalar() for count in counts] == [0] * len(counts)
    async with container.database.system_transaction() as session:
        assert {count for count in counts if not (await session.rows(count))[0][0]} == set()


async def test_the_words_of_a_large_user_are_seen_by_nobody_else(
    container: Container, user: TestUser, other_user: TestUser
) -> None:
    """They are read through a view of the owner, to whom no policy applies."""
    for each in (user, other_user):
        await add_belongings(each)
        await make_large(container, each.id)
    count = "SELECT DISTINCT user_id FROM large_tenant_words"
    async with container.database.engine.connect() as connection:
        assert (await connection.exec_driver_sql(count)).all() == []
    for each in (user, other_user):
        async with container.database.transaction(each.id) as session:
            assert await session.rows(count) == [(each.id,)]


async def test_a_user_can_write_only_their_own_rows(container: Container, user: TestUser, other_user: TestUser) -> None:
    statement = (
        "INSERT INTO core_tools (user_id, name, id, position, definition, tokens)"
        " VALUES (%(owner)s, 'planted', 'planted', 0, '{}', 0) RETURNING user_id"
    )
    for foreign in (other_user.id, ""):
        with pytest.raises(QueryFailed):
            async with container.database.transaction(user.id) as session:
                await session.rows(statement, {"owner": foreign})
    async with container.database.transaction(user.id) as session:
        assert await session.rows(statement, {"owner": user.id}) == [(user.id,)]
