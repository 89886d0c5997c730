"""Tests of running calls: a call is cancelled once, by its caller or by its id, and can finish its cleanup."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from app.mcp_server.cancellation import CallCancelled, CallId, RunningCalls

CALL_ID: CallId = ("user:key", "alice", "session", 7)
WAIT_S = 5


class Call:
    """Runs until it may answer. When it is cancelled, its cleanup takes a few iterations of the event loop."""

    def __init__(self, answer: object = "done") -> None:
        self.started, self.may_answer, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.answer = answer
        self.cancellations = 0
        self.cleanups = 0

    async def __call__(self) -> object:
        self.started.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancellations += 1
            await self._clean_up()
            raise
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def _clean_up(self) -> None:
        try:
            for _ in range(10):
                await asyncio.sleep(0)
            self.cleanups += 1
        except asyncio.CancelledError:
            self.cancellations += 1
            raise
        finally:
            self.ended.set()

    @property
    def cancelled_cleanly(self) -> bool:
        return (self.cancellations, self.cleanups) == (1, 1)


async def start_call(calls: RunningCalls, call: Call, name: CallId = CALL_ID) -> asyncio.Task[Any]:
    waiting = asyncio.create_task(calls.run(name, call()))
    await call.started.wait()
    return waiting


async def test_the_result_of_a_call_is_returned() -> None:
    calls, call = RunningCalls(), Call({"a": 1})
    waiting = await start_call(calls, call)
    call.may_answer.set()
    assert await waiting == {"a": 1}


async def test_the_exception_of_a_call_is_raised() -> None:
    calls, call = RunningCalls(), Call(ValueError("no"))
    waiting = await start_call(calls, call)
    call.may_answer.set()
    with pytest.raises(ValueError, match="no"):
        await waiting


async def test_a_call_sees_the_context_variables_of_its_request() -> None:
    request_id: ContextVar[str] = ContextVar("request_id")
    request_id.set("r1")

    async def read_request_id() -> str:
        return request_id.get()

    assert await RunningCalls().run(CALL_ID, read_request_id()) == "r1"


async def test_a_call_is_cancelled_by_its_id() -> None:
    calls, call = RunningCalls(), Call()
    waiting = await start_call(calls, call)
    calls.cancel(CALL_ID)
    with pytest.raises(CallCancelled):
        await waiting
    assert call.cancelled_cleanly


OTHER_IDS: list[CallId] = [
    ("user:another", "alice", "session", 7),
    ("user:key", "bob", "session", 7),
    ("user:key", "alice", "another", 7),
    ("user:key", "alice", "session", 8),
    ("user:key", "alice", "session", "7"),
]


@pytest.mark.parametrize("other", OTHER_IDS, ids=["actor", "user", "session", "request id", "request id as text"])
async def test_another_id_does_not_cancel_the_call(other: CallId) -> None:
    calls, call = RunningCalls(), Call()
    waiting = await start_call(calls, call)
    calls.cancel(other)
    call.may_answer.set()
    assert await waiting == "done"
    assert call.cancellations == 0


async def test_cancelling_a_finished_call_does_nothing() -> None:
    calls, call = RunningCalls(), Call()
    waiting = await start_call(calls, call)
    call.may_answer.set()
    await waiting
    calls.cancel(CALL_ID)
    again = await start_call(calls, later := Call("again"))
    later.may_answer.set()
    assert await again == "again"


async def cancel_with_asyncio(calls: RunningCalls, call: Call) -> None:
    waiting = await start_call(calls, call)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def cancel_with_anyio(calls: RunningCalls, call: Call) -> None:
    """anyio cancels a task again while it cleans up."""
    async with anyio.create_task_group() as group:
        group.start_soon(calls.run, CALL_ID, call())
        await call.started.wait()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("cancel", [cancel_with_asyncio, cancel_with_anyio], ids=["asyncio", "anyio"])
async def test_cancelling_the_caller_cancels_the_call_and_lets_it_clean_up(
    cancel: Callable[[RunningCalls, Call], Awaitable[None]],
) -> None:
    call = Call()
    async with asyncio.timeout(WAIT_S):
        await cancel(RunningCalls(), call)
        await call.ended.wait()
    assert call.cancelled_cleanly


async def test_the_later_of_two_calls_with_the_same_id_is_cancelled() -> None:
    calls, earlier, later = RunningCalls(), Call("earlier"), Call("later")
    first, second = await start_call(calls, earlier), await start_call(calls, later)
    calls.cancel(CALL_ID)
    with pytest.raises(CallCancelled):
        await second
    earlier.may_answer.set()
    assert await first == "earlier"
    assert later.cancelled_cleanly


async def test_a_finished_call_does_not_remove_a_later_call_with_the_same_id() -> None:
    calls, earlier, later = RunningCalls(), Call("earlier"), Call("later")
    first, second = await start_call(calls, earlier), await start_call(calls, later)
    earlier.may_answer.set()
    assert await first == "earlier"
    calls.cancel(CALL_ID)
    with pytest.raises(CallCancelled):
        await second
    assert later.cancelled_cleanly


async def test_an_exception_after_the_caller_has_gone_is_not_reported() -> None:
    errors: list[dict[str, Any]] = []
    ended = asyncio.Event()

    async def fail_in_cleanup() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            raise ValueError("too late")

    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    gc.collect()  # errors that earlier tests left behind do not count
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    try:
        waiting = asyncio.create_task(RunningCalls().run(CALL_ID, fail_in_cleanup()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(WAIT_S):
            await ended.wait()
        await asyncio.sleep(0)
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert errors == []
