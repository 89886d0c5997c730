"""Stop waiting for a server when the service stops, while the caller can still be answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.errors import ToolscoutError


@asynccontextmanager
async def fail_on_shutdown(shutdown: asyncio.Event, failure: ToolscoutError) -> AsyncIterator[None]:
    """Raise the failure when the event is set."""
    try:
        async with asyncio.timeout(None) as deadline:
            watching = asyncio.create_task(_expire_on(shutdown, deadline))
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise failure from error


async def _expire_on(event: asyncio.Event, deadline: asyncio.Timeout) -> None:
    await event.wait()
    deadline.reschedule(asyncio.get_running_loop().time())
