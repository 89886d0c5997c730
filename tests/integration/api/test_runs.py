"""Index runs: request, list and read them."""

import uuid
from collections.abc import Collection
from typing import Any

import httpx
import pytest

from app.db.engine import Session
from app.indexing import queue
from tests.support.checks import assert_problem, finished_run, pages
from tests.support.clients import TestUser, new_user
from tests.support.factories import OpenService, tool
from tests.support.http_server import make_request, serve_app
from tests.support.worker_steps import until

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


def make_tools() -> list[dict[str, Any]]:
    return [tool("read_file", f"Reads {uuid.uuid4().hex}."), tool("write_file", f"Writes {uuid.uuid4().hex}.")]


async def test_a_run_is_read_by_its_id(user: TestUser) -> None:
    run = await user.push(await user.add_server(), make_tools())
    assert run.keys() == FIELDS
    assert (await user.http.get(f"/runs/{run['id']}")).json() == run
    assert_problem(await user.http.get(f"/runs/{uuid.uuid4()}"), 404)


async def test_the_runs_of_a_server_are_listed_newest_first_in_pages(user: TestUser) -> None:
    server_id = await user.add_server()
    run_ids = [(await user.push(server_id, [tool(f"tool_{number}")]))["id"] for number in range(5)]
    await user.add_tools(tool("elsewhere"), server="another")
    found = await pages(user.http, f"/servers/{server_id}/runs", limit=2)
    assert [[run["id"] for run in page] for page in found] == [run_ids[:2:-1], run_ids[2:0:-1], run_ids[:1]]


async def test_a_reindex_embeds_only_missing_vectors_unless_it_is_forced(user: TestUser) -> None:
    server_id = await user.add_server()
    await user.push(server_id, make_tools())
    for force, embedded in ((False, 0), (True, 2)):
        answer = await user.http.post(f"/servers/{server_id}/reindex", params={"wait": True, "force": force})
        assert answer.status_code == 200
        assert answer.json()["state"] == "succeeded"
        counts = answer.json()["counts"]
        assert (counts["unchanged"], counts["embedded"], counts["removed"]) == (2, embedded, 0)
    assert set(await user.tools()) == {"read_file", "write_file"}


async def test_a_reindex_returns_at_once_and_finishes_later(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read_file"))
    answer = await user.http.post(f"/servers/{server_id}/reindex")
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert (await finished_run(user.http, answer.json()["id"]))["state"] == "succeeded"


async def test_reindex_all_reindexes_only_the_servers_of_the_user(user: TestUser, other_user: TestUser) -> None:
    mine = {await user.add_tools(*make_tools(), server=name) for name in ("one", "two", "three")}
    theirs = await other_user.add_tools(*make_tools())
    answer = await user.http.post("/reindex", params={"force": True})
    assert answer.status_code == 202
    assert {run["server_id"] for run in answer.json()["items"]} == mine
    runs = [await finished_run(user.http, run["id"]) for run in answer.json()["items"]]
    assert [(run["state"], run["counts"]["embedded"]) for run in runs] == [("succeeded", 2)] * 3
    assert len((await other_user.http.get(f"/servers/{theirs}/runs")).json()["items"]) == 1


async def test_reindex_all_without_servers_returns_no_runs(user: TestUser) -> None:
    answer = await user.http.post("/reindex")
    assert (answer.status_code, answer.json()["items"]) == (202, [])


async def test_an_admin_reads_a_run_by_its_id_without_naming_the_user(
    user: TestUser, other_user: TestUser, admin: httpx.AsyncClient
) -> None:
    run = await user.push(await user.add_server(), make_tools())
    path = f"/runs/{run['id']}"
    assert (await admin.get(path)).json() == run
    assert (await admin.get(path, headers={"X-User-Id": user.id})).json() == run
    assert_problem(await admin.get(path, headers={"X-User-Id": other_user.id}), 404)
    assert_problem(await admin.get(f"/runs/{uuid.uuid4()}"), 404)


async def test_the_runs_of_a_deleted_server_are_deleted(user: TestUser) -> None:
    run = await user.push(server_id := await user.add_server(), make_tools())
    assert (await user.http.delete(f"/servers/{server_id}")).status_code == 204
    assert_problem(await user.http.get(f"/runs/{run['id']}"), 404)
    assert_problem(await user.http.get(f"/servers/{server_id}/runs"), 404)


@pytest.mark.parametrize("query", [{"wait": "maybe"}, {"force": "2"}, {"wait": ""}])
async def test_an_invalid_boolean_parameter_is_refused(user: TestUser, query: dict[str, str]) -> None:
    server_id = await user.add_tools(tool("read_file"))
    assert_problem(await user.http.post(f"/servers/{server_id}/reindex", params=query), 422)
    valid = dict.fromkeys(query, "true")
    assert (await user.http.post(f"/servers/{server_id}/reindex", params=valid)).is_success


async def test_a_wait_for_many_runs_is_one_poll_that_ends_with_its_client(
    open_service: OpenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[int] = []
    get_runs = queue.get_runs

    async def count(session: Session, user_id: str, run_ids: Collection[str]) -> dict[str, queue.Run]:
        polls.append(len(run_ids))
        return await get_runs(session, user_id, run_ids)

    monkeypatch.setattr(queue, "get_runs", count)
    async with (
        open_service(index_concurrency=0, database_pool_size=2) as service,
        new_user(service) as user,
        new_user(service) as other,
        serve_app(service) as app,
    ):
        server_ids = [await user.add_server(f"server {number}") for number in range(8)]
        paths = ["/reindex", f"/servers/{server_ids[0]}/reindex", "/reindex"]
        sent = [make_request(f"{path}?wait=true", f"Authorization: Bearer {user.key}") for path in paths]
        clients = [await app.connect(each) for each in sent]

        async def all_are_polling() -> bool:
            return polls.count(8) > 6 and 1 in polls

        await until(all_are_polling)
        assert set(polls) == {1, 8}
        assert (await other.http.get("/tools")).status_code == 200
        for client in clients:
            client.close()

        async def is_free() -> bool:
            return "toolscout_requests_in_flight 0.0" in service.metrics.render().decode()

        await until(is_free)
        ended = len(polls)
        assert (await other.http.get("/tools")).status_code == 200
        assert len(polls) == ended
