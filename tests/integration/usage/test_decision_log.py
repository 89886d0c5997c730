"""The decision log: a row for each search, without its message, kept for a limited time."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.container import Container
from app.usage import decision_log
from app.usage.decision_log import Decision, DecisionLog
from tests.support.checks import Json, assert_problem, everything, pages, want_selections
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, OpenService, tool
from tests.support.worker_steps import holding, rows

MESSAGE = "read a file from the disk"
MCP_HEADERS = {"Accept": "application/json, text/event-stream"}


@dataclass(frozen=True)
class World:
    container: Container
    user: TestUser

    async def decisions(self, **query: Any) -> list[Json]:
        await self.container.decisions.flush()
        return await everything(self.user.http, "/decisions", **query)

    async def add_project(self, **fields: Any) -> str:
        answer = await self.user.http.post("/projects", json={"name": "support", "server_ids": None, **fields})
        assert answer.status_code == 201, answer.text
        project_id: str = answer.json()["id"]
        return project_id

    async def call_mcp(self, path: str, name: str, **arguments: Any) -> str:
        """Return the id of the request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        body |= {"params": {"name": name, "arguments": arguments}}
        answer = await self.user.http.post(path, json=body, headers=MCP_HEADERS)
        assert answer.status_code == 200
        return answer.headers["X-Request-Id"]


@pytest.fixture
async def world(container: Container, user: TestUser) -> World:
    await user.add_tools(tool("read_file", "Reads a file from the disk."), tool("send_mail", "Sends a mail."))
    return World(container, user)


async def test_a_search_leaves_one_row_that_says_what_was_chosen(world: World) -> None:
    answer = await world.user.http.post("/discover", json={"query": MESSAGE})
    found = answer.json()
    [decision] = await world.decisions()
    chosen = decision.pop("tools")
    assert datetime.now(UTC) - datetime.fromisoformat(decision.pop("at")) < timedelta(minutes=5)
    assert 0 < decision.pop("duration_ms") < 60_000
    assert decision.pop("actor").startswith("user:")
    assert decision == {
        "discovery_id": found["discovery_id"],
        "user_id": world.user.id,
        "request_id": answer.headers["X-Request-Id"],
        "interface": "rest",
        "project_id": None,
        "strategy": "hybrid",
        "degraded_reason": None,
        "confidence": found["confidence"],
        "no_match": False,
        "no_match_reason": None,
        "searched": 2,
        "omitted": None,
        "returned": {"semantic": len(chosen)},
    }
    shared = ("tool_key", "server_name", "source", "similarity", "score")
    assert [{name: each[name] for name in shared} for each in chosen] == [
        {name: each[name] for name in shared} for each in found["tools"]
    ]
    assert chosen[0]["name"] == "read_file"


async def test_no_row_holds_the_message(world: World) -> None:
    await want_selections(world.container, world.user.id)
    await world.user.discover("read the file canary")
    await world.container.decisions.flush()
    statement = "SELECT to_jsonb(d)::text FROM decisions d WHERE user_id = %(user_id)s"
    [(row,)] = await rows(world.container, statement, user_id=world.user.id)
    assert "read_file" in row
    assert "canary" not in row


async def test_searches_over_mcp_are_logged_with_their_request(world: World) -> None:
    both = await world.call_mcp("/mcp", "tool_discovery", query=[MESSAGE, "send a mail"])
    one = await world.call_mcp("/mcp/full", "search_tools", query=MESSAGE)
    decisions = await world.decisions()
    assert [(each["interface"], each["request_id"]) for each in decisions] == [
        ("mcp", one),
        ("mcp", both),
        ("mcp", both),
    ]
    assert decisions[0]["strategy"] == "semantic"


async def test_dry_runs_are_not_logged(world: World) -> None:
    why = await world.user.http.post("/discover/why", json={"query": MESSAGE, "tool": "send_mail"})
    evaluation = {"items": [{"message": MESSAGE, "tools": ["read_file"]}], "suggest": True}
    assert why.status_code == (await world.user.http.post("/eval", json=evaluation)).status_code == 200
    assert await world.decisions() == []


async def test_a_project_that_does_not_search_is_logged_without_a_strategy(world: World) -> None:
    project = await world.add_project(optimization=None)
    await world.user.discover(MESSAGE, project_id=project)
    [decision] = await world.decisions()
    assert (decision["strategy"], decision["project_id"], decision["tools"]) == (None, project, [])
    assert decision["no_match_reason"] == "discovery_off"


async def test_a_decision_says_why_nothing_was_found(world: World) -> None:
    found = await world.user.discover(MESSAGE, tags=["no-such-tag"])
    [decision] = await world.decisions()
    assert decision["no_match_reason"] == found["no_match_reason"] == "filtered_out"


async def test_a_decision_says_what_there_was_no_room_for(world: World) -> None:
    found = await world.user.discover("read a file and send a mail", max_tokens=1, similarity_threshold=0)
    [decision] = await world.decisions()
    assert decision["omitted"] == found["omitted"] == {"count": 2, "reason": "max_tokens"}


async def test_decisions_are_filtered(world: World) -> None:
    project = await world.add_project(optimization="bm25")
    found = await world.user.discover(MESSAGE)
    nothing = await world.user.discover("xyzzy plugh", strategy="bm25")
    in_project = await world.user.discover("send a mail", project_id=project)
    async with open_client(world.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        await admin.patch(f"/users/{world.user.id}", json={"discovery_enabled": False})
    degraded = await world.user.discover("all of them")

    async def ids(**query: Any) -> list[str]:
        return [each["discovery_id"] for each in await world.decisions(**query)]

    everyone = [each["discovery_id"] for each in (degraded, in_project, nothing, found)]
    assert await ids() == everyone
    assert await ids(no_match="true") == [nothing["discovery_id"]]
    assert await ids(degraded="true") == [degraded["discovery_id"]]
    assert await ids(degraded="false") == everyone[1:]
    assert await ids(project_id=project) == [in_project["discovery_id"]]
    assert await ids(discovery_id=found["discovery_id"]) == [found["discovery_id"]]
    [decision] = await world.decisions(discovery_id=found["discovery_id"])
    assert await ids(request_id=decision["request_id"]) == [found["discovery_id"]]
    assert await ids(until=decision["at"]) == []
    assert await ids(since=decision["at"]) == everyone
    listed = await world.decisions()
    assert await pages(world.user.http, "/decisions", limit=3) == [listed[:3], listed[3:]]
    assert_problem(await world.user.http.get("/decisions", params={"degraded": "perhaps"}), 422)


async def test_users_read_their_own_decisions_and_administrators_all(world: World, other_user: TestUser) -> None:
    mine = await world.user.discover(MESSAGE)
    theirs = await other_user.discover(MESSAGE)
    assert [each["discovery_id"] for each in await world.decisions()] == [mine["discovery_id"]]
    assert await world.decisions(discovery_id=theirs["discovery_id"]) == []
    async with open_client(world.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        every = {each["discovery_id"] for each in await everything(admin, "/decisions")}
        assert {mine["discovery_id"], theirs["discovery_id"]} <= every
        named = await admin.get("/decisions", headers={"X-User-Id": other_user.id})
        assert [each["discovery_id"] for each in named.json()["items"]] == [theirs["discovery_id"]]


async def test_a_key_of_a_project_may_not_read_decisions(world: World) -> None:
    project = await world.add_project(optimization="bm25")
    async with open_client(world.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        body = {"kind": "user", "user_id": world.user.id, "project_id": project}
        key = (await admin.post("/keys", json=body)).json()["key"]
    async with open_client(world.container, Authorization=f"Bearer {key}") as narrow:
        assert (await narrow.post("/discover", json={"query": MESSAGE})).status_code == 200
        assert_problem(await narrow.get("/decisions"), 403)


async def test_expired_decisions_are_deleted(world: World) -> None:
    old = await world.user.discover(MESSAGE)
    new = await world.user.discover(MESSAGE)
    assert len(await world.decisions()) == 2
    statement = "UPDATE decisions SET at = now() - interval '8 days' WHERE user_id = %s AND id = %s"
    async with holding(world.container, statement, world.user.id, old["discovery_id"]) as owner:
        await owner.commit()
    [deletion] = decision_log.expired_rows(timedelta(days=7))
    async with world.container.database.system_transaction() as session:
        await session.execute(deletion)
    assert [each["discovery_id"] for each in await world.decisions()] == [new["discovery_id"]]


async def test_a_user_of_the_same_id_gets_no_decisions_of_the_deleted_one(world: World) -> None:
    await world.user.discover(MESSAGE)
    await world.container.decisions.flush()
    log = DecisionLog(world.container.database)  # of another replica, which has not flushed yet
    pending = make_decision(world.user.id)
    log.append(pending)
    async with open_client(world.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        assert (await admin.delete(f"/users/{world.user.id}")).status_code == 204
        assert (await admin.post("/users", json={"id": world.user.id})).status_code == 201
        await log.flush()
        log.append(replace(pending, id="a later one", at=datetime.now(UTC)))
        await log.flush()
        found = (await admin.get("/decisions", headers={"X-User-Id": world.user.id})).json()["items"]
    assert [each["discovery_id"] for each in found] == ["a later one"]


async def test_a_user_whose_row_is_locked_delays_nobody(world: World, other_user: TestUser) -> None:
    log = DecisionLog(world.container.database)
    for user_id in (world.user.id, other_user.id):
        log.append(make_decision(user_id))
    async with holding(world.container, "SELECT FROM users WHERE id = %s FOR UPDATE", world.user.id):
        await log.flush()
        assert await count(world.container, other_user.id) == 1
        assert log.pending == 1
    await log.flush()
    assert await count(world.container, world.user.id) == 1


async def test_a_rejected_entry_does_not_take_other_users_entries_with_it(world: World, other_user: TestUser) -> None:
    log = DecisionLog(world.container.database)
    log.append(replace(make_decision(world.user.id), actor=None))  # type: ignore[arg-type]
    log.append(make_decision(other_user.id))
    await log.flush()
    assert (await count(world.container, world.user.id), await count(world.container, other_user.id)) == (0, 1)
    assert log.pending == 0


async def test_the_log_can_be_switched_off(open_service: OpenService) -> None:
    for days, expected in ((0, 0), (1, 1)):
        async with open_service(decision_log_days=days) as service, new_user(service) as user:
            await user.discover(MESSAGE)
            await service.decisions.flush()
            assert await count(service, user.id) == expected


async def count(container: Container, user_id: str) -> int:
    [(number,)] = await rows(container, "SELECT count(*) FROM decisions WHERE user_id = %(id)s", id=user_id)
    assert isinstance(number, int)
    return number


def make_decision(user_id: str) -> Decision:
    return Decision(
        user_id=user_id,
        id="one",
        at=datetime.now(UTC),
        request_id=None,
        actor="user:key",
        interface="rest",
        project_id=None,
        strategy="hybrid",
        degraded_reason=None,
        confidence="none",
        no_match=True,
        no_match_reason=None,
        searched=0,
        omitted=None,
        tools=[],
        duration_ms=1.0,
    )
