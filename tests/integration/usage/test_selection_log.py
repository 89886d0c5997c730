"""The selection log: off unless the user opts in, kept for a limited time, and deleted on request."""

import asyncio
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from app.container import Container
from app.evaluation.labelled_messages import parse_labelled_messages
from app.usage import selection_log
from app.usage.selection_log import Selection, SelectionLog
from tests.support.checks import Json, assert_problem, everything, pages, want_selections
from tests.support.clients import TestUser, open_client
from tests.support.factories import ADMIN_KEY, tool
from tests.support.worker_steps import holding, rows, waiting

MESSAGE = "read a file from the disk"


def make_selection(user_id: str) -> Selection:
    return Selection(user_id, str(uuid.uuid4()), datetime.now(UTC), MESSAGE, [], "hybrid", None, no_match=False)


@dataclass(frozen=True)
class World:
    container: Container
    user: TestUser

    async def selections(self, **query: Any) -> list[Json]:
        await self.container.selections.flush()
        return await everything(self.user.http, "/selections", **query)

    async def export(self) -> list[Json]:
        await self.container.selections.flush()
        answer = await self.user.http.get("/selections/export")
        assert answer.headers["content-type"] == "application/x-ndjson"
        parse_labelled_messages(answer.content)  # raises if `toolscout eval` could not read it
        return [orjson.loads(line) for line in answer.content.splitlines()]


@pytest.fixture
async def world(container: Container, user: TestUser) -> World:
    await user.add_tools(tool("read_file", "Reads a file from the disk."), tool("send_mail", "Sends a mail."))
    return World(container, user)


async def test_nothing_is_logged_unless_the_user_opts_in(world: World) -> None:
    await world.user.discover(MESSAGE)
    assert await world.selections() == []
    await want_selections(world.container, world.user.id)
    found = await world.user.discover(MESSAGE)
    [selection] = await world.selections()
    assert selection["message"] == MESSAGE
    assert selection["discovery_id"] == found["discovery_id"]
    assert selection["user_id"] == world.user.id
    assert (selection["strategy"], selection["no_match"], selection["degraded_reason"]) == ("hybrid", False, None)
    [first, *_] = selection["tools"]
    assert (first["tool_key"], first["name"], first["server_name"]) == (
        found["tools"][0]["tool_key"],
        "read_file",
        "files",
    )
    assert (round(first["similarity"], 4), round(first["score"], 4)) == (
        found["tools"][0]["similarity"],
        found["tools"][0]["score"],
    )
    await want_selections(world.container, world.user.id, wanted=False)
    await world.user.discover("send a mail")
    assert len(await world.selections()) == 1


async def test_pending_selections_of_a_user_who_opts_out_are_not_written(world: World) -> None:
    log = SelectionLog(world.container.database)
    selection = make_selection(world.user.id)
    for wanted in (False, True):
        log.append(selection)
        await want_selections(world.container, world.user.id, wanted=wanted)
        await log.flush()
        assert [each["message"] for each in await world.selections()] == [MESSAGE] * wanted


async def test_an_interrupted_statement_is_repeated_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await want_selections(world.container, world.user.id)
    log = SelectionLog(world.container.database)
    log.append(make_selection(world.user.id))
    await world.container.selections.flush()  # pending selections of other tests would wait, too
    statement = "LOCK TABLE selections IN ACCESS EXCLUSIVE MODE"
    async with holding(world.container, statement) as blocker:
        writing = asyncio.create_task(log.flush())
        await waiting(blocker, 1)
        await blocker.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted AND relation = %s::regclass", ("selections",)
        )
        await writing
    assert await world.selections() == []
    await log.flush()
    assert [each["message"] for each in await world.selections()] == [MESSAGE]


async def test_a_cancelled_flush_loses_nothing(world: World) -> None:
    log = SelectionLog(world.container.database)  # a separate log, which no background task flushes
    await want_selections(world.container, world.user.id)
    log.append(make_selection(world.user.id))
    async with holding(world.container, "LOCK TABLE selections IN ACCESS EXCLUSIVE MODE") as blocker:
        writing = asyncio.create_task(log.flush())
        await waiting(blocker, 1)
        writing.cancel()
        await asyncio.wait([writing])
    assert await world.selections() == []
    await log.flush()
    assert [each["message"] for each in await world.selections()] == [MESSAGE]


async def test_internal_queries_are_not_logged(world: World) -> None:
    await want_selections(world.container, world.user.id)
    why = await world.user.http.post("/discover/why", json={"query": MESSAGE, "tool": "send_mail"})
    evaluation = {"items": [{"message": MESSAGE, "tools": ["read_file"]}], "suggest": True}
    assert why.status_code == (await world.user.http.post("/eval", json=evaluation)).status_code == 200
    assert await world.selections() == []


async def test_discoveries_over_mcp_are_logged(world: World) -> None:
    await want_selections(world.container, world.user.id)
    arguments = {"query": [MESSAGE, "send a mail"]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    body |= {"params": {"name": "tool_discovery", "arguments": arguments}}
    headers = {"Accept": "application/json, text/event-stream"}
    assert (await world.user.http.post("/mcp", json=body, headers=headers)).status_code == 200
    assert {each["message"] for each in await world.selections()} == {MESSAGE, "send a mail"}


async def test_selections_are_paginated_newest_first_and_filtered_by_time(world: World) -> None:
    await want_selections(world.container, world.user.id)
    messages = [f"read file number {number}" for number in range(5)]
    for message in messages:
        await world.user.discover(message)
    logged = await world.selections()
    assert [each["message"] for each in logged] == messages[::-1]
    assert await pages(world.user.http, "/selections", limit=2) == [logged[:2], logged[2:4], logged[4:]]
    since, until = logged[3]["at"], logged[1]["at"]
    assert [each["message"] for each in await world.selections(since=since, until=until)] == messages[1:3][::-1]
    assert_problem(await world.user.http.get("/selections", params={"since": "yesterday"}), 422)


async def test_an_admin_reads_all_selections_and_deletes_those_of_a_named_user(world: World) -> None:
    await want_selections(world.container, world.user.id)
    await world.user.discover(MESSAGE)
    await world.container.selections.flush()
    async with open_client(world.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        everybody = await everything(admin, "/selections")
        assert world.user.id in {each["user_id"] for each in everybody}
        assert_problem(await admin.delete("/selections"), 400)
        assert_problem(await admin.get("/selections/export"), 400)
        named = {"X-User-Id": world.user.id}
        assert len((await admin.get("/selections/export", headers=named)).content.splitlines()) == 1
        assert (await admin.delete("/selections", headers=named)).status_code == 204
    assert await world.selections() == []


async def test_a_deletion_includes_pending_selections(world: World) -> None:
    await want_selections(world.container, world.user.id)
    await world.user.discover(MESSAGE)
    assert (await world.user.http.delete("/selections")).status_code == 204
    assert await world.selections() == []
    await world.user.discover(MESSAGE)  # logging continues
    assert len(await world.selections()) == 1


async def test_the_middle_of_a_long_message_is_cut_out(world: World) -> None:
    await want_selections(world.container, world.user.id)
    await world.user.discover(f"read a file {'very ' * 2_000} slowly")
    [selection] = await world.selections()
    assert len(selection["message"]) < 5_000
    assert selection["message"].startswith("read a file")
    assert selection["message"].endswith("slowly")


async def test_expired_selections_are_deleted(world: World) -> None:
    await want_selections(world.container, world.user.id)
    await world.user.discover("old one: read a file")
    [old] = await world.selections()
    statement = "UPDATE selections SET at = now() - interval '31 days' WHERE user_id = %s AND id = %s"
    async with holding(world.container, statement, world.user.id, old["discovery_id"]) as owner:
        await owner.commit()
    await world.user.discover("new one: read a file")
    assert len(await world.selections()) == 2
    [deletion] = selection_log.expired_rows(timedelta(days=30))
    async with world.container.database.system_transaction() as session:
        await session.execute(deletion)
    assert [each["message"] for each in await world.selections()] == ["new one: read a file"]


async def test_an_export_uses_reported_calls_as_labels(world: World) -> None:
    await want_selections(world.container, world.user.id)

    async def report(discovery: Json, name: str, outcome: str) -> None:
        key = (await world.user.tools())[name]["id"]
        body = {"discovery_id": discovery["discovery_id"], "tool_key": key, "outcome": outcome}
        assert (await world.user.http.post("/feedback", json=body)).status_code == 204

    no_threshold: Json = {"similarity_threshold": 0}
    await world.user.discover("read, not reported", **no_threshold)
    called = await world.user.discover("read, then mail", **no_threshold)
    await report(called, "send_mail", "succeeded")
    irrelevant = await world.user.discover("read, but not that", **no_threshold)
    await report(irrelevant, "read_file", "irrelevant")
    by_message = {line["message"]: line for line in await world.export()}
    assert [*by_message] == ["read, not reported", "read, then mail", "read, but not that"]
    assert by_message["read, not reported"]["tools"][0] == "files.read_file"
    assert by_message["read, not reported"]["meta"] == {"by": "search"}
    assert by_message["read, then mail"]["tools"] == ["files.send_mail"]
    assert by_message["read, then mail"]["meta"] == {"by": "use"}
    assert by_message["read, but not that"]["tools"] == ["files.send_mail"]


async def test_an_export_is_plain_text_where_the_client_asks_for_it(world: World) -> None:
    for accept, media_type in [("*/*", "application/x-ndjson"), ("text/plain", "text/plain; charset=utf-8")]:
        answer = await world.user.http.get("/selections/export", headers={"Accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)


async def test_an_export_contains_no_match_but_not_messages_without_labels(world: World, container: Container) -> None:
    await want_selections(container, world.user.id)
    await world.user.discover("xyzzy plugh", strategy="bm25")
    async with open_client(container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        settings = {"selection_log": True}
        await admin.patch(f"/users/{world.user.id}", json={"discovery_enabled": False, "settings": settings})
    assert (await world.user.discover("all of them"))["degraded_reason"] == "disabled"
    assert [(line["message"], line["tools"]) for line in await world.export()] == [("xyzzy plugh", [])]
    assert [each["degraded_reason"] for each in await world.selections()] == ["disabled", None]


async def test_the_number_of_pending_selections_is_bounded(
    container: Container, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.usage.batch_writer._MAX_PENDING", 3)
    log = SelectionLog(container.database)
    for _ in range(5):
        log.append(make_selection("nobody"))
    assert log.pending == 3
    await log.flush()  # the user does not exist, so nothing is written
    assert log.pending == 0
    assert "selections dropped: too many are pending" in caplog.text
    assert await rows(container, "SELECT FROM selections WHERE user_id = 'nobody'") == []
