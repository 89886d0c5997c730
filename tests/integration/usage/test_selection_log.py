"""The selection log: nothing of anybody unless they want it, then all of it, for a while, and gone when they say so."""

import asyncio
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from app.container import Container
from app.evaluation.labelled import read_labelled
from app.usage import selection_log
from app.usage.selection_log import Selection, SelectionLog
from tests.conftest import ADMIN_KEY, TestUser, client_of, tool
from tests.support.checks import Json, assert_problem, everything, pages, want_selections
from tests.support.worker_steps import holding, rows, waiting

ASKED = "read a file from the disk"


@dataclass(frozen=True)
class World:
    container: Container
    user: TestUser

    async def kept(self, **query: Any) -> list[Json]:
        await self.container.selections.write()
        return await everything(self.user.http, "/selections", **query)

    async def exported(self) -> list[Json]:
        await self.container.selections.write()
        answer = await self.user.http.get("/selections/export")
        assert answer.headers["content-type"] == "application/x-ndjson"
        read_labelled(answer.content)  # or it would be of no use
        return [orjson.loads(line) for line in answer.content.splitlines()]


@pytest.fixture
async def world(container: Container, user: TestUser) -> World:
    await user.add_tools(tool("read_file", "Reads a file from the disk."), tool("send_mail", "Sends a mail."))
    return World(container, user)


async def test_nothing_is_kept_unless_the_user_wants_it(world: World) -> None:
    await world.user.discover(ASKED)
    assert await world.kept() == []
    await want_selections(world.container, world.user.id)
    found = await world.user.discover(ASKED)
    [selection] = await world.kept()
    assert selection["message"] == ASKED
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
    assert len(await world.kept()) == 1


async def test_who_changes_their_mind_has_nothing_written_that_waited(world: World) -> None:
    log = SelectionLog(world.container.database)
    held = Selection(str(uuid.uuid4()), datetime.now(UTC), ASKED, [], "hybrid", None, no_match=False)
    for wanted in (False, True):
        log.note(world.user.id, held)
        await want_selections(world.container, world.user.id, wanted=wanted)
        await log.write()
        assert [each["message"] for each in await world.kept()] == [ASKED] * wanted


async def test_what_cannot_be_written_just_now_is_written_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await want_selections(world.container, world.user.id)
    log = SelectionLog(world.container.database)
    log.note(world.user.id, Selection(str(uuid.uuid4()), datetime.now(UTC), ASKED, [], "hybrid", None, no_match=False))
    await world.container.selections.write()  # what others have left to be written would wait, too
    statement = "LOCK TABLE selections IN ACCESS EXCLUSIVE MODE"
    async with holding(world.container, statement) as blocker:
        writing = asyncio.create_task(log.write())
        await waiting(blocker, 1)
        await blocker.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted AND relation = %s::regclass", ("selections",)
        )
        await writing
    assert await world.kept() == []
    await log.write()
    assert [each["message"] for each in await world.kept()] == [ASKED]


async def test_a_write_that_is_broken_off_loses_nothing(world: World) -> None:
    log = SelectionLog(world.container.database)  # of its own: nobody else writes what waits here
    await want_selections(world.container, world.user.id)
    log.note(world.user.id, Selection(str(uuid.uuid4()), datetime.now(UTC), ASKED, [], "hybrid", None, no_match=True))
    async with holding(world.container, "LOCK TABLE selections IN ACCESS EXCLUSIVE MODE") as blocker:
        writing = asyncio.create_task(log.write())
        await waiting(blocker, 1)
        writing.cancel()
        await asyncio.wait([writing])
    assert await world.kept() == []
    await log.write()
    assert [each["message"] for each in await world.kept()] == [ASKED]


async def test_questions_of_our_own_are_not_kept(world: World) -> None:
    await want_selections(world.container, world.user.id)
    why = await world.user.http.post("/discover/why", json={"query": ASKED, "tool": "send_mail"})
    evaluation = {"items": [{"message": ASKED, "tools": ["read_file"]}], "suggest": True}
    assert why.status_code == (await world.user.http.post("/eval", json=evaluation)).status_code == 200
    assert await world.kept() == []


async def test_what_is_found_over_mcp_is_kept_too(world: World) -> None:
    await want_selections(world.container, world.user.id)
    arguments = {"query": [ASKED, "send a mail"]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    body |= {"params": {"name": "tool_discovery", "arguments": arguments}}
    headers = {"Accept": "application/json, text/event-stream"}
    assert (await world.user.http.post("/mcp", json=body, headers=headers)).status_code == 200
    assert {each["message"] for each in await world.kept()} == {ASKED, "send a mail"}


async def test_selections_come_in_pages_the_newest_first_within_a_time(world: World) -> None:
    await want_selections(world.container, world.user.id)
    messages = [f"read file number {number}" for number in range(5)]
    for message in messages:
        await world.user.discover(message)
    kept = await world.kept()
    assert [each["message"] for each in kept] == messages[::-1]
    assert await pages(world.user.http, "/selections", limit=2) == [kept[:2], kept[2:4], kept[4:]]
    since, until = kept[3]["at"], kept[1]["at"]
    assert [each["message"] for each in await world.kept(since=since, until=until)] == messages[1:3][::-1]
    assert_problem(await world.user.http.get("/selections", params={"since": "yesterday"}), 422)


async def test_an_administrator_reads_them_all_and_wipes_for_a_user_that_is_named(world: World) -> None:
    await want_selections(world.container, world.user.id)
    await world.user.discover(ASKED)
    await world.container.selections.write()
    async with client_of(world.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        everybody = await everything(admin, "/selections")
        assert world.user.id in {each["user_id"] for each in everybody}
        assert_problem(await admin.delete("/selections"), 400)
        assert_problem(await admin.get("/selections/export"), 400)
        named = {"X-User-Id": world.user.id}
        assert len((await admin.get("/selections/export", headers=named)).content.splitlines()) == 1
        assert (await admin.delete("/selections", headers=named)).status_code == 204
    assert await world.kept() == []


async def test_a_wipe_takes_along_what_waits_to_be_written(world: World) -> None:
    await want_selections(world.container, world.user.id)
    await world.user.discover(ASKED)
    assert (await world.user.http.delete("/selections")).status_code == 204
    assert await world.kept() == []
    await world.user.discover(ASKED)  # and it goes on being kept
    assert len(await world.kept()) == 1


async def test_a_long_message_is_kept_by_its_two_ends(world: World) -> None:
    await want_selections(world.container, world.user.id)
    await world.user.discover(f"read a file {'very ' * 2_000} slowly")
    [selection] = await world.kept()
    assert len(selection["message"]) < 5_000
    assert selection["message"].startswith("read a file")
    assert selection["message"].endswith("slowly")


async def test_what_is_older_than_its_time_is_forgotten(world: World) -> None:
    await want_selections(world.container, world.user.id)
    await world.user.discover("old one: read a file")
    [old] = await world.kept()
    aged = "UPDATE selections SET at = now() - interval '31 days' WHERE user_id = %s AND id = %s"
    async with holding(world.container, aged, world.user.id, old["discovery_id"]) as owner:
        await owner.commit()
    await world.user.discover("new one: read a file")
    assert len(await world.kept()) == 2
    [statement] = selection_log.expired_rows(timedelta(days=30))
    async with world.container.database.system_transaction() as session:
        await session.execute(statement)
    assert [each["message"] for each in await world.kept()] == ["new one: read a file"]


async def test_an_export_labels_by_what_was_called_where_somebody_told_us(world: World) -> None:
    await want_selections(world.container, world.user.id)

    async def tell(discovery: Json, name: str, outcome: str) -> None:
        key = (await world.user.tools())[name]["id"]
        body = {"discovery_id": discovery["discovery_id"], "tool_key": key, "outcome": outcome}
        assert (await world.user.http.post("/feedback", json=body)).status_code == 204

    everything_passes: Json = {"similarity_threshold": 0}
    await world.user.discover("read, untold", **everything_passes)
    called = await world.user.discover("read, then mail", **everything_passes)
    await tell(called, "send_mail", "succeeded")
    unfit = await world.user.discover("read, but not that", **everything_passes)
    await tell(unfit, "read_file", "irrelevant")
    by_message = {line["message"]: line for line in await world.exported()}
    assert [*by_message] == ["read, untold", "read, then mail", "read, but not that"]
    assert by_message["read, untold"]["tools"][0] == "files.read_file"
    assert by_message["read, untold"]["meta"] == {"by": "search"}
    assert by_message["read, then mail"]["tools"] == ["files.send_mail"]
    assert by_message["read, then mail"]["meta"] == {"by": "use"}
    assert by_message["read, but not that"]["tools"] == ["files.send_mail"]


async def test_an_export_has_no_tools_where_none_was_found_and_nothing_of_what_nobody_knows(
    world: World, container: Container
) -> None:
    await want_selections(container, world.user.id)
    await world.user.discover("xyzzy plugh", strategy="bm25")
    async with client_of(container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        settings = {"selection_log": True}
        await admin.patch(f"/users/{world.user.id}", json={"discovery_enabled": False, "settings": settings})
    assert (await world.user.discover("all of them"))["degraded_reason"] == "disabled"
    assert [(line["message"], line["tools"]) for line in await world.exported()] == [("xyzzy plugh", [])]
    assert [each["degraded_reason"] for each in await world.kept()] == ["disabled", None]


async def test_no_more_is_kept_than_there_is_room_for(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_log, "MOST_KEPT", 3)
    log = SelectionLog(container.database)
    for number in range(5):
        log.note("nobody", Selection(str(number), datetime.now(UTC), "x", [], "hybrid", None, no_match=False))
    assert len(log._waiting) == 3
    await log.write()  # of a user who has gone: nothing
    assert log._waiting == []
    assert await rows(container, "SELECT FROM selections WHERE user_id = 'nobody'") == []
