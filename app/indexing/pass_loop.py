"""Runs passes in the background: soon after a notification, and at intervals without one.

A pass looks for work that is stored, so that nothing is lost if it fails or is cancelled.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from app.errors import QueryInterrupted, Unavailable

logger = logging.getLogger("toolscout.indexing")


class PassLoop:
    def __init__(
        self,
        name: str,
        run_pass: Callable[[], Awaitable[object]],
        *,
        interval_s: float,
        debounce_s: float = 0.0,
        pause_factor: float = 0.0,
    ) -> None:
        """`name` is for the log. A pass begins `debounce_s` after a notification, so that several lead to one pass, and
        is followed by a pause that is `pause_factor` times as long as the pass."""
        self._name = name
        self._run_pass = run_pass
        self._interval_s = interval_s
        self._debounce_s = debounce_s
        self._pause_factor = pause_factor
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def notify(self) -> None:
        """Run a pass soon."""
        self._has_work.set()

    async def _loop(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._has_work.wait()
            await asyncio.sleep(self._debounce_s)
            self._has_work.clear()  # before the pass looks for work, so that a change meanwhile leads to another one
            started = time.monotonic()
            try:
                await self._run_pass()
            except (Unavailable, QueryInterrupted):
                logger.warning("background pass failed, trying again later", extra={"task": self._name})
            except Exception:  # the task's boundary: an error must not end the loop
                logger.exception("unexpected error in background pass", extra={"task": self._name})
            await asyncio.sleep(self._pause_factor * (time.monotonic() - started))
