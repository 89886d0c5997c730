"""Calls under way, each in a task of its own that can be ended by name."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

Name = tuple[str, str, str, str | int | None]
"""Whose key it was, for which user, the session that the call came in, and the client's number for it."""


class EndedByName(Exception):
    """Somebody has taken the call back."""


class RunningCalls:
    """The SDK runs on anyio, which cancels a task again and again until it gives in: what a call does to end well would
    be broken off. Here it is told once, and may end at its own pace."""

    def __init__(self) -> None:
        self._tasks: dict[Name, asyncio.Task[Any]] = {}

    async def run(self, name: Name, call: Coroutine[Any, Any, T]) -> T:
        """Whoever waits no longer ends the call. Raises `EndedByName` where somebody else did."""
        task = asyncio.create_task(call)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._forget(name, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise EndedByName from None
            task.cancel()
            raise

    def cancel(self, name: Name) -> None:
        """In this process: whoever else may have it is not told."""
        if name in self._tasks:
            self._tasks[name].cancel()

    def _forget(self, name: Name, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        _ = task.cancelled() or task.exception()  # seen, though nobody may wait any more
