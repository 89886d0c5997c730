"""Threads that work off a fair queue: in batches, or function by function."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from app.limits.fair_queue import FairQueue

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Job(Generic[Item, Result]):
    item: Item
    future: "Future[Result]" = field(default_factory=Future)


class FairThread(Generic[Item, Result]):
    """Takes all that waits, up to the capacity, whenever it is idle: a single item does not wait for company."""

    def __init__(
        self,
        name: str,
        process: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        capacity: int = 1,
        measure: Callable[[Item], int] = lambda _item: 1,
        niceness: int = 0,
    ) -> None:
        """`process` gets a batch and returns one result for each item.

        `capacity` is the largest sum of the items' measured sizes in a batch; an item that is larger has a batch of
        its own. `niceness` lowers the thread's priority, where the system has priorities of threads (Linux).
        """
        self._process = process
        self._capacity = capacity
        self._measure = measure
        self._niceness = niceness
        self._waiting: FairQueue[_Job[Item, Result]] = FairQueue()
        self._changed = threading.Condition()
        self._closed: Exception | None = None
        # A daemon, so that a process which is told to end does not wait for a call that hangs.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def submit(self, user_id: str, items: Sequence[Item]) -> "list[Future[Result]]":
        """Queue the items of a user. An item whose future is cancelled before its batch begins is not processed."""
        jobs: list[_Job[Item, Result]] = [_Job(item) for item in items]
        with self._changed:
            if self._closed is not None:
                raise self._closed
            if jobs and self._thread.ident is None:
                self._thread.start()
            for job in jobs:
                self._waiting.add(user_id, job)
            self._changed.notify()
        return [job.future for job in jobs]

    def close(self, error: Exception) -> None:
        """End after the current batch. What waits, and what is submitted later, fails with the error."""
        with self._changed:
            self._closed = error
            self._changed.notify()

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        if self._niceness and sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while batch := self._take():
            self._process_batch([job for job in batch if job.future.set_running_or_notify_cancel()])
            del batch  # the thread must not keep it while it waits for the next one
        for job in self._waiting.take(sys.maxsize, lambda _job: 0):
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(self._closed)

    def _take(self) -> list[_Job[Item, Result]]:
        """Wait for a batch; return nothing once the thread is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed is not None)
            if self._closed is not None:
                return []
            return self._waiting.take(self._capacity, self._measure_job)

    def _measure_job(self, job: _Job[Item, Result]) -> int:
        return 0 if job.future.cancelled() else self._measure(job.item)

    def _process_batch(self, jobs: Sequence[_Job[Item, Result]]) -> None:
        """Process the items of a failed batch one by one: they may belong to different users."""
        if not jobs:
            return
        try:
            results = self._process([job.item for job in jobs])
        except Exception as error:  # noqa: BLE001 boundary: the caller that waits for the result gets it
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._process_batch([job])
            return
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)


class FairExecutor:
    """Runs functions one after another on one thread, in turns of the users.

    For Python code that takes long: each further thread that runs some would make the event loop wait for one more.
    """

    def __init__(self, name: str, niceness: int = 0) -> None:
        self._thread: FairThread[Callable[[], Any], Any] = FairThread(name, _call_each, niceness=niceness)

    async def run(self, user_id: str, function: Callable[[], Result]) -> Result:
        result: Result = await asyncio.wrap_future(self.submit(user_id, function))
        return result

    def submit(self, user_id: str, function: Callable[[], Result]) -> "Future[Result]":
        [future] = self._thread.submit(user_id, [function])
        return future

    def close(self, error: Exception) -> None:
        """End after the current function, without waiting for it. What waits fails with the error."""
        self._thread.close(error)


def _call_each(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    return [function() for function in functions]
