"""Progress reports of a running call, on their way from the MCP server to a caller that watches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from app.text.strict_json import Json

_MAX_QUEUED = 100
_MAX_MESSAGE = 1_000


class ProgressReports:
    """`started` is set when all checks have passed and the request is about to be sent to the server."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self._queue: asyncio.Queue[Json] = asyncio.Queue(_MAX_QUEUED)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Queue a report. Reports beyond the size of the queue are dropped, so that a busy server fills no memory."""
        with suppress(asyncio.QueueFull):
            shortened = None if message is None else message[:_MAX_MESSAGE]
            self._queue.put_nowait({"progress": progress, "total": total, "message": shortened})

    async def stream(self, call: asyncio.Task[Any], heartbeat_s: float | None = None) -> AsyncIterator[Json | None]:
        """Yield each report until the call ends, and None after every `heartbeat_s` seconds without a report."""
        report: asyncio.Task[Json] | None = None
        try:
            while True:
                report = report or asyncio.create_task(self._queue.get())
                await asyncio.wait({call, report}, timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if report.done():
                    yield report.result()
                    report = None
                elif call.done():
                    return
                else:
                    yield None
        finally:
            if report is not None:
                report.cancel()
