"""However much one user sends at once, another is not kept waiting for it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from app.limits.fair_queue import ACTIVE_S, MAX_SHARED, MAX_SOLO, FairScheduler
from app.observability.metrics import Metrics
from tests.conftest import OpenService, new_user, tool


@dataclass
class Place:
    """Where requests come to and stay until they are told to go."""

    now: float = 0.0
    at_work: list[str] = field(default_factory=list)
    requests: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    shutdown: dict[str, asyncio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.scheduler = FairScheduler(self.metrics, lambda: self.now)

    async def come(self, *names: str) -> None:
        """A user's requests are named after the user: `alice 1`."""
        for name in names:
            self.shutdown[name] = asyncio.Event()
            self.requests[name] = asyncio.create_task(self._stay(name))
        await settled()

    async def go(self, *names: str) -> None:
        for name in names:
            self.shutdown[name].set()
        await settled()

    async def give_up(self, name: str) -> None:
        self.requests[name].cancel()
        await settled()

    async def _stay(self, name: str) -> None:
        async with self.scheduler.slot(name.split(maxsplit=1)[0]):
            self.at_work.append(name)
            try:
                await self.shutdown[name].wait()
            finally:
                self.at_work.remove(name)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def several(user: str, count: int) -> list[str]:
    return [f"{user} {number}" for number in range(count)]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    opened = Place()
    yield opened
    await opened.go(*opened.requests)
    await asyncio.gather(*opened.requests.values(), return_exceptions=True)


async def test_a_user_alone_has_several_at_work_and_the_next_follows_in_order(place: Place) -> None:
    names = several("alice", MAX_SOLO + 2)
    await place.come(*names)
    assert place.at_work == names[:MAX_SOLO]
    await place.go(names[1])
    assert place.at_work == [names[0], *names[2 : MAX_SOLO + 1]]
    await place.go(*names)
    assert place.at_work == []


async def test_in_company_each_has_one_at_work(place: Place) -> None:
    await place.come("bob 0")
    alice, carol = several("alice", 3), several("carol", 2)
    await place.come(*alice, *carol)
    assert place.at_work == ["bob 0", "alice 0", "carol 0"]
    await place.go("alice 0")
    assert place.at_work == ["bob 0", "carol 0", "alice 1"]
    assert MAX_SHARED == 1


async def test_whoever_comes_is_at_work_at_once_however_many_of_another_wait(place: Place) -> None:
    await place.come(*several("alice", 100))
    await place.come("bob 0")
    assert "bob 0" in place.at_work
    assert len(place.at_work) == MAX_SOLO + 1
    assert b"toolscout_requests_waiting 96.0" in place.metrics.render()


async def test_the_one_who_was_alone_makes_room_as_its_work_ends(place: Place) -> None:
    await place.come(*several("alice", 10))
    await place.come("bob 0")
    await place.go(*several("alice", MAX_SOLO - 1))
    assert place.at_work == [f"alice {MAX_SOLO - 1}", "bob 0"]
    await place.go(f"alice {MAX_SOLO - 1}")
    assert place.at_work == ["bob 0", f"alice {MAX_SOLO}"]


async def test_after_a_while_without_the_others_a_user_is_alone_again(place: Place) -> None:
    await place.come("bob 0")
    await place.go("bob 0")
    await place.come(*several("alice", 10))
    assert place.at_work == ["alice 0"]
    place.now += ACTIVE_S
    await place.go("alice 0")
    assert place.at_work == [f"alice {number}" for number in range(1, 1 + MAX_SOLO)]


async def test_one_that_is_given_up_keeps_nobody_waiting(place: Place) -> None:
    await place.come("bob 0", *several("alice", 4))
    await place.give_up("alice 1")
    await place.give_up("alice 0")
    assert place.at_work == ["bob 0", "alice 2"]
    await place.go(*place.requests)
    assert not place.scheduler._queues


async def test_one_that_is_given_up_in_the_moment_in_which_it_is_called_lets_the_next_pass(place: Place) -> None:
    await place.come("bob 0")
    async with place.scheduler.slot("alice"):
        await place.come("alice 1", "alice 2")
    place.requests["alice 1"].cancel()  # called, and has not heard it yet
    await settled()
    assert place.at_work == ["bob 0", "alice 2"]


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
