"""Flush in-memory records to the database in the background: every second, and once more at shutdown."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

logger = logging.getLogger("toolscout.usage")

_FLUSH_EVERY_S = 1.0
_FINAL_FLUSH_S = 3.0


@dataclass
class PeriodicFlusher:
    name: str
    """What is flushed, for the log."""
    flush: Callable[[], Awaitable[object]]
    final_flush: Callable[[], Awaitable[object]]
    pending: Callable[[], Mapping[str, int]]
    """Returns how much is not written yet, for the log."""
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """Stop, and flush once more unless the database takes too long: a slow one must not delay the shutdown."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(_FINAL_FLUSH_S):
                await self.final_flush()
        except TimeoutError:
            logger.warning("final flush of %s timed out", self.name, extra=self.pending())

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_EVERY_S)
            await self.flush()
