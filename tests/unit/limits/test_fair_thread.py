"""Threads that work off a fair queue: in batches, or function by function."""

import asyncio
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial

import pytest

from app.limits.fair_thread import FairExecutor, FairThread

CLOSED = RuntimeError("closed")


class Doubler:
    """Doubles numbers in batches, one step each time the test allows it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.started = threading.Semaphore(0)
        self.may_go_on = threading.Semaphore(0)

    def process(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.started.release()
        assert self.may_go_on.acquire(timeout=10)
        if 13 in numbers:
            raise ValueError("unlucky")
        return [2 * number for number in numbers]


@contextmanager
def open_thread(doubler: Doubler, capacity: int = 4, niceness: int = 0) -> Iterator[FairThread[int, int]]:
    thread = FairThread("doubler", doubler.process, capacity=capacity, niceness=niceness)
    yield thread
    doubler.may_go_on.release(1000)
    thread.close(CLOSED)
    thread.join()


def test_what_arrives_during_a_batch_is_the_next_batch() -> None:
    doubler = Doubler()
    with open_thread(doubler) as thread:
        first = thread.submit("alice", [1])
        doubler.started.acquire()
        later = [*thread.submit("alice", [2, 3]), *thread.submit("bob", [4]), *thread.submit("carol", [5, 6])]
        doubler.may_go_on.release(3)
        assert [future.result(10) for future in first + later] == [2, 4, 6, 8, 10, 12]
    assert doubler.batches == [[1], [4, 5, 2, 6], [3]]  # alice had the last batch


def test_an_item_that_is_cancelled_while_it_waits_is_not_processed() -> None:
    doubler = Doubler()
    with open_thread(doubler) as thread:
        [first] = thread.submit("alice", [1])
        doubler.started.acquire()
        [second, third] = thread.submit("alice", [2, 3])
        assert second.cancel()
        assert not first.cancel()
        doubler.may_go_on.release(2)
        assert (first.result(10), third.result(10)) == (2, 6)
    assert doubler.batches == [[1], [3]]


def test_an_item_that_fails_takes_no_other_item_of_its_batch_along() -> None:
    doubler = Doubler()
    doubler.may_go_on.release(10)
    with open_thread(doubler) as thread:
        futures = thread.submit("alice", [12, 13, 14])
        wait(futures, 10)
        assert isinstance(futures[1].exception(), ValueError)
        assert (futures[0].result(), futures[2].result()) == (24, 28)


def test_closing_ends_the_current_batch_and_fails_what_waits() -> None:
    doubler = Doubler()
    thread = FairThread("doubler", doubler.process, capacity=1)
    running, waiting = thread.submit("alice", [1, 2])
    doubler.started.acquire()
    thread.close(CLOSED)
    doubler.may_go_on.release()
    assert running.result(10) == 2
    assert waiting.exception(10) is CLOSED
    thread.join()
    with pytest.raises(RuntimeError, match="closed"):
        thread.submit("alice", [3])


def test_a_thread_that_was_never_used_can_be_closed() -> None:
    thread = FairThread("doubler", Doubler().process)
    thread.close(CLOSED)
    thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no priorities of threads")
@pytest.mark.parametrize("niceness", [0, 7])
def test_niceness_lowers_the_priority_of_the_thread_alone(niceness: int) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)

    def read_priorities(items: Sequence[int]) -> list[int]:
        return [os.getpriority(os.PRIO_PROCESS, threading.get_native_id())] * len(items)

    thread = FairThread("priority", read_priorities, niceness=niceness)
    [future] = thread.submit("alice", [1])
    assert future.result(10) == max(before, niceness)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    thread.close(CLOSED)
    thread.join()


async def test_an_executor_runs_one_function_at_a_time_in_turns_of_the_users() -> None:
    executor, order, may_go_on = FairExecutor("functions"), [], threading.Event()

    def note(name: str) -> str:
        may_go_on.wait(10)
        order.append(name)
        return name

    names = ["alice 1", "alice 2", "alice 3", "bob 1"]
    running = [asyncio.create_task(executor.run(name.split()[0], partial(note, name))) for name in names]
    await asyncio.sleep(0)
    may_go_on.set()
    assert await asyncio.gather(*running) == names
    assert order.index("bob 1") <= 1
    executor.close(CLOSED)


async def test_an_executor_passes_errors_on() -> None:
    executor = FairExecutor("functions")
    with pytest.raises(ZeroDivisionError):
        await executor.run("alice", lambda: 1 // 0)
    assert await executor.run("alice", lambda: 1) == 1
    executor.close(CLOSED)
