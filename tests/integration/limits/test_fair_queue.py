"""Fair scheduling: many requests of one user do not delay another user."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from app.auth.authentication import Authenticator
from app.auth.permissions import Caller
from tests.support.clients import TestUser, new_user
from tests.support.factories import OpenService, tool

pytestmark = pytest.mark.no_retry


async def test_a_crowd_of_one_users_searches_keeps_another_waiting_for_one_of_them(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as greedy, new_user(service) as other:
        for user in (greedy, other):
            await user.push(await user.add_server(), [tool("read_file", "Reads a file.")])
            await user.discover("read a file")
        crowd = [asyncio.create_task(greedy.discover(f"read the file {number}")) for number in range(40)]
        await asyncio.sleep(0)
        found = await other.discover("read my file")
        answered = sum(each.done() for each in crowd)
        assert found["tools"][0]["tool"]["name"] == "read_file"
        assert answered < len(crowd) / 2
        assert {each["degraded"] for each in await asyncio.gather(*crowd)} == {False}


async def test_requests_of_one_user_look_up_their_key_one_at_a_time_while_another_user_is_active(
    open_service: OpenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search in memory is done at once when its key is known, so that the look-up is where requests must wait."""
    running: Counter[bytes] = Counter()
    most: Counter[bytes] = Counter()
    look_up = Authenticator.authenticate_digest

    async def counted_look_up(self: Authenticator, digest: bytes, user_id: str | None) -> Caller:
        running[digest] += 1
        most[digest] = max(most[digest], running[digest])
        try:
            return await look_up(self, digest, user_id)
        finally:
            running[digest] -= 1

    async with open_service() as service, new_user(service) as greedy, new_user(service) as other:
        for user in (greedy, other):
            await user.push(await user.add_server(), [tool("read_file", "Reads a file.")])
            await user.discover("read a file")
        monkeypatch.setattr(Authenticator, "authenticate_digest", counted_look_up)
        answers = await asyncio.gather(*(user.discover("read a file") for user in [other, *[greedy] * 20]))
    assert {each["tools"][0]["tool"]["name"] for each in answers} == {"read_file"}
    assert [*most.values()] == [1, 1]


async def test_one_users_long_questions_neither_degrade_nor_delay_another_user(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as greedy, new_user(service) as other:
        for user in (greedy, other):
            await user.push(await user.add_server(), [tool("read_file", "Reads a file.")])
            await user.discover("read a file")
        flood = [asyncio.create_task(greedy.discover(make_long_question(number))) for number in range(40)]
        await asyncio.sleep(0)
        found = [await other.discover(f"read my file {number}") for number in range(5)]
        answered = sum(each.done() for each in flood)
        assert [each["degraded"] for each in found] == [False] * 5
        assert all(each["embedding_generated"] for each in found)
        assert answered < len(flood)
        reasons = {each["degraded_reason"] for each in await asyncio.gather(*flood)}
        assert reasons <= {None, "embedder_busy"}
        metrics = (await other.http.get("/metrics")).text
        assert "toolscout_embedder_breaker_open 0.0" in metrics
        assert not (await other.discover("now read another file"))["degraded"]


async def test_a_search_over_many_tools_of_one_user_does_not_hold_up_anothers(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as greedy, new_user(service) as other:
        tools = [make_inline_tool(number) for number in range(400)]
        flood = [asyncio.create_task(search_inline(greedy, tools[start::4])) for start in range(4)]
        await asyncio.sleep(0)
        found = await search_inline(other, [make_inline_tool(1_000 + number) for number in range(4)])
        assert not any(each.done() for each in flood)
        assert (found["pending"], found["degraded"]) == (0, False)
        assert {each["pending"] for each in await asyncio.gather(*flood)} == {0}


def make_long_question(number: int) -> str:
    return f"read file number {number}, " + "then tell me in all detail what is in it, " * 60


def make_inline_tool(number: int) -> dict[str, Any]:
    description = f"Reads the file number {number}. " + "It returns every line of it, one after another. " * 8
    return {"toolKey": f"{number}", "toolName": f"read_{number}", "serverName": "files", "description": description}


async def search_inline(user: TestUser, tools: list[dict[str, Any]]) -> dict[str, Any]:
    answer = await user.http.post("/catalog/search", json={"query": ["read a file"], "tools": tools})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
