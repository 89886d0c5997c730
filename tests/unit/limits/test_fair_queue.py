"""Fair scheduling: many requests of one user do not delay another user."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from app.limits.fair_queue import ACTIVE_S, MAX_SHARED, MAX_SOLO, FairQueue, FairScheduler
from app.observability.metrics import Metrics

pytestmark = pytest.mark.no_retry


@dataclass
class Workload:
    """Requests that hold their slots until the test ends them."""

    now: float = 0.0
    running: list[str] = field(default_factory=list)
    requests: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    ends: dict[str, asyncio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.scheduler = FairScheduler(self.metrics, lambda: self.now)

    async def start(self, *names: str) -> None:
        """Requests are named by their user and a number: `alice 1`."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.requests[name] = asyncio.create_task(self._hold_slot(name))
        await let_tasks_run()

    async def finish(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
        await let_tasks_run()

    async def cancel(self, name: str) -> None:
        self.requests[name].cancel()
        await let_tasks_run()

    async def _hold_slot(self, name: str) -> None:
        async with self.scheduler.slot(name.split(maxsplit=1)[0]):
            self.running.append(name)
            try:
                await self.ends[name].wait()
            finally:
                self.running.remove(name)


async def let_tasks_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def request_names(user: str, count: int) -> list[str]:
    return [f"{user} {number}" for number in range(count)]


@pytest.fixture
async def workload() -> AsyncIterator[Workload]:
    opened = Workload()
    yield opened
    await opened.finish(*opened.requests)
    await asyncio.gather(*opened.requests.values(), return_exceptions=True)


async def test_a_single_user_has_several_slots_in_order(workload: Workload) -> None:
    names = request_names("alice", MAX_SOLO + 2)
    await workload.start(*names)
    assert workload.running == names[:MAX_SOLO]
    await workload.finish(names[1])
    assert workload.running == [names[0], *names[2 : MAX_SOLO + 1]]
    await workload.finish(*names)
    assert workload.running == []


async def test_each_of_several_users_has_one_slot(workload: Workload) -> None:
    await workload.start("bob 0")
    alice, carol = request_names("alice", 3), request_names("carol", 2)
    await workload.start(*alice, *carol)
    assert workload.running == ["bob 0", "alice 0", "carol 0"]
    await workload.finish("alice 0")
    assert workload.running == ["bob 0", "carol 0", "alice 1"]
    assert MAX_SHARED == 1


async def test_a_new_user_gets_a_slot_at_once_however_many_requests_wait(workload: Workload) -> None:
    await workload.start(*request_names("alice", 100))
    await workload.start("bob 0")
    assert "bob 0" in workload.running
    assert len(workload.running) == MAX_SOLO + 1
    assert b"toolscout_requests_waiting 96.0" in workload.metrics.render()


async def test_the_slots_of_a_formerly_single_user_shrink_as_requests_finish(workload: Workload) -> None:
    await workload.start(*request_names("alice", 10))
    await workload.start("bob 0")
    await workload.finish(*request_names("alice", MAX_SOLO - 1))
    assert workload.running == [f"alice {MAX_SOLO - 1}", "bob 0"]
    await workload.finish(f"alice {MAX_SOLO - 1}")
    assert workload.running == ["bob 0", f"alice {MAX_SOLO}"]


async def test_a_user_counts_as_single_again_after_a_while(workload: Workload) -> None:
    await workload.start("bob 0")
    await workload.finish("bob 0")
    await workload.start(*request_names("alice", 10))
    assert workload.running == ["alice 0"]
    workload.now += ACTIVE_S
    await workload.finish("alice 0")
    assert workload.running == [f"alice {number}" for number in range(1, 1 + MAX_SOLO)]


async def test_a_cancelled_request_blocks_nothing(workload: Workload) -> None:
    await workload.start("bob 0", *request_names("alice", 4))
    await workload.cancel("alice 1")
    await workload.cancel("alice 0")
    assert workload.running == ["bob 0", "alice 2"]
    await workload.finish(*workload.requests)
    assert not workload.scheduler._queues


async def test_a_request_cancelled_as_it_gets_its_slot_passes_the_slot_on(workload: Workload) -> None:
    await workload.start("bob 0")
    async with workload.scheduler.slot("alice"):
        await workload.start("alice 1", "alice 2")
    workload.requests["alice 1"].cancel()  # has its slot, and has not run yet
    await let_tasks_run()
    assert workload.running == ["bob 0", "alice 2"]


def make_queue(*names: str) -> FairQueue[str]:
    """Items are named by their user, a number and optionally a size: `alice 1`, `bob 1 30`."""
    queue: FairQueue[str] = FairQueue()
    add(queue, *names)
    return queue


def add(queue: FairQueue[str], *names: str) -> None:
    for name in names:
        queue.add(name.split()[0], name)


def take(queue: FairQueue[str], capacity: int = 1) -> list[str]:
    return queue.take(capacity, lambda name: int((name.split()[2:] or ["1"])[0]))


def test_a_batch_has_an_item_of_each_user_before_the_second_of_any() -> None:
    queue = make_queue("alice 1", "alice 2", "alice 3", "bob 1", "carol 1", "carol 2")
    assert take(queue, 5) == ["alice 1", "bob 1", "carol 1", "alice 2", "carol 2"]
    assert take(queue, 5) == ["alice 3"]
    assert take(queue, 5) == []
    assert len(queue) == 0


def test_users_take_turns_in_batches_of_one() -> None:
    queue = make_queue("alice 1", "alice 2", "alice 3", "bob 1", "bob 2")
    assert [take(queue)[0] for _ in range(5)] == ["alice 1", "bob 1", "alice 2", "bob 2", "alice 3"]


def test_a_new_user_waits_for_no_further_batch_of_a_user_with_many_items() -> None:
    queue = make_queue(*request_names("alice", 100))
    take(queue)
    add(queue, "bob 1")
    assert take(queue) == ["bob 1"]


def test_a_new_user_comes_behind_users_who_wait_longer() -> None:
    queue = make_queue("alice 1", "bob 1", "carol 1")
    take(queue)
    add(queue, "dora 1")
    assert [take(queue)[0] for _ in range(3)] == ["bob 1", "carol 1", "dora 1"]


def test_an_item_that_does_not_fit_comes_first_in_the_next_batch() -> None:
    queue = make_queue("alice 1 10", "bob 1 90", "carol 1 10")
    assert take(queue, 64) == ["alice 1 10", "carol 1 10"]
    add(queue, "alice 2 10", "dora 1 10")
    assert take(queue, 64) == ["bob 1 90"]
    assert take(queue, 64) == ["dora 1 10", "alice 2 10"]


def test_users_who_come_back_after_each_batch_do_not_starve_one_with_a_large_item() -> None:
    queue = make_queue("bob 1 90")
    taken = []
    for number in range(3):
        add(queue, f"alice {number} 10", f"carol {number} 10")
        taken += take(queue, 64)
    assert "bob 1 90" in taken


def test_the_queue_forgets_users_without_items() -> None:
    queue = make_queue(*(f"user-{number} 1" for number in range(50)))
    while take(queue, 8):
        pass
    assert not queue._users
