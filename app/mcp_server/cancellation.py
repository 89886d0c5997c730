"""Running calls, each in a task of its own that can be cancelled by the id of the call."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CallId = tuple[str, str, str, str | int | None]
"""The actor (the API key), the user, the session of the call, and the client's request id."""


class CallCancelled(Exception):
    """The client has cancelled the call."""


class RunningCalls:
    """The SDK runs on anyio, which cancels a task again and again until it ends and so interrupts its cleanup. A task
    here is cancelled once and can finish its cleanup."""

    def __init__(self) -> None:
        self._tasks: dict[CallId, asyncio.Task[Any]] = {}

    async def run(self, call_id: CallId, call: Coroutine[Any, Any, T]) -> T:
        """Run the call and return its result. Cancelling this function cancels the call.

        Raise `CallCancelled` if `cancel` was called.
        """
        task = asyncio.create_task(call)
        self._tasks[call_id] = task
        task.add_done_callback(lambda done: self._remove(call_id, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise CallCancelled from None
            task.cancel()
            raise

    def cancel(self, call_id: CallId) -> None:
        """Cancel the call if it runs in this process. Other replicas are not notified."""
        if call_id in self._tasks:
            self._tasks[call_id].cancel()

    def _remove(self, call_id: CallId, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(call_id) is task:
            del self._tasks[call_id]
        _ = task.cancelled() or task.exception()  # retrieved, because nobody may be waiting any more
