"""Index runs: asked for, listed, looked up."""

import uuid
from typing import Any

import httpx
import pytest

from tests.support.checks import assert_problem, finished_run, pages
from tests.support.clients import TestUser
from tests.support.factories import tool

FIELDS = {
    "id",
    "server_id",
    "state",
    "progress",
    "counts",
    "refused",
    "warnings",
    "error",
    "created_at",
    "finished_at",
}


def files() -> list[dict[str, Any]]:
    return [tool("read_file", f"Reads {uuid.uuid4().hex}."), tool("write_file", f"Writes {uuid.uuid4().hex}.")]


async def test_a_run_can_be_looked_up_by_its_id(user: TestUser) -> None:
    run = await user.push(await user.add_server(), files())
    assert run.keys() == FIELDS
    assert (await user.http.get(f"/runs/{run['id']}")).json() == run
    assert_problem(await user.http.get(f"/runs/{uuid.uuid4()}"), 404)


async def test_the_runs_of_a_server_come_newest_first_and_in_pages(user: TestUser) -> None:
    server_id = await user.add_server()
    made = [(await user.push(server_id, [tool(f"tool_{number}")]))["id"] for number in range(5)]
    await user.add_tools(tool("elsewhere"), server="another")
    found = await pages(user.http, f"/servers/{server_id}/runs", limit=2)
    assert [[run["id"] for run in page] for page in found] == [made[:2:-1], made[2:0:-1], made[:1]]


async def test_a_reindex_embeds_only_what_is_missing_unless_it_is_forced(user: TestUser) -> None:
    server_id = await user.add_server()
    await user.push(server_id, files())
    for force, embedded in ((False, 0), (True, 2)):
        answer = await user.http.post(f"/servers/{server_id}/reindex", params={"wait": True, "force": force})
        assert answer.status_code == 200
        assert answer.json()["state"] == "succeeded"
        counts = answer.json()["counts"]
        assert (counts["unchanged"], counts["embedded"], counts["removed"]) == (2, embedded, 0)
    assert set(await user.tools()) == {"read_file", "write_file"}


async def test_a_reindex_is_accepted_at_once_and_done_soon(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read_file"))
    answer = await user.http.post(f"/servers/{server_id}/reindex")
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert (await finished_run(user.http, answer.json()["id"]))["state"] == "succeeded"


async def test_all_servers_of_a_user_are_reindexed_at_once(user: TestUser, other_user: TestUser) -> None:
    mine = {await user.add_tools(*files(), server=name) for name in ("one", "two", "three")}
    theirs = await other_user.add_tools(*files())
    answer = await user.http.post("/reindex", params={"force": True})
    assert answer.status_code == 202
    assert {run["server_id"] for run in answer.json()["items"]} == mine
    ended = [await finished_run(user.http, run["id"]) for run in answer.json()["items"]]
    assert [(run["state"], run["counts"]["embedded"]) for run in ended] == [("succeeded", 2)] * 3
    assert len((await other_user.http.get(f"/servers/{theirs}/runs")).json()["items"]) == 1


async def test_a_user_without_servers_has_nothing_to_reindex(user: TestUser) -> None:
    answer = await user.http.post("/reindex")
    assert (answer.status_code, answer.json()["items"]) == (202, [])


async def test_an_admin_finds_a_run_by_its_id_alone(
    user: TestUser, other_user: TestUser, admin: httpx.AsyncClient
) -> None:
    run = await user.push(await user.add_server(), files())
    path = f"/runs/{run['id']}"
    assert (await admin.get(path)).json() == run
    assert (await admin.get(path, headers={"X-User-Id": user.id})).json() == run
    assert_problem(await admin.get(path, headers={"X-User-Id": other_user.id}), 404)
    assert_problem(await admin.get(f"/runs/{uuid.uuid4()}"), 404)


async def test_a_deleted_servers_runs_are_gone(user: TestUser) -> None:
    run = await user.push(server_id := await user.add_server(), files())
    assert (await user.http.delete(f"/servers/{server_id}")).status_code == 204
    assert_problem(await user.http.get(f"/runs/{run['id']}"), 404)
    assert_problem(await user.http.get(f"/servers/{server_id}/runs"), 404)


@pytest.mark.parametrize("query", [{"wait": "maybe"}, {"force": "2"}, {"wait": ""}])
async def test_a_switch_that_is_neither_on_nor_off_is_refused(user: TestUser, query: dict[str, str]) -> None:
    server_id = await user.add_tools(tool("read_file"))
    assert_problem(await user.http.post(f"/servers/{server_id}/reindex", params=query), 422)
    right = dict.fromkeys(query, "true")
    assert (await user.http.post(f"/servers/{server_id}/reindex", params=right)).is_success
