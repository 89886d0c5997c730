"""Fair scheduling: many requests of one user do not delay another user."""

import asyncio

import pytest

from tests.support.clients import new_user
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
