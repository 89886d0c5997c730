"""A call under way is ended once, by whoever waits for it or by its name, and then ends as it sees fit."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from app.mcp_server.cancellation import EndedByName, Name, RunningCalls

NAME: Name = ("user:key", "alice", "session", 7)
WAIT_S = 5


class Call:
    """Runs until it is told to answer; when it is ended it first has something to do that takes a few turns."""

    def __init__(self, answer: object = "done") -> None:
        self.begun, self.may_answer, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.answer = answer
        self.told = 0
        self.farewells = 0

    async def __call__(self) -> object:
        self.begun.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.told += 1
            await self._farewell()
            raise
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def _farewell(self) -> None:
        try:
            for _ in range(10):
                await asyncio.sleep(0)
            self.farewells += 1
        except asyncio.CancelledError:
            self.told += 1
            raise
        finally:
            self.ended.set()

    @property
    def ended_well(self) -> bool:
        return (self.told, self.farewells) == (1, 1)


async def begin(calls: RunningCalls, call: Call, name: Name = NAME) -> asyncio.Task[Any]:
    waiting = asyncio.create_task(calls.run(name, call()))
    await call.begun.wait()
    return waiting


async def test_a_call_answers_whoever_waits_for_it() -> None:
    calls, call = RunningCalls(), Call({"a": 1})
    waiting = await begin(calls, call)
    call.may_answer.set()
    assert await waiting == {"a": 1}


async def test_a_call_that_fails_fails_for_whoever_waits_for_it() -> None:
    calls, call = RunningCalls(), Call(ValueError("no"))
    waiting = await begin(calls, call)
    call.may_answer.set()
    with pytest.raises(ValueError, match="no"):
        await waiting


async def test_a_call_knows_what_its_request_knows() -> None:
    request_id: ContextVar[str] = ContextVar("request_id")
    request_id.set("r1")

    async def look() -> str:
        return request_id.get()

    assert await RunningCalls().run(NAME, look()) == "r1"


async def test_a_call_is_ended_by_its_name() -> None:
    calls, call = RunningCalls(), Call()
    waiting = await begin(calls, call)
    calls.cancel(NAME)
    with pytest.raises(EndedByName):
        await waiting
    assert call.ended_well


OTHERS: list[Name] = [
    ("user:another", "alice", "session", 7),
    ("user:key", "bob", "session", 7),
    ("user:key", "alice", "another", 7),
    ("user:key", "alice", "session", 8),
    ("user:key", "alice", "session", "7"),
]


@pytest.mark.parametrize("other", OTHERS, ids=["key", "user", "session", "number", "text"])
async def test_another_name_ends_nothing(other: Name) -> None:
    calls, call = RunningCalls(), Call()
    waiting = await begin(calls, call)
    calls.cancel(other)
    call.may_answer.set()
    assert await waiting == "done"
    assert call.told == 0


async def test_a_call_that_is_over_cannot_be_ended_any_more() -> None:
    calls, call = RunningCalls(), Call()
    waiting = await begin(calls, call)
    call.may_answer.set()
    await waiting
    calls.cancel(NAME)
    again = await begin(calls, later := Call("again"))
    later.may_answer.set()
    assert await again == "again"


async def ended_by_asyncio(calls: RunningCalls, call: Call) -> None:
    waiting = await begin(calls, call)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def ended_by_anyio(calls: RunningCalls, call: Call) -> None:
    """Which does not take a cleanup for an answer."""
    async with anyio.create_task_group() as group:
        group.start_soon(calls.run, NAME, call())
        await call.begun.wait()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("end", [ended_by_asyncio, ended_by_anyio], ids=["asyncio", "anyio"])
async def test_whoever_waits_no_longer_ends_the_call_which_ends_at_its_own_pace(
    end: Callable[[RunningCalls, Call], Awaitable[None]],
) -> None:
    call = Call()
    async with asyncio.timeout(WAIT_S):
        await end(RunningCalls(), call)
        await call.ended.wait()
    assert call.ended_well


async def test_of_two_calls_with_one_name_the_later_is_meant() -> None:
    calls, earlier, later = RunningCalls(), Call("earlier"), Call("later")
    first, second = await begin(calls, earlier), await begin(calls, later)
    calls.cancel(NAME)
    with pytest.raises(EndedByName):
        await second
    earlier.may_answer.set()
    assert await first == "earlier"
    assert later.ended_well


async def test_a_call_that_is_over_leaves_the_name_to_the_next() -> None:
    calls, earlier, later = RunningCalls(), Call("earlier"), Call("later")
    first, second = await begin(calls, earlier), await begin(calls, later)
    earlier.may_answer.set()
    assert await first == "earlier"
    calls.cancel(NAME)
    with pytest.raises(EndedByName):
        await second
    assert later.ended_well


async def test_what_fails_when_nobody_waits_any_more_disturbs_nobody() -> None:
    complaints: list[dict[str, Any]] = []
    ended = asyncio.Event()

    async def fail_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            raise ValueError("too late")

    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    gc.collect()  # what tests before have left behind is no complaint of this one
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    try:
        waiting = asyncio.create_task(RunningCalls().run(NAME, fail_at_the_end()))
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
    assert complaints == []
