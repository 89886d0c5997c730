"""Writes down in the background, every second and once more at the end, what others gather in memory."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

logger = logging.getLogger("toolscout.usage")

_WRITE_EVERY_S = 1.0
_LAST_WRITE_S = 3.0


@dataclass
class PeriodicFlusher:
    what: str
    turn: Callable[[], Awaitable[object]]
    last: Callable[[], Awaitable[object]]
    waiting: Callable[[], Mapping[str, int]]
    """How much is not written yet, for the log."""
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        self._task = asyncio.create_task(self._write_for_ever())

    async def stop(self) -> None:
        """Writes what there is, unless the database takes too long for a service that is to end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(_LAST_WRITE_S):
                await self.last()
        except TimeoutError:
            logger.warning("%s could not be written down in time", self.what, extra=self.waiting())

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_EVERY_S)
            await self.turn()
